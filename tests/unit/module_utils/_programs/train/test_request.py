# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of a run, and the resulting request to Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import request
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest

REQUEST = RunRequest(name="nano", command=("python3", "train.py"), folder="/mnt/a b/nano", nodes=3, min_nodes=2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "../x"}, "Invalid run name"),
        ({"name": "-x"}, "Invalid run name"),
        ({"name": ""}, "The run has no name. Set --name, or train_name in Ansible."),
        ({"command": ()}, "no command"),
        ({"nodes": 0, "min_nodes": 0}, "--nodes 0"),
        ({"min_nodes": 4}, "--min-nodes 4 is more than --nodes 3"),
        ({"spare": -1}, "--spare -1"),
        ({"gpus_per_node": -1}, "--gpus-per-node -1"),
        ({"hang_timeout": 0.0}, "more than 0 seconds"),
        ({"hang_timeout": float("nan")}, "more than 0 seconds"),
        ({"grace": float("inf")}, "more than 0 seconds"),
        ({"time": "soon"}, "--time 'soon'"),
        ({"code": "src"}, "Invalid --code 'src'"),
        ({"stage": "data"}, "Invalid --stage 'data'"),
        ({"warn_signal": "SIGKILL"}, "Invalid --warn-signal 'SIGKILL'. Give one of SIGUSR1, SIGTERM,"),
        ({"sbatch": ("--nodes=4",)}, "'--nodes=4' cannot be passed"),
        ({"sbatch": ("-p", "x")}, "'-p' cannot be passed"),
    ],
)
def test_invalid_requests_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        request.validate(REQUEST._replace(**wrong))


@pytest.mark.parametrize("time", ["90", "12:00:00", "2-00", "1-12:30", "UNLIMITED"])
def test_slurm_time_formats_are_accepted(time: str) -> None:
    assert request.validate(REQUEST._replace(time=time)).time == time


@pytest.mark.parametrize(("time", "minutes"), [("90m", 90), ("12h", 720), ("2d", 2880)])
def test_times_with_a_unit_become_minutes(time: str, minutes: int) -> None:
    asked = request.validate(REQUEST._replace(time=time))
    assert f"--time={minutes}" in request.sbatch_arguments(asked)
    with pytest.raises(InputError, match="leaves no time"):
        request.refuse_short_limit(REQUEST._replace(time="1m", grace=60.0))


def test_a_request_survives_serialization() -> None:
    asked = REQUEST._replace(sbatch=("--qos=short",), time="90")
    assert request.parse_request(request.format_request(asked)) == asked
    for text in ("", "[]", "{}", '{"name": 1}'):
        with pytest.raises(InputError, match="cannot be read"):
            request.parse_request(text)


def test_the_job_is_exclusive_and_survives_node_failures() -> None:
    options = request.sbatch_arguments(REQUEST._replace(spare=1, gpus_per_node=8, partition="a", time="90"))
    wanted = {"--nodes=4", "--no-kill", "--requeue", "--exclusive", "--gpus-per-node=8", "--partition=a", "--time=90"}
    assert wanted <= set(options)


def test_the_next_job_accepts_fewer_nodes_and_excludes_failed_ones() -> None:
    options = request.sbatch_arguments(REQUEST, excluded_nodes=["n2"], allow_fewer=True)
    assert {"--nodes=2-3", "--exclude=n2"} <= set(options)
    own = REQUEST._replace(sbatch=("--exclude=n[7-9]",))
    assert request.sbatch_arguments(own, excluded_nodes=["n2"])[-1] == "--exclude=n[7-9],n2"


def test_cpu_options_make_the_job_share_nodes() -> None:
    assert "--exclusive" not in request.sbatch_arguments(REQUEST._replace(sbatch=("--cpus-per-gpu=8",)))


def test_the_dry_run_prints_a_script_for_sbatch() -> None:
    shown = request.format_dry_run(REQUEST, "/usr/local/bin/gpumesh-train")
    assert "    /usr/local/bin/gpumesh-train supervise '/mnt/a b/nano' TOKEN $PPID $killed &\n" in shown


def test_the_batch_job_starts_without_the_shared_volume() -> None:
    """Slurm fails a job whose output it cannot open, and waits for a directory on a hard mount."""
    words = " ".join(request.sbatch_arguments(REQUEST._replace(directory="/mnt/a b")))
    assert "--output=/dev/null" in words and "--chdir=/ " in words and "/mnt" not in words


class Script:
    """The batch script of a run, whose supervisor is a shell script. It notes what it is given, and then does what it
    is told.
    """

    def __init__(self, folder: Path, supervisor: str) -> None:
        self.noted = folder / "noted"
        program = folder / "pro gram"
        program.write_text(f'#!/bin/sh\nnote() {{ echo "$@" >>"{self.noted}"; }}\nnote "$4" "$5"\n{supervisor}\n')
        program.chmod(0o755)
        path = folder / "script"
        path.write_text(request.format_batch_script(REQUEST, str(program), "TOKEN"))
        self.process = subprocess.Popen(["sh", str(path)])

    def wait(self, lines: int) -> list[str]:
        """Wait until the supervisors have noted this many lines, and return them."""
        wait_until(
            f"{lines} lines are noted",
            lambda: self.noted.exists() and len(self.noted.read_text().splitlines()) >= lines,
        )
        return self.noted.read_text().splitlines()

    @property
    def status(self) -> int:
        return self.process.wait(60)


@pytest.mark.parametrize("status", [0, 1, 3])
def test_a_job_ends_with_its_supervisor(tmp_path: Path, status: int) -> None:
    script = Script(tmp_path, f"exit {status}")
    assert script.status == status
    assert script.wait(1) == [f"{os.getpid()} 0"]


def test_a_killed_supervisor_is_restarted_with_the_signal_number(tmp_path: Path) -> None:
    script = Script(tmp_path, "case $5 in 0) kill -KILL $$;; 9) kill -SEGV $$;; esac; exit 7")
    assert script.status == 7
    assert script.wait(3) == [f"{os.getpid()} {killed}" for killed in (0, signal.SIGKILL, signal.SIGSEGV)]


def test_a_repeatedly_killed_supervisor_is_not_restarted_forever(tmp_path: Path) -> None:
    script = Script(tmp_path, "kill -KILL $$")
    assert script.status == 128 + signal.SIGKILL
    assert len(script.wait(5)) == 5


def test_slurm_signals_are_forwarded_to_the_supervisor(tmp_path: Path) -> None:
    """The shell stops to wait at each of them."""
    trap = "trap 'note USR1' USR1; trap 'note TERM; left=1' TERM; left=2; note ready"
    script = Script(tmp_path, f"{trap}; while test $left -gt 1; do sleep 0.1; done; exit 4")
    script.wait(2)
    for lines, number in ((3, signal.SIGUSR1), (4, signal.SIGUSR1), (5, signal.SIGTERM)):
        script.process.send_signal(number)
        script.wait(lines)
    assert script.status == 4
    assert script.wait(5)[2:] == ["USR1", "USR1", "TERM"]


def test_a_supervisor_killed_by_the_end_of_its_job_is_not_restarted(tmp_path: Path) -> None:
    script = Script(tmp_path, "while :; do sleep 0.1; done")
    script.wait(1)
    script.process.terminate()
    assert script.status == 128 + signal.SIGTERM
    assert len(script.wait(1)) == 1


def test_abbreviated_sbatch_options_are_reserved_too() -> None:
    with pytest.raises(InputError, match="'--outp=x' cannot be passed to sbatch"):
        request.validate(RunRequest(name="nano", command=("true",), folder="/x/nano", sbatch=("--outp=x",)))
    request.validate(RunRequest(name="nano", command=("true",), folder="/x/nano", sbatch=("--time-min=5", "--nice")))


@pytest.mark.parametrize(("time", "grace"), [("1", 60.0), ("1:30", 90.0), ("0-1", 3600.0), ("0:01:00", 60.0)])
def test_a_time_limit_without_time_to_train_is_refused(time: str, grace: float) -> None:
    """Such a job would only request a checkpoint, and submit the next job."""
    with pytest.raises(InputError, match="leaves no time"):
        request.refuse_short_limit(RunRequest(name="nano", command=("true",), folder="/x/nano", time=time, grace=grace))


@pytest.mark.parametrize(
    "time", ["", "0", "5", "1:30", "0:02:00", "1-0", "2-00:00:00", "unlimited", "INFINITE", "120:00"]
)
def test_a_sufficient_time_limit_is_accepted(time: str) -> None:
    request.refuse_short_limit(RunRequest(name="nano", command=("true",), folder="/x/nano", time=time))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of a run, and the resulting request to Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import request
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request

REQUEST = Request(name="nano", command=("python3", "train.py"), folder="/mnt/a b/nano", nodes=3, min_nodes=2)


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
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        request.checked(REQUEST._replace(**wrong))


@pytest.mark.parametrize("time", ["90", "12:00:00", "2-00", "1-12:30", "UNLIMITED"])
def test_times_as_slurm_has_them(time: str) -> None:
    assert request.checked(REQUEST._replace(time=time)).time == time


@pytest.mark.parametrize(("time", "minutes"), [("90m", 90), ("12h", 720), ("2d", 2880)])
def test_times_with_a_unit_are_told_to_slurm_in_minutes(time: str, minutes: int) -> None:
    asked = request.checked(REQUEST._replace(time=time))
    assert f"--time={minutes}" in request.submission(asked)
    with pytest.raises(InputError, match="leaves no time"):
        request.refuse_short(REQUEST._replace(time="1m", grace=60.0))


def test_a_request_outlives_its_process() -> None:
    asked = REQUEST._replace(sbatch=("--qos=short",), time="90")
    assert request.from_text(request.to_text(asked)) == asked
    for text in ("", "[]", "{}", '{"name": 1}'):
        with pytest.raises(InputError, match="cannot be read"):
            request.from_text(text)


def test_the_job_outlives_its_nodes_and_has_them_to_itself() -> None:
    options = request.submission(REQUEST._replace(spare=1, gpus_per_node=8, partition="a", time="90"))
    wanted = {"--nodes=4", "--no-kill", "--requeue", "--exclusive", "--gpus-per-node=8", "--partition=a", "--time=90"}
    assert wanted <= set(options)


def test_the_next_job_may_have_fewer_nodes_and_not_those_that_failed() -> None:
    options = request.submission(REQUEST, excluded=["n2"], fewer=True)
    assert {"--nodes=2-3", "--exclude=n2"} <= set(options)
    own = REQUEST._replace(sbatch=("--exclude=n[7-9]",))
    assert request.submission(own, excluded=["n2"])[-1] == "--exclude=n[7-9],n2"


def test_who_says_how_many_processors_shares_the_nodes() -> None:
    assert "--exclusive" not in request.submission(REQUEST._replace(sbatch=("--cpus-per-gpu=8",)))


def test_what_is_shown_is_a_script_for_sbatch() -> None:
    assert request.shown(REQUEST, "/usr/local/bin/gpumesh-train").splitlines()[-1] == (
        "exec /usr/local/bin/gpumesh-train supervise '/mnt/a b/nano' TOKEN"
    )
    assert "#SBATCH '--output=/mnt/a b/nano/supervisor.log'" in request.shown(REQUEST, "x")


def test_a_directory_of_runs_may_have_any_name() -> None:
    """In the name of an output file, Slurm replaces what follows a percent sign."""
    asked = request.submission(Request(name="nano", command=("true",), folder="/mnt/50%j/nano"))
    assert "--output=/mnt/50%%j/nano/supervisor.log" in asked


def test_an_abbreviated_option_of_sbatch_is_the_option() -> None:
    with pytest.raises(InputError, match="'--outp=x' cannot be passed to sbatch"):
        request.checked(Request(name="nano", command=("true",), folder="/x/nano", sbatch=("--outp=x",)))
    request.checked(Request(name="nano", command=("true",), folder="/x/nano", sbatch=("--time-min=5", "--nice")))


@pytest.mark.parametrize(("time", "grace"), [("1", 60.0), ("1:30", 90.0), ("0-1", 3600.0), ("0:01:00", 60.0)])
def test_a_job_that_would_end_before_it_has_begun_is_refused(time: str, grace: float) -> None:
    """Each would only request a checkpoint, and submit the next job."""
    with pytest.raises(InputError, match="leaves no time"):
        request.refuse_short(Request(name="nano", command=("true",), folder="/x/nano", time=time, grace=grace))


@pytest.mark.parametrize(
    "time", ["", "0", "5", "1:30", "0:02:00", "1-0", "2-00:00:00", "unlimited", "INFINITE", "120:00"]
)
def test_a_time_limit_that_leaves_time(time: str) -> None:
    request.refuse_short(Request(name="nano", command=("true",), folder="/x/nano", time=time))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-train` as it is installed, with a Slurm of one node that only starts what it is given."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from program_builds import build_zipapp
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.program_archive import (
    add_bytecode,
    assemble_zipapp,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import program as trace
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import program
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import collect_sources

#: The stand-ins for Slurm's commands find the process of the job in the file "job".
SLURM = {
    "sinfo": 'echo "n1|idle"',
    "sbatch": """
        case " $* " in *" --test-only "*) exit 0;; esac
        case "$*" in *--exclude=n1*) echo "sbatch: error: Requested node configuration is not available" >&2; exit 1;; esac
        for word; do case $word in --output=*) output=${word#*=};; esac; done
        cat > job.sh
        rm -f job
        export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n1 SLURMD_NODENAME=n1
        # The first shell is the daemon that runs the batch script.
        setsid sh -c 'sh job.sh & echo $! > job.new; mv job.new job; wait' >> "$output" 2>&1 < /dev/null &
        while ! test -e job; do sleep 0.05; done
        echo 7""",
    "squeue": """
        case "$*" in *--steps*) exit;; esac
        case "$*" in *%L*) echo UNLIMITED; exit;; esac
        kill -0 "$(cat job)" 2> /dev/null && echo 'RUNNING|None'""",
    "scancel": 'kill -TERM "$(cat job)"',
    "scontrol": "echo n1",
    "srun": """
        while case $1 in -*) true;; *) false;; esac; do shift; done
        # This shell is the daemon of the step.
        "$@"
        exit $?""",
    "ssh": "exit 255",
}
#: Reports its steps, and in the first attempt, does what its argument says.
TRAINER = """
import atexit, os, signal, sys, time
import gpumesh_run
caught = []
saved = os.path.join(os.environ["GPUMESH_CHECKPOINT_DIR"], "step")
step = int(open(saved).read()) if os.path.exists(saved) else 0
first = os.environ["GPUMESH_ATTEMPT"] == "1"
while step < 20:
    step += 1
    if step % 5 == 0 and os.environ["RANK"] == "0":
        # In one step: another rank may be reading it.
        with open(saved + ".new", "w") as stream:
            stream.write(str(step))
        os.replace(saved + ".new", saved)
    gpumesh_run.progress(step, 20, loss=1 / step, checkpoint=step // 5 * 5)
    if step == 12 and sys.argv[1] == "crash" and first:
        profile = os.environ.get("GPUMESH_PROFILE_DIR")
        while profile and "rank-0.json" not in os.listdir(profile):
            time.sleep(0.1)
        raise ValueError("shard 7 is damaged")
    while step == 12 and sys.argv[1] == "wait" and first:
        time.sleep(0.1)
    while step == 12 and sys.argv[1] == "term" and first:
        if not caught:
            signal.signal(signal.SIGTERM, lambda *given: caught.append(given))
            caught.append(None)
        time.sleep(0.1)
        if len(caught) > 1:
            print("caught SIGTERM")
            sys.exit(0)
    if sys.argv[1] == "abort" and step == 20:
        atexit.register(os.abort)
    if sys.argv[1] == "always" and step == 3:
        sys.exit("no such column")
if "GPUMESH_STAGE_DIR" in os.environ:
    print(open(os.path.join(os.environ["GPUMESH_STAGE_DIR"], "shard")).read())
print("done", os.environ["WORLD_SIZE"])
"""

#: The parts of PyTorch's profiler that gpumesh_profile uses, and a trace of two steps.
TORCH = """
import json, time
class cuda:
    is_available = staticmethod(lambda: False)
class ProfilerActivity:
    CPU = CUDA = None
made = []
class record_function:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        note(self.name, 0.0)
    def __exit__(self, *what):
        pass
def note(name, ms):
    kind = "cpu_op" if name.startswith("aten::") else "user_annotation"
    event = {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": time.time() * 1e6 - ms * 1e3, "dur": ms * 1e3}
    made.append(event)
class profile:
    def __init__(self, activities, schedule, on_trace_ready):
        self.schedule, self.ready, self.step_num = schedule, on_trace_ready, 0
    def start(self):
        assert self.schedule["wait"] == 0
    def step(self):
        if self.step_num >= self.schedule["warmup"]:
            note(f"ProfilerStep#{self.step_num}", 2.0)
            note("aten::linear", 1.0)
        self.step_num += 1
        if self.step_num == self.schedule["warmup"] + self.schedule["active"]:
            self.ready(self)
    def stop(self):
        pass
    def export_chrome_trace(self, path):
        with open(path, "w") as stream:
            json.dump({"traceEvents": made}, stream)
def schedule(**values):
    return values
"""


@functools.lru_cache
def compiled(entry: str) -> dict[str, bytes]:
    """The files of a program and their byte code, without its settings."""
    with zipfile.ZipFile(io.BytesIO(add_bytecode(build_zipapp(sys.executable, entry, {}), entry))) as reader:
        return {name: reader.read(name) for name in reader.namelist() if not name.startswith("__main__.")}


def installed(entry: str, settings: dict[str, Any]) -> bytes:
    """A program as it is on a host."""
    return assemble_zipapp(sys.executable, entry, settings, compiled(entry))


class Host:
    """A machine with the program and the commands of Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        commands = {name: f"#!/bin/sh\n{text}\n".encode() for name, text in SLURM.items()}
        settings = {"volumes": [str(folder)], "run_dir": str(self.runs), "stage_dir": str(folder / "local-{user}")}
        commands["gpumesh-train"] = installed(program.__name__, settings)
        commands["gpumesh-trace"] = installed(trace.__name__, {**settings, "library": ""})
        (folder / "bin").mkdir()
        for name, content in commands.items():
            (folder / "bin" / name).write_bytes(content)
            (folder / "bin" / name).chmod(0o755)
        (folder / "train.py").write_text(TRAINER, encoding="ascii")

    def train(self, *arguments: str, program: str = "gpumesh-train") -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        argv = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(
            argv, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=240, check=False
        )

    def start(self, program: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.train("--name", "nano", *options, "--", sys.executable, "train.py", program)

    @property
    def run(self) -> dict[str, Any]:
        path = self.runs / "nano" / "run.json"
        return (
            dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {"step": None, "state": "queued"}
        )

    def wait(self, name: str, value: object) -> None:
        wait_until(f"{name} is {value}", lambda: self.run[name] == value)

    @property
    def kinds(self) -> list[str]:
        return [attempt["cause"]["kind"] for attempt in self.run["attempts"]]


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Iterator[Host]:
    yield Host(tmp_path)
    # Slurm would have ended the agent of a killed supervisor with its job.
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(tmp_path / "bin") in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def test_the_program_needs_no_ansible() -> None:
    texts = collect_sources(program.__name__)
    assert not [name for name, text in texts.items() if "import ansible." in text or "from ansible." in text]


def test_a_run_finishes(host: Host) -> None:
    done = host.start("", "--gpus-per-node", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "nano: finished · step 20 of 20"
    assert host.kinds == ["finished"]
    folder = host.runs / "nano"
    logs = {path.name: path.read_text(encoding="utf-8") for path in (folder / "attempts" / "001").iterdir()}
    assert logs == {"rank-0.log": "done 2\n", "rank-1.log": "done 2\n"}
    assert host.train("logs", "nano", "--rank", "1").stdout == "done 2\n"
    assert host.train("list").stdout == "nano: finished · step 20 of 20\n"
    again = host.start("")
    assert (again.returncode, again.stdout) == (2, "")
    assert "There is already a run 'nano'" in again.stderr and "gpumesh-train resume nano" in again.stderr
    assert host.train("resume", "nano").returncode == 0
    assert host.kinds == ["finished"]


def test_a_crashed_run_continues_from_the_last_checkpoint(host: Host) -> None:
    assert host.start("crash").returncode == 0
    assert host.kinds == ["crash", "finished"]
    crashed, finished = host.run["attempts"]
    assert crashed["cause"]["detail"] == "rank 0 on n1: exit status 1: ValueError: shard 7 is damaged"
    assert (crashed["last"], crashed["checkpoint"], finished["last"]) == (12, 10, 20)
    assert finished["first"] > 10
    assert "shard 7 is damaged" in host.train("show", "nano").stdout


def test_an_abort_at_exit_finishes_the_run_with_a_warning(host: Host) -> None:
    done = host.start("abort")
    assert done.returncode == 0, done.stdout + done.stderr
    assert host.kinds == ["finished"]
    warning = "warning: after the last step, rank "
    assert done.stdout.splitlines()[-1].startswith(f"nano: finished · step 20 of 20 · {warning}")
    shown = host.train("show", "nano").stdout
    assert f"finished: {warning}" in shown and "killed by SIGABRT" in shown


def test_a_program_with_a_sigterm_handler_is_warned_by_sigterm(host: Host) -> None:
    assert host.start("term", "--detach", "--warn-signal", "SIGTERM").returncode == 0
    host.wait("step", 12)
    # Slurm sends this signal before a preemption.
    os.kill(int((host.folder / "job").read_text(encoding="ascii")), signal.SIGUSR1)
    host.wait("state", "finished")
    assert host.kinds == ["warned", "finished"]
    assert host.train("logs", "nano", "--attempt", "1").stdout == "caught SIGTERM\n"


def test_killing_the_program_by_name_kills_only_the_ranks(host: Host) -> None:
    """``pkill -f train.py`` must not kill the agent, without which the node could not report the end of its ranks."""
    assert host.start("wait", "--detach", "--ranks-per-node", "2").returncode == 0
    host.wait("step", 12)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"train.py" in path.read_bytes() and (path.parent / "cwd").resolve() == host.folder:
                os.kill(int(path.parent.name), signal.SIGKILL)
    host.wait("state", "finished")
    assert host.kinds == ["crash", "finished"]
    assert "killed by SIGKILL" in host.run["attempts"][0]["cause"]["detail"]


def test_a_run_that_always_fails_ends_and_can_be_resumed(host: Host) -> None:
    done = host.start("always")
    assert done.returncode == 1
    assert "has failed 3 times at the same step in the same way" in done.stdout
    assert host.kinds == ["crash"] * 3
    assert host.train("resume", "nano").returncode == 1
    assert host.kinds == ["crash"] * 6


def test_a_cancelled_run_is_resumed(host: Host) -> None:
    assert host.start("wait", "--detach").returncode == 0
    host.wait("step", 12)
    assert "cancelled" in host.train("cancel", "nano").stdout
    assert host.kinds == ["cancelled"]
    assert host.train("resume", "nano").returncode == 0
    assert host.kinds == ["cancelled", "finished"]


def supervisors(host: Host) -> list[int]:
    """The batch script of the job and its supervisor."""
    script = int((host.folder / "job").read_text(encoding="ascii"))
    children = Path(f"/proc/{script}/task/{script}/children").read_text(encoding="ascii")
    return [script, *map(int, children.split())]


def test_a_killed_supervisor_is_restarted_and_continues_the_run(host: Host) -> None:
    assert host.start("wait", "--detach").returncode == 0
    host.wait("step", 12)
    os.kill(supervisors(host)[1], signal.SIGKILL)
    host.wait("state", "finished")
    assert host.kinds == ["supervisor", "finished"]
    cause = host.run["attempts"][0]["cause"]
    assert (cause["detail"], cause["node"]) == ("the supervisor was killed (SIGKILL)", "")
    assert host.run["attempts"][1]["job"] == 7 and not host.run["attempts"][1]["heir"]
    assert "attempt 2" in (host.runs / "nano" / "supervisor.log").read_text(encoding="utf-8")


def test_an_agent_continues_the_run_of_a_lost_supervisor(host: Host) -> None:
    assert host.start("wait", "--detach").returncode == 0
    host.wait("step", 12)
    for process in supervisors(host):
        os.kill(process, signal.SIGKILL)
    host.wait("state", "finished")
    assert host.kinds == ["supervisor", "finished"]
    assert host.run["attempts"][0]["cause"]["detail"] == "the supervisor has stopped, but n1 responds"
    assert (host.runs / "nano" / "attempts" / "001" / "heir-0").read_text(encoding="ascii") == "n1\n"


def test_an_agent_takes_over_from_a_stopped_supervisor(host: Host) -> None:
    assert host.start("wait", "--detach").returncode == 0
    host.wait("step", 12)
    stopped = supervisors(host)[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        host.wait("state", "finished")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
    assert host.kinds == ["supervisor", "finished"]
    assert host.run["attempts"][0]["cause"]["detail"] == "the supervisor has stopped, but n1 responds"
    assert [attempt["heir"] for attempt in host.run["attempts"]] == [False, True]


def kill_ranks(host: Host) -> None:
    for name in os.listdir("/proc"):
        if name.isdigit() and f"GPUMESH_RUN_DIR={host.runs}/nano\0".encode() in _environment(name):
            os.kill(int(name), signal.SIGKILL)


def test_an_agent_takes_over_between_two_attempts(host: Host) -> None:
    """A lost supervisor without a standby would leave the other nodes of the job occupied without a process."""
    assert host.start("wait", "--detach").returncode == 0
    host.wait("step", 12)
    sinfo = host.folder / "bin" / "sinfo"
    answer = sinfo.read_bytes()
    # No attempt begins while the controller does not answer.
    sinfo.write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
    kill_ranks(host)
    log = host.runs / "nano" / "supervisor.log"
    wait_until("it waits for the controller", lambda: "waiting for the controller" in log.read_text(encoding="utf-8"))
    for process in supervisors(host):
        os.kill(process, signal.SIGKILL)
    sinfo.write_bytes(answer)
    host.wait("state", "finished")
    assert host.kinds == ["crash", "finished"]
    assert [attempt["heir"] for attempt in host.run["attempts"]] == [False, True]


def test_a_run_started_with_the_variables_of_a_run_does_not_kill_itself(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank, or a shell in which a program was tried, may start a run. An agent kills processes with these variables."""
    monkeypatch.setenv("GPUMESH_RUN_DIR", str(host.runs / "nano"))
    monkeypatch.setenv("GPUMESH_STAGE_DIR", str(host.folder))
    done = host.start("")
    assert done.returncode == 0, done.stdout + done.stderr
    assert host.kinds == ["finished"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "2", "--", "true"], "The run requests 2 nodes, but only 1 can be used"),
        (["--run-dir", "/proc", "--", "true"], "/proc/nano is not on a shared volume"),
        (["--sbatch", "--time=5", "--", "true"], "'--time=5' cannot be passed to sbatch"),
        ([], "There is no command to run"),
        (["--profile", "perf", "--", "true"], "Invalid profile 'perf'"),
    ],
)
def test_impossible_requests_are_refused(host: Host, arguments: list[str], words: str) -> None:
    done = host.train("--name", "nano", *arguments)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (host.folder / "job").exists()


def test_a_run_has_a_snapshot_of_its_code(host: Host) -> None:
    done = host.start("wait", "--code", str(host.folder / "lib"), "--detach")
    assert done.returncode == 2 and "lib is not a directory" in done.stderr
    (host.folder / "lib").mkdir()
    (host.folder / "lib" / "train.py").write_text(TRAINER, encoding="ascii")
    assert "/runs/nano/code\n" in host.start("wait", "--code", "lib", "--dry-run").stdout
    assert not host.runs.exists()
    assert host.start("wait", "--code", "lib", "--detach").returncode == 0
    host.wait("step", 12)
    # Changes of the original do not affect the run, even when it is resumed.
    (host.folder / "lib" / "train.py").write_text("raise SystemExit(1)", encoding="ascii")
    assert "cancelled" in host.train("cancel", "nano").stdout
    assert host.train("resume", "nano").returncode == 0
    assert host.kinds == ["cancelled", "finished"]
    assert f"code of {host.folder}/lib\n" in host.train("show", "nano").stdout


def test_a_failed_code_snapshot_leaves_no_run(host: Host) -> None:
    (host.folder / "lib").mkdir()
    os.mkfifo(host.folder / "lib" / "train.py")
    host.runs.mkdir()
    (host.runs / "nano").mkdir()
    done = host.start("", "--code", "lib")
    assert done.returncode == 2 and "exists but contains no run" in done.stderr


def test_the_ranks_find_the_staged_data(host: Host) -> None:
    assert "is not a directory" in host.start("", "--stage", "data").stderr
    (host.folder / "data").mkdir()
    (host.folder / "data" / "shard").write_text("some data", encoding="ascii")
    assert host.start("crash", "--stage", "data", "--gpus-per-node", "2").returncode == 0
    assert host.kinds == ["crash", "finished"]
    assert host.train("logs", "nano", "--rank", "1").stdout == "some data\ndone 2\n"
    copies = [path for path in host.folder.iterdir() if path.name.startswith("local-")]
    assert len(copies) == 1 and len(list(copies[0].iterdir())) == 1
    assert host.run["detail"] == ""


def test_a_run_with_failed_staging_reports_the_reason(host: Host) -> None:
    (host.folder / "data").mkdir()
    (host.folder / "data" / "shard").write_text("some data", encoding="ascii")
    (host.folder / "open").mkdir(mode=0o755)
    done = host.start("", "--stage", "data", "--stage-dir", str(host.folder / "open"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert host.kinds == ["node"] * 3
    assert "0 of the 1 required nodes are left" in host.run["detail"] and "not available" in host.run["detail"]
    assert "is open to other users" in host.run["attempts"][0]["cause"]["detail"]
    assert host.run["attempts"][0]["cause"]["node"] == "n1"


def test_a_dry_run_submits_nothing(host: Host) -> None:
    done = host.start("", "--dry-run", "--min-nodes", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/sh\n#SBATCH --job-name=nano\n")
    assert not (host.folder / "job").exists()


def test_a_run_with_a_profile(host: Host) -> None:
    (host.folder / "torch").mkdir()
    for name in ("__init__", "profiler"):
        (host.folder / "torch" / f"{name}.py").write_text(TORCH, encoding="ascii")
    done = host.start("crash", "--profile", "torch:2")
    assert done.returncode == 0, done.stdout + done.stderr
    # The first attempt has recorded everything before it crashes in step 12, so the second one is not profiled.
    assert host.kinds == ["crash", "finished"]
    folder = host.runs / "nano" / "profile"
    assert [path.name for path in folder.iterdir()] == ["001"]
    names = sorted(path.name for path in (folder / "001").iterdir())
    assert names == ["rank-0.json", "rank-0.trace.json.gz"]
    assert "gpumesh_profile" not in host.train("logs", "nano", "--attempt", "2").stdout
    assert f"  profile (torch:2) in {host.runs}/nano/profile\n" in host.train("show", "nano").stdout
    shown = host.train("nano", program="gpumesh-trace")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("nano: 1 rank, steps 8 to 9\n  a step takes")
    report = json.loads((folder / "001" / "report.json").read_text(encoding="utf-8"))
    assert [share["rank"] for share in report[0]["ranks"]] == [0]
    assert report[0]["operations"][0]["name"] == "aten::linear"


def test_a_failed_profile_does_not_stop_the_run(host: Host) -> None:
    assert host.start("", "--profile", "torch").returncode == 0
    assert host.kinds == ["finished"]
    log = host.train("logs", "nano").stdout
    assert "gpumesh_profile: rank 0: no profile: No module named 'torch'" in log and log.endswith("done 1\n")
    refused = host.train("nano", program="gpumesh-trace")
    assert refused.returncode == 2 and "There is no profile in " in refused.stderr


def test_nsight_systems_is_required_on_each_node(host: Host) -> None:
    # The node has no other commands than these, whatever this machine has.
    only = f"PATH={host.folder / 'bin'}"
    (host.folder / "bin" / "ssh").write_text(f'#!/bin/sh\nfor last; do true; done; {only} exec /bin/sh -c "$last"\n')
    refused = host.start("", "--profile", "nsys")
    assert refused.returncode == 2, refused.stdout
    assert "n1 has no command nsys. Install the package nsight-systems from Debian's non-free section" in refused.stderr
    assert not (host.folder / "job").exists() and not host.runs.exists()
    (host.folder / "bin" / "nsys").write_text(
        '#!/bin/sh\nwhile case $1 in */python*) false;; esac; do shift; done; exec "$@"\n'
    )
    (host.folder / "bin" / "nsys").chmod(0o755)
    assert host.start("", "--profile", "nsys").returncode == 0
    assert host.train("logs", "nano").stdout.splitlines()[-1] == "done 1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stop", "nano"], "Did you mean: gpumesh-train cancel NAME"),
        (["status", "nano"], "Did you mean: gpumesh-train show NAME"),
        (["rm", "nano"], "Did you mean: gpumesh-train delete NAME"),
        (["resme", "nano"], "Did you mean: gpumesh-train resume NAME"),
        (["python3", "train.py"], "or start a run: gpumesh-train --name NAME -- python3"),
        (["--name", "nano", "python3", "x.py"], "Write: gpumesh-train --name nano ... -- python3 x.py"),
        (["--name", "nano", "--sbatch", "--detach", "--", "true"], "'--detach' comes after --sbatch"),
        (["--name", "nano", "--sbatch", "--spare=1", "--", "true"], "'--spare=1' comes after --sbatch"),
        (["cancel", "nano", "--", "true"], "cancel takes no command after '--'"),
        (["--name", "nano", "--ranks-per-node", "-1", "--", "true"], "Invalid --ranks-per-node -1"),
    ],
)
def test_mistyped_commands_get_a_suggestion(host: Host, arguments: list[str], words: str) -> None:
    done = host.train(*arguments)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_the_life_cycle_of_a_run_on_the_command_line(host: Host) -> None:
    """Two ranks on a node without GPUs, a wrong command that is replaced, another round, and the end."""
    done = host.start("always", "--ranks-per-node", "2")
    assert done.returncode == 1 and "with '-- COMMAND' for another command" in done.stdout
    again = host.train("resume", "nano", "--", sys.executable, "train.py", "none")
    assert again.returncode == 0, again.stderr
    assert host.train("logs", "nano", "--rank", "all").stdout == "[rank 0] done 2\n[rank 1] done 2\n"
    finished = host.train("resume", "nano")
    assert finished.returncode == 0 and "resume nano --again" in finished.stderr
    attempts = len(host.run["attempts"])
    assert host.train("resume", "nano", "--again").returncode == 0
    assert len(host.run["attempts"]) == attempts + 1
    assert "finished" in host.train("attach", "nano").stdout
    asked = host.train("delete", "nano")
    assert asked.returncode == 2 and "checkpoints included" in asked.stderr and "delete nano --yes" in asked.stderr
    assert (host.runs / "nano").exists()
    assert host.train("delete", "nano", "--yes").stdout == "nano: deleted\n"
    assert not (host.runs / "nano").exists()
    assert host.start("none").returncode == 0


def test_the_log_of_a_run_is_followed_through_its_attempts(host: Host) -> None:
    assert host.start("wait", "--detach").returncode == 0
    host.wait("step", 12)
    refused = host.train("delete", "nano", "--yes")
    assert refused.returncode == 2 and "has not ended" in refused.stderr
    still = host.train("resume", "nano", "--", "true")
    assert still.returncode == 2 and "cancel nano" in still.stderr
    with subprocess.Popen(
        [str(host.folder / "bin" / "gpumesh-train"), "logs", "nano", "--follow"],
        cwd=host.folder,
        env={**os.environ, "PATH": f"{host.folder / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stderr and following.stderr.readline() == "--- attempt 1\n"
        kill_ranks(host)
        output, errors = following.communicate(timeout=240)
    assert (following.returncode, output, errors) == (0, "done 1\n", "--- attempt 2\n")


def _environment(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return b""

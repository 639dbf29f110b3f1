# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that outlive the program that started them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import BUSY_MACHINE_TIMEOUT, wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import background
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.background import start_in_background
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError

PLUGINS = Path(background.__file__).parents[2]
_STARTS = f"""
import sys
from {start_in_background.__module__} import start_in_background
start_in_background(["sh", "-c", 'sleep 0.3; pwd > "$1.part"; mv "$1.part" "$1"', "x", sys.argv[1]])
"""
#: Writes what a background process sees once the program that started it has ended, and waits if that is requested.
_WORKS = f"""
import json, os, resource, signal, sys, time
from {background.__name__} import run_in_background
path, name, lifetime, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
kept, other = os.open("/etc/passwd", os.O_RDONLY), os.open("/etc/group", os.O_RDONLY)
parent, parent_session = os.getpid(), os.getsid(0)
def work():
    while os.path.exists(f"/proc/{{parent}}"):
        time.sleep(0.01)
    report = {{
        "session": os.getsid(0) not in (parent_session, os.getpid()),
        "directory": os.getcwd(),
        "files": sorted(os.readlink(f"/proc/self/fd/{{n}}") for n in (0, 1, 2, kept)),
        "closed": not os.path.exists(f"/proc/self/fd/{{other}}"),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "name": open("/proc/self/comm").read().strip(),
        "pid": os.getpid(),
    }}
    with open(path + ".part", "w") as stream:
        json.dump(report, stream)
    os.rename(path + ".part", path)
    time.sleep(seconds)
run_in_background(work, [kept], lifetime, name)
print("returned")
"""


def start_work(path: Path, name: str = "", lifetime: int = 0, seconds: float = 0) -> dict[str, Any]:
    """Start the work, and return what it reports after its parent has ended."""
    done = subprocess.run(
        [sys.executable, "-c", _WORKS, str(path), name, str(lifetime), str(seconds)],
        capture_output=True,
        text=True,
        check=True,
        timeout=BUSY_MACHINE_TIMEOUT,
    )
    assert (done.stdout, done.stderr) == ("returned\n", ""), "only the parent returns"
    wait_until("the process has reported", path.exists)
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def has_ended(pid: int) -> bool:
    """Whether a process has ended, even if its new parent has not waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_background_process_keeps_nothing_of_its_parent(tmp_path: Path) -> None:
    report = start_work(tmp_path / "report", "gpumesh-test", seconds=0)
    assert report["session"] and report["closed"]
    assert (report["directory"], report["core"], report["name"]) == ("/", 0, "gpumesh-test")
    assert report["files"] == ["/dev/null", "/dev/null", "/dev/null", "/etc/passwd"]


def test_background_process_ends_after_its_lifetime(tmp_path: Path) -> None:
    # It must report before its lifetime is over, on a busy machine as well.
    pid = start_work(tmp_path / "report", lifetime=10, seconds=3600)["pid"]
    wait_until("the alarm has ended it", lambda: has_ended(pid))


def test_background_process_without_a_lifetime_can_be_stopped(tmp_path: Path) -> None:
    pid = start_work(tmp_path / "report", seconds=3600)["pid"]
    assert not has_ended(pid)
    run(["kill", f"-{signal.SIGTERM}", str(pid)])
    wait_until("the signal has ended it", lambda: has_ended(pid))


def test_only_one_module_starts_processes_that_outlive_their_parent() -> None:
    """Others fork for a time limit, or start ranks and steps in sessions of their own, whose end they await."""
    found = {
        str(path.relative_to(PLUGINS / "module_utils"))
        for path in PLUGINS.rglob("*.py")
        if re.search(r"\bos\.(fork|setsid)\(|start_new_session=True", path.read_text(encoding="utf-8"))
    }
    assert found == {
        "_core/background.py",
        "_core/subprocess_deadline.py",
        "_programs/train/agent.py",
        "_programs/train/job_step.py",
    }


def test_background_program_outlives_its_parent(tmp_path: Path) -> None:
    output_path = tmp_path / "told"
    done = run([sys.executable, "-W", "error", "-c", _STARTS, str(output_path)])
    assert (done.stdout, done.stderr) == ("", "") and not output_path.exists()
    wait_until("the program has written its file", output_path.exists)
    assert output_path.read_text() == "/\n"


def test_missing_program_is_named() -> None:
    with pytest.raises(CommandError, match="Install gpumesh-nothing"):
        start_in_background(["gpumesh-nothing"])

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands in containers, with processes of this machine in their place."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lab_commands
import pytest
from lab_commands import run_command


@pytest.fixture(autouse=True)
def _no_containers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lab_commands, "build_exec_command", lambda container: ["env", "PYTHONCOERCECLOCALE=0"])
    free: dict[str, list[object]] = {}
    monkeypatch.setattr(lab_commands, "_free_servers", free)
    yield
    lab_commands._end_servers()


def shell(script: str, timeout: float = 240) -> tuple[int, bytes, bytes]:
    done = run_command("a", ["sh", "-c", script], timeout)
    return done.returncode, done.stdout, done.stderr


def test_its_end_and_its_output_come_back_as_they_are() -> None:
    assert shell(r"printf 'a\nb\377'; printf c >&2; exit 3") == (3, b"a\nb\xff", b"c")
    assert shell("kill -9 $$") == (137, b"", b"")
    code, output, _error_output = shell("head --bytes=3000000 /dev/zero")
    assert (code, len(output)) == (0, 3000000)
    long = "x" * 100_000
    assert run_command("a", ["printf", long], 60).stdout == long.encode()


def test_a_program_that_is_not_there() -> None:
    done = run_command("a", ["/no/such/program"], 60)
    assert (done.returncode, done.stdout) == (127, b"")
    assert b"/no/such/program" in done.stderr


def test_it_has_no_input_and_the_environment_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    assert shell("cat; echo ${LC_CTYPE-none} ${PYTHONCOERCECLOCALE-none}") == (0, b"none none\n", b"")


def test_one_process_serves_all_commands_in_turn_and_others_those_at_the_same_time(tmp_path: Path) -> None:
    parents = {shell("echo $PPID") for _attempt in range(3)}
    assert len(parents) == 1
    # Each ends when the other one has begun.
    both = f"echo $PPID; touch {tmp_path}/by-$PPID; until [ $(ls {tmp_path} | grep -c by-) = 2 ]; do sleep 0.1; done"
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(shell, [both] * 2))
    assert len(set(done)) == 2


def test_what_it_leaves_in_the_background_is_not_waited_for() -> None:
    code, output, _error_output = shell("sleep 1000 & echo $!", 500)
    assert code == 0
    os.kill(int(output), signal.SIGKILL)


def test_a_command_that_takes_too_long_is_left_alone() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        shell("exec sleep 100", 0.2)
    assert shell("echo more") == (0, b"more\n", b"")


def test_where_the_container_has_gone_or_was_started_again() -> None:
    assert shell("kill -9 $PPID; sleep 100")[0] == 137
    assert shell("echo more") == (0, b"more\n", b"")
    parent = shell("echo $PPID")[1]
    os.kill(int(parent), signal.SIGKILL)
    assert shell("echo more") == (0, b"more\n", b"")

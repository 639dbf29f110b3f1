# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that are run with limits, and those that are started and not waited for."""

from __future__ import annotations

import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import command
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run, start_detached
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError

_STARTS = f"""
import sys
from {run.__module__} import start_detached
start_detached(["sh", "-c", 'sleep 0.3; pwd > "$1.part"; mv "$1.part" "$1"', "x", sys.argv[1]])
"""


def test_a_program_that_writes_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LARGEST", 1 << 20)
    for stream in ("stdout", "stderr"):
        tracemalloc.start()
        try:
            with pytest.raises(CommandError, match="wrote more than 1 MiB"):
                run([sys.executable, "-c", f"import sys\nwhile True: sys.{stream}.write('y' * 4096)"], timeout=600)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def test_what_it_writes_and_reads_at_the_same_time_arrives_whole() -> None:
    text = "".join(f"{number} ä\r\n" for number in range(200_000))
    done = run(["tee", "/dev/stderr"], stdin=text, timeout=600)
    assert done.stdout == done.stderr == text.replace("\r\n", "\n")
    assert run([sys.executable, "-c", "import os; os.write(1, b'\\xff\\r')"]).stdout == "\ufffd\n"


def test_one_that_does_not_read_its_input_is_not_waited_for() -> None:
    assert run(["true"], stdin="x" * (1 << 20), timeout=600).rc == 0
    assert run(["cat"], stdin="").stdout == ""


@pytest.mark.parametrize("script", ["sleep 600", "exec >&- 2>&-; sleep 600", "sleep 600 & exit"])
def test_one_that_does_not_end_is_ended(script: str) -> None:
    """The last one leaves a process that still has the output open."""
    with pytest.raises(CommandError, match="did not end within 0.5 s"):
        run(["sh", "-c", script], timeout=0.5)


def test_a_detached_program_goes_on_after_the_one_that_started_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    done = run([sys.executable, "-W", "error", "-c", _STARTS, str(told)])
    assert (done.stdout, done.stderr) == ("", "") and not told.exists()
    end = time.monotonic() + 120
    while not told.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert told.read_text() == "/\n"


def test_one_that_is_not_installed_is_named() -> None:
    with pytest.raises(CommandError, match="Install gpumesh-nothing"):
        start_detached(["gpumesh-nothing"])

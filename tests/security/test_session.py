# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of other users' sessions, and of one's own containers, on the terminal of whoever looks at them."""

from __future__ import annotations

import sys
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import ChildProcess
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, program

EVIL = "\x1b]0;pwned\x07\x1b[2J\u202e"


def copy_output(code: str) -> None:
    argv = [sys.executable, "-c", code]
    # The process is started as in _run.
    with ChildProcess(argv, stdout=-1, encoding="utf-8", errors="replace") as process:
        program._copy_output("main1", process, [])


def test_container_output_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    copy_output(f"import sys; sys.stdout.buffer.write({EVIL.encode()!r} + b'\\n')")
    output = capsys.readouterr().out
    assert output.startswith("main1: ") and "pwned" in output and printable(output) == output


def test_endless_line_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "print_line", lambda _text: None)
    tracemalloc.start()
    copy_output("import sys\nfor _part in range(2048): sys.stdout.buffer.write(b'x' * (1 << 16))")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_reason_in_the_session_list_is_printable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token: Any = SimpleNamespace(name="demo", replica_counts=list)
    session = job.QueuedSession(7, "mallory", "pending", EVIL, job.WAITING, token, [])
    monkeypatch.setattr(job, "list_sessions", lambda _run: [session])
    anything: Any = None
    assert program._list(anything, anything, []) == 0
    output = capsys.readouterr().out
    assert "pwned" in output and printable(output) == output

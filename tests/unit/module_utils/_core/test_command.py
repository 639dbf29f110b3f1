# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands with limits of time and output."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import command
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError


def test_command_with_endless_output_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MAX_OUTPUT_BYTES", 1 << 20)
    for stream in ("stdout", "stderr"):
        tracemalloc.start()
        try:
            with pytest.raises(CommandError, match="wrote more than 1 MiB"):
                run([sys.executable, "-c", f"import sys\nwhile True: sys.{stream}.write('y' * 4096)"], timeout=600)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def test_large_input_and_output_are_exchanged_completely() -> None:
    text = "".join(f"{number} ä\r\n" for number in range(200_000))
    done = run(["tee", "/dev/stderr"], stdin=text, timeout=600)
    assert done.stdout == done.stderr == text.replace("\r\n", "\n")
    assert run([sys.executable, "-c", "import os; os.write(1, b'\\xff\\r')"]).stdout == "\ufffd\n"


def test_command_that_ignores_its_input_does_not_block() -> None:
    assert run(["true"], stdin="x" * (1 << 20), timeout=600).rc == 0
    assert run(["cat"], stdin="").stdout == ""


@pytest.mark.parametrize("script", ["sleep 600", "exec >&- 2>&-; sleep 600", "sleep 600 & exit"])
def test_command_is_killed_at_its_timeout(script: str) -> None:
    """The last script leaves a process that still has the output open."""
    with pytest.raises(CommandError, match="did not end within 0.5 s"):
        run(["sh", "-c", script], timeout=0.5)

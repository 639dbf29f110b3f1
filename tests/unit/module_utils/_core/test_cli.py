# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exit of programs: with their own status, with a reason, or because their output is no longer read."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import cli
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

_PRINTING_PROGRAM = f"""
import sys
from {cli.__name__} import exit_status
sys.exit(exit_status("x", lambda: [sys.stdout.write("line\\n") for _number in range(int(sys.argv[1]))] and 0))
"""


def raise_refusal() -> int:
    raise InputError("There is no file.", "Give one.")


def test_error_message_begins_with_the_program_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.exit_status("gpumesh-x", raise_refusal) == 2
    assert capsys.readouterr() == ("", "gpumesh-x: There is no file. Give one.\n")
    assert cli.exit_status("gpumesh-x", lambda: 7) == 7


def raise_os_error(code: int) -> int:
    raise OSError(code, os.strerror(code), "/etc/file")


def test_write_error_is_reported_and_a_defect_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        assert cli.exit_status("gpumesh-x", lambda code=code: raise_os_error(code)) == 2
        assert f"/etc/file cannot be written: {os.strerror(code)}" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        cli.exit_status("gpumesh-x", lambda: raise_os_error(errno.ENOENT))


def test_characters_outside_the_locale_are_escaped() -> None:
    """The supervisor of a run prints the output of its ranks, which may contain any character."""
    text = f"""
import sys
from {cli.__name__} import exit_status
sys.exit(exit_status("x", lambda: sys.stdout.write("\\u2192 \\udcff") and 0))
"""
    variables = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", text], env=variables, capture_output=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, rb"\u2192 \udcff")


@pytest.mark.parametrize("lines", [1, 100_000])
def test_closed_output_pipe_ends_the_program_quietly(lines: int) -> None:
    """A single line is written only at exit."""
    with subprocess.Popen(
        [sys.executable, "-c", _PRINTING_PROGRAM, str(lines)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert (process.wait(240), process.stderr.read()) == (1, b"")

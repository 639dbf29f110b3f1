# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How programs end: with their own status, with a reason, or because their output is no longer read."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import program
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError

_PRINTS = f"""
import sys
from {program.__name__} import exit_status
sys.exit(exit_status("x", lambda: [sys.stdout.write("line\\n") for _number in range(int(sys.argv[1]))] and 0))
"""


def refused() -> int:
    raise InputError("There is no file.", "Give one.")


def test_the_reason_of_what_is_refused_begins_with_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.exit_status("gpumesh-x", refused) == 2
    assert capsys.readouterr() == ("", "gpumesh-x: There is no file. Give one.\n")
    assert program.exit_status("gpumesh-x", lambda: 7) == 7


def failing(code: int) -> int:
    raise OSError(code, os.strerror(code), "/etc/file")


def test_a_disk_that_cannot_be_written_is_a_reason_and_a_defect_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        assert program.exit_status("gpumesh-x", lambda code=code: failing(code)) == 2
        assert f"/etc/file cannot be written: {os.strerror(code)}" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        program.exit_status("gpumesh-x", lambda: failing(errno.ENOENT))


def test_what_the_users_locale_cannot_write_ends_nothing() -> None:
    """The supervisor of a run prints the output of its ranks."""
    text = f"""
import sys
from {program.__name__} import exit_status
sys.exit(exit_status("x", lambda: sys.stdout.write("\\u2192 \\udcff") and 0))
"""
    variables = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", text], env=variables, capture_output=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, rb"\u2192 \udcff")


@pytest.mark.parametrize("lines", [1, 100_000])
def test_nobody_reads_on(lines: int) -> None:
    """A few lines are only written at exit."""
    with subprocess.Popen(
        [sys.executable, "-c", _PRINTS, str(lines)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert (process.wait(240), process.stderr.read()) == (1, b"")

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs write text with the functions of module_utils/_core/cli.py, and read what others write up to a limit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

UTILS = Path(__file__).parents[2] / "plugins" / "module_utils"
#: What writes to standard output or error itself: the functions; programs that need only Python and remove control
#: characters themselves; JSON, which has none; and a private key for ssh.
WRITERS = {
    "_core/cli.py",
    "_checks/collective/torch_program.py",
    "_programs/session/container.py",
    "_layers/tracking/users.py",
    "_programs/train/gpumesh_profile.py",
    "_programs/train/gpumesh_track.py",
}
#: What reads a stream as a whole: archives that the program made; standard input from the process that started it; the own
#: command line; its own files; checkpoints of the user's program, which imports it; and what is given a length.
READERS = {
    "_checks/collective/torch_program.py",
    "_core/program_archive.py",
    "_programs/session/program.py",
    "_layers/storage/apply.py",
    "_layers/storage/mounts.py",
    "_layers/storage/quota.py",
    "_layers/storage/volumes.py",
    "_programs/train/gpumesh_frameworks.py",
    "_programs/train/processes.py",
    "_layers/job_environment/folder.py",
}


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node)


def found(*beginnings: str) -> dict[str, list[str]]:
    every = {str(path.relative_to(UTILS)): list(calls(path)) for path in UTILS.rglob("*.py")}
    return {
        name: one for name, some in every.items() if (one := [call for call in some if call.startswith(beginnings)])
    }


def test_text_is_written_by_one_function() -> None:
    assert set(found("sys.stdout.write", "sys.stderr.write", "print(")) == WRITERS


def test_streams_are_not_read_to_their_end() -> None:
    """A file of unknown origin is read by files.read_text, a stream by bounded_read.read."""
    every = found("stream.read()", "answer.read()", "sys.stdin.read()", "raw.read()", "stream.readline()")
    assert set(every) == READERS, every

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A library that is compiled on the host: either the complete new one, or the previous one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.compiler import compile_library
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError


class FakeGcc:
    """A compiler that writes its source to the path of the library, and then may fail."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.argv = fails, list[str]()

    def __call__(self, argv: list[str], stdin: str, **_options: Any) -> CommandResult:
        self.argv = argv
        Path(argv[argv.index("-o") + 1]).write_text(stdin)
        if self.fails:
            raise CommandError(argv, "exited 1", rc=1, stderr="<stdin>:3: error: spank.h")
        return CommandResult(0, "", "")


def test_compiled_library_is_readable_by_all_users(tmp_path: Path) -> None:
    path, gcc = tmp_path / "lib" / "x.so", FakeGcc()
    compile_library(gcc, "The library", "int x;", str(path), ["-O2"], "gcc")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("int x;", 0o644)
    assert gcc.argv[:2] == ["gcc", "-O2"]
    assert not Path(gcc.argv[gcc.argv.index("-o") + 1]).parent.exists()


def test_failed_compilation_keeps_the_previous_library(tmp_path: Path) -> None:
    path, gcc = tmp_path / "x.so", FakeGcc(fails=True)
    path.write_text("before")
    with pytest.raises(HostStateError, match=r"The library cannot be compiled: .*spank.h\. Install gcc\."):
        compile_library(gcc, "The library", "int x;", str(path), [], "gcc")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]

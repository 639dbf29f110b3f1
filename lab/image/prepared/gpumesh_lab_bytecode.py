# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps the bytecode of what Python imports from archives, as Python itself does for files.

Ansible sends each module in an archive of its own. Python compiles each source in it twice: to find out the source's name,
and to run it. That is most of what a module costs a host. Bytecode is found by the hash of its source.
"""

from __future__ import annotations

import marshal
import os
import sys
import zipimport
from _imp import _fix_co_filename, source_hash
from types import CodeType

#: Made by the image, and written to by root alone. Others compile what is not there.
FOLDER = "/var/cache/gpumesh-lab"


class CachingImporter(zipimport.zipimporter):
    """Imports from an archive, and compiles a source once a host."""

    def get_filename(self, fullname: str) -> str:
        """Return the path of a module, without compiling it."""
        suffix = "/__init__.py" if self.is_package(fullname) else ".py"
        return f"{self.archive}/{self.prefix}{fullname.rpartition('.')[2]}{suffix}"

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of a module."""
        path = self.get_filename(fullname)
        try:
            source = self.get_data(path)
        except OSError:
            # The archive has bytecode instead of a source.
            return super().get_code(fullname)
        return _load_code(fullname, path, source)


def _load_code(name: str, path: str, source: bytes) -> CodeType:
    kept_path = f"{FOLDER}/{name}.{source_hash(sys.hexversion, source).hex()}"
    try:
        with open(kept_path, "rb") as stream:
            code: CodeType = marshal.load(stream)
    except (OSError, EOFError, TypeError, ValueError):
        # It is not there yet, or a power cut has left a part of it.
        code = compile(source, path, "exec", dont_inherit=True)
        _keep_code(kept_path, code)
    else:
        _fix_co_filename(code, path)
    return code


def _keep_code(kept_path: str, code: CodeType) -> None:
    new_path = f"{kept_path}.{os.getpid()}"
    try:
        with open(new_path, "wb") as stream:
            marshal.dump(code, stream)
        os.replace(new_path, kept_path)
    except OSError:
        # The disk may be full, or somebody else's.
        if os.path.exists(new_path):
            os.unlink(new_path)


sys.path_hooks[sys.path_hooks.index(zipimport.zipimporter)] = CachingImporter

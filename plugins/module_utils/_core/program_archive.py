# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build a program of the collection as a zipapp: one file that Python executes without Ansible.

The zipapp contains the same sources that modules use, so both behave the same. It also has their bytecode for the
Python of the host, since Python would compile an archive again in each run. Another Python ignores the bytecode.
"""

from __future__ import annotations

import glob
import io
import json
import marshal
import os
import struct
import zipfile
from importlib.util import MAGIC_NUMBER
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    remove_empty_directory,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange

PROGRAM_MODE, FILE_MODE = 0o755, 0o644
#: Files have a fixed time, so that the same content gives the same archive.
_ARCHIVE_TIME = (1980, 1, 1, 0, 0, 0)
#: Python uses bytecode with this header without checking the source; PEP 552.
_BYTECODE_HEADER = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
_MAIN_FILE = "__main__.py"
_MAIN_TEMPLATE = """\
import json
import sys

from {entry} import main

sys.exit(main(json.loads({settings!r}), sys.argv[1:]))
"""


def assemble_zipapp(
    interpreter: str, entry_module: str, settings: Mapping[str, Any], files_by_path: Mapping[str, bytes]
) -> bytes:
    """Build the zipapp of a program from the files of a bundle.

    ``entry_module``: its first module, which has ``main(settings, arguments)`` and imports nothing of Ansible.
    """
    main_source = _render_main(entry_module, settings)
    return _build_archive(_render_first_line(interpreter), {**files_by_path, _MAIN_FILE: main_source})


def is_installed(
    program: bytes,
    interpreter: str,
    entry_module: str,
    settings: Mapping[str, Any],
    is_desired: Callable[[bytes], bool],
) -> bool:
    """Whether a file is this program with bytecode for this Python. ``is_desired``: whether its bundle is the desired one."""
    try:
        first_line, files_by_path = _split_zipapp(program)
    except (zipfile.BadZipFile, ValueError):
        return False
    source_files = _select_sources(files_by_path)
    if source_files is None or first_line != _render_first_line(interpreter):
        return False
    main_source = source_files.pop(_MAIN_FILE, None)
    return main_source == _render_main(entry_module, settings) and is_desired(pack_sources(source_files))


def _render_first_line(interpreter: str) -> bytes:
    # The options isolate Python from site packages: what a user has installed must not change a program of root.
    return f"#!{interpreter} -IS\n".encode()


def _render_main(entry_module: str, settings: Mapping[str, Any]) -> bytes:
    return _MAIN_TEMPLATE.format(entry=entry_module, settings=json.dumps(settings, sort_keys=True)).encode()


def _select_sources(files_by_path: Mapping[str, bytes]) -> Optional[Dict[str, bytes]]:
    """Return the sources; None if some bytecode is missing or is for another Python."""
    source_files = {name: content for name, content in files_by_path.items() if name.endswith(".py")}
    has_bytecode = all(files_by_path.get(f"{name}c", b"").startswith(_BYTECODE_HEADER) for name in source_files)
    return source_files if has_bytecode else None


def pack_sources(files_by_path: Mapping[str, bytes]) -> bytes:
    """Pack the sources of a program into a bundle: an archive that is the same for all hosts."""
    return _build_archive(b"", files_by_path)


def unpack_sources(archive_content: bytes) -> Dict[str, bytes]:
    """Return the sources in a bundle or zipapp; none if the content is neither."""
    try:
        files_by_path = _read_archive(archive_content)
    except zipfile.BadZipFile:
        return {}
    return {name: source for name, source in files_by_path.items() if name.endswith(".py") and name != _MAIN_FILE}


def _build_archive(first_line: bytes, files_by_path: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    buffer.write(first_line)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as zip_writer:
        for path in sorted(files_by_path):
            zip_writer.writestr(zipfile.ZipInfo(path, _ARCHIVE_TIME), files_by_path[path])
    return buffer.getvalue()


def _split_zipapp(program: bytes) -> Tuple[bytes, Dict[str, bytes]]:
    """Return the first line of a zipapp and its files. Raises BadZipFile or ValueError."""
    files_by_path = _read_archive(program)
    return program[: program.index(b"\n") + 1], files_by_path


def _read_archive(archive_content: bytes) -> Dict[str, bytes]:
    """Return the files of an archive. Raises BadZipFile, however the archive is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive_content)) as zip_reader:
            if any(zip_entry.compress_type != zipfile.ZIP_STORED for zip_entry in zip_reader.infolist()):
                raise zipfile.BadZipFile("Ours are not compressed.")
            return {path: zip_reader.read(path) for path in zip_reader.namelist()}
    except (ValueError, NotImplementedError, RuntimeError, EOFError, struct.error) as failure:
        raise zipfile.BadZipFile(str(failure)) from failure


def add_bytecode(program: bytes, path: str) -> bytes:
    """Add bytecode for this Python to a zipapp. ``path``: its path, for tracebacks."""
    first_line, files_by_path = _split_zipapp(program)
    for name, source in list(files_by_path.items()):
        code = compile(source, f"{path}/{name}", "exec", dont_inherit=True)
        files_by_path[f"{name}c"] = _BYTECODE_HEADER + marshal.dumps(code)
    return _build_archive(first_line, files_by_path)


def strip_bytecode(program: bytes) -> bytes:
    """Return the zipapp as built; empty if it is none, or if some bytecode is missing or is for another Python.

    Compiling a source twice does not always give the same bytes.
    """
    try:
        first_line, files_by_path = _split_zipapp(program)
    except (zipfile.BadZipFile, ValueError):
        return b""
    source_files = _select_sources(files_by_path)
    return b"" if source_files is None else _build_archive(first_line, source_files)


def module_removal(path: str) -> LayerChange:
    """Return the removal of a module for Python programs, with the directories that become empty."""
    return _removal_change(path, lambda: _remove_module(path))


def zipapp_change(path: str, program: Optional[bytes]) -> LayerChange:
    """Return the change to the desired zipapp, as built, or its removal. The diff does not show an archive."""
    if program is None:
        return _removal_change(path, lambda: _remove_program(path))
    current_content = read_current(path, PROGRAM_MODE)
    return _build_change(
        path,
        current_content,
        strip_bytecode(current_content) == program,
        lambda: _write_file(path, add_bytecode(program, path), PROGRAM_MODE),
    )


def file_change(path: str, content: bytes, mode: int = FILE_MODE) -> LayerChange:
    """Return the change to the desired file of a program, which everybody may read."""
    current_content = read_current(path, mode)
    return _build_change(path, current_content, current_content == content, lambda: _write_file(path, content, mode))


def missing_content_change(path: str, mode: int, name: str) -> LayerChange:
    """Return the change of a file that cannot be written yet, since the content with this name has not been pushed."""
    return _build_change(path, read_current(path, mode), False, lambda: None)._replace(missing_content=name)


def _build_change(path: str, current_content: bytes, is_unchanged: bool, write: Callable[[], None]) -> LayerChange:
    if is_unchanged:
        return LayerChange(False, "", "", lambda: None)
    before = f"{path}: the previous program\n" if current_content else ""
    return LayerChange(True, before, f"{path}: the program\n", write)


def _removal_change(path: str, remove: Callable[[], None]) -> LayerChange:
    file_exists = os.path.lexists(path)
    return LayerChange(file_exists, f"{path}\n" if file_exists else "", "", remove)


def read_current(path: str, mode: int) -> bytes:
    """Return the current content of a file; empty if it does not exist, or has another mode."""
    try:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_mode & 0o7777 == mode:
                return stream.read()
    except FileNotFoundError:
        pass
    return b""


def _write_file(path: str, content: bytes, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomic(path, content, mode)


def _remove_program(path: str) -> None:
    remove_file(path)


def _remove_module(path: str) -> None:
    remove_file(path)
    directory, _slash, name = path.rpartition("/")
    cache_directory = f"{directory}/__pycache__"
    for bytecode_path in glob.glob(f"{glob.escape(cache_directory)}/{name.rpartition('.')[0]}.*.pyc"):
        remove_file(bytecode_path)
    for empty_directory in (cache_directory, directory, os.path.dirname(directory)):
        # Another layer's module may exist, and an earlier run may have been interrupted here.
        remove_empty_directory(empty_directory)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program of the collection as one file that runs without Ansible: a zip archive that Python executes.

It contains the same sources that modules use, so both behave the same. With them is their byte code for the Python of the
host, since Python would compile an archive again each time that it runs. Another Python ignores it.
"""

from __future__ import annotations

import functools
import glob
import io
import json
import marshal
import os
import pkgutil
import re
import struct
import zipfile
from importlib.util import MAGIC_NUMBER
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.files import remove_empty, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Part

MODE, FILE_MODE = 0o755, 0o644
_ROOT = "ansible_collections.gpumesh.cluster.plugins.module_utils"
#: An import of names from a module of the collection, in parentheses or on one line.
_IMPORT = re.compile(
    rf"^[ \t]*from[ \t]+({re.escape(_ROOT)}[\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n#]+))", re.MULTILINE
)
#: A name in such an import, without the other name that it is given.
_NAME = re.compile(r"(?:^|,)\s*(?:#[^\n]*\s*)*(\w+)")
#: The same content gives the same archive: files have a fixed time.
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: The header of byte code that Python takes without looking at the source; PEP 552.
_UNCHECKED = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
_MAIN_FILE = "__main__.py"
_MAIN = """\
import json
import sys

from {entry} import main

sys.exit(main(json.loads({settings!r}), sys.argv[1:]))
"""


def sources(entry: str) -> Dict[str, str]:
    """The source of each module that the program needs, by its dotted name. None of them is run."""
    found: Dict[str, str] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            source = _source(name)
            if source is None:
                raise ModuleNotFoundError(f"The collection has no module {name}.", name=name)
            found[name] = source
            waiting += imported(source)
    return found


def imported(source: str) -> List[str]:
    """The modules of the collection that a source imports, as a whole or by name.

    Parsing a source as Python takes ten times as long, and each host does this in each run.
    """
    names: List[str] = []
    for match in _IMPORT.finditer(source):
        module, listed = match.group(1), match.group(2) or match.group(3)
        wanted = [f"{module}.{name}" for name in _NAME.findall(listed)]
        names += [name for name in wanted if _source(name) is not None] or [module]
    return names


@functools.lru_cache(maxsize=None)
def _source(name: str) -> Optional[str]:
    """The source of a module of the collection; None if there is no such module, as for the name of a function.

    Asking Python where a module is would compile it, in the archive in which Ansible sends modules.
    """
    if not name.startswith(f"{_ROOT}."):
        return None
    try:
        content = pkgutil.get_data(__name__, f"{name[len(_ROOT) + 1 :].replace('.', '/')}.py")
    except OSError:
        return None
    return None if content is None else content.decode("utf-8")


def build(interpreter: str, entry: str, settings: Mapping[str, Any]) -> bytes:
    """The program's file: a line that names the interpreter, then the archive.

    ``entry``: the name of its first module, which has ``main(settings, arguments)`` and imports nothing of Ansible.
    """
    return assemble(interpreter, entry, settings, _files(entry))


def assemble(interpreter: str, entry: str, settings: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """The same from the files of a bundle."""
    main = _MAIN.format(entry=entry, settings=json.dumps(settings, sort_keys=True))
    # Isolated and without site packages: what a user has installed must not change a program of root's.
    return _archive(f"#!{interpreter} -IS\n".encode(), {**files, _MAIN_FILE: main.encode()})


def bundle(entry: str) -> bytes:
    """The sources of a program as an archive, which is the same for all hosts."""
    return rebundled(_files(entry))


def rebundled(files: Mapping[str, bytes]) -> bytes:
    """The bundle with these files."""
    return _archive(b"", files)


def bundled(content: bytes) -> Dict[str, bytes]:
    """The files of a bundle, or of the one from which a program was assembled; none if it is neither."""
    try:
        files = _read(content)
    except zipfile.BadZipFile:
        return {}
    return {name: text for name, text in files.items() if name.endswith(".py") and name != _MAIN_FILE}


def _files(entry: str) -> Dict[str, bytes]:
    """The sources of a program, and what makes packages of their folders, by their paths in its archive."""
    contents = {f"{name.replace('.', '/')}.py": text.encode() for name, text in sources(entry).items()}
    packages = {path.rpartition("/")[0] for path in contents}
    for package in sorted(packages):
        parts = package.split("/")
        contents.update({"/".join([*parts[:depth], "__init__.py"]): b"" for depth in range(1, len(parts) + 1)})
    return contents


def _archive(first_line: bytes, contents: Mapping[str, bytes]) -> bytes:
    archive = io.BytesIO()
    archive.write(first_line)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as writer:
        for path in sorted(contents):
            writer.writestr(zipfile.ZipInfo(path, _EPOCH), contents[path])
    return archive.getvalue()


def _opened(program: bytes) -> Tuple[bytes, Dict[str, bytes]]:
    """The first line of a program and its files. Raises BadZipFile or ValueError."""
    files = _read(program)
    return program[: program.index(b"\n") + 1], files


def _read(archive: bytes) -> Dict[str, bytes]:
    """The files of an archive. Raises BadZipFile, however it is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as reader:
            if any(one.compress_type != zipfile.ZIP_STORED for one in reader.infolist()):
                raise zipfile.BadZipFile("Ours are not compressed.")
            return {path: reader.read(path) for path in reader.namelist()}
    except (ValueError, NotImplementedError, RuntimeError, EOFError, struct.error) as failure:
        raise zipfile.BadZipFile(str(failure)) from failure


def with_byte_code(program: bytes, path: str) -> bytes:
    """The program with byte code for this Python. ``path``: its own, for tracebacks."""
    first_line, contents = _opened(program)
    for name, source in list(contents.items()):
        code = compile(source, f"{path}/{name}", "exec", dont_inherit=True)
        contents[f"{name}c"] = _UNCHECKED + marshal.dumps(code)
    return _archive(first_line, contents)


def without_byte_code(program: bytes) -> bytes:
    """The program as it was built; empty if it is none, or if some of its byte code is missing or is for another Python.

    Compiling a source twice does not always give the same bytes.
    """
    try:
        first_line, contents = _opened(program)
    except (zipfile.BadZipFile, ValueError):
        return b""
    sources_only = {name: content for name, content in contents.items() if name.endswith(".py")}
    if any(not contents.get(f"{name}c", b"").startswith(_UNCHECKED) for name in sources_only):
        return b""
    return _archive(first_line, sources_only)


def no_module_part(path: str) -> Part:
    """A module for Python programs that is removed, with the folders that become empty."""
    return _absent(path, lambda: _remove_module(path))


def part(path: str, program: Optional[bytes]) -> Part:
    """The desired program on this host, as it was built. Without one, it is removed. The diff does not show an archive."""
    if program is None:
        return _absent(path, lambda: _remove(path))
    present = current(path, MODE)
    return _part(
        path, present, without_byte_code(present) == program, lambda: _write(path, with_byte_code(program, path), MODE)
    )


def file_part(path: str, content: bytes) -> Part:
    """The desired file of a program on this host, which everybody may read."""
    present = current(path, FILE_MODE)
    return _part(path, present, present == content, lambda: _write(path, content, FILE_MODE))


def lacking_part(path: str, mode: int, name: str) -> Part:
    """A file that differs and cannot be written yet, since its content, of this name, has not been sent."""
    return _part(path, current(path, mode), False, lambda: None)._replace(lacks=name)


def _part(path: str, present: bytes, same: bool, write: Callable[[], None]) -> Part:
    if same:
        return Part(False, "", "", lambda: None)
    before = f"{path}: the previous program\n" if present else ""
    return Part(True, before, f"{path}: the program\n", write)


def _absent(path: str, remove: Callable[[], None]) -> Part:
    there = os.path.lexists(path)
    return Part(there, f"{path}\n" if there else "", "", remove)


def current(path: str, mode: int) -> bytes:
    """The present file; empty if it does not exist, or has another mode."""
    try:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_mode & 0o7777 == mode:
                return stream.read()
    except FileNotFoundError:
        pass
    return b""


def _write(path: str, content: bytes, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomic(path, content, mode)


def _remove(path: str) -> None:
    remove_file(path)


def _remove_module(path: str) -> None:
    remove_file(path)
    folder, _slash, name = path.rpartition("/")
    compiled = f"{folder}/__pycache__"
    for other in glob.glob(f"{glob.escape(compiled)}/{name.rpartition('.')[0]}.*.pyc"):
        remove_file(other)
    for empty in (compiled, folder, os.path.dirname(folder)):
        # Another layer's module may exist, and an earlier run may have been interrupted here.
        remove_empty(empty)

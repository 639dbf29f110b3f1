# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that hosts are given: their sources, which are pushed to the hosts that do not have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import content_digest

#: The sources of programs by the names that the module knows: bundles, or single files.
ProgramSources = Mapping[str, bytes]

_PACKAGE_ROOT = "ansible_collections.gpumesh.cluster.plugins.module_utils"
_COLLECTION_DIRECTORY = Path(__file__).resolve().parents[3]
_MODULE_UTILS = _COLLECTION_DIRECTORY / "plugins" / "module_utils"
#: This pattern matches an import from a module of the collection, in parentheses or on one line. Parsing a source as
#: Python takes ten times as long, and this is done for each host in each run.
_IMPORT_STATEMENT = re.compile(
    rf"^[ \t]*from[ \t]+({re.escape(_PACKAGE_ROOT)}[\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n#]+))", re.MULTILINE
)
#: This pattern matches a name in such an import, without its alias.
_IMPORTED_NAME = re.compile(r"(?:^|,)\s*(?:#[^\n]*\s*)*(\w+)")


def collect_sources(entry_module: str) -> dict[str, str]:
    """Return the source of each module that the program needs by dotted name. None of them is run."""
    sources_by_name: dict[str, str] = {}
    pending_names = [entry_module]
    while pending_names:
        module_name = pending_names.pop()
        if module_name not in sources_by_name:
            source = _read_source(module_name)
            if source is None:
                raise ModuleNotFoundError(f"The collection has no module {module_name}.", name=module_name)
            sources_by_name[module_name] = source
            pending_names += find_imports(source)
    return sources_by_name


def find_imports(source: str) -> list[str]:
    """Return the modules of the collection that a source imports, as a whole or by name."""
    module_names: list[str] = []
    for match in _IMPORT_STATEMENT.finditer(source):
        module, imported_names = match.group(1), match.group(2) or match.group(3)
        candidate_names = [f"{module}.{name}" for name in _IMPORTED_NAME.findall(imported_names)]
        module_names += [name for name in candidate_names if _read_source(name) is not None] or [module]
    return module_names


@cache
def _read_source(module_name: str) -> str | None:
    """Return the source of a module of the collection; None for another name, such as that of a function."""
    if not module_name.startswith(f"{_PACKAGE_ROOT}."):
        return None
    relative_path = module_name[len(_PACKAGE_ROOT) + 1 :].replace(".", "/")
    try:
        return (_MODULE_UTILS / f"{relative_path}.py").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def bundle_program(entry_module: str) -> bytes:
    """Pack the sources of a program, and __init__.py of all packages, into a bundle."""
    files_by_path = {
        f"{name.replace('.', '/')}.py": text.encode() for name, text in collect_sources(entry_module).items()
    }
    package_paths = {path.rpartition("/")[0] for path in files_by_path}
    for path_parts in (package_path.split("/") for package_path in package_paths):
        for depth in range(1, len(path_parts) + 1):
            files_by_path["/".join([*path_parts[:depth], "__init__.py"])] = b""
    return program_archive.pack_sources(files_by_path)


def read_role_file(role: str, file_name: str) -> bytes:
    """Return the content of a file of a role."""
    return (_COLLECTION_DIRECTORY / "roles" / role / "files" / file_name).read_bytes()


def source_digests(sources: ProgramSources) -> dict[str, str]:
    """Return the option by which a module finds out which sources it needs."""
    return {name: content_digest(source) for name, source in sources.items()}

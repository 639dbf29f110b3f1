# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps what Ansible builds of modules, plugins and YAML for the next runs of the tests.

Each run of Ansible looks for the imports of each module that it sends, and compresses them; this took a twelfth of the
processor time of all tests. It also compiles each plugin of a collection, and parses its own options, anew. Archives are
found by the files that they may contain, all else by its source.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import gpumesh_lab_bytecode

#: Characters, or bytes. What is shorter is parsed sooner than found.
_MIN_YAML_LENGTH = 1000
_YAML_LOADERS = ("BaseLoader", "SafeLoader", "CBaseLoader", "CSafeLoader")


def keep_archives(module_common: Any) -> None:
    """Have Ansible find archives of former runs in the folder in which it looks for those of this run."""
    build = module_common._find_module_utils

    def find_or_build(*positional: Any, **named: Any) -> Any:
        module_path = named.get("module_path") or positional[2]
        try:
            module_name = module_common._get_ansible_module_fqn(module_path)
        except ValueError:
            return build(*positional, **named)
        run_folder = Path(module_common.C.DEFAULT_LOCAL_TMP, "ansiballz_cache")
        if _find_archives(run_folder, module_name):
            # This run has it: each task on each host comes through here.
            return build(*positional, **named)
        digest = _digest_inputs(Path(module_common.__file__), Path(module_path))
        kept_folder = Path(gpumesh_lab_bytecode.FOLDER, f"{module_name}-{digest}")
        _copy_archives(kept_folder, run_folder, module_name)
        result = build(*positional, **named)
        _copy_archives(run_folder, kept_folder, module_name)
        return result

    module_common._find_module_utils = find_or_build


def _digest_inputs(ansible_path: Path, module_path: Path) -> str:
    """Return a digest of what an archive may be made of: the module, its collection and Ansible, by their times."""
    utilities = module_path.parents[2] / "plugins" / "module_utils"
    inputs = [ansible_path, module_path, *sorted(utilities.rglob("*.py"))]
    statuses = [(path, path.stat()) for path in inputs]
    return _digest(*(f"{path} {status.st_mtime_ns} {status.st_size}".encode() for path, status in statuses))


def _find_archives(folder: Path, module_name: str) -> list[Path]:
    """Return the complete archives of a module."""
    return [path for path in folder.glob(f"{module_name}-*") if not path.name.endswith(("-part", ".lock"))]


def _copy_archives(source: Path, target: Path, module_name: str) -> None:
    """Copy the archives of a module that are not in the other folder yet."""
    with contextlib.suppress(OSError):
        target.mkdir(exist_ok=True)
    for path in _find_archives(source, module_name):
        if not (target / path.name).exists():
            _write_file(target / path.name, path.read_bytes())


def keep_bytecode(collection_finder: Any) -> None:
    """Have the loader of collections compile each source once."""

    def get_code(self: Any, fullname: str) -> Any:
        if not self._compiled_code:
            source = self.get_source(fullname)
            if source is None:
                return None
            content = source if isinstance(source, bytes) else source.encode()
            path = self.get_filename(fullname) or "<string>"
            self._compiled_code = gpumesh_lab_bytecode._load_code(fullname, path, content)
        return self._compiled_code

    collection_finder._AnsibleCollectionPkgLoaderBase.get_code = get_code


def keep_yaml(yaml: Any) -> None:
    """Have plain YAML parsed once, by whatever loads it."""
    parse = yaml.load
    loaders = {getattr(yaml, name) for name in _YAML_LOADERS if hasattr(yaml, name)}

    def load(stream: Any, *positional: Any, **named: Any) -> Any:
        (loader,) = [*positional, *named.values()]
        is_file = hasattr(stream, "read") and hasattr(stream, "seek")
        if loader not in loaders or not (is_file or isinstance(stream, str | bytes)):
            return parse(stream, loader)
        content = stream.read() if is_file else stream
        if is_file:
            # An error in it names the file.
            stream.seek(0)
        if len(content) < _MIN_YAML_LENGTH:
            return parse(stream, loader)
        encoded = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        name = f"yaml-{_digest(yaml.__version__.encode(), loader.__name__.encode(), encoded)}"
        return _find_or_make(Path(gpumesh_lab_bytecode.FOLDER, name), lambda: parse(stream, loader))

    yaml.load = load


def _find_or_make(kept_path: Path, make: Callable[[], Any]) -> Any:
    """Return what an earlier run has made, or make it."""
    try:
        return pickle.loads(kept_path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        value = make()
    _write_file(kept_path, pickle.dumps(value))
    return value


def _digest(*parts: bytes) -> str:
    return sha256(b"\0".join(parts)).hexdigest()[:32]


def _write_file(path: Path, content: bytes) -> None:
    """Write a file that other processes may be reading or writing, unless the folder is gone or somebody else's."""
    new_path = path.with_name(f"{path.name}.{os.getpid()}-part")
    with contextlib.suppress(OSError):
        new_path.write_bytes(content)
        new_path.replace(path)

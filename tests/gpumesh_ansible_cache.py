# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps what Ansible makes of modules, plugins and YAML for the next runs of the tests.

Each run of Ansible looks for the imports of each module that it sends, and compresses them; this took a twelfth of the
processor time of all tests. It also compiles each plugin of a collection, and parses its own options and those of its
plugins, anew. Archives are found by the files that they may contain, all else by its source.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import PathFinder, SourceFileLoader

import gpumesh_lab_bytecode

#: Characters, or bytes.
_MIN_YAML_LENGTH = 1000

# Each Python of the environment imports this when it starts; typing would take longer than all of the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class AnsibleFinder:
    """Changes what Ansible imports, once it is imported."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find these modules only."""
        change = _CHANGES.get(fullname)
        if change is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _ChangingLoader(spec.loader, change)
        return spec


class _ChangingLoader(SourceFileLoader):
    """Loads a module of Ansible as usual, and changes it."""

    def __init__(self, loader: SourceFileLoader, change: Callable[[ModuleType], None]) -> None:
        super().__init__(loader.name, loader.path)
        self._change = change

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and then the change."""
        super().exec_module(module)
        self._change(module)


def _keep_archives(module_common: Any) -> None:
    """Have Ansible find archives of former runs in the folder in which it looks for those of this run."""
    build = module_common._find_module_utils

    def find_or_build(*positional: Any, **named: Any) -> Any:
        module_path = named.get("module_path") or positional[2]
        try:
            module_name = module_common._get_ansible_module_fqn(module_path)
        except ValueError:
            return build(*positional, **named)
        run_folder = os.path.join(module_common.C.DEFAULT_LOCAL_TMP, "ansiballz_cache")
        kept_folder = os.path.join(
            gpumesh_lab_bytecode.FOLDER, f"{module_name}-{_digest_inputs(module_common, module_path)}"
        )
        _copy_archives(kept_folder, run_folder, module_name)
        result = build(*positional, **named)
        _copy_archives(run_folder, kept_folder, module_name)
        return result

    module_common._find_module_utils = find_or_build


def _digest_inputs(module_common: Any, module_path: str) -> str:
    """Return a digest of what an archive may be made of: the module, its collection and Ansible, by their times."""
    from hashlib import sha256  # noqa: PLC0415

    inputs = [
        sys.executable,
        module_common.__file__,
        *_describe_file(module_common.__file__),
        *_describe_file(module_path),
    ]
    root = os.path.dirname(os.path.dirname(os.path.dirname(module_path)))
    for folder, _folders, names in sorted(os.walk(os.path.join(root, "plugins", "module_utils"))):
        for name in sorted(names):
            if name.endswith(".py"):
                inputs += _describe_file(os.path.join(folder, name))
    return sha256("\n".join(inputs).encode()).hexdigest()[:16]


def _describe_file(path: str) -> list[str]:
    status = os.stat(path)
    return [path, str(status.st_mtime_ns), str(status.st_size)]


def _copy_archives(source: str, target: str, module_name: str) -> None:
    """Copy the archives of a module that are not in the other folder yet."""
    if not os.path.isdir(source):
        return
    from shutil import copyfile  # noqa: PLC0415

    for name in os.listdir(source):
        target_path = os.path.join(target, name)
        if (
            name.startswith(f"{module_name}-")
            and not name.endswith(("-part", ".lock"))
            and not os.path.exists(target_path)
        ):
            os.makedirs(target, exist_ok=True)
            new_path = f"{target_path}.{os.getpid()}-part"
            copyfile(os.path.join(source, name), new_path)
            os.replace(new_path, target_path)


def _keep_bytecode(collection_finder: Any) -> None:
    """Have the loader of collections compile each source once."""
    loader = collection_finder._AnsibleCollectionPkgLoaderBase

    def get_code(self: Any, fullname: str) -> Any:
        if not self._compiled_code:
            source = self.get_source(fullname)
            if source is None:
                return None
            path = self.get_filename(fullname) or "<string>"
            content = source if isinstance(source, bytes) else source.encode()
            self._compiled_code = gpumesh_lab_bytecode._load_code(fullname, path, content)
        return self._compiled_code

    loader.get_code = get_code


def _keep_yaml(yaml: Any) -> None:
    """Have plain YAML parsed once, by whatever loads it. Short texts are parsed sooner than found."""
    parse = yaml.load
    names = ("BaseLoader", "SafeLoader", "CBaseLoader", "CSafeLoader")
    loaders = {getattr(yaml, name) for name in names if hasattr(yaml, name)}

    def load(stream: Any, Loader: Any) -> Any:  # noqa: N803
        is_file = hasattr(stream, "read") and hasattr(stream, "seek")
        if Loader not in loaders or not (is_file or isinstance(stream, str | bytes)):
            return parse(stream, Loader)
        content = stream.read() if is_file else stream
        if is_file:
            # What is wrong with it is said with its name.
            stream.seek(0)
        if len(content) < _MIN_YAML_LENGTH:
            return parse(stream, Loader)
        return _find_or_make(f"{yaml.__version__} {Loader.__name__}", content, lambda: parse(stream, Loader))

    yaml.load = load


def _find_or_make(kind: str, content: str | bytes, make: Callable[[], Any]) -> Any:
    """Return what was made of the content before, or make it."""
    import pickle  # noqa: PLC0415
    from hashlib import sha256  # noqa: PLC0415

    encoded = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    kept_path = os.path.join(gpumesh_lab_bytecode.FOLDER, f"yaml-{sha256(kind.encode() + encoded).hexdigest()[:32]}")
    try:
        with open(kept_path, "rb") as kept:
            return pickle.load(kept)
    except (OSError, EOFError, pickle.UnpicklingError):
        value = make()
    new_path = f"{kept_path}.{os.getpid()}"
    with open(new_path, "wb") as new:
        pickle.dump(value, new)
    os.replace(new_path, kept_path)
    return value


_CHANGES: dict[str, Callable[[Any], None]] = {
    "yaml": _keep_yaml,
    "ansible.executor.module_common": _keep_archives,
    "ansible.utils.collection_loader._collection_finder": _keep_bytecode,
}

sys.meta_path.insert(0, AnsibleFinder)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has the runs of Ansible in the tests use what earlier ones have built.

Each Python of the environment imports this when it starts, so it only notices the import of what builds something, and
leaves the rest to ``gpumesh_build_cache``.
"""

from __future__ import annotations

import importlib
import sys
from _frozen_importlib_external import PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

#: The modules that build something, and the function that changes each of them.
CHANGES = {
    "yaml": "keep_yaml",
    "ansible.executor.module_common": "keep_archives",
    "ansible.utils.collection_loader._collection_finder": "keep_bytecode",
}


class ChangedModules:
    """Finds these modules, and changes each of them once it is imported."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find one of these modules; None if it is another one."""
        if name not in CHANGES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _ChangingLoader(name, spec.loader.path)
        return spec


class _ChangingLoader(SourceFileLoader):
    """Loads a module as usual, and changes it."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and then the change."""
        super().exec_module(module)
        getattr(importlib.import_module("gpumesh_build_cache"), CHANGES[module.__name__])(module)


sys.meta_path.insert(0, ChangedModules)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh_preload, whose documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh

_MODULE = "gpumesh.cluster.mesh_preload"
_LIBRARY_SOURCE = Path(__file__).resolve().parents[2] / "roles" / "mesh" / "files" / "gpumesh-pod.c"


class ActionModule(HostAction):
    """Derives the settings of the library from the record, and installs the compiler if it is missing."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        record = self.resolve_record(module_args.pop("record", None))
        if record is not None and module_args.get("state") != "absent":
            if self.check_mode and not mesh.has_mesh_address(record, self.machine):
                # A real run would have registered the address before.
                return {"changed": True, "library": "", "missing": []}
            preload_options = mesh.preload_options(
                record, self.machine, self.options("mesh_proxy_port")["mesh_proxy_port"]
            )
            module_args = {"source": _LIBRARY_SOURCE.read_text(encoding="utf-8"), **preload_options, **module_args}
        result = self.ensure_packages(_MODULE, module_args, self._missing_packages)
        self.refuse_missing_programs(result["missing"])
        return result

    def _missing_packages(self, result: Mapping[str, Any]) -> list[str]:
        """Return the packages with the compiler if it is missing."""
        if not result["missing"]:
            return []
        return ["gcc", "libc6-dev"] if self.package_manager == "apt" else ["gcc", "glibc-devel"]

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh_preload, whose documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction

_MODULE = "gpumesh.cluster.mesh_preload"
_SOURCE = Path(__file__).resolve().parents[2] / "roles" / "mesh" / "files" / "gpumesh-pod.c"


class ActionModule(HostAction):
    """Derives the settings of the library from the record, and installs the compiler if it is missing."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = dict(self._task.args)
        record = self.named(given.pop("record", None))
        if record is not None and given.get("state") != "absent":
            if self.check_mode and not mesh.has_end(record, self.machine):
                # The address would be registered before.
                return {"changed": True, "library": "", "missing": []}
            options = mesh.preload(record, self.machine, self.options("mesh", "proxy_port")["proxy_port"])
            given = {"source": _SOURCE.read_text(encoding="utf-8"), **options, **given}
        result = self.equipped_module(_MODULE, given, self._lacking)
        self.refuse_missing(result["missing"])
        return result

    def _lacking(self, result: Mapping[str, Any]) -> list[str]:
        """The packages with the compiler, if it is missing."""
        if not result["missing"]:
            return []
        return ["gcc", "libc6-dev"] if self.package_manager == "apt" else ["gcc", "glibc-devel"]

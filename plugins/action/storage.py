# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of storage. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model, plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.storage import desired, refuse_withdrawal

_MODULE = "gpumesh.cluster.storage"
#: The packages for what the module reports as missing.
_DEBIAN = {
    "kernel": ["nfs-kernel-server"],
    "ganesha": ["nfs-ganesha", "nfs-ganesha-vfs"],
    "client": ["nfs-common"],
    "quota": ["xfsprogs"],
}
_OTHERS = {**_DEBIAN, "kernel": ["nfs-utils"], "client": ["nfs-utils"]}


class ActionModule(HostAction):
    """Derives the volumes of the host from the record, and installs the packages."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            volumes={"type": "list", "elements": "dict"},
            backend={"type": "str", "choices": ["nfs", "external", "none"], "default": "nfs"},
            server={"type": "str", "choices": ["kernel", "ganesha"], "default": "kernel"},
            force={"type": "bool", "default": False},
        )
        record = self.record()
        own = [one for one in record["storage"]["volumes"] if one.get("server") == self.machine]
        if given["volumes"] is not None:
            wanted = plan.set_storage(record, given["volumes"]).record
            if not given["force"]:
                refuse_withdrawal(record, wanted, [*self.present, *self.userspace_only])
            record = wanted
        # A pod has no volumes, like a member that has left.
        record = {**record, "storage": {"volumes": derive.volumes_of(record, self.machine)}}
        parameters = {**desired(record, self.machine, given["backend"], given["server"]), "force": given["force"]}
        result = self.equipped_module(_MODULE, parameters, self._lacking)
        # The record keeps volumes that backend none withdraws, so only the host knows whether it still exports them.
        if given["backend"] == "none" and self.check_mode and result["changed"] and not given["force"]:
            exported: model.Record = {**record, "storage": {"volumes": own}}
            withdrawn: model.Record = {**record, "storage": {"volumes": []}}
            refuse_withdrawal(exported, withdrawn, [*self.present, *self.userspace_only])
        return result

    def _lacking(self, result: Mapping[str, Any]) -> list[str]:
        """The packages for what the module reported as missing."""
        if not result["missing"]:
            return []
        packages = _DEBIAN if self.package_manager == "apt" else _OTHERS
        return sorted({name for part in result["missing"] for name in packages[part]})

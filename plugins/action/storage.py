# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of storage. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model, plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.storage import (
    desired_parameters,
    refuse_withdrawal,
)

_MODULE = "gpumesh.cluster.storage"
#: The packages for each component that the module reports as missing.
_DEBIAN_PACKAGES = {
    "kernel": ["nfs-kernel-server"],
    "ganesha": ["nfs-ganesha", "nfs-ganesha-vfs"],
    "client": ["nfs-common"],
    "quota": ["xfsprogs"],
}
_RPM_PACKAGES = {**_DEBIAN_PACKAGES, "kernel": ["nfs-utils"], "client": ["nfs-utils"]}


class ActionModule(HostAction):
    """Derives the volumes of the host from the record, and installs the packages."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            volumes={"type": "list", "elements": "dict"},
            backend={"type": "str", "choices": ["nfs", "external", "none"], "default": "nfs"},
            server={"type": "str", "choices": ["kernel", "ganesha"], "default": "kernel"},
            force={"type": "bool", "default": False},
        )
        record = self.record()
        own_volumes = [volume for volume in record["storage"]["volumes"] if volume.get("server") == self.machine]
        if task_args["volumes"] is not None:
            desired_record = plan.set_storage(record, task_args["volumes"]).record
            if not task_args["force"]:
                refuse_withdrawal(record, desired_record, [*self.active_hosts, *self.userspace_only])
            record = desired_record
        # A pod has no volumes, and neither has a member that has left.
        record = {**record, "storage": {"volumes": derive.mounted_volumes(record, self.machine)}}
        module_args = {
            **desired_parameters(record, self.machine, task_args["backend"], task_args["server"]),
            "force": task_args["force"],
        }
        result = self.ensure_packages(_MODULE, module_args, self._missing_packages)
        # The record keeps volumes that backend none withdraws, so only the host knows whether it still exports them.
        if task_args["backend"] == "none" and self.check_mode and result["changed"] and not task_args["force"]:
            exported_record: model.Record = {**record, "storage": {"volumes": own_volumes}}
            withdrawn_record: model.Record = {**record, "storage": {"volumes": []}}
            refuse_withdrawal(exported_record, withdrawn_record, [*self.active_hosts, *self.userspace_only])
        return result

    def _missing_packages(self, result: Mapping[str, Any]) -> list[str]:
        """Return the packages for the components that the module reported as missing."""
        if not result["missing"]:
            return []
        packages_by_component = _DEBIAN_PACKAGES if self.package_manager == "apt" else _RPM_PACKAGES
        return sorted({name for component in result["missing"] for name in packages_by_component[component]})

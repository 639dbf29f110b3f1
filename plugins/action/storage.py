# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of storage. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model, plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.storage import (
    ROLE_OPTIONS,
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
            state=STATE_OPTION,
            preview={"type": "bool", "default": False},
        )
        record = self.record()
        options = self.options("cluster_force", *ROLE_OPTIONS)
        if task_args["state"] == "absent":
            options["storage_backend"] = "none"
        is_forced = options["cluster_force"]
        requested_volumes = self.read_option("storage_volumes") if task_args["preview"] else None
        own_volumes = [volume for volume in record["storage"]["volumes"] if volume.get("server") == self.machine]
        if requested_volumes is not None:
            desired_record = plan.set_storage(record, requested_volumes).record
            if not is_forced:
                refuse_withdrawal(record, desired_record, [*self.active_hosts, *self.userspace_only])
            record = desired_record
        # A pod has no volumes, and neither has a member that has left.
        record = {**record, "storage": {"volumes": derive.mounted_volumes(record, self.machine)}}
        module_args = {**desired_parameters(record, self.machine, options), "force": is_forced}
        result = self.ensure_packages(_MODULE, module_args, self._missing_packages)
        # The record keeps volumes that backend none withdraws, so only the host knows whether it still exports them.
        if options["storage_backend"] == "none" and self.check_mode and result["changed"] and not is_forced:
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

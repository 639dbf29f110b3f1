# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import refuse_unexpected_record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.registration import enrolled_members
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction

_MODULE = "gpumesh.cluster.cluster"


class ActionModule(HostAction):
    """Runs the module, with the decisions of an earlier task about the machines of the play."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        registration_name = module_args.pop("registration", None)
        module_args = {**self.older_version(), **module_args}
        if registration_name is None:
            return self.run_module(_MODULE, {**self._replica_options(module_args), **module_args})
        decision = self.variables[str(registration_name)]
        if not decision["writes"]:
            return {"changed": False, "record": decision["record"]}
        enrolled_addresses = {
            machine: host_variables["mesh_enrolled_addresses"] or []
            for machine, host_variables in self.variables_by_host("mesh_enrolled_addresses").items()
        }
        record = model.parse(decision["record"]) if decision["record"] else None
        result = self.run_module(
            _MODULE,
            {
                **module_args,
                "subnet": decision["subnet"],
                "manager": decision["manager"],
                "mesh": decision["mesh"],
                "members": enrolled_members(decision, record, enrolled_addresses),
                "joining": decision["joining"],
                **({} if decision["volumes"] is None else {"storage": {"volumes": decision["volumes"]}}),
            },
        )
        refuse_unexpected_record(model.parse(result["record"]), str(module_args["name"]), decision["manager"])
        return result

    def _replica_options(self, module_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a replica of the record takes from the options of the role cluster."""
        if module_args.get("state") != "replica":
            return {}
        options = self.options("cluster_actor", "cluster_trusted_copy")
        actor = options["cluster_actor"]
        return {"force": bool(options["cluster_trusted_copy"]), **({"actor": actor} if actor else {})}

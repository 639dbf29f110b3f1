# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import refuse_other
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.registration import enrolled

_MODULE = "gpumesh.cluster.cluster"


class ActionModule(HostAction):
    """Runs the module, with the decisions of an earlier task about the machines of the play."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = dict(self._task.args)
        registration = given.pop("registration", None)
        given = {**self.older_version(), **given}
        if registration is None:
            return self.module(_MODULE, {**self._copied(given), **given})
        decision = self.variables[str(registration)]
        if not decision["writes"]:
            return {"changed": False, "record": decision["record"]}
        addresses = {
            machine: own["mesh_enrolled_addresses"] or []
            for machine, own in self.of_hosts("mesh_enrolled_addresses").items()
        }
        record = model.parse(decision["record"]) if decision["record"] else None
        result = self.module(
            _MODULE,
            {
                **given,
                "subnet": decision["subnet"],
                "manager": decision["manager"],
                "mesh": decision["mesh"],
                "members": enrolled(decision, record, addresses),
                "joining": decision["joining"],
                **({} if decision["volumes"] is None else {"storage": {"volumes": decision["volumes"]}}),
            },
        )
        refuse_other(model.parse(result["record"]), str(given["name"]), decision["manager"])
        return result

    def _copied(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a copy of the record takes from the options of the role cluster."""
        if given.get("state") != "replica":
            return {}
        actor = self.variable("cluster_actor")
        return {"force": bool(self.variable("cluster_trusted_copy")), **({"actor": actor} if actor else {})}

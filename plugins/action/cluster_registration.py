# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_registration. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import preflight
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.dialling import (
    OPTIONS,
    refuse_to_demote,
    refuse_userspace_only,
    userspace_only,
    without_interface,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.machines import machine_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.registration import Host, Wish, decide, refuse_mesh

_TEXT = {"type": "str", "default": ""}


class ActionModule(ControllerAction):
    """Decides for all hosts of the play at once."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            name={"type": "str", "required": True},
            registered={"type": "str", "required": True},
            found={"type": "str", "required": True},
            candidate={"type": "str", "required": True},
            subnet=_TEXT,
            manager=_TEXT,
            machines={"type": "raw", "default": []},
            join_only={"type": "bool", "default": False},
        )
        wish = self._wish(given)
        found = self.variables[given["found"]]
        record = model.parse(found["record"]) if found["record"] else None
        names = ("ansible_host", "cluster_site", "cluster_endpoint", "job_environment_rdma", *OPTIONS)
        hosts = self.of_hosts(given["registered"], *names)
        held = {machine: dict(own[given["registered"]] or {}) for machine, own in hosts.items()}
        known = {
            machine: Host(
                own["ansible_host"] or machine,
                own["cluster_site"] or None,
                own["cluster_endpoint"] or None,
                own["job_environment_rdma"] in (None, "") or boolean(own["job_environment_rdma"], strict=False),
            )
            for machine, own in hosts.items()
        }
        decision, coming = decide(wish, record, known, held, read_answers(held, found["records"]))
        options = preflight.read_options(self.options)
        volumes = self.variable("storage_volumes")
        confined: list[str] = []
        if decision["enrol_settings"]["backend"] == "tailscale":
            served = volumes or (record["storage"]["volumes"] if record else [])
            servers = [volume["server"] for volume in served if "server" in volume]
            taking_part = {member["machine"] for member in decision["members"]}
            confined = [machine for machine in without_interface(held, hosts) if machine in taking_part]
            refuse_userspace_only(confined, [decision["manager"], *servers])
            if record:
                refuse_to_demote(record, userspace_only(held, hosts))
        refuse_mesh(coming.record, self.options("mesh", "relays")["relays"] or [])
        layered = preflight.refuse(coming.record, volumes, options, self._tracked())
        if decision["left_out"]:
            self.print_text(
                f"{', '.join(decision['left_out'])}: removed from cluster '{given['name']}', and therefore skipped. "
                f"The playbook join adds it again, with cluster_machines={','.join(decision['left_out'])}."
            )
        probed = [member for member in decision["members"] if "address" in member] if decision["joining"] else []
        return {
            "changed": False,
            **decision,
            "record": record,
            "writes": self._writes(found, decision["manager"], [change.kind for change in coming.changes]),
            "volumes": None if record else volumes,
            "preflight": {
                # Whatever is to change. A second run asks no host for what the first has found there.
                "machines": [one["machine"] for one in decision["members"]]
                if coming.changes or layered != coming.record
                else [],
                "pods": confined,
                "volumes": layered["storage"]["volumes"],
            },
            "probed": [{key: member[key] for key in ("machine", "address", "interface")} for member in probed],
        }

    def _tracked(self) -> dict[str, Any]:
        """What ``site`` would ask of the tracking server."""
        return {
            "start": False,
            **self.options("tracking", "state", "server", "port", "volume", "tls", "certificate_file"),
        }

    @staticmethod
    def _writes(found: Mapping[str, Any], manager: str, changes: Sequence[str]) -> bool:
        """Whether the manager gets a record. Raises InputError if it does not answer, but would have to.

        ``changes``: the kinds of the changes. Without the manager, the version of the collection is noted another time.
        """
        silence = found.get("manager_silence")
        if silence and set(changes) - {"version"}:
            raise InputError(
                f"Nothing has been changed. The manager {manager} does not answer ({silence}), and only it changes the "
                "record.",
                f"Run this again when {manager} is back; if it is permanently lost, choose another manager: playbook "
                f"remove with cluster_machine={manager}, cluster_new_manager and cluster_manager_lost=true.",
                manager=manager,
            )
        # That another copy is used instead of the manager's does not mean that the manager has it.
        return not silence and (bool(changes) or found["source"] != manager)

    def _wish(self, given: Mapping[str, Any]) -> Wish:
        machines = machine_names(given["machines"])
        if given["join_only"] and not machines:
            raise InputError(
                f"No machine to join cluster '{given['name']}' was given.",
                "Set cluster_machines=NAME,NAME with names from the inventory's group.",
            )
        mesh = self.options("mesh", "backend", "subnet", "port", "interface", "mtu")
        patterns = self.options("discover", "prefer", "exclude", "include")
        return Wish(
            given["name"],
            given["subnet"] or None,
            given["manager"] or None,
            given["candidate"],
            machines or None,
            {key: value for key, value in mesh.items() if value},
            given["join_only"],
            {key: value or [] for key, value in patterns.items()},
        )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_registration. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import preflight
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import parse_machine_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.registration import (
    InventoryHost,
    RegistrationRequest,
    decide_registration,
    refuse_mesh,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import read_responses
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import tracking
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.userspace_only import (
    MESH_OPTIONS,
    machines_without_interface,
    refuse_to_demote,
    refuse_userspace_only,
    refuse_without_nodes,
    userspace_only_machines,
)

#: Options of each host, as opposed to those that are the same for all.
_HOST_OPTIONS = ("cluster_site", "cluster_endpoint", "job_environment_rdma", "slurm_node", *MESH_OPTIONS)


class ActionModule(ControllerAction):
    """Decides for all hosts of the play at once."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            registered={"type": "str", "required": True},
            copies={"type": "str", "required": True},
            candidate={"type": "str", "required": True},
        )
        request = self._registration_request(task_args["candidate"])
        copies_result = self.variables[task_args["copies"]]
        record = model.parse(copies_result["record"]) if copies_result["record"] else None
        variables_by_host = self.variables_by_host(task_args["registered"], "ansible_host")
        options_by_host = self.options_by_host(*_HOST_OPTIONS)
        results_by_machine = {
            machine: dict(host_variables[task_args["registered"]] or {})
            for machine, host_variables in variables_by_host.items()
        }
        play_hosts = {
            machine: InventoryHost(
                host_variables["ansible_host"] or machine,
                options_by_host[machine]["cluster_site"] or None,
                options_by_host[machine]["cluster_endpoint"] or None,
                options_by_host[machine]["job_environment_rdma"],
                options_by_host[machine]["slurm_node"],
            )
            for machine, host_variables in variables_by_host.items()
        }
        decision, next_draft = decide_registration(
            request,
            record,
            play_hosts,
            results_by_machine,
            read_responses(results_by_machine, copies_result["records"]),
        )
        options = self.options("mesh_relays", *preflight.READ_OPTIONS, *tracking.SETTING_OPTIONS)
        # As they were given, since validation makes strings of numbers, which the record refuses.
        desired_volumes = self.read_option("storage_volumes")
        pod_machines: list[str] = []
        if decision["enrol_settings"]["backend"] == "tailscale":
            served_volumes = desired_volumes or (record["storage"]["volumes"] if record else [])
            volume_servers = [volume["server"] for volume in served_volumes if "server" in volume]
            participants = {member["machine"] for member in decision["members"]}
            pod_machines = [
                machine
                for machine in machines_without_interface(results_by_machine, options_by_host)
                if machine in participants
            ]
            refuse_userspace_only(pod_machines, [decision["manager"], *volume_servers])
            userspace_machines = userspace_only_machines(results_by_machine, options_by_host)
            refuse_without_nodes(next_draft.record, userspace_machines)
            if record:
                refuse_to_demote(record, userspace_machines)
        refuse_mesh(next_draft.record, options["mesh_relays"])
        layered_record = preflight.refuse_impossible(next_draft.record, desired_volumes, options)
        probed_members = (
            [member for member in decision["members"] if "address" in member] if decision["joining"] else []
        )
        return {
            "changed": False,
            **decision,
            "record": record,
            "writes": self._needs_write(
                copies_result, decision["manager"], [change.kind for change in next_draft.changes]
            ),
            "volumes": None if record else desired_volumes,
            "preflight": {
                # The hosts are checked only before a change, so that a second run does not query them again.
                "machines": [checked_member["machine"] for checked_member in decision["members"]]
                if next_draft.changes or layered_record != next_draft.record
                else [],
                "pods": pod_machines,
                "volumes": layered_record["storage"]["volumes"],
            },
            "probed": [
                {**{key: member[key] for key in ("machine", "address", "interface")}, "network": decision["subnet"]}
                for member in probed_members
            ],
        }

    @staticmethod
    def _needs_write(copies_result: Mapping[str, Any], manager: str, change_kinds: Sequence[str]) -> bool:
        """Whether the record is written on the manager. Raises InputError if this is necessary, but it does not answer.

        A change of kind ``version`` alone can wait until the manager answers.
        """
        unreachable_reason = copies_result.get("manager_unreachable_reason")
        if unreachable_reason and set(change_kinds) - {"version"}:
            raise InputError(
                f"Nothing has been changed. The manager {manager} does not answer ({unreachable_reason}), and only it changes the "
                "record.",
                f"Run this again when {manager} is back; if it is permanently lost, choose another manager: playbook "
                f"remove with cluster_machine={manager}, cluster_new_manager and cluster_manager_lost=true.",
                manager=manager,
            )
        # The manager may lack the record if another copy is used.
        return not unreachable_reason and (bool(change_kinds) or copies_result["source"] != manager)

    def _registration_request(self, candidate: str) -> RegistrationRequest:
        options = self.options(
            "cluster_name",
            "cluster_subnet",
            "cluster_manager",
            "cluster_machines",
            "cluster_join_only",
            "mesh_backend",
            "mesh_subnet",
            "mesh_port",
            "mesh_interface",
            "mesh_mtu",
            "discover_prefer",
            "discover_exclude",
            "discover_include",
        )
        named_machines = parse_machine_names(options["cluster_machines"])
        if options["cluster_join_only"] and not named_machines:
            raise InputError(
                f"No machine to join cluster '{options['cluster_name']}' was given.",
                "Set cluster_machines=NAME,NAME with names from the inventory's group.",
            )
        mesh_settings = {
            "backend": options["mesh_backend"],
            "subnet": options["mesh_subnet"],
            "port": options["mesh_port"],
            "interface": options["mesh_interface"],
            "mtu": options["mesh_mtu"],
        }
        return RegistrationRequest(
            options["cluster_name"],
            options["cluster_subnet"] or None,
            options["cluster_manager"] or None,
            candidate,
            named_machines or None,
            {key: value for key, value in mesh_settings.items() if value},
            options["cluster_join_only"],
            {
                "prefer": options["discover_prefer"],
                "exclude": options["discover_exclude"],
                "include": options["discover_include"],
            },
        )

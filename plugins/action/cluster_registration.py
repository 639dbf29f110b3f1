# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_registration. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

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
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.userspace_only import (
    MESH_OPTIONS,
    machines_without_interface,
    refuse_to_demote,
    refuse_userspace_only,
    userspace_only_machines,
)

_TEXT_OPTION = {"type": "str", "default": ""}


class ActionModule(ControllerAction):
    """Decides for all hosts of the play at once."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            name={"type": "str", "required": True},
            registered={"type": "str", "required": True},
            found={"type": "str", "required": True},
            candidate={"type": "str", "required": True},
            subnet=_TEXT_OPTION,
            manager=_TEXT_OPTION,
            machines={"type": "raw", "default": []},
            join_only={"type": "bool", "default": False},
        )
        request = self._registration_request(task_args)
        copies_result = self.variables[task_args["found"]]
        record = model.parse(copies_result["record"]) if copies_result["record"] else None
        variable_names = ("ansible_host", "cluster_site", "cluster_endpoint", "job_environment_rdma", *MESH_OPTIONS)
        variables_by_host = self.variables_by_host(task_args["registered"], *variable_names)
        results_by_machine = {
            machine: dict(host_variables[task_args["registered"]] or {})
            for machine, host_variables in variables_by_host.items()
        }
        play_hosts = {
            machine: InventoryHost(
                host_variables["ansible_host"] or machine,
                host_variables["cluster_site"] or None,
                host_variables["cluster_endpoint"] or None,
                host_variables["job_environment_rdma"] in (None, "")
                or boolean(host_variables["job_environment_rdma"], strict=False),
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
        role_options = preflight.read_role_options(self.read_role_options)
        desired_volumes = self.resolve_variable("storage_volumes")
        pod_machines: list[str] = []
        if decision["enrol_settings"]["backend"] == "tailscale":
            served_volumes = desired_volumes or (record["storage"]["volumes"] if record else [])
            volume_servers = [volume["server"] for volume in served_volumes if "server" in volume]
            participants = {member["machine"] for member in decision["members"]}
            pod_machines = [
                machine
                for machine in machines_without_interface(results_by_machine, variables_by_host)
                if machine in participants
            ]
            refuse_userspace_only(pod_machines, [decision["manager"], *volume_servers])
            if record:
                refuse_to_demote(record, userspace_only_machines(results_by_machine, variables_by_host))
        refuse_mesh(next_draft.record, self.read_role_options("mesh", "relays")["relays"] or [])
        layered_record = preflight.refuse_impossible(
            next_draft.record, desired_volumes, role_options, self._tracking_options()
        )
        if decision["left_out"]:
            self.print_text(
                f"{', '.join(decision['left_out'])}: removed from cluster '{task_args['name']}', and therefore skipped. "
                f"The playbook join adds it again, with cluster_machines={','.join(decision['left_out'])}."
            )
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
            "probed": [{key: member[key] for key in ("machine", "address", "interface")} for member in probed_members],
        }

    def _tracking_options(self) -> dict[str, Any]:
        """Return the options of tracking that the playbook site would use."""
        return {
            "start": False,
            **self.read_role_options("tracking", "state", "server", "port", "volume", "tls", "certificate_file"),
        }

    @staticmethod
    def _needs_write(copies_result: Mapping[str, Any], manager: str, change_kinds: Sequence[str]) -> bool:
        """Whether the record is written on the manager. Raises InputError if this is necessary, but it does not answer.

        A change of kind ``version`` alone can wait until the manager answers.
        """
        unreachable_reason = copies_result.get("manager_silence")
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

    def _registration_request(self, task_args: Mapping[str, Any]) -> RegistrationRequest:
        named_machines = parse_machine_names(task_args["machines"])
        if task_args["join_only"] and not named_machines:
            raise InputError(
                f"No machine to join cluster '{task_args['name']}' was given.",
                "Set cluster_machines=NAME,NAME with names from the inventory's group.",
            )
        mesh_options = self.read_role_options("mesh", "backend", "subnet", "port", "interface", "mtu")
        interface_patterns = self.read_role_options("discover", "prefer", "exclude", "include")
        return RegistrationRequest(
            task_args["name"],
            task_args["subnet"] or None,
            task_args["manager"] or None,
            task_args["candidate"],
            named_machines or None,
            {key: value for key, value in mesh_options.items() if value},
            task_args["join_only"],
            {key: value or [] for key, value in interface_patterns.items()},
        )

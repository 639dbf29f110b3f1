# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of play_members. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import ServicePaths
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import refuse_unexpected_record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import outdated_members
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.userspace_only import (
    MESH_OPTIONS,
    USERSPACE_ONLY_REASON,
    machines_without_interface,
    refuse_to_demote,
    userspace_only_machines,
)


class ActionModule(ControllerAction):
    """Compares the hosts of the play with the record, once for all of them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            name={"type": "str"},
            manager={"type": "str"},
            registered={"type": "str", "required": True},
            announce={"type": "bool", "default": False},
        )
        record = self.record()
        refuse_unexpected_record(record, task_args["name"] or record["name"], task_args["manager"] or record["manager"])
        variables_by_host = self.variables_by_host(task_args["registered"])
        results_by_machine = {
            machine: host_variables[task_args["registered"]] or {}
            for machine, host_variables in variables_by_host.items()
        }
        member_machines = [member["machine"] for member in record["members"]]
        play_hosts = self.variables["ansible_play_hosts"]
        userspace_machines, pod_machines = [], []
        if record["mesh"]["backend"] == "tailscale":
            options_by_host = self.options_by_host(*MESH_OPTIONS)
            userspace_machines = [
                machine
                for machine in userspace_only_machines(results_by_machine, options_by_host)
                if machine in member_machines
            ]
            without_tunnel = [
                machine
                for machine in machines_without_interface(results_by_machine, options_by_host)
                if machine in member_machines
            ]
            pod_machines = [machine for machine in without_tunnel if machine not in userspace_machines]
        if task_args["announce"]:
            refuse_to_demote(record, userspace_machines)
            self._announce(
                record, [machine for machine in play_hosts if machine not in member_machines], userspace_machines
            )
            self._announce_pods(pod_machines)
        playing_members = [machine for machine in play_hosts if machine in member_machines]
        return {
            "changed": False,
            "record": record,
            "members": playing_members,
            "nodes": [machine for machine in playing_members if machine not in userspace_machines],
            "unfinished": [machine for machine in playing_members if results_by_machine[machine].get("unfinished")],
            "outdated": outdated_members(results_by_machine, record),
            "userspace_only": userspace_machines,
            "pods": pod_machines,
        }

    def _announce_pods(self, pod_machines: list[str]) -> None:
        for config_path in sorted({self._supervisor_config(machine) for machine in pod_machines}):
            pods_alike = [machine for machine in pod_machines if self._supervisor_config(machine) == config_path]
            self.print_message(
                f"{', '.join(pods_alike)}: pods, whose programs reach the tailnet through a library. After a restart with the "
                "same disk, each comes back by itself if its start command is:\n"
                f'  sh -c \'supervisord -c {config_path}; exec "$0" "$@"\' YOUR COMMAND'
            )

    def _supervisor_config(self, machine: str) -> str:
        configured_path = self.variables["hostvars"][machine].get("daemon_supervisor_config")
        return str(configured_path or ServicePaths().supervisor_config)

    def _announce(self, record: model.Record, strangers: list[str], userspace_machines: list[str]) -> None:
        if strangers:
            self.print_message(
                f"{', '.join(sorted(strangers))}: not among the members of cluster '{record['name']}' (members: "
                f"{', '.join(member['machine'] for member in record['members'])}), so not changed. To add it, run the "
                f"playbook join with cluster_machines={','.join(sorted(strangers))}."
            )
        if userspace_machines:
            self.print_message(
                f"{', '.join(sorted(userspace_machines))}: in the mesh of cluster '{record['name']}', but excluded from storage "
                f"and Slurm. {USERSPACE_ONLY_REASON} Or set mesh_userspace_nodes=true: it becomes a Slurm node without "
                "volumes."
            )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of play_members. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import Places
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import outdated_members
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import refuse_other
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.dialling import (
    OPTIONS,
    WHY_USERSPACE_ONLY,
    refuse_to_demote,
    userspace_only,
    without_interface,
)


class ActionModule(ControllerAction):
    """Compares the hosts of the play with the record, once for all of them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            name={"type": "str"},
            manager={"type": "str"},
            registered={"type": "str", "required": True},
            announce={"type": "bool", "default": False},
        )
        record = self.record()
        refuse_other(record, given["name"] or record["name"], given["manager"] or record["manager"])
        hosts = self.of_hosts(given["registered"], *OPTIONS)
        held = {machine: own[given["registered"]] or {} for machine, own in hosts.items()}
        machines = [member["machine"] for member in record["members"]]
        playing = self.variables["ansible_play_hosts"]
        confined, pods = [], []
        if record["mesh"]["backend"] == "tailscale":
            confined = [machine for machine in userspace_only(held, hosts) if machine in machines]
            lacking = [machine for machine in without_interface(held, hosts) if machine in machines]
            pods = [machine for machine in lacking if machine not in confined]
        if given["announce"]:
            refuse_to_demote(record, confined)
            self._announce(record, [machine for machine in playing if machine not in machines], confined)
            self._announce_pods(pods)
        members = [machine for machine in playing if machine in machines]
        return {
            "changed": False,
            "record": record,
            "members": members,
            "nodes": [machine for machine in members if machine not in confined],
            "unfinished": [machine for machine in members if held[machine].get("unfinished")],
            "outdated": outdated_members(held, record),
            "userspace_only": confined,
            "pods": pods,
        }

    def _announce_pods(self, pods: list[str]) -> None:
        for config in sorted({self._supervisor_config(machine) for machine in pods}):
            alike = [machine for machine in pods if self._supervisor_config(machine) == config]
            self.print_text(
                f"{', '.join(alike)}: pods, whose programs reach the tailnet through a library. After a restart with the "
                "same disk, each comes back by itself if its start command is: "
                f'sh -c \'supervisord -c {config}; exec "$0" "$@"\' YOUR COMMAND'
            )

    def _supervisor_config(self, machine: str) -> str:
        given = self.variables["hostvars"][machine].get("daemon_supervisor_config")
        return str(given or Places().supervisor_config)

    def _announce(self, record: model.Record, strangers: list[str], confined: list[str]) -> None:
        if strangers:
            self.print_text(
                f"{', '.join(sorted(strangers))}: not among the members of cluster '{record['name']}' (members: "
                f"{', '.join(member['machine'] for member in record['members'])}), so not changed. The playbook join "
                "adds a machine."
            )
        if confined:
            self.print_text(
                f"{', '.join(sorted(confined))}: in the mesh of cluster '{record['name']}', but excluded from storage "
                f"and Slurm. {WHY_USERSPACE_ONLY} Or set mesh_userspace_nodes=true: it becomes a Slurm node without "
                "volumes."
            )

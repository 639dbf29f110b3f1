# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_removal. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import parse_machine_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.registration import refuse_mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.removal import decide_removal, draft_removal
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import HostResponse, read_responses
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.userspace_only import (
    MESH_OPTIONS,
    machines_without_interface,
    refuse_to_demote,
    refuse_userspace_only,
    userspace_only_machines,
)


class ActionModule(ControllerAction):
    """Decides from the results of all hosts of the play."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            registered={"type": "str", "required": True},
            copies={"type": "str", "required": True},
        )
        options = self.options(
            "cluster_name",
            "cluster_machine",
            "cluster_new_manager",
            "cluster_manager_lost",
            "cluster_untrusted",
            "mesh_relays",
        )
        leaving_machines = parse_machine_names(options["cluster_machine"])
        new_manager = options["cluster_new_manager"] or None
        copies_result = self.variables[task_args["copies"]]
        record = model.parse(copies_result["record"])
        variables_by_host = self.variables_by_host(task_args["registered"])
        options_by_host = self.options_by_host(*MESH_OPTIONS)
        results_by_machine = {
            machine: host_variables[task_args["registered"]] or {}
            for machine, host_variables in variables_by_host.items()
        }
        responses = read_responses({**results_by_machine, **copies_result["outside"]}, copies_result["records"])
        # The copies of these machines have been replaced since they answered.
        responses.update({machine: HostResponse([record], [], None) for machine in copies_result["replaced"]})
        decision = decide_removal(
            record,
            options["cluster_name"],
            leaving_machines,
            self.variables["groups"]["all"],
            responses,
            new_manager,
            options["cluster_manager_lost"],
            [machine for machine in copies_result["reachable"] if machine in variables_by_host],
        )
        member_machines = [member["machine"] for member in record["members"]]
        silent_members = [machine for machine in member_machines if machine not in copies_result["reachable"]]
        if options["cluster_untrusted"]:
            self._refuse_to_rekey([machine for machine in silent_members if machine not in leaving_machines])
        if record["mesh"]["backend"] == "tailscale" and new_manager:
            refuse_userspace_only(machines_without_interface(results_by_machine, options_by_host), [new_manager])
        if record["mesh"]["backend"] == "tailscale":
            refuse_to_demote(record, userspace_only_machines(results_by_machine, options_by_host), leaving_machines)
        refuse_mesh(
            draft_removal(record, leaving_machines, new_manager),
            options["mesh_relays"],
        )
        return {
            "changed": False,
            **decision,
            "record": record,
            "leaving": leaving_machines,
            "members_leaving": [machine for machine in member_machines if machine in leaving_machines],
            "unreachable_machines": [
                machine for machine in silent_members if machine in leaving_machines and machine in variables_by_host
            ],
        }

    def _refuse_to_rekey(self, missing_machines: Sequence[str]) -> None:
        if missing_machines:
            raise InputError(
                f"{', '.join(sorted(missing_machines))}: not in this run, or unreachable. New keys on the others would cut them "
                "off, so nothing has been changed.",
                "Run this without --limit when all remaining members are up; or omit cluster_untrusted for now, and "
                "run this with it later.",
                machines=list(missing_machines),
            )
        key_file = self.options("munge_key_file")["munge_key_file"]
        if key_file:
            raise InputError(
                f"The munge key is in the file {key_file}, which only you can change, so nothing has been changed.",
                "Run this without cluster_untrusted, write a new key to the file, and run the playbook slurm.",
            )

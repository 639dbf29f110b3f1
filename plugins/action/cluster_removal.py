# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_removal. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import Answer, read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.dialling import (
    OPTIONS,
    refuse_to_demote,
    refuse_userspace_only,
    userspace_only,
    without_interface,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.machines import machine_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.registration import refuse_mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.removal import coming, decide_removal


class ActionModule(ControllerAction):
    """Decides from the results of all hosts of the play."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            name={"type": "str", "required": True},
            registered={"type": "str", "required": True},
            found={"type": "str", "required": True},
            machines={"type": "raw", "required": True},
            new_manager={"type": "str", "default": ""},
            manager_lost={"type": "bool", "default": False},
            untrusted={"type": "bool", "default": False},
        )
        leaving = machine_names(given["machines"])
        new_manager = given["new_manager"] or None
        found = self.variables[given["found"]]
        record = model.parse(found["record"])
        hosts = self.of_hosts(given["registered"], *OPTIONS)
        held = {machine: own[given["registered"]] or {} for machine, own in hosts.items()}
        answers = read_answers({**held, **found["outside"]}, found["records"])
        # Their copies have been replaced since they answered.
        answers.update({machine: Answer([record], [], None) for machine in found["replaced"]})
        decision = decide_removal(
            record,
            given["name"],
            leaving,
            self.variables["groups"]["all"],
            answers,
            new_manager,
            given["manager_lost"],
            [machine for machine in found["answering"] if machine in hosts],
        )
        machines = [member["machine"] for member in record["members"]]
        silent = [machine for machine in machines if machine not in found["answering"]]
        if given["untrusted"]:
            self._refuse_to_rekey([machine for machine in silent if machine not in leaving])
        if record["mesh"]["backend"] == "tailscale" and new_manager:
            refuse_userspace_only(without_interface(held, hosts), [new_manager])
        if record["mesh"]["backend"] == "tailscale":
            refuse_to_demote(record, userspace_only(held, hosts), leaving)
        refuse_mesh(coming(record, leaving, new_manager), self.options("mesh", "relays")["relays"] or [])
        return {
            "changed": False,
            **decision,
            "record": record,
            "leaving": leaving,
            "members_leaving": [machine for machine in machines if machine in leaving],
            "silent": [machine for machine in silent if machine in leaving and machine in hosts],
        }

    def _refuse_to_rekey(self, missing: Sequence[str]) -> None:
        if missing:
            raise InputError(
                f"{', '.join(sorted(missing))}: not in this run, or unreachable. New keys on the others would cut them "
                "off, so nothing has been changed.",
                "Run this without --limit when all remaining members are up; or omit cluster_untrusted for now, and "
                "run this with it later.",
                machines=list(missing),
            )
        file = self.variable("munge_key_file")
        if file:
            raise InputError(
                f"The munge key is in the file {file}, which only you can change, so nothing has been changed.",
                "Run this without cluster_untrusted, write a new key to the file, and run the playbook slurm.",
            )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_copies. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import (
    InventoryView,
    Overrides,
    classify_members,
    describe_unreachable_members,
    find_record,
    plan_queries,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import (
    collect_sent_records,
    read_responses,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction

_EMPTY_RESULT: Mapping[str, Any] = {
    "refusal": "",
    "record": None,
    "source": None,
    "manager_unreachable_reason": "",
    "unreachable_members": [],
    "replaced": [],
    "remarks": [],
    "upgrades": False,
    "authority": None,
    "machines": [],
    "comparable": [],
    "out_of_reach": [],
    "unreachable_machines": [],
}


class ActionModule(ControllerAction):
    """Decides which hosts to query next, and once all have answered, which record to use."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            registered={"type": "str", "required": True},
            candidate={"type": "str", "required": True},
            previous={"type": "str", "required": True},
            queried={"type": "str"},
            other_clusters={"type": "str", "choices": ["none", "joining", "all"], "default": "none"},
            rounds={"type": "int", "default": 2},
            required={"type": "bool", "default": False},
            refuse={"type": "bool", "default": True},
            applies={"type": "bool", "default": False},
        )
        options = self.options(
            "cluster_name",
            "cluster_manager",
            "cluster_trusted_copy",
            "cluster_trusted_generation",
            "cluster_new_manager",
            "cluster_manager_lost",
            "cluster_older_version",
        )
        earlier_result: Mapping[str, Any] = self.variables.get(task_args["previous"]) or {}
        previous_round = earlier_result if task_args["queried"] else {}
        if previous_round and not previous_round["queries"]:
            return {**previous_round, "changed": False}
        play_results = self.registered_results(task_args["registered"], self.variables["ansible_play_hosts_all"])
        queried_results = self.variables[task_args["queried"]]["results"] if task_args["queried"] else []
        outside_results = {
            **{
                result["item"]["machine"]: result
                for result in queried_results
                if result["item"]["machine"] not in play_results
            },
            **previous_round.get("outside", {}),
        }
        sent_records = collect_sent_records(
            [*play_results.values(), *queried_results], earlier_result.get("records", {})
        )
        requests = [*previous_round.get("requests", []), *(result["item"] for result in queried_results)]
        remaining_rounds = previous_round.get("rounds", task_args["rounds"])
        next_requests = []
        if remaining_rounds:
            inventory_hosts = self.variables["groups"]["all"]
            useful_requests = plan_queries(
                play_results,
                outside_results,
                sent_records,
                requests,
                options["cluster_name"],
                task_args["candidate"],
                task_args["other_clusters"],
            )
            next_requests = [request for request in useful_requests if request["machine"] in inventory_hosts]
        round_result = {"changed": False, "outside": outside_results, "requests": requests, "records": sent_records}
        if next_requests:
            return {**round_result, "queries": next_requests, "rounds": remaining_rounds - 1}
        return {
            **round_result,
            "queries": [],
            "rounds": remaining_rounds,
            **self._choose_copy(task_args, options, play_results, outside_results, sent_records),
        }

    def _choose_copy(
        self,
        task_args: Mapping[str, Any],
        options: Mapping[str, Any],
        play_results: Mapping[str, Mapping[str, Any]],
        outside_results: Mapping[str, Mapping[str, Any]],
        sent_records: Mapping[str, Any],
    ) -> dict[str, Any]:
        responses = read_responses({**play_results, **outside_results}, sent_records)
        base_result = {
            **_EMPTY_RESULT,
            "reachable": [machine for machine in play_results if responses[machine].unreachable_reason is None],
        }
        try:
            chosen_copy = find_record(
                responses, options["cluster_name"], self._inventory_view(options), self._overrides(options)
            )
        except GpumeshError as refusal:
            if task_args["refuse"]:
                raise
            return {**base_result, "refusal": printable(str(refusal))}
        if chosen_copy is None:
            if task_args["required"]:
                raise _missing_cluster_error(options["cluster_name"], list(responses))
            return base_result
        if task_args["applies"] and not options["cluster_older_version"]:
            derive.refuse_older_version(chosen_copy.record)
        remarks = [
            printable(remark)
            for remark in [
                *chosen_copy.remarks,
                *describe_unreachable_members(chosen_copy, responses, list(outside_results)),
            ]
        ]
        if remarks and task_args["refuse"]:
            self.print_message("\n".join(remarks))
        manager_response = responses.get(chosen_copy.record["manager"])
        unreachable_reason = printable(manager_response.unreachable_reason or "") if manager_response else ""
        copy_result = {
            "manager_unreachable_reason": unreachable_reason,
            "unreachable_members": [
                member_name
                for member in chosen_copy.record["members"]
                if (member_name := member["machine"]) in responses and responses[member_name].unreachable_reason
            ],
            "record": chosen_copy.record,
            "source": chosen_copy.source_machine,
            "replaced": list(chosen_copy.replaced_machines),
            "remarks": remarks,
            "upgrades": chosen_copy.source_machine == chosen_copy.record["manager"]
            and not derive.is_applied_by_this_version(chosen_copy.record),
        }
        return {**base_result, **copy_result, **classify_members(chosen_copy, base_result["reachable"], play_results)}

    def _inventory_view(self, options: Mapping[str, Any]) -> InventoryView:
        return InventoryView(
            self.variables["groups"]["all"], self.variables["hostvars"], options["cluster_manager"] or None
        )

    @staticmethod
    def _overrides(options: Mapping[str, Any]) -> Overrides:
        successor = options["cluster_new_manager"] if options["cluster_manager_lost"] else ""
        return Overrides(
            options["cluster_trusted_copy"] or None, options["cluster_trusted_generation"] or None, successor or None
        )


def _missing_cluster_error(cluster_name: str, queried_machines: Sequence[str]) -> InputError:
    return InputError(
        f"There is no cluster '{cluster_name}': none of {', '.join(queried_machines)} has its record.",
        "Set cluster_name to an existing cluster (playbook show), or create it (playbook create or site).",
        cluster=cluster_name,
    )

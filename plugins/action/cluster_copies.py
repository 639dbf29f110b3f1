# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_copies. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import read_answers, sent
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import Known, Word, find, left_alone, reach, to_ask

_TEXT = {"type": "str", "default": ""}
_NONE: Mapping[str, Any] = {
    "refusal": "",
    "record": None,
    "source": None,
    "manager_silence": "",
    "unanswered": [],
    "replaced": [],
    "remarks": [],
    "upgrades": False,
    "authority": None,
    "machines": [],
    "comparable": [],
    "out_of_reach": [],
    "silent": [],
}


class ActionModule(ControllerAction):
    """Decides which hosts to query next, and once all have answered, which record to use."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            name={"type": "str", "required": True},
            registered={"type": "str", "required": True},
            candidate={"type": "str", "required": True},
            earlier={"type": "str", "required": True},
            asked={"type": "str"},
            manager=_TEXT,
            trusted_copy=_TEXT,
            trusted_generation={"type": "int", "default": 0},
            successor=_TEXT,
            others={"type": "str", "choices": ["none", "joining", "all"], "default": "none"},
            rounds={"type": "int", "default": 2},
            required={"type": "bool", "default": False},
            refuse={"type": "bool", "default": True},
            older_version={"type": "bool", "default": True},
        )
        earlier: Mapping[str, Any] = self.variables.get(given["earlier"]) or {}
        begun = earlier if given["asked"] else {}
        if begun and not begun["ask"]:
            return {**begun, "changed": False}
        held = self.registered(given["registered"], self.variables["ansible_play_hosts_all"])
        asked = self.variables[given["asked"]]["results"] if given["asked"] else []
        outside = {
            **{result["item"]["machine"]: result for result in asked if result["item"]["machine"] not in held},
            **begun.get("outside", {}),
        }
        records = sent([*held.values(), *asked], earlier.get("records", {}))
        requests = [*begun.get("requests", []), *(result["item"] for result in asked)]
        rounds = begun.get("rounds", given["rounds"])
        ask = []
        if rounds:
            inventory = self.variables["groups"]["all"]
            wanted = to_ask(held, outside, records, requests, given["name"], given["candidate"], given["others"])
            ask = [request for request in wanted if request["machine"] in inventory]
        state = {"changed": False, "outside": outside, "requests": requests, "records": records}
        if ask:
            return {**state, "ask": ask, "rounds": rounds - 1}
        return {**state, "ask": [], "rounds": rounds, **self._found(given, held, outside, records)}

    def _found(
        self,
        given: Mapping[str, Any],
        held: Mapping[str, Mapping[str, Any]],
        outside: Mapping[str, Mapping[str, Any]],
        records: Mapping[str, Any],
    ) -> dict[str, Any]:
        answers = read_answers({**held, **outside}, records)
        result = {**_NONE, "answering": [machine for machine in held if answers[machine].silence is None]}
        try:
            found = find(answers, given["name"], self._known(given), self._word(given))
        except GpumeshError as refused:
            if given["refuse"]:
                raise
            return {**result, "refusal": printable(str(refused))}
        if found is None:
            if given["required"]:
                raise _missing(given["name"], list(answers))
            return result
        if not given["older_version"]:
            derive.refuse_older_version(found.record)
        remarks = [printable(remark) for remark in [*found.remarks, *left_alone(found, answers, list(outside))]]
        if remarks and given["refuse"]:
            self.print_text("\n".join(remarks))
        manager = answers.get(found.record["manager"])
        silence = printable(manager.silence or "") if manager else ""
        told = {
            "manager_silence": silence,
            "unanswered": [
                name for one in found.record["members"] if (name := one["machine"]) in answers and answers[name].silence
            ],
            "record": found.record,
            "source": found.source,
            "replaced": list(found.replaced),
            "remarks": remarks,
            "upgrades": found.source == found.record["manager"] and not derive.notes_version(found.record),
        }
        return {**result, **told, **reach(found, result["answering"], held)}

    def _known(self, given: Mapping[str, Any]) -> Known:
        return Known(self.variables["groups"]["all"], self.variables["hostvars"], given["manager"] or None)

    @staticmethod
    def _word(given: Mapping[str, Any]) -> Word:
        return Word(given["trusted_copy"] or None, given["trusted_generation"] or None, given["successor"] or None)


def _missing(name: str, asked: Sequence[str]) -> InputError:
    return InputError(
        f"There is no cluster '{name}': none of {', '.join(asked)} has its record.",
        "Set cluster_name to an existing cluster (playbook show), or create it (playbook create or site).",
        cluster=name,
    )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action packages: what it runs on the host."""

from __future__ import annotations

from action_runs import play_action

from ansible_collections.gpumesh.cluster.plugins.action.packages import ActionModule
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.packages import (
    BEGIN_SCRIPT,
    COMPLETE_SCRIPT,
    END_SCRIPT,
)

APT = "ansible.builtin.apt"
FACTS = {"ansible_facts": {"pkg_mgr": "apt"}}


def test_an_interrupted_installation_is_completed_without_a_package_to_install() -> None:
    played = play_action(ActionModule, {}, {}, FACTS)
    assert (played.result["changed"], played.module_calls, played.scripts) == (
        False,
        [],
        [BEGIN_SCRIPT, COMPLETE_SCRIPT, END_SCRIPT],
    )


def test_services_may_start_again_after_a_failed_installation() -> None:
    failed = {"failed": True, "msg": "no such package"}
    played = play_action(ActionModule, {"name": ["hello"]}, {APT: [failed]}, FACTS)
    assert played.result == failed
    assert played.scripts == [BEGIN_SCRIPT, COMPLETE_SCRIPT, END_SCRIPT]


def test_lists_that_lack_the_package_are_renewed_once() -> None:
    """Images come without lists, in a directory that is as new as they are."""
    missing = {"failed": True, "msg": "No package matching 'hello' is available"}
    played = play_action(ActionModule, {"name": ["hello"]}, {APT: [missing, {"changed": True}]}, FACTS)
    assert played.result["changed"]
    assert [given["cache_valid_time"] for _module, given in played.module_calls] == [3600, 0]
    unknown = play_action(ActionModule, {"name": ["hello"]}, {APT: [missing, missing]}, FACTS)
    assert unknown.result["failed"] and len(unknown.module_calls) == 2
    broken = {"failed": True, "msg": "The lock is held"}
    assert len(play_action(ActionModule, {"name": ["hello"]}, {APT: [broken]}, FACTS).module_calls) == 1


def test_a_refresh_reads_a_new_repository() -> None:
    played = play_action(ActionModule, {"name": ["hello"], "refresh": True}, {APT: [{"changed": True}]}, FACTS)
    assert played.result["changed"]
    assert [given["cache_valid_time"] for _name, given in played.module_calls] == [0]


def test_check_mode_and_other_package_managers_complete_nothing() -> None:
    played = play_action(ActionModule, {"name": ["hello"]}, {}, FACTS, check_mode=True)
    assert (played.result["changed"], played.module_calls, played.scripts) == (True, [], [])
    played = play_action(ActionModule, {}, {}, {"ansible_facts": {"pkg_mgr": "dnf"}})
    assert (played.result["changed"], played.module_calls, played.scripts) == (False, [], [])

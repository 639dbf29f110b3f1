# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action daemon: what it runs on the host, and when."""

from __future__ import annotations

from action_runs import play_action

from ansible_collections.gpumesh.cluster.plugins.action.daemon import ActionModule
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.packages import (
    BEGIN_SCRIPT,
    COMPLETE_SCRIPT,
    END_SCRIPT,
)

ARGUMENTS = {"name": "munge"}
RUN_RESULT = {"changed": True, "missing": False}
MISSING = {"changed": False, "missing": True}
APT = {"ansible_facts": {"pkg_mgr": "apt"}}


def test_the_module_runs_once_on_a_host_with_a_service_manager() -> None:
    played = play_action(ActionModule, ARGUMENTS, {"gpumesh.cluster.daemon": [RUN_RESULT]})
    assert played.result == RUN_RESULT
    assert played.module_calls == [("gpumesh.cluster.daemon", ARGUMENTS)]


def test_supervisord_is_installed_where_it_is_missing() -> None:
    results = {"gpumesh.cluster.daemon": [MISSING, RUN_RESULT], "ansible.builtin.apt": [{"changed": True}]}
    played = play_action(ActionModule, ARGUMENTS, results, APT)
    assert played.result == RUN_RESULT
    assert [name for name, _given in played.module_calls] == [
        "gpumesh.cluster.daemon",
        "ansible.builtin.apt",
        "gpumesh.cluster.daemon",
    ]
    # Otherwise, Debian would start the daemon before it is configured.
    assert played.scripts == [BEGIN_SCRIPT, COMPLETE_SCRIPT, END_SCRIPT]


def test_the_package_manager_is_detected_on_other_systems() -> None:
    results = {
        "gpumesh.cluster.daemon": [MISSING, RUN_RESULT],
        "ansible.builtin.setup": [{"ansible_facts": {"ansible_pkg_mgr": "dnf"}}],
        "ansible.builtin.dnf": [{"changed": True}],
    }
    played = play_action(ActionModule, ARGUMENTS, results)
    assert played.module_calls[2] == ("ansible.builtin.dnf", {"name": ["supervisor"], "state": "present"})


def test_nothing_is_installed_in_check_mode() -> None:
    played = play_action(ActionModule, ARGUMENTS, {"gpumesh.cluster.daemon": [MISSING]}, APT, check_mode=True)
    assert played.result == MISSING


def test_a_failed_module_is_the_result() -> None:
    failed = {"failed": True, "msg": "munge does not start"}
    assert play_action(ActionModule, ARGUMENTS, {"gpumesh.cluster.daemon": [failed]}).result == failed


def test_the_paths_of_supervisord_may_be_host_variables() -> None:
    variables = {"daemon_supervisor_programs": "/opt/programs"}
    played = play_action(ActionModule, ARGUMENTS, {"gpumesh.cluster.daemon": [RUN_RESULT]}, variables)
    assert played.module_calls[0][1]["supervisor_programs"] == "/opt/programs"

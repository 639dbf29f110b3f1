# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action daemon: what it runs on the host, and when."""

from __future__ import annotations

from action_runs import play

from ansible_collections.gpumesh.cluster.plugins.action.daemon import ActionModule
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.packages import BEGIN, COMPLETE, END

GIVEN = {"name": "munge"}
RAN = {"changed": True, "missing": False}
MISSING = {"changed": False, "missing": True}
APT = {"ansible_facts": {"pkg_mgr": "apt"}}


def test_a_host_with_a_service_manager_is_asked_once() -> None:
    played = play(ActionModule, GIVEN, {"gpumesh.cluster.daemon": [RAN]})
    assert played.result == RAN
    assert played.ran == [("gpumesh.cluster.daemon", GIVEN)]


def test_supervisord_is_installed_where_it_is_missing() -> None:
    results = {"gpumesh.cluster.daemon": [MISSING, RAN], "ansible.builtin.apt": [{"changed": True}]}
    played = play(ActionModule, GIVEN, results, APT)
    assert played.result == RAN
    assert [name for name, _given in played.ran] == [
        "gpumesh.cluster.daemon",
        "ansible.builtin.apt",
        "gpumesh.cluster.daemon",
    ]
    # Otherwise, Debian would start the daemon before it is configured.
    assert played.scripts == [BEGIN, COMPLETE, END]


def test_another_system_is_asked_for_its_package_manager() -> None:
    results = {
        "gpumesh.cluster.daemon": [MISSING, RAN],
        "ansible.builtin.setup": [{"ansible_facts": {"ansible_pkg_mgr": "dnf"}}],
        "ansible.builtin.dnf": [{"changed": True}],
    }
    played = play(ActionModule, GIVEN, results)
    assert played.ran[2] == ("ansible.builtin.dnf", {"name": ["supervisor"], "state": "present"})


def test_nothing_is_installed_in_check_mode() -> None:
    played = play(ActionModule, GIVEN, {"gpumesh.cluster.daemon": [MISSING]}, APT, check_mode=True)
    assert played.result == MISSING


def test_what_fails_is_the_result() -> None:
    failed = {"failed": True, "msg": "munge does not start"}
    assert play(ActionModule, GIVEN, {"gpumesh.cluster.daemon": [failed]}).result == failed


def test_where_supervisord_is_may_be_a_variable_of_the_host() -> None:
    variables = {"daemon_supervisor_programs": "/opt/programs"}
    played = play(ActionModule, GIVEN, {"gpumesh.cluster.daemon": [RAN]}, variables)
    assert played.ran[0][1]["supervisor_programs"] == "/opt/programs"

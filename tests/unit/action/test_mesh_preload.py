# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action mesh_preload: the values that it takes from the record, and the compiler, which it installs if missing."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.action.mesh_preload import ActionModule
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action

MODULE, APT = "gpumesh.cluster.mesh_preload", "ansible.builtin.apt"
RECORD: dict[str, Any] = {
    "name": "lab",
    "mesh": {"backend": "tailscale", "subnet": "100.64.0.0/10", "interface": "tailscale0"},
    "members": [{"machine": "p1", "mesh": {"address": "100.64.0.1"}}, {"machine": "p2", "mesh": None}],
}
INSTALLED = {"changed": True, "library": "/usr/local/lib/gpumesh/libgpumesh-pod-00.so", "missing": []}


def run_preload(*results: dict[str, Any], host: str = "p1", check: bool = False, **options: Any) -> ActionRun:
    variables = {"inventory_hostname": host, "hostvars": {host: {}}, "ansible_facts": {"pkg_mgr": "apt"}}
    module_results = {MODULE: list(results), APT: [{"changed": True}]}
    return play_action(ActionModule, {"record": RECORD, **options}, module_results, variables, check_mode=check)


def test_the_settings_of_the_library_come_from_the_record() -> None:
    ((_name, given),) = run_preload(INSTALLED).module_calls
    assert (given["address"], given["subnet"], given["proxy_port"]) == ("100.64.0.1", "100.64.0.0/10", 1055)
    assert "EXPORT int connect(" in given["source"]


def test_a_missing_compiler_is_installed() -> None:
    ran = run_preload({**INSTALLED, "missing": ["gcc"]}, INSTALLED).module_calls
    assert [name for name, _given in ran] == [MODULE, APT, MODULE]
    assert ran[1][1]["name"] == ["gcc", "libc6-dev"]


def test_a_removal_needs_no_address() -> None:
    assert run_preload(INSTALLED, host="p2", state="absent").module_calls == [(MODULE, {"state": "absent"})]


def test_check_mode_reports_a_change_before_the_record_has_an_address() -> None:
    played = run_preload(host="p2", check=True)
    assert played.module_calls == [] and played.result["changed"] is True

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action mesh_preload: the values that it takes from the record, and the compiler, which it installs if missing."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.action.mesh_preload import ActionModule
from ansible_collections.gpumesh.cluster.tests.support.action_runs import Played, play

MODULE, APT = "gpumesh.cluster.mesh_preload", "ansible.builtin.apt"
RECORD: dict[str, Any] = {
    "name": "lab",
    "mesh": {"backend": "tailscale", "subnet": "100.64.0.0/10", "interface": "tailscale0"},
    "members": [{"machine": "p1", "mesh": {"address": "100.64.0.1"}}, {"machine": "p2", "mesh": None}],
}
DONE = {"changed": True, "library": "/usr/local/lib/gpumesh/libgpumesh-pod-00.so", "missing": []}


def run(*results: dict[str, Any], host: str = "p1", check: bool = False, **given: Any) -> Played:
    variables = {"inventory_hostname": host, "hostvars": {host: {}}, "ansible_facts": {"pkg_mgr": "apt"}}
    answers = {MODULE: list(results), APT: [{"changed": True}]}
    return play(ActionModule, {"record": RECORD, **given}, answers, variables, check_mode=check)


def test_the_library_is_that_of_the_record() -> None:
    ((_name, given),) = run(DONE).ran
    assert (given["address"], given["subnet"], given["proxy_port"]) == ("100.64.0.1", "100.64.0.0/10", 1055)
    assert "EXPORT int connect(" in given["source"]


def test_the_compiler_is_installed_where_it_is_missing() -> None:
    ran = run({**DONE, "missing": ["gcc"]}, DONE).ran
    assert [name for name, _given in ran] == [MODULE, APT, MODULE]
    assert ran[1][1]["name"] == ["gcc", "libc6-dev"]


def test_to_remove_it_takes_no_address() -> None:
    assert run(DONE, host="p2", state="absent").ran == [(MODULE, {"state": "absent"})]


def test_before_the_record_has_an_address_a_look_says_that_it_would_change() -> None:
    played = run(host="p2", check=True)
    assert played.ran == [] and played.result["changed"] is True

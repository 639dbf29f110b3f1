# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of the role mesh's steps, on which hosts each is done, and what a run that changes nothing goes through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.tests.support.given_results import RoleRun, run_role
from ansible_collections.gpumesh.cluster.tests.support.task_files import ROOT, load_tasks

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "tester@here")
MEMBERS = [{"machine": f"n{n}", "address": f"10.77.0.{n}", "interface": "eth0"} for n in (1, 2, 3, 4)]
INCLUDE_MODULES = {f"ansible.builtin.{verb}_{what}" for verb in ("import", "include") for what in ("tasks", "role")}


def record(backend: str, generation: int = 2) -> dict[str, Any]:
    draft = plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {"backend": backend}, MEMBERS, STAMP)
    return {**plan.commit(draft, STAMP), "generation": generation}


TUNNEL_UP = {"ready": True, "interface_up": True, "tools": True, "systemd": True}
TUNNEL_DOWN = {**TUNNEL_UP, "ready": False, "interface_up": False}
LOGGED_IN = {
    "ready": True,
    "installed": True,
    "running": True,
    "boot": True,
    "flags_differ": False,
    "tags_differ": False,
    "tun_device": True,
    "pod": False,
    "addresses": ["100.64.0.1"],
    "id": "7",
    "tags": [],
    "backend_state": "Running",
    "health": [],
}
LOGGED_OUT = {**LOGGED_IN, "ready": False, "addresses": [], "backend_state": "NeedsLogin"}
POD = {**LOGGED_IN, "tun_device": False, "pod": True, "library": "present"}
#: The results of the actions on a host where nothing has to change.
DEFAULT_RESULTS: dict[str, list[dict[str, Any]]] = {
    "mesh_settings": [{"settings": {}}],
    "wireguard": [TUNNEL_UP],
    "tailscale": [LOGGED_IN],
    "cluster_member": [{"changed": False}],
}
CONNECTED = {"wireguard": TUNNEL_UP, "tailscale": LOGGED_IN, "none": {"ready": True}}

SHOW = {
    "ansible.builtin.debug": {
        "msg": "generation {{ cluster_record.generation }}. enrolled: {{ mesh_enrolled_addresses is defined }}."
    }
}

#: Runs the role: the backend; for each host the results that differ from the usual ones; options of ansible-playbook.
Mesh = Callable[..., RoleRun]


@pytest.fixture(name="mesh")
def _mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mesh:
    def run(
        backend: str,
        hosts: dict[str, dict[str, list[dict[str, Any]]]],
        *options: str,
        entry: str = "main",
        tasks: tuple[dict[str, Any], ...] = (),
        **variables: Any,
    ) -> RoleRun:
        return run_role(
            tmp_path,
            monkeypatch,
            {"name": "gpumesh.cluster.mesh", "tasks_from": entry},
            {host: {**DEFAULT_RESULTS, "mesh": [CONNECTED[backend]], **results} for host, results in hosts.items()},
            {"cluster_record": record(backend), "mesh_auth_key": "secret", **variables},
            *options,
            tasks=tasks,
        )

    return run


def registered(backend: str, *generations: int) -> dict[str, Any]:
    """The results of cluster_member, each with a changed record, of which n2 has no copy."""
    made = [{"changed": True, "record": record(backend, generation)} for generation in generations]
    return {"cluster_member": made, "play_members": [{"record": made[-1]["record"], "outdated": ["n2"]}]}


def test_an_included_file_of_the_role_includes_no_other() -> None:
    files = {path.name: load_tasks(path) for path in (ROOT / "roles" / "mesh" / "tasks").glob("*.yml")}
    assert len(files) > 1
    assert {name for name, tasks in files.items() if any(INCLUDE_MODULES & task.keys() for task in tasks)} == {
        "main.yml"
    }


def test_without_a_mesh_no_task_follows(mesh: Mesh) -> None:
    went = mesh("none", {"n1": {}, "n2": {}})
    assert went.run.exit_status == 0, went.run.output
    assert went.actions_on("n1") == ["mesh_settings", "mesh", "cluster_member"]
    assert went.actions_on("n2") == ["mesh"]


class TestWireGuard:
    def test_an_unchanged_run_takes_one_module_and_starts_only_tunnels_that_are_not_ready(self, mesh: Mesh) -> None:
        down = {**TUNNEL_UP, "ready": False}
        went = mesh("wireguard", {"n1": {}, "n2": {}, "n3": {"mesh": [down], "wireguard": [down]}})
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1") == ["mesh_settings", "mesh", "cluster_member"]
        assert went.actions_on("n2") == ["mesh"]
        assert went.actions_on("n3") == ["mesh", "wireguard", "daemon"]
        assert (went.count_tasks("n1"), went.count_tasks("n2")) == (7, 5)
        assert went.calls_of("cluster_member")[0].arguments["registered"] == "__mesh_connection"
        assert went.calls_of("daemon")[0].arguments["state"] == "started"

    def test_the_tunnels_get_new_keys_before_the_record_is_copied(self, mesh: Mesh) -> None:
        down = {"mesh": [TUNNEL_DOWN], "wireguard": [TUNNEL_DOWN]}
        went = mesh("wireguard", {"n1": {**down, **registered("wireguard", 3)}, "n2": down}, tasks=(SHOW,))
        assert went.run.exit_status == 0, went.run.output
        before = ["mesh_settings", "mesh", "cluster_member", "mesh_settings"]
        assert went.actions_on("n1") == [*before, "wireguard", "daemon", "play_members"]
        assert went.actions_on("n2") == ["mesh", "wireguard", "daemon", "cluster"]
        assert [call.generation for call in went.calls_of("mesh_settings") + went.calls_of("wireguard")] == [2, 3, 3, 3]
        assert went.calls_of("daemon")[0].arguments["state"] == "restarted"
        assert went.calls_of("play_members")[0].generation == went.calls_of("cluster")[0].generation == 3
        assert went.run.flat_output.count("generation 3.") == 2

    def test_keys_are_rotated_in_tunnels_with_preshared_keys_and_the_last_record_is_adopted(self, mesh: Mesh) -> None:
        made = {"wireguard_preshared": [{"preshared_keys": {}}]}
        went = mesh(
            "wireguard",
            {"n1": {**made, **registered("wireguard", 3, 4)}, "n2": made},
            mesh_rotate_keys=True,
            mesh_preshared_keys=True,
            tasks=(SHOW,),
        )
        assert went.run.exit_status == 0, went.run.output
        rotation = ["wireguard_rotation"] * 3
        assert went.actions_on("n2") == ["mesh", "wireguard_preshared", "wireguard", *rotation, "wireguard", "cluster"]
        read = [(call.arguments["step"], call.generation) for call in went.calls_of("wireguard_rotation")[::2]]
        assert read == [("prepare", 3), ("arm", 3), ("switch", 3)]
        names = [call.arguments["registered"] for call in went.calls_of("cluster_member")]
        assert names == ["__mesh_connection", "__mesh_switched_key"]
        read = [(call.arguments.get("preshared_results"), call.generation) for call in went.calls_of("wireguard")[::2]]
        assert read == [("__mesh_preshared", 3), (None, 4)]
        assert [call.generation for call in went.calls_of("cluster")] == [4]
        assert went.run.flat_output.count("generation 4.") == 2

    def test_a_rotation_in_check_mode_registers_and_adopts_nothing(self, mesh: Mesh) -> None:
        went = mesh("wireguard", {"n1": {}}, "--check", mesh_rotate_keys=True)
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1")[3:] == ["mesh_settings", "wireguard", "wireguard_rotation"]

    def test_check_mode_shows_the_relayed_pairs_and_adopts_nothing(self, mesh: Mesh) -> None:
        went = mesh("wireguard", {"n1": {"cluster_member": [{"changed": True}]}, "n2": {}}, "--check")
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1") == ["mesh_settings", "mesh", "cluster_member", "mesh_settings", "wireguard"]
        assert went.calls_of("mesh_settings")[1].arguments["list_relayed"] is True
        # The record is given by its name, so it is not searched for templates.
        assert went.calls_of("wireguard")[0].arguments["record"] == "cluster_record"

    def test_check_mode_registers_nothing_in_a_record_that_may_not_exist(self, mesh: Mesh) -> None:
        went = mesh("wireguard", {"n1": {}}, "--check", cluster_record=record("wireguard", 1))
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1") == ["mesh_settings", "mesh", "mesh_settings", "wireguard"]

    @pytest.mark.parametrize("others", [[], ["gpumesh1"]])
    def test_the_script_of_the_tunnels_is_kept_if_another_cluster_has_one(
        self, mesh: Mesh, tmp_path: Path, others: list[str]
    ) -> None:
        script = tmp_path / "gpumesh-tunnel"
        script.touch()
        hosts = {"n1": {"wireguard": [{"other_interfaces": others, "foreign": False}]}}
        went = mesh("wireguard", hosts, "--extra-vars", f"__mesh_runner={script}", entry="leave")
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1") == ["wireguard", "daemon", "wireguard"]
        assert script.exists() == bool(others)

    def test_an_administrators_own_tunnel_is_not_stopped(self, mesh: Mesh) -> None:
        hosts = {"n1": {"wireguard": [{"other_interfaces": ["lan1"], "foreign": True}]}}
        went = mesh("wireguard", hosts, entry="leave")
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1") == ["wireguard", "wireguard"]


class TestTailscale:
    def test_an_unchanged_run_takes_one_module_and_the_library_on_pods(self, mesh: Mesh) -> None:
        no_longer = {**POD, "pod": False, "library": "absent"}
        went = mesh("tailscale", {"n1": {}, "n2": {}, "n3": {"mesh": [POD]}, "n4": {"mesh": [no_longer]}})
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1") == ["mesh_settings", "mesh", "cluster_member"]
        assert went.actions_on("n2") == ["mesh"]
        assert (went.count_tasks("n1"), went.count_tasks("n2")) == (7, 5)
        assert "secret" not in str(went.calls)
        assert went.actions_on("n3") == went.actions_on("n4") == ["mesh", "mesh_preload"]
        states = {call.host: call.arguments["state"] for call in went.calls_of("mesh_preload")}
        assert states == {"n3": "present", "n4": "absent"}

    def test_hosts_log_in_before_their_addresses_are_registered_and_pods_get_the_library_after_it(
        self, mesh: Mesh
    ) -> None:
        """One of them is a pod after a restart."""
        down = {**LOGGED_OUT, "tun_device": False, "pod": True, "running": True}
        hosts = {
            "n1": registered("tailscale", 3),
            "n2": {"mesh": [LOGGED_OUT], "tailscale": [LOGGED_IN]},
            "n3": {"mesh": [down], "tailscale": [{**POD, "ready": False}, POD]},
        }
        went = mesh("tailscale", hosts, tasks=(SHOW,))
        assert went.run.exit_status == 0, went.run.output
        order = [(call.host, call.action) for call in went.calls]
        assert order.index(("n1", "cluster_member")) > max(order.index((host, "tailscale")) for host in ("n2", "n3"))
        assert went.actions_on("n1")[3:] == ["tailscale", "mesh_paths", "play_members"]
        assert went.actions_on("n2") == ["mesh", "tailscale", "tailscale", "tailscale", "cluster"]
        assert went.actions_on("n3") == ["mesh", "tailscale", "tailscale", "tailscale", "mesh_preload"]
        entered, again, probed = (call.arguments for call in went.calls_of("tailscale") if call.host == "n2")
        assert entered["auth_key"] == again["auth_key"] == "secret"
        assert (probed["probe"], probed["login"]) == (True, False)
        generations = [call.generation for call in went.calls_of("tailscale") if call.host == "n3"]
        assert [*generations, went.calls_of("mesh_preload")[0].generation] == [2, 2, 3, 3]
        # Members have their addresses in the record.
        assert went.run.flat_output.count("generation 3. enrolled: False.") == 3

    def test_a_login_without_an_address_is_explained_and_other_tags_are_set_at_the_control_server(
        self, mesh: Mesh
    ) -> None:
        differ = {**LOGGED_IN, "ready": False, "tags_differ": True}
        hosts = {
            "n1": {},
            "n2": {"mesh": [LOGGED_OUT], "tailscale": [LOGGED_OUT]},
            "n3": {"mesh": [differ], "tailscale": [differ]},
        }
        went = mesh("tailscale", hosts, mesh_tags=["tag:gpu"], mesh_api_key="api")
        assert went.run.exit_status == 2, went.run.output
        assert "n2 is not in the tailnet: tailscaled reports NeedsLogin" in went.run.flat_output
        assert went.actions_on("n3") == ["mesh", "tailscale", "tailscale", "tailscale_device"]
        assert [call.arguments.get("login") for call in went.calls_of("tailscale") if call.host == "n3"] == [
            None,
            False,
        ]

    def test_paths_are_reported_on_request(self, mesh: Mesh) -> None:
        went = mesh("tailscale", {"n1": {}, "n2": {}}, mesh_report_paths=True)
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1") == ["mesh_settings", "mesh", "cluster_member", "tailscale", "mesh_paths"]
        assert went.actions_on("n2") == ["mesh", "tailscale"]

    def test_expiring_keys_are_renewed_and_failures_are_reported(self, mesh: Mesh) -> None:
        due = {**LOGGED_IN, "renewal_due": True, "renewal_failure": "", "key_expiry": "2027-05-01T08:00:00Z"}
        hosts = {
            "n1": {},
            "n2": {"mesh": [due], "tailscale": [{**due, "renewal_due": False}]},
            "n3": {"mesh": [due], "tailscale": [due]},
            "n4": {"mesh": [due], "tailscale": [{**due, "renewal_failure": "key not found"}]},
        }
        went = mesh("tailscale", hosts)
        assert went.run.exit_status == 0, went.run.output
        assert went.actions_on("n1") == ["mesh_settings", "mesh", "cluster_member"]
        assert (went.actions_on("n2"), went.actions_on("n3")) == (
            ["mesh", "tailscale"],
            ["mesh", "tailscale", "print_text"],
        )
        assert {call.arguments["renew"] for call in went.calls_of("tailscale")} == {True}
        told = {call.host: call.arguments["text"] for call in went.calls_of("print_text")}
        assert told["n3"].startswith("n3: ") and ", since no auth key is given. Until then" in told["n3"]
        assert "2027-05-01T08:00:00Z" in told["n4"] and told["n4"].endswith("run site again. key not found")

    def test_a_joining_machine_has_its_address_in_a_variable(self, mesh: Mesh) -> None:
        show = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} got {{ mesh_enrolled_addresses | join }}."}}
        future = {"backend": "tailscale", "port": 41641}
        hosts = {"n1": {"tailscale": [LOGGED_OUT, LOGGED_IN]}, "n2": {}}
        went = mesh("none", hosts, entry="enrol", tasks=(show,), mesh_settings=future, cluster_record=None)
        assert went.run.exit_status == 0, went.run.output
        assert {call.action for call in went.calls} == {"tailscale"}
        assert went.calls[0].arguments == {"record": {"members": [], "mesh": future}, "auth_key": "secret"}
        assert "n1 got 100.64.0.1." in went.run.flat_output and "n2 got 100.64.0.1." in went.run.flat_output

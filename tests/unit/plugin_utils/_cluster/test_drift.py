# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a record expects of its members, and how their state is described."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import drift
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import option_spec
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry

AT = "2026-11-20T20:31:00Z"


def build_record(**change: Any) -> model.Record:
    entries = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
    stamp = plan.ChangeStamp(AT, "alice")
    record = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {}, entries, stamp), stamp)
    return model.parse({**record, **change})


def queries_by_layer(questions: dict[str, Any]) -> dict[str, set[str]]:
    layers: dict[str, set[str]] = {}
    for entry in (*questions["files"], *questions["services"]):
        layers.setdefault(entry["layer"], set()).add(entry.get("path") or entry["unit"])
    return layers


def change_member(record: model.Record, index: int) -> dict[str, Any]:
    """Return the record with a member that runs no jobs."""
    members = [dict(member) for member in record["members"]]
    members[index]["slurm_node"] = False
    return {**record, "members": members}


def queries_of(machine: str, record: model.Record | None = None, **changed_options: Any) -> dict[str, Any]:
    """What a machine is asked if the options of all roles have their defaults, but for these."""

    def read_options(*names: str) -> dict[str, Any]:
        defaults = {name: option_spec(name).get("default") for name in names}
        return {**defaults, **{name: value for name, value in changed_options.items() if name in defaults}}

    return drift.layer_queries(record or build_record(), machine, read_options).options


def test_manager_also_runs_the_controller() -> None:
    manager, member = (queries_by_layer(queries_of(machine)) for machine in ("n1", "n2"))
    assert manager["slurm"] - member["slurm"] == {"/etc/slurm/slurm.conf", "slurmctld.service", "slurmdbd.service"}
    assert {layer: paths for layer, paths in manager.items() if layer != "slurm"} == {
        layer: paths for layer, paths in member.items() if layer != "slurm"
    }
    assert set(member) == {"munge", "slurm"}
    assert "slurmdbd.service" not in queries_by_layer(queries_of("n1", slurm_accounting=False))["slurm"]
    assert member["slurm"] - queries_by_layer(queries_of("n2", slurm_health_check=""))["slurm"] == {
        "gpumesh-health.service"
    }


def test_a_member_without_jobs_has_the_commands_but_no_node() -> None:
    record = build_record()
    heads = {"n1": model.parse(change_member(record, 0)), "n2": model.parse(change_member(record, 1))}
    manager, other = (queries_of(machine, heads[machine]) for machine in ("n1", "n2"))
    assert queries_by_layer(manager)["slurm"] == {
        "/etc/slurm/node/slurmd.env",
        "/etc/slurm/slurm.conf",
        "slurmctld.service",
        "slurmdbd.service",
    }
    assert queries_by_layer(other)["slurm"] == {"/etc/slurm/node/slurmd.env", "/etc/slurm/slurm.conf"}
    for asked in (manager, other):
        (options,) = [file for file in asked["files"] if file["path"] == "/etc/slurm/node/slurmd.env"]
        assert options == {"layer": "slurm", "path": "/etc/slurm/node/slurmd.env", "state": "absent"}


def test_different_munge_key_is_drift() -> None:
    def host(key: str) -> dict[str, Any]:
        return {"host": {"drift": {}, "munge_key": key}}

    states = {"n1": host("aa"), "n2": host("bb")}
    assert [drift.compare_member(build_record(), machine, states) for machine in ("n1", "n2")] == [
        {},
        {"munge": "its key is not the one of n1"},
    ]
    assert drift.compare_member(build_record(), "n2", {"n2": host("")}) == {"munge": "there is no key"}
    assert drift.compare_member(build_record(), "n2", {"n2": host("bb")}) == {}, (
        "the manager did not answer, so nothing is known"
    )
    assert drift.compare_member(build_record(), "n2", {"n2": {"host": {"unreachable": True}}}) == {}


def test_userspace_only_member_has_no_drift_of_node_layers() -> None:
    differs = {"names": "would change", "slurm": "not set up", "train": "not set up", "ssh_trust": "not set up"}
    host = {"drift": differs, "munge_key": "", "userspace_only": True}
    assert drift.compare_member(build_record(), "n2", {"n2": {"host": host}}) == {
        "names": "would change",
        "ssh_trust": "not set up",
    }


TAILNET = {
    "installed": True,
    "running": True,
    "boot": True,
    "backend_state": "Running",
    "addresses": ["100.64.0.2", "fd7a::2"],
    "peers": {"100.64.0.1": {"path": "idle"}},
}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, ""),
        ({"installed": False, "running": False, "backend_state": ""}, "not set up"),
        ({"running": False, "backend_state": ""}, "tailscaled is not running"),
        ({"backend_state": "NeedsLogin", "addresses": []}, "it is not logged in to its tailnet (NeedsLogin)"),
        ({"addresses": ["100.64.0.9"]}, "its address is not the one in the record"),
        ({"boot": False}, "tailscaled does not start at boot"),
        ({"peers": {"100.64.0.1": {"path": "unknown"}}}, "its tailnet has no n1"),
    ],
)
def test_tailnet_drift_is_described(state: dict[str, Any], words: str) -> None:
    ends = [{"machine": f"n{n}", "mesh": {"address": f"100.64.0.{n}"}} for n in (1, 2)]
    stamp = plan.ChangeStamp(AT, "alice")
    draft = plan.create("0" * 32, "lab", "100.64.0.0/10", "n1", {"backend": "tailscale"}, ends, stamp)
    record = plan.commit(draft, stamp)
    found = drift.compare_member(record, "n2", {"n2": {"mesh": {**TAILNET, **state}}})
    assert found == ({"mesh": words} if words else {})
    refused = {"msg": "This host is logged in elsewhere.", "failed": False}
    assert drift.compare_member(record, "n2", {"n2": {"mesh": refused}}) == {"mesh": refused["msg"]}
    assert drift.compare_member(record, "n2", {"n2": {"mesh": {}}}) == {}


def test_equal_drift_of_layers_is_combined() -> None:
    differences = {"ssh_trust": "not set up", "mesh": "gpumesh0 is down", "slurm": "not set up"}
    assert drift.format_drift(differences) == "ssh_trust, slurm: not set up; mesh: gpumesh0 is down"
    assert drift.format_drift({}) == ""


def controller_state(record: model.Record, **change: Any) -> dict[str, Any]:
    """What layer_info returns of a controller that has the current queue, and whose nodes accept jobs."""
    marker = {"cluster": record["id"], "machine": "n1", "tenures": [record["generation"]]}
    return {"marker": marker, "readiness": {"n1": True, "n2": True}, **change}


def plan_of(*host_states: dict[str, Any], **given: Any) -> drift.LayerPlan:
    """Return the plan for hosts with these differences from the record, by layer."""
    record = build_record(**given.pop("record", {}))
    names = {name for layer in registry.LAYERS for name in layer.request_options}
    states = {f"n{number}": {"host": {"munge_key": "a", **state}} for number, state in enumerate(host_states, start=1)}
    states["n1"]["host"].setdefault("controller", controller_state(record))
    return drift.plan_layers(record, states, [{**dict.fromkeys(names), **given}])


def test_a_run_leaves_out_the_layers_in_which_no_host_differs() -> None:
    assert plan_of({"drift": {}}, {"drift": {}}) == ([], {})


def test_a_server_reads_its_exports_in_each_run() -> None:
    volume = {"name": "data", "server": "n1", "path": "/srv", "mount_point": "/mnt/data"}
    plan = plan_of({"drift": {}}, {"drift": {}}, record={"storage": {"volumes": [volume]}})
    assert plan == (["storage"], {"storage": ""}), "what follows has nothing to do"


def test_a_run_enters_the_layer_in_which_a_host_differs_and_all_later_ones() -> None:
    order = [layer.name for layer in registry.LAYERS]
    plan = plan_of({"drift": {}}, {"drift": {"storage": "/etc/exports differs"}})
    assert plan.layers == order[order.index("storage") :]
    assert plan.reasons["storage"] == "n2: /etc/exports differs"
    assert plan.reasons["munge"] == "it follows one that differs"
    assert plan_of({"drift": {}}, {"drift": {"train": "x"}}).layers == ["train"]


def test_a_host_that_could_not_be_compared_has_all_layers_entered() -> None:
    plan = plan_of({"drift": {}}, {})
    assert plan.layers == [layer.name for layer in registry.LAYERS]


def test_a_member_that_cannot_connect_is_not_asked_for_layers_that_connect() -> None:
    assert plan_of({"drift": {}}, {"drift": {"storage": "not set up"}, "userspace_only": True}).layers == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"marker": None}, "n1: its queue is not the current one"),
        ({"marker": {"cluster": "0" * 32}}, "n1: its queue is not the current one"),
        ({"marker": {"cluster": "1" * 32, "machine": "n1", "tenures": [1]}}, "n1: its queue is not the current one"),
        ({"marker": {"cluster": "0" * 32, "machine": "n9", "tenures": [99]}}, "n1: its queue is not the current one"),
        ({"readiness": None}, "n1: its controller does not respond"),
        ({"readiness": {"n1": True}}, "n2: the controller does not know this node"),
        ({"readiness": {"n1": True, "n2": False}}, "n2: the node does not accept jobs"),
    ],
)
def test_what_only_the_controller_shows_is_entered(change: dict[str, Any], reason: str) -> None:
    state = controller_state(build_record(), **change)
    plan = plan_of({"drift": {}, "controller": state}, {"drift": {}})
    assert plan.layers == ["slurm", "train"] and plan.reasons["slurm"] == reason


def test_a_member_without_jobs_is_withdrawn_from_the_controller() -> None:
    record = change_member(build_record(), 1)
    assert (
        plan_of({"drift": {}}, {"drift": {}}, record=record).reasons["slurm"]
        == "n2: the controller still has this node"
    )
    gone = controller_state(build_record(), readiness={"n1": True})
    assert plan_of({"drift": {}, "controller": gone}, {"drift": {}}, record=record).layers == []


def test_slurm_is_entered_in_a_run_without_its_manager() -> None:
    states = {"n2": {"host": {"drift": {}, "munge_key": "a"}}}
    names = {name for layer in registry.LAYERS for name in layer.request_options}
    assert drift.plan_layers(build_record(), states, [dict.fromkeys(names)]).layers == ["slurm"]


def test_a_node_whose_slurm_does_not_work_with_the_controller_is_entered() -> None:
    state = controller_state(build_record(), slurm_version="22.05.8")
    for version, differs in (("24.11.5", True), ("22.05.3", False), (None, False)):
        plan = plan_of({"drift": {}, "controller": state}, {"drift": {}, "slurm_version": version})
        assert ("slurm" in plan.layers) is differs
        assert not differs or "which works with nodes of" in plan.reasons["slurm"]
    plan = plan_of({"drift": {}, "controller": state}, {"drift": {}, "slurm_version": "what a host may say"})
    assert "there is no version in" in plan.reasons["slurm"]


def test_a_node_that_accepts_no_jobs_is_no_drift() -> None:
    state = controller_state(build_record(), readiness={"n1": True, "n2": False})
    states = {
        "n1": {"host": {"drift": {}, "munge_key": "a", "controller": state}},
        "n2": {"host": {"drift": {}, "munge_key": "a"}},
    }
    assert drift.compare_member(build_record(), "n2", states) == {}


def test_the_manager_is_asked_for_its_services() -> None:
    asked = {machine: queries_of(machine)["modules"] for machine in ("n1", "n2")}
    assert set(asked["n1"]) - set(asked["n2"]) == {"slurm_stored", "slurm_served"}
    assert "slurm_stored" not in queries_of("n1", slurm_accounting=False)["modules"]
    limits = {"slurm_qos": {"long": {}}, "slurm_accounts": {}}
    assert queries_of("n1", **limits)["modules"]["slurm_accounts"]["qos"] == limits["slurm_qos"]
    assert "slurm_accounts" not in queries_of("n2", **limits)["modules"]


def test_remains_of_sessions_are_removed_by_the_next_run() -> None:
    assert plan_of({"drift": {}, "pending": {"session": "a session was here"}}).layers == ["session", "slurm", "train"]


@pytest.mark.parametrize(
    ("given", "first_layer"),
    [
        ({"mesh_backend": "tailscale"}, "mesh"),
        ({"mesh_mtu": "1300"}, "mesh"),
        ({"munge_rotate_key": True}, "munge"),
        ({"munge_key_file": "key"}, "munge"),
        ({"storage_backend": "none"}, "storage"),
        ({"storage_volumes": [{"name": "other"}]}, "storage"),
        ({"tracking_server": "n1"}, "tracking"),
        ({"slurm_rest": "true", "slurm_rest_address": "10.0.0.1"}, "slurm"),
    ],
)
def test_what_is_requested_is_entered_although_nothing_differs(given: dict[str, Any], first_layer: str) -> None:
    assert plan_of({"drift": {}}, {"drift": {}}, **given).layers[0] == first_layer


@pytest.mark.parametrize("option", ["mesh_rotate_keys", "mesh_preshared_keys", "mesh_rotate_preshared_keys"])
def test_keys_that_both_ends_must_know_are_exchanged_and_nothing_else_is_entered(option: str) -> None:
    for value, planned in ((True, ["mesh"]), ("yes", ["mesh"]), ("false", []), (None, [])):
        assert plan_of({"drift": {}}, {"drift": {}}, **{option: value}).layers == planned


def test_a_tailnet_is_asked_in_each_run() -> None:
    settings = {**build_record()["mesh"], "backend": "tailscale"}
    assert plan_of({"drift": {}}, {"drift": {}}, record={"mesh": settings}).layers == ["mesh"]


@pytest.mark.parametrize(
    "given",
    [
        {"storage_volumes": []},
        {"slurm_rest_address": "10.0.0.1"},
        {"mesh_backend": "wireguard", "mesh_mtu": 0, "mesh_subnet": ""},
        {"mesh_port": str(build_record()["mesh"]["port"]), "mesh_subnet": "10.99.0.7/16"},
    ],
)
def test_what_changes_nothing_is_no_request(given: dict[str, Any]) -> None:
    assert plan_of({"drift": {}}, {"drift": {}}, **given).layers == []


def test_a_member_without_nodes_layers_is_not_asked_for_what_it_has_of_them() -> None:
    state = controller_state(build_record(), readiness={"n1": True, "n2": False})
    away = {"drift": {}, "userspace_only": True, "pending": {"slurm": "the plugin of sessions is here"}}
    assert plan_of({"drift": {}, "controller": state}, away).layers == []


def test_a_member_that_has_not_answered_is_not_missed_in_the_controller() -> None:
    state = controller_state(build_record(), readiness={"n1": True})
    states = {"n1": {"host": {"drift": {}, "munge_key": "a", "controller": state}}, "n2": {}}
    assert drift.compare_member(build_record(), "n2", states) == {}


def test_another_key_than_the_manager_has_is_entered() -> None:
    plan = plan_of({"drift": {}}, {"drift": {}, "munge_key": "b"})
    assert plan.layers[0] == "munge" and plan.reasons["munge"] == "n2: its key is not the one of n1"

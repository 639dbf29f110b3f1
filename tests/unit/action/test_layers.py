# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of the layers: the record in, one module with finished parameters on the host."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleUndefinedVariable

from ansible_collections.gpumesh.cluster.plugins.action import (
    cluster_member,
    firewall,
    job_environment,
    layer_info,
    mesh,
    names,
    session,
    ssh_trust,
    storage,
    train,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.names import boot_program_sources
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import source_digests
from ansible_collections.gpumesh.cluster.tests.support import unchanged_cluster
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)


def play_on_host(action: Any, arguments: dict[str, Any], result: dict[str, Any], **variables: Any) -> ActionRun:
    """Run an action on n1, where its module returns this result."""
    module = action.__name__.rpartition(".")[2]
    host_variables = {"inventory_hostname": "n1", **variables}
    return play_action(action.ActionModule, arguments, {f"gpumesh.cluster.{module}": [result]}, host_variables)


def module_arguments_of(action: Any, arguments: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """The parameters of its module."""
    played = play_on_host(
        action, arguments, {"changed": False, "tools": True, "missing": [], "outdated": []}, **variables
    )
    ((_module, parameters),) = played.module_calls
    return parameters


def test_the_record_stays_on_the_controller() -> None:
    assert module_arguments_of(names, {"record": RECORD}) == {
        "machine": "n1",
        "cluster": "lab",
        "members": [{"address": "10.0.0.1", "names": ["n1"]}, {"address": "10.0.0.2", "names": ["n2"]}],
        "address": "10.0.0.1",
        "digests": source_digests(boot_program_sources()),
    }
    assert module_arguments_of(names, {"record": RECORD, "state": "absent"}) == {"cluster": "lab", "state": "absent"}


@pytest.mark.parametrize("record", [{}, {**RECORD, "members": "n1"}])
def test_an_invalid_record_is_refused_on_the_controller(record: Any) -> None:
    played = play_action(names.ActionModule, {"record": record}, {}, {"inventory_hostname": "n1"})
    assert played.result["failed"] and played.result["error"]["kind"] == "invalid_record"


def test_a_machine_that_is_not_a_member_is_refused() -> None:
    played = play_action(names.ActionModule, {"record": RECORD}, {}, {"inventory_hostname": "n9"})
    assert played.result["error"]["machine"] == "n9"


def compare_host(**variables: Any) -> dict[str, Any]:
    played = play_on_host(layer_info, {"record": RECORD}, {"changed": False, "drift": {"munge": "x"}}, **variables)
    assert set(played.result["drift"]) == {"munge"}
    return played.module_calls[0][1]


def test_the_host_is_compared_with_the_options_of_the_roles() -> None:
    def paths(**variables: Any) -> set[str]:
        given = compare_host(**variables)
        return {entry.get("path") or entry["unit"] for entry in (*given["files"], *given["services"])}

    variables: dict[str, Any] = {"ssh_trust_users": ["root", "alice"], "job_environment_dialects": ["torchrun"]}
    modules = compare_host(**variables, job_environment_rdma="false")["modules"]
    variables["job_environment_rdma"] = "false"
    for action in (names, ssh_trust, job_environment):
        layer = action.__name__.rpartition(".")[2]
        assert modules[layer] == {"state": "present", **module_arguments_of(action, {"record": RECORD}, **variables)}
    sharing = compare_host(storage_server="ganesha")["modules"]["storage"]
    assert {**sharing, "force": False} == module_arguments_of(storage, {"record": RECORD}, storage_server="ganesha")
    folders = {"train_run_dir": "/mnt/shared/runs", "train_stage_dir": "/scratch"}
    trains = compare_host(**folders)["modules"]["train"]
    assert trains == module_arguments_of(train, {"record": RECORD}, **folders)
    assert paths() - paths(slurm_accounting="false") == {"slurmdbd.service"}


def test_options_that_a_layer_refuses_are_reported_as_drift() -> None:
    found = {"changed": False, "drift": {"munge": "x"}}
    wrong = {"ssh_trust_users": ["a b"], "job_environment_port_range": [9, 1]}
    played = play_on_host(layer_info, {"record": RECORD}, found, **wrong)
    assert set(played.result["drift"]) == {"munge", "ssh_trust", "job_environment"}
    assert "ssh_trust_users: 'a b'" in played.result["drift"]["ssh_trust"]
    assert set(played.module_calls[0][1]["modules"]) == {
        *("names", "firewall", "firewall_host", "storage", "munge", "train", "session"),
        *("slurm", "slurm_stored", "slurm_served"),
    }


def test_options_that_need_facts_of_the_host_are_reported_as_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    read_options = layer_info.ActionModule.options

    def refuse_template(action: Any, *names: str, **given: Any) -> dict[str, Any]:
        if "slurm_gres" in names:
            raise AnsibleUndefinedVariable("'ansible_facts' has no attribute 'gpus'.")
        return read_options(action, *names, **given)

    monkeypatch.setattr(layer_info.ActionModule, "options", refuse_template)
    variables = {"hostvars": {}}
    played = play_on_host(layer_info, {"record": RECORD}, {"changed": False, "drift": {}}, **variables)
    assert set(played.result["drift"]) == {"slurm"}
    assert "no attribute 'gpus'" in played.result["drift"]["slurm"]


def test_a_userspace_only_member_is_reported() -> None:
    tailnet = {**RECORD, "mesh": {**RECORD["mesh"], "backend": "tailscale"}}
    found = {"changed": False, "drift": {}}

    def told(record: Any, tun: bool, **variables: Any) -> bool:
        played = play_on_host(layer_info, {"record": record}, found, __cluster_info={"tun": tun}, **variables)
        return bool(played.result["userspace_only"])

    assert told(tailnet, tun=False)
    assert told(tailnet, tun=True, mesh_userspace="always")
    assert not told(tailnet, tun=False, mesh_userspace_nodes=True)
    assert not told(tailnet, tun=True)
    assert not told(RECORD, tun=False)


def test_a_removal_passes_only_the_name_of_the_cluster() -> None:
    for action in (job_environment, ssh_trust):
        assert module_arguments_of(action, {"record": RECORD, "state": "absent"}) == {
            "cluster": "lab",
            "state": "absent",
        }


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43


def test_a_host_key_that_the_record_lacks_is_returned_for_registration() -> None:
    found = {"changed": True, "signing_key": KEY + " root@n1", "host_keys": [KEY]}
    played = play_on_host(ssh_trust, {"record": RECORD}, found)
    assert played.result["registration"] == {"machine": "n1", "ssh_public_key": KEY, "ssh_host_keys": [KEY]}
    unknown = {"changed": False, "signing_key": None, "host_keys": []}
    assert "registration" not in play_on_host(ssh_trust, {"record": RECORD}, unknown).result


def test_the_ssh_client_is_installed_where_it_is_missing() -> None:
    def run_ssh_trust(*results: dict[str, Any], check_mode: bool = False) -> ActionRun:
        variables = {"inventory_hostname": "n1", "ansible_facts": {"pkg_mgr": "apt"}}
        modules = {"gpumesh.cluster.ssh_trust": results, "ansible.builtin.apt": [{"changed": True}]}
        return play_action(ssh_trust.ActionModule, {"record": RECORD}, modules, variables, check_mode)

    lacking = {"changed": False, "missing": ["ssh"]}
    complete = {"changed": False, "signing_key": KEY, "host_keys": [KEY]}
    installed = run_ssh_trust(lacking, complete)
    assert [name for name, _parameters in installed.module_calls] == [
        "gpumesh.cluster.ssh_trust",
        "ansible.builtin.apt",
        "gpumesh.cluster.ssh_trust",
    ]
    assert installed.module_calls[1][1]["name"] == ["openssh-client"]
    assert installed.result["changed"] and "registration" in installed.result
    assert run_ssh_trust(lacking, lacking).result["failed"]
    predicted = run_ssh_trust({"changed": True, "missing": ["ssh"]}, check_mode=True)
    assert len(predicted.module_calls) == 1 and predicted.result["changed"]


def test_the_registrations_of_all_hosts_are_one_change_of_the_record() -> None:
    entries = {"n1": {"machine": "n1", "ssh_public_key": KEY}, "n3": {"machine": "n3", "ssh_public_key": KEY}}
    results = {machine: {"keys": {"registration": entry}} for machine, entry in entries.items()}
    hostvars = {**results, "n2": {"keys": {"changed": False}}, "n4": {}, "failed": results["n1"]}
    variables = {
        "hostvars": hostvars,
        "inventory_hostname": "n1",
        "ansible_play_batch": ["n1", "n2", "n3", "n4"],
    }
    given = {"cluster": "lab", "registered": "keys", "joining": []}
    expected = {"cluster": "lab", "joining": [], "members": [entries["n1"], entries["n3"]]}
    module = "gpumesh.cluster.cluster_member"
    written = play_action(
        cluster_member.ActionModule, given, {module: [{"changed": True, "record": RECORD}]}, variables
    )
    assert (written.result["record"], written.module_calls) == (RECORD, [(module, expected)])
    for wrong, why in (({"name": "two"}, "that of 'lab' with n1 was expected"), ({"members": 7}, "members")):
        result = {"changed": True, "record": {**RECORD, **wrong}}
        refused = play_action(cluster_member.ActionModule, given, {module: [result]}, variables).result
        assert refused["failed"] and why in refused["msg"]
    nothing = play_action(cluster_member.ActionModule, given, {}, {**variables, "ansible_play_batch": ["n2"]})
    assert (nothing.result, nothing.module_calls) == ({"changed": False}, [])
    would = play_action(cluster_member.ActionModule, given, {}, variables, check_mode=True)
    assert (would.result, would.module_calls) == ({"changed": True}, []), "who would join is not in the record yet"
    assert module_arguments_of(cluster_member, expected) == expected


MESHED = {
    **RECORD,
    "mesh": {**RECORD["mesh"], "backend": "wireguard"},
    "members": [
        {**member, "mesh": {"address": f"10.99.0.{number}", "public_key": None}}
        for number, member in enumerate(RECORD["members"], 1)
    ],
}
RULES = {"tcp_ports": ["2049"], "open_udp_ports": ["53"]}


def test_the_firewall_admits_the_members() -> None:
    tcp_ports = ["2049", "111", "2049", "15000-24999", "6817-6819", "6820", "25000-28999"]
    ports = {"tcp_ports": tcp_ports, "udp_ports": ["111"], "open_udp_ports": ["53"]}
    network = {"cluster": "lab", "members": ["10.0.0.1", "10.0.0.2"], "mesh_interface": "gpumesh0", **ports}
    assert module_arguments_of(firewall, {"record": RECORD, **RULES}) == {**network, "mesh_members": []}
    tunnels = {"mesh_members": ["10.99.0.1", "10.99.0.2"], "open_udp_ports": ["53", str(MESHED["mesh"]["port"])]}
    assert module_arguments_of(firewall, {"record": MESHED, **RULES}) == {**network, **tunnels}
    # Machines that share only the mesh have no other address.
    tailnet = [{**member, "address": member["mesh"]["address"]} for member in MESHED["members"]]
    shared = {**MESHED, "members": tailnet, "subnet": MESHED["mesh"]["subnet"]}
    assert module_arguments_of(firewall, {"record": shared, **RULES})["members"] == []
    assert module_arguments_of(firewall, {"record": RECORD, "state": "absent", **RULES}) == {
        "cluster": "lab",
        "state": "absent",
    }
    assert module_arguments_of(firewall, {"cluster": "lab", "members": ["10.0.0.1"]}) == {
        "cluster": "lab",
        "members": ["10.0.0.1"],
    }


def test_a_machine_that_is_joining_is_admitted_without_a_record() -> None:
    given = {"cluster": "lab", "state": "admitted", "members": ["10.0.0.3"]}
    assert module_arguments_of(firewall, given, inventory_hostname="n9") == given
    lacking = play_action(
        firewall.ActionModule, given, {"gpumesh.cluster.firewall": [{"changed": False, "tools": False}]}
    )
    assert len(lacking.module_calls) == 1, "nothing is installed for it"


def test_a_machine_outside_the_cluster_gets_no_firewall_but_loses_an_existing_one() -> None:
    stranger = {"inventory_hostname": "n9"}
    played = play_action(firewall.ActionModule, {"record": RECORD}, {}, stranger)
    assert (played.result, played.module_calls) == ({"changed": False}, [])
    assert module_arguments_of(firewall, {"record": RECORD, "state": "absent"}, **stranger)["state"] == "absent"


@pytest.mark.parametrize(
    ("arguments", "check_mode", "runs"),
    [
        ({"record": RECORD}, False, ["firewall", "apt", "firewall"]),
        ({"record": RECORD}, True, ["firewall"]),
        ({"record": RECORD, "state": "absent"}, False, ["firewall"]),
        ({"cluster": "lab", "members": ["10.0.0.1"]}, False, ["firewall"]),
    ],
)
def test_nftables_is_installed_only_for_a_firewall(
    arguments: dict[str, Any], check_mode: bool, runs: list[str]
) -> None:
    missing, loaded = {"changed": check_mode, "tools": False}, {"changed": True, "tools": True}
    results = {"gpumesh.cluster.firewall": [missing, loaded], "ansible.builtin.apt": [{"changed": True}]}
    here = {"inventory_hostname": "n1", "ansible_facts": {"pkg_mgr": "apt"}}
    played = play_action(firewall.ActionModule, arguments, results, here, check_mode)
    assert [module.rpartition(".")[2] for module, _given in played.module_calls] == runs
    assert played.result == (loaded if len(runs) > 1 else missing)


@pytest.mark.parametrize("name", ["names", "firewall", "train"])
def test_a_layer_module_receives_the_generation_of_the_record(name: str) -> None:
    action = {"names": names, "firewall": firewall, "train": train}[name]
    result = {"changed": False, "tools": True, "missing": [], "outdated": []}
    wanted = {"cluster": "lab", "generation": 1, "machine": "n1"}
    assert play_on_host(action, {"record": RECORD}, result).derived_from == [(f"gpumesh.cluster.{name}", wanted)]
    assert play_on_host(action, {"record": "held"}, result, held=RECORD).derived_from[0][1] == wanted
    assert play_on_host(action, {"record": RECORD, "state": "absent"}, result).derived_from[0][1] is None


def sizes_sent(member_count: int) -> dict[str, int]:
    """The bytes that each module receives on a member of an unchanged cluster with so many members."""
    held = unchanged_cluster.build_record(member_count)
    actions = (job_environment, session, names, firewall, ssh_trust, layer_info, mesh, storage, train)
    machines = [member["machine"] for member in held["members"]]
    variables = {"inventory_hostname": "n2", "held": held, "session_enabled": True, "ansible_play_batch": machines}
    sizes = {}
    for action in actions:
        module = {"mesh": "wireguard"}.get(name := action.__name__.rpartition(".")[2], name)
        answers = {f"gpumesh.cluster.{module}": [{"changed": False, **unchanged_cluster.ANSWERS[module]}]}
        played = play_action(action.ActionModule, {"record": "held"}, answers, variables)
        assert not played.result.get("failed"), played.result
        sizes[module] = len(json.dumps(played.module_calls))
    return sizes


def test_what_an_unchanged_cluster_sends_to_a_host_does_not_grow_with_the_members() -> None:
    assert sizes_sent(1000) == sizes_sent(2)


@pytest.mark.parametrize("name", ["names", "firewall", "ssh_trust"])
def test_a_host_with_another_copy_of_the_record_receives_everything(name: str) -> None:
    action = {"names": names, "firewall": firewall, "ssh_trust": ssh_trust}[name]
    module = f"gpumesh.cluster.{name}"
    results = {module: [{"changed": False, "copy_differs": True}, {"changed": True, "tools": True, "outdated": []}]}
    variables = {"inventory_hostname": "n1", "held": RECORD}
    played = play_action(action.ActionModule, {"record": "held"}, results, variables)
    (first_call, second_call) = [arguments for _module, arguments in played.module_calls]
    assert set(first_call["record_copy"]) == {"cluster", "digest"}
    assert second_call == module_arguments_of(action, {"record": RECORD})
    assert played.result["changed"] and "copy_differs" not in played.result


def test_the_copy_of_another_host_is_not_used() -> None:
    variables = {"inventory_hostname": "n1", "held": RECORD, "hostvars": {"n2": {}}}
    answer = {"gpumesh.cluster.firewall": [{"changed": False, "tools": True}]}
    played = play_action(firewall.ActionModule, {"record": "held"}, answer, variables, delegate_to="n2")
    assert "record_copy" not in played.module_calls[0][1]


def test_other_modules_do_not_receive_the_generation() -> None:
    result = {"changed": False, "drift": {}, "munge_key": ""}
    assert play_on_host(layer_info, {"record": RECORD}, result).derived_from == [("gpumesh.cluster.layer_info", None)]

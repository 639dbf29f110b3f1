# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm: from the record and the options of the role to the Slurm setup of a host."""

from __future__ import annotations

from typing import Any

import pytest
from action_runs import ActionRun, play_action, unpack_files
from ansible.errors import AnsibleUndefinedVariable

from ansible_collections.gpumesh.cluster.plugins.action.slurm import ActionModule
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import job_plugin, rest
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import source_digests
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import (
    DBD_CONFIG_PATH,
    TOKEN_KEY,
    health_program_sources,
    job_plugin_sources,
    packages_for_programs,
    program_path,
    pushed_sources,
    required_programs,
)

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0", "gpus": 8} for n in (1, 2)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
MESHED = {
    **RECORD,
    "mesh": {**RECORD["mesh"], "backend": "wireguard"},
    "members": [
        {**member, "mesh": {"address": f"10.99.0.{number}", "public_key": None}}
        for number, member in enumerate(RECORD["members"], 1)
    ],
}
UNCHANGED = {"changed": False, "missing": [], "outdated": [], "withdrawn": []}
STORED = {"changed": False, "missing": [], "outdated": [], "socket": "/run/mysqld/mysqld.sock", "database": False}

STOPPING = ("gpumesh.cluster.daemon", "ansible.builtin.file")


def run_slurm_action(
    arguments: dict[str, Any], *results: dict[str, Any], check_mode: bool = False, **variables: Any
) -> ActionRun:
    host_variables = {
        "inventory_hostname": "n2",
        "ansible_play_batch": ["n1", "n2"],
        "ansible_facts": {"pkg_mgr": "apt"},
        "hostvars": {"n1": {}, "n2": {}},
        **variables,
    }
    stores = arguments.get("state") == "served" and host_variables.get("slurm_accounting", True)
    given = {
        "gpumesh.cluster.slurm": results or [*([STORED] if stores else []), UNCHANGED],
        "ansible.builtin.apt": [{"changed": True}],
    }
    given["gpumesh.cluster.session"] = [{"changed": True}]
    return play_action(ActionModule, {"record": RECORD, **arguments}, given, host_variables, check_mode)


def module_arguments_of(arguments: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """The arguments of the module, after those with which it runs MariaDB."""
    *_stored, (_module, parameters) = run_slurm_action(arguments, **variables).module_calls
    assert [one["state"] for _module, one in _stored] in ([], ["stored"])
    return parameters


def daemons(**variables: Any) -> dict[str, dict[str, Any]]:
    manager = {"inventory_hostname": "n1", **variables}
    return {one["name"]: one for one in module_arguments_of({"state": "served"}, **manager)["daemons"]}


def test_a_node_receives_its_controller() -> None:
    given = module_arguments_of({})
    assert (given["controller"], given["address"], given["machine"], given["serve"]) == (
        "10.0.0.1",
        "10.0.0.2",
        "n2",
        False,
    )
    assert (given["programs"], given["gpus"], given["controller_port"]) == (["slurmd"], 8, 6817)
    assert (given["health_check"], given["prolog"]) == ("/usr/local/sbin/gpumesh-node-health", "")
    assert "After=" not in given["daemons"][0]["drop_in"]


HEAD: dict[str, Any] = {**RECORD, "members": [{**RECORD["members"][0], "slurm_node": False}, RECORD["members"][1]]}


@pytest.mark.parametrize("state", ["present", "configured"])
def test_a_manager_without_jobs_serves_the_nodes_and_runs_no_slurmd(state: str) -> None:
    given = module_arguments_of({"record": HEAD, "state": state}, inventory_hostname="n1")
    assert (given["serve"], given["slurm_node"], list(given["digests"])) == (True, False, [job_plugin.SOURCE_NAME])
    # Its nodes run the health check.
    assert given["health_check"] == "/usr/local/sbin/gpumesh-node-health"
    assert "slurmd" in given["programs"], "its parser validates the configuration"
    if state == "present":
        assert given["daemons"] == [{"name": name, "state": "absent"} for name in ("gpumesh-health", "slurmd")]
    node = module_arguments_of({"record": HEAD, "state": "present"})
    assert (node["slurm_node"], [daemon["name"] for daemon in node["daemons"]]) == (True, ["slurmd", "gpumesh-health"])
    assert node["digests"]


def test_a_member_without_jobs_is_not_one_of_the_nodes_that_the_controller_accepts() -> None:
    assert module_arguments_of({"record": HEAD}, slurm_max_nodes=1)["max_nodes"] == 1


def test_a_node_has_its_kernel_log_watched() -> None:
    _slurmd, watcher = module_arguments_of({"record": MESHED}, slurm_health_check="/opt/a b/check")["daemons"]
    assert (watcher["name"], watcher["reads"]) == ("gpumesh-health", ["/opt/a b/check"])
    assert watcher["command"] == "'/opt/a b/check' --watch"
    assert 'ExecStart="/opt/a b/check" --watch\n' in watcher["unit"]
    assert "NoNewPrivileges=yes" in watcher["unit"]
    # A mount namespace would hide from it what slurmd's checks see.
    assert not any(line.startswith(("Protect", "Private", "Read")) for line in watcher["unit"].splitlines())
    without = module_arguments_of({}, slurm_health_check="")["daemons"][1]
    assert without == {"name": "gpumesh-health", "state": "absent"}


def test_the_cluster_s_addresses_come_with_the_mesh() -> None:
    given = module_arguments_of({"record": MESHED})
    assert given["controller"] == "10.99.0.1"
    unit = f"wg-quick@{MESHED['mesh']['interface']}.service"
    assert f"After={unit}\nWants={unit}\n[Service]" in given["daemons"][0]["drop_in"]


def test_the_options_of_the_role_are_the_host_s_variables() -> None:
    variables = {"slurm_health_prolog": "true", "slurm_conf": {"SlurmctldPort": "6900-6901"}, "slurm_rest": True}
    given = module_arguments_of({}, **variables)
    assert given["health_rdma_rate_gbps"] == 0
    assert module_arguments_of({}, slurm_health_rdma_rate_gbps="400")["health_rdma_rate_gbps"] == 400
    assert given["prolog"] == given["health_check"]
    assert given["controller_port"] == 6900
    assert given["settings"]["AuthAltTypes"] == "auth/jwt" and given["programs"] == ["slurmd"]
    refused = run_slurm_action({}, slurm_max_nodes="many").result
    assert refused["failed"] and "slurm_max_nodes" in refused["msg"]


@pytest.mark.parametrize(
    ("hostvars", "types", "keep"),
    [
        ({"n1": {}, "n2": {}}, [], False),
        ({"n1": {"slurm_gres": {"gpu": []}}, "n2": {"slurm_gres": {"NIC": {"Count": 2}}}}, ["gpu", "nic"], False),
        # The options may come from the command line, or be an unanswered question of a survey.
        ({"n1": {"slurm_gres": ""}, "n2": {"slurm_gres": '{"nic": {"Count": 2}}'}}, ["nic"], False),
        # Hosts that are not members do not count.
        ({"n1": {}, "n2": {}, "n3": {"slurm_gres": {"tape": {"Count": 1}}}}, [], False),
        # The inventory is a slice, or a template needs facts that this run does not have.
        ({"n1": {"slurm_gres": {"nic": {"Count": 2}}}}, ["nic"], True),
        ({"n1": {}, "n2": {"slurm_gres": "{{ ansible_facts.nics }}"}}, [], True),
        ({"n1": {}, "n2": {"slurm_gres": 3}}, [], True),
    ],
)
def test_the_manager_receives_the_gres_of_all_members(hostvars: dict[str, Any], types: list[str], keep: bool) -> None:
    for state in ("present", "configured"):
        given = module_arguments_of(
            {"state": state}, **{"inventory_hostname": "n1", "hostvars": hostvars, **hostvars["n1"]}
        )
        assert (given["gres_types"], given["keep_gres_types"]) == (types, keep)
    # Only the manager serves them.
    assert not {"gres_types", "keep_gres_types"} & module_arguments_of({}, hostvars=hostvars).keys()


def test_more_nodes_than_the_controller_accepts_are_refused() -> None:
    """The controller ignores the last ones, which would wait for it in vain."""
    for state in ("present", "configured", "served"):
        played = run_slurm_action({"state": state}, inventory_hostname="n1", slurm_max_nodes=1)
        assert played.module_calls == []
        assert played.result["msg"] == "Cluster 'lab' has 2 nodes, and slurm_max_nodes is 1. Increase slurm_max_nodes."
    assert module_arguments_of({}, slurm_max_nodes=2)["max_nodes"] == 2
    # Members to which others cannot connect are not nodes.
    assert module_arguments_of({}, slurm_max_nodes=1, cluster_userspace_only=["n1"])["max_nodes"] == 1
    assert module_arguments_of({}, slurm_max_nodes=1, slurm_conf={"maxNodeCount": 2})["max_nodes"] == 1


def test_an_unresolvable_gres_template_is_not_taken_for_an_empty_one() -> None:
    class Failing(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            raise AnsibleUndefinedVariable(name)

    given = module_arguments_of({"state": "configured"}, inventory_hostname="n1", hostvars={"n1": {}, "n2": Failing()})
    assert (given["gres_types"], given["keep_gres_types"]) == ([], True)


def test_a_machine_outside_the_cluster_is_refused() -> None:
    played = run_slurm_action({}, inventory_hostname="n9")
    assert played.result["error"]["machine"] == "n9" and played.module_calls == []


def test_the_health_program_is_kept_while_the_controller_may_run_it() -> None:
    assert not module_arguments_of({})["keep_checks"]
    assert module_arguments_of({}, ansible_play_batch=["n2"])["keep_checks"]


def test_the_manager_runs_the_chosen_services() -> None:
    assert list(daemons()) == ["slurmdbd", "slurmctld"]
    served = module_arguments_of({"state": "served"}, inventory_hostname="n1")
    assert (served["token_key"], served["withdrawn"]) == ("", [rest.PROXY_DIRECTORY, TOKEN_KEY])
    assert served["system_accounts"] == [] and served["certificate"] is None
    (file,) = served["files"]
    assert file["mode"] == "0600"
    assert "StorageType=accounting_storage/mysql" in file["content"]


def test_slurmrestd_listens_on_a_socket_only() -> None:
    served = module_arguments_of({"state": "served"}, inventory_hostname="n1", slurm_rest=True)
    assert [one["name"] for one in served["daemons"]] == ["slurmdbd", "slurmctld", "slurmrestd"]
    daemon = served["daemons"][2]
    assert daemon["command"].split()[1:] == ["-a", "rest_auth/jwt", f"unix:{rest.SOCKET_PATH}"]
    assert (daemon["user"], daemon["directories"]) == (rest.REST_ACCOUNT, [rest.SOCKET_DIRECTORY])
    assert f"ExecStart=\nExecStart={daemon['command']}\n" in daemon["drop_in"]
    assert "User=gpumesh_rest\n" in daemon["drop_in"] and "UnsetEnvironment=SLURMRESTD_LISTEN\n" in daemon["drop_in"]
    assert served["system_accounts"] == [rest.REST_ACCOUNT]
    assert rest.PROXY_CONFIG_PATH not in [one["path"] for one in served["files"]]
    # A proxy of an earlier run.
    assert rest.PROXY_DIRECTORY in served["withdrawn"]


def test_with_an_address_a_proxy_serves_it_with_tls() -> None:
    here = {"inventory_hostname": "n1", "slurm_rest": True, "slurm_rest_port": 7000}
    served = module_arguments_of({"state": "served"}, **here, slurm_rest_address="10.0.0.1")
    assert [one["name"] for one in served["daemons"]] == ["slurmdbd", "slurmctld", "slurmrestd", rest.PROXY_SERVICE]
    proxy = served["daemons"][3]
    assert (proxy["ready_address"], proxy["ready_port"]) == ("10.0.0.1", 7000)
    assert set(proxy["reads"]) == {
        rest.PROXY_CONFIG_PATH,
        f"{rest.PROXY_DIRECTORY}/own.crt",
        f"{rest.PROXY_DIRECTORY}/own.key",
    }
    assert {"stunnel", "openssl"} <= set(served["programs"])
    assert served["system_accounts"] == [rest.REST_ACCOUNT, rest.PROXY_ACCOUNT]
    assert rest.PROXY_CONFIG_PATH in [one["path"] for one in served["files"]]
    assert served["certificate"] == {
        "folder": rest.PROXY_DIRECTORY,
        "cluster": "lab",
        "service": "Slurm REST API",
        "machine": "n1",
        "addresses": ["10.0.0.1"],
    }
    assert rest.PROXY_DIRECTORY not in served["withdrawn"]
    everywhere = module_arguments_of({"state": "served"}, **here, slurm_rest_address="0.0.0.0")
    assert everywhere["certificate"]["addresses"] == ["10.0.0.1", "127.0.0.1"]
    off = module_arguments_of({"state": "served"}, **{**here, "slurm_rest": False}, slurm_rest_address="10.0.0.1")
    assert [one["name"] for one in off["daemons"]] == ["slurmdbd", "slurmctld"] and rest.PROXY_DIRECTORY in off[
        "withdrawn"
    ]
    # slurmd needs neither of them.
    assert module_arguments_of({}, slurm_rest=True, slurm_rest_address="10.0.0.1")["programs"] == ["slurmd"]


def test_the_requirements_of_the_proxy_are_checked_before_anything_changes() -> None:
    wanted = required_programs({"slurm_accounting": False, "slurm_rest": True, "slurm_rest_address": "10.0.0.1"}, True)
    needed = {program_path(one): packages_for_programs([one], "apt") for one in wanted}
    assert needed["/usr/bin/stunnel"] == needed["/usr/bin/openssl"] == ["stunnel4", "openssl"]
    assert "/usr/sbin/slurmrestd" in needed


def test_services_that_are_no_longer_wanted_are_stopped() -> None:
    """The file by which an interrupted run knows them goes last."""
    results = {
        "gpumesh.cluster.slurm": [
            {**UNCHANGED, "withdrawn": [rest.PROXY_DIRECTORY, TOKEN_KEY, DBD_CONFIG_PATH]},
            STORED,
        ],
        "gpumesh.cluster.daemon": [{"changed": True}] * 4,
        "community.mysql.mysql_info": [{"databases": {"mysql": {}, "slurm_acct_db": {}}}],
        "ansible.builtin.file": [{"changed": True}] * 4,
    }
    here = {"inventory_hostname": "n1", "ansible_play_batch": ["n1", "n2"], "slurm_accounting": False}
    played = play_action(ActionModule, {"record": RECORD, "state": "served"}, results, here)
    steps = [given.get("path") or given.get("name") for module, given in played.module_calls if module in STOPPING]
    proxy, daemon = [rest.PROXY_SERVICE, rest.PROXY_DIRECTORY], ["slurmrestd", rest.SOCKET_DIRECTORY, TOKEN_KEY]
    assert steps == [*proxy, *daemon, "slurmdbd", "mariadb", DBD_CONFIG_PATH]
    assert all(given["state"] == "absent" for module, given in played.module_calls if module in STOPPING)
    assert played.result["changed"]


NEW_ACCOUNTS = {"changed": True, "commands": ["sacctmgr"], "diff": {"after": "sacctmgr"}}


def run_services(
    *results: dict[str, Any], check_mode: bool = False, accounts: dict[str, Any] | None = None, **variables: Any
) -> ActionRun:
    """Run the services of the manager. ``results``: those of the module slurm."""
    module_results = {
        "gpumesh.cluster.slurm": results,
        "gpumesh.cluster.slurm_accounts": [accounts or NEW_ACCOUNTS],
        "community.mysql.mysql_user": [{"changed": True}],
        "community.mysql.mysql_db": [{"changed": True}],
        "gpumesh.cluster.slurm_database": [{"changed": True}],
    }
    here = {"inventory_hostname": "n1", "ansible_play_batch": ["n1"], "hostvars": {"n1": {}, "n2": {}}, **variables}
    return play_action(ActionModule, {"record": RECORD, "state": "served"}, module_results, here, check_mode)


def module_states(played: ActionRun) -> list[str]:
    return [f"{name.rpartition('.')[2]} {given.get('state', '')}".strip() for name, given in played.module_calls]


def test_slurmdbd_starts_after_its_database_exists() -> None:
    played = run_services({**STORED, "database": True}, UNCHANGED)
    assert module_states(played) == ["slurm stored", "mysql_user", "mysql_db", "slurm_database loaded", "slurm served"]
    assert played.result == {**UNCHANGED, "changed": True}
    steady = run_services(STORED, UNCHANGED)
    assert module_states(steady) == ["slurm stored", "slurm served"] and steady.result == UNCHANGED
    assert module_states(run_services(UNCHANGED, slurm_accounting=False)) == ["slurm served"]


@pytest.mark.parametrize("given", [{"slurm_qos": {"long": {}}}, {"slurm_accounts": {"lab": {}}}])
def test_accounts_are_set_once_slurmdbd_knows_the_cluster(given: dict[str, Any]) -> None:
    played = run_services(STORED, UNCHANGED, **given)
    assert module_states(played) == ["slurm stored", "slurm served", "slurm_accounts"]
    assert played.module_calls[-1][1] == {
        "cluster": "lab",
        "qos": given.get("slurm_qos", {}),
        "accounts": given.get("slurm_accounts", {}),
    }
    assert played.result == {**UNCHANGED, "changed": True, "diff": [{"after": "sacctmgr"}]}
    both = run_services(STORED, {**UNCHANGED, "diff": {"after": "slurmctld"}}, **given)
    assert both.result["diff"] == [{"after": "slurmctld"}, {"after": "sacctmgr"}]
    quiet = run_services(STORED, UNCHANGED, accounts={"changed": False, "commands": []}, **given)
    assert quiet.result == UNCHANGED
    # There are no accounts without slurmdbd, or while it is not installed.
    assert module_states(run_services(UNCHANGED, slurm_accounting=False, **given)) == ["slurm served"]
    lacking = {**UNCHANGED, "missing": ["slurmdbd"]}
    assert module_states(run_services(STORED, lacking, check_mode=True, **given)) == ["slurm stored", "slurm served"]


def test_a_controller_that_cannot_reload_its_settings_is_restarted() -> None:
    for restart, state in ((True, "restarted"), (False, "started")):
        given = module_arguments_of({"state": "served", "restart": restart}, inventory_hostname="n1")
        assert {one["name"]: one.get("state") for one in given["daemons"]} == {"slurmdbd": None, "slurmctld": state}


def test_slurmd_of_a_pod_is_as_new_as_the_library() -> None:
    assert "/etc/ld.so.preload" not in module_arguments_of({})["daemons"][0]["reads"]
    mesh = {"address": "100.64.0.2", "public_key": None, "userspace": True}
    members = [{**one, "mesh": mesh} if one["machine"] == "n2" else one for one in MESHED["members"]]
    pod = {**MESHED, "mesh": {**MESHED["mesh"], "backend": "tailscale"}, "members": members}
    assert "/etc/ld.so.preload" in module_arguments_of({"record": pod})["daemons"][0]["reads"]


def test_the_health_program_is_pushed_after_the_packages() -> None:
    lacking = {**UNCHANGED, "outdated": ["gpumesh-node-health"]}
    played = run_slurm_action({}, {**UNCHANGED, "missing": ["slurmd"]}, lacking, {**UNCHANGED, "changed": True})
    *_earlier, before, after = [given for module, given in played.module_calls if module == "gpumesh.cluster.slurm"]
    assert unpack_files(after.pop("contents")) == health_program_sources()
    assert before == after and source_digests(pushed_sources()) == before["digests"]
    assert played.result["changed"]
    assert "contents" not in run_slurm_action({}, lacking, check_mode=True).module_calls[-1][1]
    assert module_arguments_of({}, slurm_health_check="")["digests"] == source_digests(job_plugin_sources())


def test_missing_packages_are_installed() -> None:
    lacking = {"changed": False, "missing": ["slurmd", "supervisor"]}
    played = run_slurm_action({}, lacking, UNCHANGED)
    assert [name.rpartition(".")[2] for name, _given in played.module_calls] == ["slurm", "apt", "slurm"]
    assert played.module_calls[1][1]["name"] == ["slurmd", "slurm-client", "supervisor"]
    assert played.result == {**UNCHANGED, "changed": True}
    would = run_slurm_action({}, {**lacking, "changed": True}, check_mode=True)
    assert len(would.module_calls) == 1 and would.result["changed"]
    assert (
        "slurmd cannot be found"
        in run_slurm_action({}, lacking, {"changed": False, "missing": ["slurmd"]}).result["msg"]
    )


def test_settings_that_the_role_relies_on_are_refused_before_anything_changes() -> None:
    for variables in (
        {"slurm_conf": {"StateSaveLocation": "/srv/state"}},
        {"slurm_dbd_conf": {"StoragePass": "secret"}},
        {"slurm_accounts": {"a": {"Description": "x|y"}}},
    ):
        played = run_slurm_action({"state": "configured"}, inventory_hostname="n1", **variables)
        assert played.result["failed"] and played.module_calls == []
        assert "secret" not in str(played.result)


def test_a_removal_needs_no_record() -> None:
    assert module_arguments_of({"state": "absent"}) == {"state": "absent"}


def test_the_files_of_disabled_sessions_are_removed() -> None:
    assert [module for module, _given in run_slurm_action({}, UNCHANGED).module_calls] == ["gpumesh.cluster.slurm"]
    on = run_slurm_action({}, {**UNCHANGED, "sessions": True}, session_enabled=True)
    assert [module for module, _given in on.module_calls] == ["gpumesh.cluster.slurm"]
    off = run_slurm_action({}, {**UNCHANGED, "sessions": True})
    assert off.module_calls[1] == ("gpumesh.cluster.session", {"state": "absent"})
    assert off.result["changed"]


def test_a_node_receives_the_version_of_the_controller() -> None:
    """The version is that of this run's installation, or the one found before."""
    asked = {"registered": ["config", "queue"]}
    found, made = {"slurm_version": "22.05.8"}, {"slurm_version": "24.11.5"}
    none = {"slurm_version": None}
    for variables, version in (
        ({"hostvars": {"n1": {"config": made, "queue": none}}}, "24.11.5"),
        ({"hostvars": {"n1": {"queue": found}}}, "22.05.8"),
        # The manager is not in the play, and was asked from there.
        ({"hostvars": {"n1": {}}, "queue": found}, "22.05.8"),
        ({"hostvars": {}, "queue": found}, "22.05.8"),
        ({"hostvars": {"n1": {"config": {"failed": True, "msg": "no"}, "queue": none}}}, ""),
    ):
        assert module_arguments_of(asked, **variables)["controller_version"] == version
    assert module_arguments_of({})["controller_version"] == ""


def test_a_node_receives_the_certificates_of_the_rest_api() -> None:
    """The certificates are those that the manager has created in this run, or those that it has."""
    asked = {"registered": ["served", "queue"]}
    for variables, certificates in (
        ({"hostvars": {"n1": {"served": {"rest_certificates": ["new", "next"]}}}}, ["new", "next"]),
        # The REST API has just been switched off.
        ({"hostvars": {"n1": {"served": {"rest_certificates": []}}}, "queue": {"rest_certificates": ["old"]}}, []),
        ({"hostvars": {"n1": {}}, "served": {"skipped": True}, "queue": {"rest_certificates": ["old"]}}, ["old"]),
        # One would be made, in check mode.
        ({"hostvars": {"n1": {"served": {"rest_certificates": None}}}}, None),
    ):
        assert module_arguments_of(asked, **variables)["rest_certificates"] == certificates
    assert module_arguments_of({})["rest_certificates"] is None


def test_a_compiler_that_cannot_be_installed_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm works without it, with a TaskProlog."""
    warnings: list[str] = []
    monkeypatch.setattr(ActionModule, "warn", lambda _self, message: warnings.append(message))
    monkeypatch.setattr(ActionModule, "_run_script", lambda _self, _text: False)
    lacking = {**UNCHANGED, "missing": ["gcc", "/usr/include/slurm/spank.h"]}
    failed = {"failed": True, "msg": "No network."}

    def run(*results: dict[str, Any]) -> ActionRun:
        given = {"gpumesh.cluster.slurm": results, "ansible.builtin.apt": [failed]}
        host = {"inventory_hostname": "n1", "ansible_facts": {"pkg_mgr": "apt"}, "hostvars": {"n1": {}}}
        given_host = {**host, "ansible_play_batch": ["n1"]}
        return play_action(ActionModule, {"record": RECORD, "state": "configured"}, given, given_host)

    done = run(lacking, UNCHANGED)
    assert not done.result.get("failed")
    assert [call[1].get("install_compiler") for call in done.module_calls] == [None, None, False]
    assert done.module_calls[1][1]["name"] == ["gcc", "libc6-dev", "libslurm-dev"]
    (warning,) = warnings
    assert "n1: gcc, libc6-dev, libslurm-dev cannot be installed" in warning and "No network." in warning
    # What Slurm itself needs still ends the run.
    assert run({**UNCHANGED, "missing": ["slurmctld"]}).result["msg"] == "No network."

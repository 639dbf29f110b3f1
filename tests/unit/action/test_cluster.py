# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of the role cluster: each decides once for all hosts of the play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action import (
    cluster,
    cluster_copies,
    cluster_drain,
    cluster_member,
    cluster_overview,
    cluster_reboot,
    cluster_registration,
    cluster_removal,
    play_members,
    preflight,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action
from ansible_collections.gpumesh.cluster.tests.support.told_records import replace_records_with_digests
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._cluster.test_registration import LAN, TAILNET

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "alice@desk")


def entries(*numbers: int) -> list[dict[str, Any]]:
    return [
        {"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0", "gpus": 2, "rdma": "none"} for n in numbers
    ]


OLD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"port": 7}, entries(1, 2, 3), STAMP), STAMP)
NEW = plan.commit(plan.join(OLD, [{"machine": "n2", "gpus": 4}], STAMP), STAMP)
EMPTY_RESULT: dict[str, Any] = {"clusters": [], "damaged": [], "tun": True}
SILENT = {"unreachable": True, "msg": "no route to host"}
COPIES = {"registered": "held", "previous": "found", "candidate": "n1"}


def result_with_records(*records: Any) -> dict[str, Any]:
    return {**EMPTY_RESULT, "clusters": list(records)}


def play_on_hosts(
    action: Any, arguments: dict[str, Any], hosts: dict[str, dict[str, Any]], results: Any = None, **own: Any
) -> ActionRun:
    """Run an action once for these hosts, with their variables. ``own``: additional variables of the first host."""
    variables = {
        "inventory_hostname": next(iter(hosts)),
        "hostvars": {**{f"n{n}": {} for n in range(1, 10)}, **hosts},
        "ansible_play_hosts_all": list(hosts),
        "ansible_play_hosts": list(hosts),
        "groups": {"all": [f"n{n}" for n in range(1, 10)]},
        "cluster_name": "lab",
        **next(iter(hosts.values())),
        **own,
    }
    return play_action(action.ActionModule, arguments, results or {}, variables)


def registered_results(**answers: Any) -> dict[str, dict[str, Any]]:
    return {machine: {"held": answer} for machine, answer in answers.items()}


class TestCopies:
    def test_no_other_host_is_queried_if_all_members_are_in_the_play(self) -> None:
        told = {
            **replace_records_with_digests({name: result_with_records(NEW) for name in ("n2", "n3")}),
            "n1": result_with_records(NEW),
        }
        found = play_on_hosts(cluster_copies, COPIES, registered_results(**told)).result
        assert (found["queries"], found["record"], found["source"]) == ([], NEW, "n1")
        assert found["reachable"] == ["n2", "n3", "n1"]

    def test_a_limited_run_queries_the_manager_and_uses_its_newer_record(self) -> None:
        hosts = registered_results(n2=result_with_records(OLD))
        first = play_on_hosts(cluster_copies, COPIES, hosts).result
        assert [request["machine"] for request in first["queries"]] == ["n1", "n3"]
        assert all(request["known_digests"] == list(first["records"]) for request in first["queries"])
        asked = {"results": [{**result_with_records(NEW), "item": item} for item in first["queries"]]}
        again = {**COPIES, "queried": "asked"}
        found = play_on_hosts(cluster_copies, again, hosts, found=first, asked=asked).result
        assert (found["queries"], found["record"], found["source"]) == ([], NEW, "n1")
        assert found["reachable"] == ["n2"]
        # The decision stands.
        assert play_on_hosts(cluster_copies, again, hosts, found=found, asked={"results": []}).result == found

    def test_an_announced_record_that_nobody_sends_is_reported_as_damaged(self) -> None:
        hosts = registered_results(
            n1=SILENT, **replace_records_with_digests({"n2": result_with_records(NEW), "n3": result_with_records(NEW)})
        )
        asked, found = {}, {}
        machines = []
        while not found or found["queries"]:
            more = {"found": found, "asked": asked} if found else {}
            arguments = {**COPIES, **({"queried": "asked"} if found else {}), "refuse": False}
            found = play_on_hosts(cluster_copies, arguments, hosts, **more).result
            machines.append([request["machine"] for request in found["queries"]])
            asked = {"results": [{**EMPTY_RESULT, "item": item} for item in found["queries"]]}
        assert machines == [["n2"], ["n3"], []]
        assert "announced but not sent" in found["refusal"]

    def test_contradicting_copies_are_refused_unless_one_is_trusted(self) -> None:
        other = plan.commit(plan.join(OLD, [{"machine": "n3", "gpus": 8}], STAMP), STAMP)
        hosts = registered_results(
            n1=result_with_records(NEW), n2=result_with_records(other), n3=result_with_records(NEW)
        )
        refused = play_on_hosts(cluster_copies, COPIES, hosts).result
        assert refused["failed"] and "contradict" in refused["msg"]
        found = play_on_hosts(cluster_copies, COPIES, hosts, cluster_trusted_copy="n1").result
        assert found["replaced"] == ["n2"]

    def test_an_unknown_cluster(self) -> None:
        hosts = registered_results(n1=EMPTY_RESULT)
        assert play_on_hosts(cluster_copies, COPIES, hosts).result["record"] is None
        assert play_on_hosts(cluster_copies, {**COPIES, "required": True}, hosts).result["failed"]

    @pytest.mark.parametrize(("others", "asked"), [("none", []), ("joining", ["n4"]), ("all", ["n1", "n4"])])
    def test_records_of_other_clusters_are_read_on_request(self, others: str, asked: list[str]) -> None:
        two = plan.commit(plan.create("1" * 32, "two", "10.1.0.0/24", "n1", {}, members_on_subnet(1), STAMP), STAMP)
        three = plan.commit(plan.create("2" * 32, "three", "10.2.0.0/24", "n4", {}, members_on_subnet(4), STAMP), STAMP)
        one = replace_records_with_digests({"n1": result_with_records(two)})["n1"]["clusters"]
        hosts = registered_results(
            n1=result_with_records(NEW, *one),
            n2=result_with_records(NEW),
            n3=result_with_records(NEW),
            n4=replace_records_with_digests({"n4": result_with_records(three)})["n4"],
        )
        found = play_on_hosts(cluster_copies, {**COPIES, "other_clusters": others}, hosts).result
        assert [request["machine"] for request in found["queries"]] == asked


def members_on_subnet(number: int) -> list[dict[str, Any]]:
    return [{"machine": f"n{number}", "address": f"10.{1 if number == 1 else 2}.0.1", "interface": "eth0"}]


def record_with_pod() -> Any:
    """The record of a tailnet, in which n3 is a pod."""
    members = [
        {**one, "mesh": {"address": f"100.64.0.{number}", **({"userspace": True} if number == 3 else {})}}
        for number, one in enumerate(entries(1, 2, 3), start=1)
    ]
    return plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", TAILNET, members, STAMP), STAMP)


class TestMembers:
    ARGUMENTS = {"record": NEW, "registered": "held"}

    def test_members_and_outdated_copies_are_listed(self) -> None:
        hosts = registered_results(n1=result_with_records(NEW), n2=result_with_records(OLD), n4=EMPTY_RESULT)
        found = play_on_hosts(play_members, self.ARGUMENTS, hosts).result
        assert (found["members"], found["outdated"], found["userspace_only"]) == (["n1", "n2"], ["n2"], [])

    def test_hosts_that_are_not_members_are_named_with_what_adds_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        hosts = registered_results(n1=result_with_records(NEW), n4=EMPTY_RESULT, n5=EMPTY_RESULT)
        play_on_hosts(play_members, {**self.ARGUMENTS, "announce": True}, hosts)
        announced = " ".join(capsys.readouterr().out.split())
        assert announced.startswith("n4, n5: not among the members of cluster 'lab' (members: n1, n2")
        assert "To add it, run the playbook join with cluster_machines=n4,n5." in announced

    @pytest.mark.parametrize("expected", [{"name": "two"}, {"manager": "n2"}])
    def test_a_record_of_another_cluster_is_refused(self, expected: dict[str, str]) -> None:
        refused = play_on_hosts(
            play_members, {**self.ARGUMENTS, **expected}, registered_results(n1=EMPTY_RESULT)
        ).result
        assert refused["failed"] and "was expected" in refused["msg"]

    def test_members_of_a_tailnet_without_an_interface(self) -> None:
        members = [
            {**one, "mesh": {"address": f"100.64.0.{number}"}} for number, one in enumerate(entries(1, 2, 3), start=1)
        ]
        draft = plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", TAILNET, members, STAMP)
        hosts = {
            "n1": {"held": EMPTY_RESULT},
            "n2": {"held": {**EMPTY_RESULT, "tun": False}},
            "n3": {"held": EMPTY_RESULT, "mesh_userspace": "always"},
            # n4 is not a member, so it is not judged here.
            "n4": {"held": {**EMPTY_RESULT, "tun": False}},
        }
        given = {**self.ARGUMENTS, "record": plan.commit(draft, STAMP)}
        found = play_on_hosts(play_members, given, hosts).result
        assert (found["userspace_only"], found["pods"]) == (["n2", "n3"], [])
        assert (found["members"], found["nodes"]) == (["n1", "n2", "n3"], ["n1"])
        hosts["n3"]["mesh_userspace_nodes"] = "yes"
        found = play_on_hosts(play_members, given, hosts).result
        assert (found["userspace_only"], found["pods"]) == (["n2"], ["n3"])
        hosts["n3"]["mesh_userspace_nodes"] = "sometimes"
        refused = play_on_hosts(play_members, given, hosts).result
        assert refused["failed"] and "n3: argument 'mesh_userspace_nodes'" in refused["msg"]

    def test_a_pod_with_a_slurm_node_cannot_be_demoted(self) -> None:
        """The slurmd of a pod is cut off without the library."""
        hosts = registered_results(
            **{machine: {**EMPTY_RESULT, **facts, "tun": machine != "n3"} for machine, facts in LAN.items()}
        )
        given = {**self.ARGUMENTS, "record": record_with_pod(), "announce": True}
        found = {
            "record": record_with_pod(),
            "source": "n1",
            "outside": {},
            "records": {},
            "replaced": [],
            "reachable": [],
        }
        registered = {"registered": "held", "copies": "found", "candidate": "n1"}
        removed = {"registered": "held", "copies": "found"}
        for action, arguments in (
            (play_members, given),
            (cluster_registration, registered),
            (cluster_removal, removed),
        ):
            refused = play_on_hosts(action, arguments, hosts, found=found, cluster_machine="n2").result
            assert refused["failed"] and refused["error"]["machines"] == ["n3"]
            assert "Nothing has been changed. Set mesh_userspace_nodes=true" in refused["msg"]
        # Removing the member is the way out.
        assert not play_on_hosts(cluster_removal, removed, hosts, found=found, cluster_machine="n3").result.get(
            "failed"
        )
        hosts["n3"]["mesh_userspace_nodes"] = True
        assert play_on_hosts(play_members, given, hosts).result["pods"] == ["n3"]


class TestRegistration:
    ARGUMENTS = {"registered": "held", "copies": "found", "candidate": "n1"}
    NO_COPY = {"record": None, "source": None, "records": {}}

    def test_a_new_cluster_is_written(self) -> None:
        hosts = {machine: {"held": {**EMPTY_RESULT, **facts}} for machine, facts in LAN.items()}
        hosts["n2"]["cluster_site"], hosts["n1"]["cluster_endpoint"] = "b", "192.0.2.1"
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY, mesh_port=7).result
        assert (decision["manager"], decision["writes"], decision["mesh"]) == ("n1", True, {"port": 7})
        assert [member["site"] for member in decision["members"]] == ["default", "b", "default"]
        assert [one["machine"] for one in decision["probed"]] == ["n1", "n2", "n3"]
        record = plan.commit(
            plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"port": 7}, decision["members"], STAMP), STAMP
        )
        results = {"gpumesh.cluster.cluster": [{"changed": True, "record": record}]}
        arguments = {"name": "lab", "registration": "decision"}
        written = play_on_hosts(cluster, arguments, hosts, results, decision=decision)
        ((_module, parameters),) = written.module_calls
        assert parameters["members"] == decision["members"] and parameters["mesh"] == {"port": 7}

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (
                {"storage_volumes": [{"name": "data", "server": "n9", "path": "/d", "mount_point": "/mnt/d"}]},
                "server 'n9'",
            ),
            ({"storage_volumes": [{"name": "data", "mount_point": "mnt/d"}]}, "Volume 'data', mount_point: 'mnt/d' is"),
            ({"storage_volumes": [{"name": "data", "mount_point": "/mnt/d", "quota": "1G"}]}, "Volume 'data'"),
            (
                {
                    "storage_volumes": [{"name": "data", "server": "n1", "path": "/d", "mount_point": "/mnt/d"}],
                    "storage_backend": "external",
                },
                "storage_backend is external, and volume data has a server",
            ),
            ({"ssh_trust_users": ["root", "Alice!"]}, "ssh_trust_users: 'Alice!' is not a valid user name"),
            ({"tracking_server": "n9"}, "tracking_server 'n9' is not among the members"),
            ({"tracking_server": "n1"}, "Cluster 'lab' has no volume for the artifacts"),
            (
                {"session_enabled": True, "session_subnets": ["10.0.0.0/16"]},
                "session_subnets: 10.0.0.0/16 overlaps with",
            ),
            ({"session_enabled": True, "session_allow": ["nowhere"]}, "nowhere"),
        ],
    )
    def test_options_that_a_layer_refuses_stop_the_run_before_the_record_is_written(
        self, given: dict[str, Any], said: str
    ) -> None:
        hosts = {machine: {"held": {**EMPTY_RESULT, **facts}} for machine, facts in LAN.items()}
        refused = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY, **given).result
        assert refused["failed"] and said in refused["msg"], refused["msg"]

    def test_a_member_that_is_to_run_no_jobs_is_named_once(self) -> None:
        hosts = {machine: {"held": {**EMPTY_RESULT, **facts}} for machine, facts in LAN.items()}
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY).result
        record = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {}, decision["members"], STAMP), STAMP)
        hosts["n1"]["slurm_node"] = "false"
        copies = {"record": record, "source": "n1", "records": {}}
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=copies).result
        assert (decision["withdrawn"], decision["writes"]) == (["n1"], True)
        applied = plan.commit(plan.join(record, decision["members"], STAMP), STAMP)
        copies["record"] = applied
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=copies).result
        assert (decision["withdrawn"], decision["writes"]) == ([], False)
        # Only it is new to the record, and nothing is drained.
        fresh = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY).result
        assert fresh["withdrawn"] == []

    def test_a_cluster_whose_members_all_run_no_jobs_is_refused_before_anything_changes(self) -> None:
        hosts = {machine: {"held": {**EMPTY_RESULT, **facts}} for machine, facts in LAN.items()}
        for variables in hosts.values():
            variables["slurm_node"] = False
        refused = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY).result
        assert refused["failed"] and "No member of cluster 'lab' would run jobs" in refused["msg"]

    def test_the_preflight_covers_hosts_only_before_a_change(self) -> None:
        hosts = {machine: {"held": {**EMPTY_RESULT, **facts}} for machine, facts in LAN.items()}
        volumes = [
            {"name": "data", "server": "n2", "path": "/d", "mount_point": "/mnt/d", "quota": "1G"},
            {"name": "old", "mount_point": "/mnt/old", "filesystem": "xfs"},
        ]
        own = {"storage_volumes": volumes, "ssh_trust_users": ["root", "alice"], "session_enabled": True}
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY, **own).result
        assert decision["preflight"] == {"machines": ["n1", "n2", "n3"], "pods": [], "volumes": volumes}

        def needed(machine: str, **more: Any) -> dict[str, Any]:
            variables = {"inventory_hostname": machine, "cluster_name": "lab", "decision": decision, **own, **more}
            arguments = {"registration": "decision"}
            results = {"gpumesh.cluster.preflight": [{"changed": False}]}
            ((_module, parameters),) = play_action(preflight.ActionModule, arguments, results, variables).module_calls
            return dict(parameters)

        manager, server = needed("n1"), needed("n2")
        assert server["users"] == ["root", "alice"] and server["cluster"] == "lab"
        external = {"volume": "old", "mount_point": "/mnt/old", "filesystem": "xfs", "read_only": False}
        assert (server["external"], manager["quotas"]) == ([external], [])
        assert server["quotas"] == [{"name": "data", "path": "/d", "quota": "1G"}]
        assert needed("n2", storage_backend="none")["external"] == needed("n2", storage_backend="none")["quotas"] == []
        assert "/usr/sbin/slurmctld" in manager["programs"] and "/usr/sbin/slurmctld" not in server["programs"]
        assert server["programs"]["/usr/sbin/slurmd"] == ["slurmd", "slurm-client"]
        assert server["programs"]["newuidmap"] == ["uidmap"]
        decision["preflight"]["pods"] = ["n2"]
        pod = needed("n2")
        assert (pod["external"], pod["quotas"], pod["programs"], pod["users"]) == ([], [], {}, ["root", "alice"])
        # A change of the volumes alone is one, too.
        hosts = {machine: {"held": {**result_with_records(OLD), **facts}} for machine, facts in LAN.items()}
        found = {"record": OLD, "source": "n1", "records": {}}
        for more, machines in (({}, []), ({"storage_volumes": volumes}, ["n1", "n2", "n3"])):
            decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=found, **more).result
            assert decision["preflight"]["machines"] == machines

    def test_a_copy_is_forced_and_attributed_as_the_role_says(self) -> None:
        given = {"name": "lab", "state": "replica", "record": NEW}
        results = {"gpumesh.cluster.cluster": [{"changed": True}]}
        own = {"cluster_trusted_copy": "n2", "cluster_actor": "alice"}
        for more, expected in ((own, {"force": True, "actor": "alice"}), ({}, {"force": False})):
            ((_module, parameters),) = play_on_hosts(cluster, given, {"n1": {}}, results, **more).module_calls
            assert parameters == {**given, **expected}
        ((_module, parameters),) = play_on_hosts(
            cluster, {**given, "force": False}, {"n1": {}}, results, **own
        ).module_calls
        assert parameters["force"] is False

    def test_the_manager_must_return_a_record_of_this_cluster_that_names_it(self) -> None:
        hosts = {machine: {"held": {**EMPTY_RESULT, **facts}} for machine, facts in LAN.items()}
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY).result
        forged = plan.commit(plan.hand_over(OLD, "n3"), STAMP)
        results = {"gpumesh.cluster.cluster": [{"changed": True, "record": forged}]}
        arguments = {"name": "lab", "registration": "decision"}
        refused = play_on_hosts(cluster, arguments, hosts, results, decision=decision).result
        assert refused["failed"] and "was expected" in refused["msg"]

    def test_an_unchanged_record_is_not_written(self) -> None:
        hosts = {machine: {"held": {**result_with_records(OLD), **facts}} for machine, facts in LAN.items()}
        found = {"record": OLD, "source": "n1", "records": {}}
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=found).result
        assert (decision["writes"], decision["joining"], decision["probed"]) == (False, [], [])
        arguments = {"name": "lab", "registration": "decision"}
        written = play_on_hosts(cluster, arguments, hosts, decision=decision)
        assert (written.module_calls, written.result["record"], written.result["changed"]) == ([], OLD, False)
        # Jobs of this host are to do without RDMA, which it has.
        hosts["n2"] = {"held": {**hosts["n2"]["held"], "host": {**LAN["n2"]["host"], "rdma": "roce"}}}
        for given, writes in (("", True), (True, True), (False, False), ("no", False)):
            hosts["n2"]["job_environment_rdma"] = given
            decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=found).result
            assert decision["writes"] == writes, given
        # Another host's copy does not show what the manager has.
        other = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found={**found, "source": "n2"}).result
        assert other["writes"]

    def test_an_upgrade_is_written_if_the_manager_answers(self) -> None:
        earlier: Any = {**OLD, "collection_version": None}
        hosts = {machine: {"held": {**result_with_records(earlier), **facts}} for machine, facts in LAN.items()}
        found = {"record": earlier, "source": "n1", "records": {}}
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=found).result
        assert (decision["writes"], decision["joining"]) == (True, [])
        # Without it, the other members are still set up.
        silent = {**found, "source": "n2", "manager_unreachable_reason": "no route to host"}
        del hosts["n1"]
        assert not play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=silent).result["writes"]

    @pytest.mark.parametrize(
        ("given", "sent"), [({}, {}), ({"cluster_older_version": "true"}, {"older_version": True})]
    )
    @pytest.mark.parametrize("module", [cluster, cluster_member])
    def test_the_older_version_option_is_passed_to_the_modules(
        self, module: Any, given: dict[str, Any], sent: dict[str, Any]
    ) -> None:
        name = f"gpumesh.cluster.{module.__name__.rpartition('.')[2]}"
        done = play_on_hosts(module, {"name": "lab"}, {"n1": {}}, {name: [{"record": OLD, "changed": False}]}, **given)
        assert done.module_calls == [(name, {"name": "lab", **sent})]

    def test_a_machine_that_was_removed_is_skipped(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The module play_members names all hosts that are not members."""
        left = plan.commit(plan.remove(OLD, ["n2"], STAMP), STAMP)
        hosts = {machine: {"held": {**result_with_records(left), **facts}} for machine, facts in LAN.items()}
        found = {"record": left, "source": "n1", "records": {}}
        decision = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=found).result
        assert (decision["writes"], decision["joining"]) == (False, [])
        assert decision["left_out"] == ["n2"] and "n2" not in capsys.readouterr().out

    def test_changes_require_a_manager_that_answers(self) -> None:
        hosts = {name: {"held": {**result_with_records(OLD), **LAN[name]}} for name in ("n2", "n3")}
        found = {"record": OLD, "source": "n2", "records": {}, "manager_unreachable_reason": "no route to host"}
        assert not play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=found).result["writes"]
        hosts["n2"]["held"] = {**hosts["n2"]["held"], "host": {**LAN["n2"]["host"], "rdma": "roce"}}
        refused = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=found).result
        assert refused["failed"]
        assert "Nothing has been changed. The manager n1 does not answer (no route to host)" in refused["msg"]

    def test_an_unreachable_host_and_an_empty_list_of_machines_are_refused(self) -> None:
        hosts = {"n1": {"held": {**EMPTY_RESULT, **LAN["n1"]}}, "n2": {"held": SILENT}}
        refused = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY).result
        assert refused["failed"] and refused["error"]["machines"] == ["n2"]
        refused = play_on_hosts(
            cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY, cluster_join_only=True
        ).result
        assert refused["failed"] and "No machine to join cluster 'lab' was given" in refused["msg"]

    @pytest.mark.parametrize(
        ("machine", "server", "is_refused"), [("n1", "n3", True), ("n2", "n2", True), ("n2", "n3", False)]
    )
    def test_a_userspace_only_manager_or_volume_server_is_refused(
        self, machine: str, server: str, is_refused: bool
    ) -> None:
        hosts = {name: {"held": {**EMPTY_RESULT, "tun": name != machine, **facts}} for name, facts in LAN.items()}
        volume = {"name": "data", "server": server, "path": "/srv/data", "mount_point": "/data"}
        given = {"mesh_backend": "tailscale", "storage_volumes": [volume]}
        decided = play_on_hosts(cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY, **given).result
        assert bool(decided.get("failed")) == is_refused
        if is_refused:
            assert decided["error"]["machines"] == [machine]
            said = f"{machine} cannot be the manager or serve a volume. Nothing has been changed. Without /dev/net/tun"
            assert said in decided["msg"]

    @pytest.mark.parametrize("has_interface", [True, False])
    def test_a_manager_without_jobs_needs_a_member_with_an_interface(self, has_interface: bool) -> None:
        """Members whose programs cannot connect to others are no nodes."""
        hosts: dict[str, dict[str, Any]] = {
            name: {"held": {**EMPTY_RESULT, "tun": has_interface or name == "n1", **facts}}
            for name, facts in LAN.items()
        }
        hosts["n1"]["slurm_node"] = False
        decided = play_on_hosts(
            cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY, mesh_backend="tailscale"
        ).result
        assert ("No member of cluster 'lab' would run jobs" in decided.get("msg", "")) == (not has_interface), decided

    @pytest.mark.parametrize(("relays", "key", "value"), [([], "pair", ["n1", "n2"]), (["n9"], "relays", ["n9"])])
    def test_a_mesh_that_cannot_connect_two_members_is_refused(
        self, relays: list[str], key: str, value: list[str]
    ) -> None:
        hosts: dict[str, dict[str, Any]] = {
            machine: {"held": {**EMPTY_RESULT, **facts}, "cluster_site": machine} for machine, facts in LAN.items()
        }
        refused = play_on_hosts(
            cluster_registration, self.ARGUMENTS, hosts, found=self.NO_COPY, mesh_relays=relays
        ).result
        assert refused["failed"] and refused["error"][key] == value


class TestRemoval:
    ARGUMENTS = {"registered": "held", "copies": "found"}
    HOSTS = registered_results(n1=result_with_records(NEW), n2=SILENT, n3=result_with_records(NEW))
    COPIES_RESULT = {"record": NEW, "outside": {}, "records": {}, "replaced": [], "reachable": ["n1", "n3"]}

    def run_removal(self, machine: str, **more: Any) -> dict[str, Any]:
        own = {"found": self.COPIES_RESULT, "cluster_machine": machine, **more}
        return play_on_hosts(cluster_removal, self.ARGUMENTS, self.HOSTS, **own).result

    def test_a_dead_machine_is_removed(self) -> None:
        decided = self.run_removal("n2")
        assert (decided["authority"], decided["former_manager"]) == ("n1", "")
        assert decided["leaving"] == decided["members_leaving"] == decided["unreachable_machines"] == ["n2"]

    @pytest.mark.parametrize("is_node", [False, True])
    def test_a_userspace_only_machine_cannot_become_the_manager(self, is_node: bool) -> None:
        record = record_with_pod()
        hosts = {
            machine: {"held": {**EMPTY_RESULT, **facts, "tun": machine != "n3"}, "mesh_userspace_nodes": is_node}
            for machine, facts in LAN.items()
        }
        found = {"record": record, "outside": {}, "records": {}, "replaced": [], "reachable": list(LAN)}
        own = {"found": found, "cluster_machine": "n1", "cluster_new_manager": "n3"}
        refused = play_on_hosts(cluster_removal, self.ARGUMENTS, hosts, **own).result
        assert refused["failed"] and refused["error"]["machines"] == ["n3"]
        assert "n3 cannot be the manager or serve a volume. Nothing has been changed." in refused["msg"]

    def test_keys_are_changed_only_with_all_remaining_members(self) -> None:
        refused = self.run_removal("n3", cluster_untrusted=True)
        assert refused["failed"] and refused["error"]["machines"] == ["n2"]
        assert not self.run_removal("n2", cluster_untrusted=True).get("failed")
        own = self.run_removal("n2", cluster_untrusted=True, munge_key_file="/root/key")
        assert own["failed"] and "/root/key" in own["msg"]


class TestDrain:
    JOBS = [{"id": 17, "user": "alice", "name": "train", "nodes": ["n2"], "state": "running"}]
    SLURM = {"nodes": [{"name": name, "state": "idle", "flags": []} for name in ("n1", "n2")], "jobs": JOBS}
    STAT = "ansible.builtin.stat"

    @staticmethod
    def stat_results(*existing: bool) -> list[dict[str, Any]]:
        return [{"stat": {"exists": one}} for one in existing]

    def run_drain(
        self, jobs: list[Any], other_results: dict[str, Any], timeout: int = 0, force: bool = False, **arguments: Any
    ) -> ActionRun:
        results = {
            "gpumesh.cluster.host_owner": [{"foreign_claims": []}],
            self.STAT: self.stat_results(True, True),
            "gpumesh.cluster.slurm_info": [{**self.SLURM, "jobs": jobs}],
            "gpumesh.cluster.slurm_node": [{"changed": True}] * 3,
            **other_results,
        }
        hosts = registered_results(n1={"descriptions": []}, n2={"descriptions": ["vim (7) in /data"]})
        options = {"cluster_drain_timeout": timeout, "cluster_force": force}
        return play_on_hosts(cluster_drain, {"record": NEW, **arguments}, hosts, results, **options)

    def test_without_a_controller_there_is_nothing_to_drain(self) -> None:
        played = self.run_drain([], {self.STAT: self.stat_results(False, False, False)}, machines=["n2"])
        assert (played.result["scheduler"], played.result["changed"]) == (False, False)

    def test_the_controller_is_located_by_the_service_paths_of_the_delegate(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The task is that of any host of the play, and is delegated to the manager."""
        monkeypatch.setattr(cluster_drain.ActionModule, "is_delegated", True)
        hosts = {**registered_results(n2={}), None: {"daemon_supervisor_programs": "/opt/programs"}}
        results = {self.STAT: self.stat_results(True, False, True), "gpumesh.cluster.slurm_info": [self.SLURM]}
        results["gpumesh.cluster.host_owner"] = [{"foreign_claims": []}]
        played = play_on_hosts(cluster_drain, {"record": NEW, "machines": ["n2"]}, hosts, results)
        asked = [given["path"] for module, given in played.module_calls if module == self.STAT]
        assert asked[-1] == "/opt/programs/gpumesh-slurmctld.conf"
        assert "17 of alice (train on n2)" in played.result["msg"]

    @pytest.mark.parametrize("given", [{"machines": ["n2"], "unreachable": ["n2"], "handing_over": True}, {}])
    @pytest.mark.parametrize("force", [False, True])
    def test_the_slurm_of_another_cluster_on_the_host_is_left_alone(self, given: dict[str, Any], force: bool) -> None:
        played = self.run_drain(
            self.JOBS, {"gpumesh.cluster.host_owner": [{"foreign_claims": ["munge", "slurm"]}]}, force=force, **given
        )
        owner = {"cluster": "lab", "cluster_id": "0" * 32}
        assert played.module_calls == [("gpumesh.cluster.host_owner", owner)], (
            "no job is cancelled, no node drained or deleted"
        )
        assert (played.result["scheduler"], played.result["foreign"], played.result["nodes"]) == (False, True, [])
        used = self.run_drain(
            self.JOBS,
            {"gpumesh.cluster.host_owner": [{"foreign_claims": ["slurm"]}]},
            usage="held",
            force=force,
            **given,
        )
        # A removal looks at the users of volumes itself.
        assert ("n2: vim (7) in /data" in used.result.get("msg", "")) == (not force and not given)

    def test_running_jobs_prevent_a_removal(self) -> None:
        refused = self.run_drain(self.JOBS, {}, machines=["n2"]).result
        assert refused["failed"] and "17 of alice (train on n2)" in refused["msg"]

    def test_a_member_that_is_to_run_no_jobs_is_drained_or_refused(self) -> None:
        refused = self.run_drain(self.JOBS, {}, machines=["n2"], purpose="withdrawal")
        assert "gpumesh.cluster.slurm_node" not in [module for module, _arguments in refused.module_calls]
        message = refused.result["msg"]
        assert "n2 cannot stop running jobs (slurm_node=false) while they are there" in message
        assert "17 of alice (train on n2)" in message and "cluster_drain_timeout=SECONDS" in message
        assert "scontrol update nodename=n2 state=drain" in message
        idle = self.run_drain([], {}, machines=["n2"], purpose="withdrawal")
        ((_module, drained),) = [call for call in idle.module_calls if call[0] == "gpumesh.cluster.slurm_node"]
        assert (drained["name"], drained["state"], drained["reason"]) == (["n2"], "drained", "is to run no jobs")

    def test_the_scheduler_is_known_by_what_a_manager_without_jobs_has(self) -> None:
        played = self.run_drain([], {}, machines=[])
        asked = [given["path"] for module, given in played.module_calls if module == self.STAT]
        assert asked[0] == "/etc/slurm/node/slurm.conf"
        assert played.result["scheduler"]

    def test_running_jobs_are_awaited_or_cancelled(self) -> None:
        played = self.run_drain(self.JOBS, {}, machines=["n2"], timeout=60, unreachable=["n2"])
        nodes = [parameters for module, parameters in played.module_calls if module == "gpumesh.cluster.slurm_node"]
        assert [(one["state"], one.get("wait")) for one in nodes] == [("drained", 60), ("absent", None)]
        more = {
            "ansible.builtin.command": [{"changed": True}],
            "gpumesh.cluster.slurm_node": [{"changed": True}, {"failed": True, "error": {}}, {"changed": True}],
        }
        played = self.run_drain(self.JOBS, more, machines=["n2"], force=True)
        assert ("ansible.builtin.command", {"argv": ["scancel", "17"]}) in played.module_calls
        nodes = [parameters for module, parameters in played.module_calls if module == "gpumesh.cluster.slurm_node"]
        assert [one["state"] for one in nodes] == ["drained", "drained", "down"]

    def test_a_completing_job_is_awaited(self) -> None:
        ending = [{**self.JOBS[0], "id": 18, "state": "completing"}]
        played = self.run_drain(ending, {}, machines=["n2"])
        nodes = [parameters for module, parameters in played.module_calls if module == "gpumesh.cluster.slurm_node"]
        assert [(one["state"], one.get("wait")) for one in nodes] == [("drained", 10)]
        forced = self.run_drain(ending, {}, machines=["n2"], force=True)
        nodes = [parameters for module, parameters in forced.module_calls if module == "gpumesh.cluster.slurm_node"]
        assert [(one["state"], one.get("wait")) for one in nodes] == [("drained", None), ("drained", 90)]
        both = {"ansible.builtin.command": [{"changed": True}]}
        played = self.run_drain([*self.JOBS, *ending], both, machines=["n2"], force=True)
        assert ("ansible.builtin.command", {"argv": ["scancel", "17"]}) in played.module_calls
        assert "job 18 of alice" in self.run_drain(ending, {}).result["msg"]

    def test_processes_that_outlive_their_job_are_awaited_until_slurm_repeats_its_request(self) -> None:
        """Slurm repeats the request two minutes after a node that was restarted under a job has come back."""
        late = {"failed": True, "msg": "After 10 s: n2 still has jobs.", "error": {"completing": True}}
        nodes = "gpumesh.cluster.slurm_node"
        played = self.run_drain([], {nodes: [late, {"changed": False}]}, machines=["n2"])
        assert played.result["changed"] and not played.result.get("failed")
        waits = [(given["state"], given["wait"]) for module, given in played.module_calls if module == nodes]
        assert waits == [("drained", 10), ("drained", 300)]
        # The wait is not extended if the given timeout is longer.
        assert self.run_drain([], {nodes: [late, {"changed": True}]}, machines=["n2"], timeout=900).result["failed"]

    @pytest.mark.parametrize("flags", [[], ["drain"]])
    def test_a_node_whose_jobs_do_not_end_is_resumed(self, flags: list[str]) -> None:
        late = {"failed": True, "msg": "After 60 s: n2 still has jobs, or wait longer.", "error": {}}
        slurm = {"jobs": [], "nodes": [{"name": "n2", "state": "idle", "flags": flags}]}
        more = {"gpumesh.cluster.slurm_info": [slurm], "gpumesh.cluster.slurm_node": [late, {"changed": True}]}
        played = self.run_drain([], more, machines=["n2"], timeout=60)
        states = [given["state"] for module, given in played.module_calls if module == "gpumesh.cluster.slurm_node"]
        assert states == (["drained"] if flags else ["drained", "idle"])
        assert "or increase cluster_drain_timeout. Nothing has been removed." in played.result["msg"]
        assert ("n2 accepts jobs again." in played.result["msg"]) == (not flags)

    def test_jobs_prevent_a_reboot(self) -> None:
        refused = self.run_drain(self.JOBS, {}, machines=["n2"], purpose="reboot").result
        assert refused["failed"]
        assert "n2 cannot be rebooted while jobs run there: 17 of alice (train on n2)" in refused["msg"]

    def test_a_node_is_drained_for_a_reboot_with_that_reason(self) -> None:
        played = self.run_drain([], {}, machines=["n2"], purpose="reboot")
        (drained,) = (given for module, given in played.module_calls if module == "gpumesh.cluster.slurm_node")
        assert (drained["name"], drained["state"], drained["reason"]) == (["n2"], "drained", "reboot")
        (drained,) = (
            given for module, given in self.run_drain([], {}, machines=["n2"]).module_calls if "state" in given
        )
        assert drained["reason"] == "leaves the cluster"

    @pytest.mark.parametrize("flags", [[], ["drain"]])
    def test_a_node_that_others_have_set_down_keeps_state_and_reason_through_a_reboot(self, flags: list[str]) -> None:
        node = {"name": "n2", "state": "down", "flags": flags, "reason": "bad PSU"}
        more = {"gpumesh.cluster.slurm_info": [{"jobs": [], "nodes": [node]}]}
        played = self.run_drain([], more, machines=["n2"], purpose="reboot", force=True)
        states = [given["state"] for module, given in played.module_calls if module == "gpumesh.cluster.slurm_node"]
        # The module keeps the reason of a node that is drained already.
        assert states == ["drained"] * len(flags)
        assert (played.result["drained"], played.result["left_alone"]) == ([], {"n2": "bad PSU"})

    def test_a_node_out_of_service_with_jobs_is_not_rebooted(self) -> None:
        node = {"name": "n2", "state": "mixed", "flags": ["fail"], "reason": "fan"}
        more = {"gpumesh.cluster.slurm_info": [{"jobs": self.JOBS, "nodes": [node]}]}
        played = self.run_drain([], more, machines=["n2"], purpose="reboot", timeout=60)
        assert played.result["failed"] and "(fan), but it still has 17 of alice" in played.result["msg"]
        assert "gpumesh.cluster.slurm_node" not in {module for module, _given in played.module_calls}

    def test_a_node_whose_removal_was_interrupted_is_not_rebooted(self) -> None:
        node = {"name": "n2", "state": "idle", "flags": ["drain"], "reason": "gpumesh: leaves the cluster"}
        more = {"gpumesh.cluster.slurm_info": [{"jobs": [], "nodes": [node]}]}
        played = self.run_drain([], more, machines=["n2"], purpose="reboot")
        assert played.result["failed"] and "its removal from the cluster was interrupted" in played.result["msg"]
        assert "gpumesh.cluster.slurm_node" not in {module for module, _given in played.module_calls}

    @pytest.mark.parametrize(
        ("reason", "is_resumed"), [("", True), ("gpumesh: reboot", True), ("gpumesh health: x", False), ("fan", False)]
    )
    def test_a_node_whose_jobs_do_not_end_is_not_rebooted(self, reason: str, is_resumed: bool) -> None:
        """One that an interrupted run has drained returns to service, and one that others have drained does not."""
        late = {"failed": True, "msg": "After 60 s: n2 still has jobs.", "error": {}}
        node = {"name": "n2", "state": "mixed", "flags": ["drain"] if reason else [], "reason": reason}
        later_job = {**self.JOBS[0], "id": 18}
        more = {
            "gpumesh.cluster.slurm_info": [
                {"jobs": self.JOBS, "nodes": [node]},
                {"jobs": [later_job], "nodes": [node]},
            ],
            "gpumesh.cluster.slurm_node": [late, {"changed": True}],
        }
        played = self.run_drain([], more, machines=["n2"], timeout=60, purpose="reboot")
        states = [given["state"] for module, given in played.module_calls if module == "gpumesh.cluster.slurm_node"]
        assert states == (["drained", "idle"] if is_resumed else ["drained"])
        expected = "Still running: 18 of alice (train on n2). It has not been rebooted."
        assert expected in played.result["msg"]
        assert ("n2 accepts jobs again." in played.result["msg"]) == is_resumed

    def test_an_unused_cluster_can_be_deleted(self) -> None:
        refused = self.run_drain(self.JOBS, {}, usage="held").result
        assert "job 17 of alice" in refused["msg"] and "n2: vim (7) in /data" in refused["msg"]
        assert not self.run_drain([], {}).result["changed"]
        forced = self.run_drain([], {}, usage="held", force=True).result
        assert forced["changed"] and forced["nodes"] == ["n1", "n2"]

    @pytest.mark.parametrize("silence", [SILENT, {"failed": True, "msg": "no such file"}])
    def test_a_cluster_is_not_deleted_while_its_use_is_unknown(self, silence: dict[str, Any]) -> None:
        results = {
            "gpumesh.cluster.host_owner": [{"foreign_claims": []}],
            self.STAT: self.stat_results(False, False, False),
        }
        hosts = registered_results(n1={"descriptions": []}, n2=silence, n9={"skipped": True})
        given = {"record": NEW, "usage": "held"}
        refused = play_on_hosts(cluster_drain, given, hosts, results).result
        assert refused["failed"] and f"n2: unknown ({silence['msg']})" in refused["msg"]
        assert not play_on_hosts(cluster_drain, given, hosts, results, cluster_force=True).result.get("failed")


class TestReboot:
    ARGUMENTS = {
        "record": NEW,
        "copies": "found",
        "registered": {"container": "virt", "systemd": "init", "boot_id": "boot", "owner": "owner"},
    }
    HOST = {
        "virt": {"stdout": "none"},
        "init": {"stat": {"exists": True}},
        "boot": {"stdout": "another"},
        "owner": {"foreign_claims": []},
    }

    def run_reboot(self, hosts: dict[str, dict[str, Any]], *lost: str, **own: Any) -> dict[str, Any]:
        answering = [machine for machine in hosts if machine not in lost]
        found = {"unreachable_members": list(lost)}
        return play_on_hosts(
            cluster_reboot, self.ARGUMENTS, hosts, found=found, ansible_play_hosts=answering, **own
        ).result

    def test_the_manager_is_last(self) -> None:
        assert self.run_reboot(dict.fromkeys(("n1", "n2", "n3"), self.HOST))["machines"] == ["n2", "n3", "n1"]

    def test_a_member_that_does_not_answer_is_refused(self) -> None:
        refused = self.run_reboot({"n1": self.HOST, "n2": self.HOST, "n3": {}}, "n3")
        assert refused["failed"] and refused["error"]["machines"] == ["n3"]
        assert "Nothing has been rebooted" in refused["msg"] and "cluster_without=n3" in refused["msg"]

    def test_a_manager_outside_of_the_run_must_answer(self) -> None:
        own = {"found": {"unreachable_members": ["n1"]}}
        refused = play_on_hosts(cluster_reboot, self.ARGUMENTS, {"n2": self.HOST}, **own).result
        assert refused["failed"] and refused["error"]["machines"] == ["n1"]

    def test_the_machine_that_runs_ansible_is_refused(self) -> None:
        here = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        refused = self.run_reboot({"n2": {**self.HOST, "boot": {"stdout": here}}})
        assert refused["failed"] and refused["error"]["machines"] == ["n2"]
        refused = self.run_reboot({"n2": {**self.HOST, "ansible_connection": "local"}})
        assert refused["failed"] and "is the machine that runs Ansible" in refused["msg"]


def test_the_overview_is_printed_and_set_as_stats(tmp_path: Path) -> None:
    hosts = {
        "n1": {"held": result_with_records(NEW), "layers": {"drift": {"names": "would change"}, "munge_key": "ab"}},
        "n2": {"held": SILENT},
    }
    found = {"record": NEW, "outside": {}, "records": {}}
    given = {
        "registered": "held",
        "copies": "found",
        "tailnet": "tailnet",
        "host": "layers",
        "volumes": "volumes",
    }
    shown = play_on_hosts(cluster_overview, given, hosts, found=found, check_report_dir=str(tmp_path)).result
    (cluster_shown,) = shown["clusters"]
    assert shown["ansible_stats"]["data"] == {"gpumesh_clusters": shown["clusters"]}
    assert cluster_shown["members"][0]["drift"]["names"] == "would change"
    assert "n2 does not answer" in shown["text"]
    assert "were not compared" not in shown["text"]
    other = play_on_hosts(cluster_overview, given, hosts, found={**found, "record": None}, cluster_name="lap").result
    assert "were not compared with the record, since cluster_name is 'lap'" in other["text"]
    listed = play_on_hosts(cluster_overview, given, hosts, found=found, cluster_output="json").result["text"]
    assert listed.startswith('[{"name": "lab"')

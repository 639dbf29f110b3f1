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
    cluster_registration,
    cluster_removal,
    play_members,
    preflight,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import plan
from ansible_collections.gpumesh.cluster.tests.support.action_runs import Played, play
from ansible_collections.gpumesh.cluster.tests.support.told_records import telling
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils.test_registration import LAN, TAILNET

STAMP = plan.Stamp("2026-11-22T07:00:00Z", "alice@desk")


def entries(*numbers: int) -> list[dict[str, Any]]:
    return [
        {"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0", "gpus": 2, "rdma": "none"} for n in numbers
    ]


OLD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"port": 7}, entries(1, 2, 3), STAMP), STAMP)
NEW = plan.commit(plan.join(OLD, [{"machine": "n2", "gpus": 4}], STAMP), STAMP)
NOTHING: dict[str, Any] = {"clusters": [], "damaged": [], "tun": True}
SILENT = {"unreachable": True, "msg": "no route to host"}
COPIES = {"name": "lab", "registered": "held", "earlier": "found", "candidate": "n1"}


def holding(*records: Any) -> dict[str, Any]:
    return {**NOTHING, "clusters": list(records)}


def on_hosts(
    action: Any, arguments: dict[str, Any], hosts: dict[str, dict[str, Any]], results: Any = None, **own: Any
) -> Played:
    """Run an action once for these hosts, with their variables. ``own``: additional variables of the first host."""
    variables = {
        "inventory_hostname": next(iter(hosts)),
        "hostvars": {**{f"n{n}": {} for n in range(1, 10)}, **hosts},
        "ansible_play_hosts_all": list(hosts),
        "ansible_play_hosts": list(hosts),
        "groups": {"all": [f"n{n}" for n in range(1, 10)]},
        **own,
    }
    return play(action.ActionModule, arguments, results or {}, variables)


def held(**answers: Any) -> dict[str, dict[str, Any]]:
    return {machine: {"held": answer} for machine, answer in answers.items()}


class TestCopies:
    def test_when_all_are_in_the_play_nobody_else_is_asked(self) -> None:
        told = {**telling({name: holding(NEW) for name in ("n2", "n3")}), "n1": holding(NEW)}
        found = on_hosts(cluster_copies, COPIES, held(**told)).result
        assert (found["ask"], found["record"], found["source"]) == ([], NEW, "n1")
        assert found["answering"] == ["n2", "n3", "n1"]

    def test_a_limited_run_asks_the_manager_and_takes_its_newer_record(self) -> None:
        hosts = held(n2=holding(OLD))
        first = on_hosts(cluster_copies, COPIES, hosts).result
        assert [request["machine"] for request in first["ask"]] == ["n1", "n3"]
        assert all(request["known"] == list(first["records"]) for request in first["ask"])
        asked = {"results": [{**holding(NEW), "item": item} for item in first["ask"]]}
        again = {**COPIES, "asked": "asked"}
        found = on_hosts(cluster_copies, again, hosts, found=first, asked=asked).result
        assert (found["ask"], found["record"], found["source"]) == ([], NEW, "n1")
        assert found["answering"] == ["n2"]
        # The decision stands.
        assert on_hosts(cluster_copies, again, hosts, found=found, asked={"results": []}).result == found

    def test_what_one_tells_of_and_does_not_send_is_asked_of_others_and_then_damaged(self) -> None:
        hosts = held(n1=SILENT, **telling({"n2": holding(NEW), "n3": holding(NEW)}))
        asked, found = {}, {}
        machines = []
        while not found or found["ask"]:
            more = {"found": found, "asked": asked} if found else {}
            arguments = {**COPIES, **({"asked": "asked"} if found else {}), "refuse": False}
            found = on_hosts(cluster_copies, arguments, hosts, **more).result
            machines.append([request["machine"] for request in found["ask"]])
            asked = {"results": [{**NOTHING, "item": item} for item in found["ask"]]}
        assert machines == [["n2"], ["n3"], []]
        assert "announced but not sent" in found["refusal"]

    def test_contradicting_copies_are_refused_and_one_that_is_trusted_replaces_others(self) -> None:
        other = plan.commit(plan.join(OLD, [{"machine": "n3", "gpus": 8}], STAMP), STAMP)
        hosts = held(n1=holding(NEW), n2=holding(other), n3=holding(NEW))
        refused = on_hosts(cluster_copies, COPIES, hosts).result
        assert refused["failed"] and "contradict" in refused["msg"]
        found = on_hosts(cluster_copies, {**COPIES, "trusted_copy": "n1"}, hosts).result
        assert found["replaced"] == ["n2"]

    def test_a_cluster_that_is_not_there(self) -> None:
        hosts = held(n1=NOTHING)
        assert on_hosts(cluster_copies, COPIES, hosts).result["record"] is None
        assert on_hosts(cluster_copies, {**COPIES, "required": True}, hosts).result["failed"]

    @pytest.mark.parametrize(("others", "asked"), [("none", []), ("joining", ["n4"]), ("all", ["n1", "n4"])])
    def test_other_clusters_are_read_where_they_are_wanted(self, others: str, asked: list[str]) -> None:
        two = plan.commit(plan.create("1" * 32, "two", "10.1.0.0/24", "n1", {}, entries_on(1), STAMP), STAMP)
        three = plan.commit(plan.create("2" * 32, "three", "10.2.0.0/24", "n4", {}, entries_on(4), STAMP), STAMP)
        one = telling({"n1": holding(two)})["n1"]["clusters"]
        hosts = held(n1=holding(NEW, *one), n2=holding(NEW), n3=holding(NEW), n4=telling({"n4": holding(three)})["n4"])
        found = on_hosts(cluster_copies, {**COPIES, "others": others}, hosts).result
        assert [request["machine"] for request in found["ask"]] == asked


def entries_on(number: int) -> list[dict[str, Any]]:
    return [{"machine": f"n{number}", "address": f"10.{1 if number == 1 else 2}.0.1", "interface": "eth0"}]


def with_pod() -> Any:
    """The record of a tailnet, in which n3 is a pod."""
    members = [
        {**one, "mesh": {"address": f"100.64.0.{number}", **({"userspace": True} if number == 3 else {})}}
        for number, one in enumerate(entries(1, 2, 3), start=1)
    ]
    return plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", TAILNET, members, STAMP), STAMP)


class TestMembers:
    GIVEN = {"record": NEW, "registered": "held"}

    def test_who_is_a_member_and_who_has_another_record(self) -> None:
        hosts = held(n1=holding(NEW), n2=holding(OLD), n4=NOTHING)
        found = on_hosts(play_members, self.GIVEN, hosts).result
        assert (found["members"], found["outdated"], found["userspace_only"]) == (["n1", "n2"], ["n2"], [])

    @pytest.mark.parametrize("expected", [{"name": "two"}, {"manager": "n2"}])
    def test_a_record_that_is_another_one_is_refused(self, expected: dict[str, str]) -> None:
        refused = on_hosts(play_members, {**self.GIVEN, **expected}, held(n1=NOTHING)).result
        assert refused["failed"] and "was expected" in refused["msg"]

    def test_members_of_a_tailnet_without_an_interface(self) -> None:
        members = [
            {**one, "mesh": {"address": f"100.64.0.{number}"}} for number, one in enumerate(entries(1, 2, 3), start=1)
        ]
        draft = plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", TAILNET, members, STAMP)
        hosts = {
            "n1": {"held": NOTHING},
            "n2": {"held": {**NOTHING, "tun": False}},
            "n3": {"held": NOTHING, "mesh_userspace": "always"},
            # It is not a member, so it is not judged here.
            "n4": {"held": {**NOTHING, "tun": False}},
        }
        given = {**self.GIVEN, "record": plan.commit(draft, STAMP)}
        found = on_hosts(play_members, given, hosts).result
        assert (found["userspace_only"], found["pods"]) == (["n2", "n3"], [])
        assert (found["members"], found["nodes"]) == (["n1", "n2", "n3"], ["n1"])
        hosts["n3"]["mesh_userspace_nodes"] = "yes"
        found = on_hosts(play_members, given, hosts).result
        assert (found["userspace_only"], found["pods"]) == (["n2"], ["n3"])
        hosts["n3"]["mesh_userspace_nodes"] = "sometimes"
        refused = on_hosts(play_members, given, hosts).result
        assert refused["failed"] and "n3: mesh_userspace_nodes is 'sometimes'" in refused["msg"]

    def test_a_pod_that_is_a_node_stays_one_while_it_is_a_member(self) -> None:
        """Without the library, its slurmd would be cut off."""
        hosts = held(**{machine: {**NOTHING, **facts, "tun": machine != "n3"} for machine, facts in LAN.items()})
        given = {**self.GIVEN, "record": with_pod(), "announce": True}
        found = {"record": with_pod(), "source": "n1", "outside": {}, "records": {}, "replaced": [], "answering": []}
        registered = {"name": "lab", "registered": "held", "found": "found", "candidate": "n1"}
        removed = {"name": "lab", "registered": "held", "found": "found", "machines": "n2"}
        for action, arguments in (
            (play_members, given),
            (cluster_registration, registered),
            (cluster_removal, removed),
        ):
            refused = on_hosts(action, arguments, hosts, found=found).result
            assert refused["failed"] and refused["error"]["machines"] == ["n3"]
            assert "Nothing has been changed. Set mesh_userspace_nodes=true" in refused["msg"]
        # Removing the member is the way out.
        assert not on_hosts(cluster_removal, {**removed, "machines": "n3"}, hosts, found=found).result.get("failed")
        hosts["n3"]["mesh_userspace_nodes"] = True
        assert on_hosts(play_members, given, hosts).result["pods"] == ["n3"]


class TestRegistration:
    GIVEN = {"name": "lab", "registered": "held", "found": "found", "candidate": "n1"}
    NONE = {"record": None, "source": None, "records": {}}

    def test_a_new_cluster_is_written(self) -> None:
        hosts = {machine: {"held": {**NOTHING, **facts}} for machine, facts in LAN.items()}
        hosts["n2"]["cluster_site"], hosts["n1"]["cluster_endpoint"] = "b", "192.0.2.1"
        decision = on_hosts(cluster_registration, self.GIVEN, hosts, found=self.NONE, mesh_port=7).result
        assert (decision["manager"], decision["writes"], decision["mesh"]) == ("n1", True, {"port": 7})
        assert [member["site"] for member in decision["members"]] == ["default", "b", "default"]
        assert [one["machine"] for one in decision["probed"]] == ["n1", "n2", "n3"]
        record = plan.commit(
            plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"port": 7}, decision["members"], STAMP), STAMP
        )
        results = {"gpumesh.cluster.cluster": [{"changed": True, "record": record}]}
        arguments = {"name": "lab", "registration": "decision"}
        written = on_hosts(cluster, arguments, hosts, results, decision=decision)
        ((_module, parameters),) = written.ran
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
    def test_what_a_layer_would_refuse_is_refused_before_the_record_is_written(
        self, given: dict[str, Any], said: str
    ) -> None:
        hosts = {machine: {"held": {**NOTHING, **facts}} for machine, facts in LAN.items()}
        refused = on_hosts(cluster_registration, self.GIVEN, hosts, found=self.NONE, **given).result
        assert refused["failed"] and said in refused["msg"], refused["msg"]

    def test_hosts_are_checked_for_what_the_layers_need_only_before_a_change(self) -> None:
        hosts = {machine: {"held": {**NOTHING, **facts}} for machine, facts in LAN.items()}
        volumes = [
            {"name": "data", "server": "n2", "path": "/d", "mount_point": "/mnt/d", "quota": "1G"},
            {"name": "old", "mount_point": "/mnt/old", "filesystem": "xfs"},
        ]
        own = {"storage_volumes": volumes, "ssh_trust_users": ["root", "alice"], "session_enabled": True}
        decision = on_hosts(cluster_registration, self.GIVEN, hosts, found=self.NONE, **own).result
        assert decision["preflight"] == {"machines": ["n1", "n2", "n3"], "pods": [], "volumes": volumes}

        def needed(machine: str, **more: Any) -> dict[str, Any]:
            variables = {"inventory_hostname": machine, "decision": decision, **own, **more}
            arguments = {"cluster": "lab", "registration": "decision"}
            results = {"gpumesh.cluster.preflight": [{"changed": False}]}
            ((_module, parameters),) = play(preflight.ActionModule, arguments, results, variables).ran
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
        hosts = {machine: {"held": {**holding(OLD), **facts}} for machine, facts in LAN.items()}
        found = {"record": OLD, "source": "n1", "records": {}}
        for more, machines in (({}, []), ({"storage_volumes": volumes}, ["n1", "n2", "n3"])):
            decision = on_hosts(cluster_registration, self.GIVEN, hosts, found=found, **more).result
            assert decision["preflight"]["machines"] == machines

    def test_a_copy_is_forced_and_attributed_as_the_role_says(self) -> None:
        given = {"name": "lab", "state": "replica", "record": NEW}
        results = {"gpumesh.cluster.cluster": [{"changed": True}]}
        own = {"cluster_trusted_copy": "n2", "cluster_actor": "alice"}
        for more, expected in ((own, {"force": True, "actor": "alice"}), ({}, {"force": False})):
            ((_module, parameters),) = on_hosts(cluster, given, {"n1": {}}, results, **more).ran
            assert parameters == {**given, **expected}
        ((_module, parameters),) = on_hosts(cluster, {**given, "force": False}, {"n1": {}}, results, **own).ran
        assert parameters["force"] is False

    def test_a_record_that_the_manager_returns_has_to_be_of_the_cluster_and_name_it(self) -> None:
        hosts = {machine: {"held": {**NOTHING, **facts}} for machine, facts in LAN.items()}
        decision = on_hosts(cluster_registration, self.GIVEN, hosts, found=self.NONE).result
        forged = plan.commit(plan.hand_over(OLD, "n3"), STAMP)
        results = {"gpumesh.cluster.cluster": [{"changed": True, "record": forged}]}
        arguments = {"name": "lab", "registration": "decision"}
        refused = on_hosts(cluster, arguments, hosts, results, decision=decision).result
        assert refused["failed"] and "was expected" in refused["msg"]

    def test_what_is_as_it_should_be_is_not_written(self) -> None:
        hosts = {machine: {"held": {**holding(OLD), **facts}} for machine, facts in LAN.items()}
        found = {"record": OLD, "source": "n1", "records": {}}
        decision = on_hosts(cluster_registration, self.GIVEN, hosts, found=found).result
        assert (decision["writes"], decision["joining"], decision["probed"]) == (False, [], [])
        arguments = {"name": "lab", "registration": "decision"}
        written = on_hosts(cluster, arguments, hosts, decision=decision)
        assert (written.ran, written.result["record"], written.result["changed"]) == ([], OLD, False)
        # Jobs of this host are to do without RDMA, which it has.
        hosts["n2"] = {"held": {**hosts["n2"]["held"], "host": {**LAN["n2"]["host"], "rdma": "roce"}}}
        for given, writes in (("", True), (True, True), (False, False), ("no", False)):
            hosts["n2"]["job_environment_rdma"] = given
            decision = on_hosts(cluster_registration, self.GIVEN, hosts, found=found).result
            assert decision["writes"] == writes, given
        # Another host's copy does not show what the manager has.
        other = on_hosts(cluster_registration, self.GIVEN, hosts, found={**found, "source": "n2"}).result
        assert other["writes"]

    def test_an_upgrade_is_written_if_the_manager_answers(self) -> None:
        earlier: Any = {**OLD, "collection_version": None}
        hosts = {machine: {"held": {**holding(earlier), **facts}} for machine, facts in LAN.items()}
        found = {"record": earlier, "source": "n1", "records": {}}
        decision = on_hosts(cluster_registration, self.GIVEN, hosts, found=found).result
        assert (decision["writes"], decision["joining"]) == (True, [])
        # Without it, the other members are still set up.
        silent = {**found, "source": "n2", "manager_silence": "no route to host"}
        del hosts["n1"]
        assert not on_hosts(cluster_registration, self.GIVEN, hosts, found=silent).result["writes"]

    @pytest.mark.parametrize(
        ("given", "sent"), [({}, {}), ({"cluster_older_version": "true"}, {"older_version": True})]
    )
    @pytest.mark.parametrize("module", [cluster, cluster_member])
    def test_the_modules_learn_whether_this_version_may_be_older(
        self, module: Any, given: dict[str, Any], sent: dict[str, Any]
    ) -> None:
        name = f"gpumesh.cluster.{module.__name__.rpartition('.')[2]}"
        done = on_hosts(module, {"name": "lab"}, {"n1": {}}, {name: [{"record": OLD, "changed": False}]}, **given)
        assert done.ran == [(name, {"name": "lab", **sent})]

    def test_a_machine_that_was_removed_is_skipped_and_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        left = plan.commit(plan.remove(OLD, ["n2"], STAMP), STAMP)
        hosts = {machine: {"held": {**holding(left), **facts}} for machine, facts in LAN.items()}
        found = {"record": left, "source": "n1", "records": {}}
        decision = on_hosts(cluster_registration, self.GIVEN, hosts, found=found).result
        assert (decision["writes"], decision["joining"]) == (False, [])
        assert "n2: removed from cluster 'lab', and therefore skipped." in " ".join(capsys.readouterr().out.split())

    def test_a_manager_that_does_not_answer_gets_nothing_and_is_needed_for_changes(self) -> None:
        hosts = {name: {"held": {**holding(OLD), **LAN[name]}} for name in ("n2", "n3")}
        found = {"record": OLD, "source": "n2", "records": {}, "manager_silence": "no route to host"}
        assert not on_hosts(cluster_registration, self.GIVEN, hosts, found=found).result["writes"]
        hosts["n2"]["held"] = {**hosts["n2"]["held"], "host": {**LAN["n2"]["host"], "rdma": "roce"}}
        refused = on_hosts(cluster_registration, self.GIVEN, hosts, found=found).result
        assert refused["failed"]
        assert "Nothing has been changed. The manager n1 does not answer (no route to host)" in refused["msg"]

    def test_a_host_that_does_not_answer_and_nobody_to_join(self) -> None:
        hosts = {"n1": {"held": {**NOTHING, **LAN["n1"]}}, "n2": {"held": SILENT}}
        refused = on_hosts(cluster_registration, self.GIVEN, hosts, found=self.NONE).result
        assert refused["failed"] and refused["error"]["machines"] == ["n2"]
        refused = on_hosts(cluster_registration, {**self.GIVEN, "join_only": True}, hosts, found=self.NONE).result
        assert refused["failed"] and "No machine to join cluster 'lab' was given" in refused["msg"]

    @pytest.mark.parametrize(
        ("machine", "server", "is_refused"), [("n1", "n3", True), ("n2", "n2", True), ("n2", "n3", False)]
    )
    def test_a_manager_or_a_server_of_volumes_that_cannot_connect_to_members(
        self, machine: str, server: str, is_refused: bool
    ) -> None:
        hosts = {name: {"held": {**NOTHING, "tun": name != machine, **facts}} for name, facts in LAN.items()}
        volume = {"name": "data", "server": server, "path": "/srv/data", "mount_point": "/data"}
        given = {"mesh_backend": "tailscale", "storage_volumes": [volume]}
        decided = on_hosts(cluster_registration, self.GIVEN, hosts, found=self.NONE, **given).result
        assert bool(decided.get("failed")) == is_refused
        if is_refused:
            assert decided["error"]["machines"] == [machine]
            said = f"{machine} cannot be the manager or serve a volume. Nothing has been changed. Without /dev/net/tun"
            assert said in decided["msg"]

    @pytest.mark.parametrize(("relays", "key", "value"), [([], "pair", ["n1", "n2"]), (["n9"], "relays", ["n9"])])
    def test_a_mesh_that_cannot_connect_two_members(self, relays: list[str], key: str, value: list[str]) -> None:
        hosts: dict[str, dict[str, Any]] = {
            machine: {"held": {**NOTHING, **facts}, "cluster_site": machine} for machine, facts in LAN.items()
        }
        refused = on_hosts(cluster_registration, self.GIVEN, hosts, found=self.NONE, mesh_relays=relays).result
        assert refused["failed"] and refused["error"][key] == value


class TestRemoval:
    GIVEN = {"name": "lab", "registered": "held", "found": "found", "machines": "n2"}
    HOSTS = held(n1=holding(NEW), n2=SILENT, n3=holding(NEW))
    FOUND = {"record": NEW, "outside": {}, "records": {}, "replaced": [], "answering": ["n1", "n3"]}

    def test_a_dead_machine_leaves(self) -> None:
        decided = on_hosts(cluster_removal, self.GIVEN, self.HOSTS, found=self.FOUND).result
        assert (decided["authority"], decided["former_manager"]) == ("n1", "")
        assert decided["leaving"] == decided["members_leaving"] == decided["silent"] == ["n2"]

    @pytest.mark.parametrize("is_node", [False, True])
    def test_a_machine_that_cannot_connect_to_members_does_not_take_the_cluster_over(self, is_node: bool) -> None:
        record = with_pod()
        hosts = {
            machine: {"held": {**NOTHING, **facts, "tun": machine != "n3"}, "mesh_userspace_nodes": is_node}
            for machine, facts in LAN.items()
        }
        found = {"record": record, "outside": {}, "records": {}, "replaced": [], "answering": list(LAN)}
        given = {**self.GIVEN, "machines": "n1", "new_manager": "n3"}
        refused = on_hosts(cluster_removal, given, hosts, found=found).result
        assert refused["failed"] and refused["error"]["machines"] == ["n3"]
        assert "n3 cannot be the manager or serve a volume. Nothing has been changed." in refused["msg"]

    def test_keys_are_changed_with_all_members_that_stay(self) -> None:
        given = {**self.GIVEN, "machines": "n3", "untrusted": True}
        refused = on_hosts(cluster_removal, given, self.HOSTS, found=self.FOUND).result
        assert refused["failed"] and refused["error"]["machines"] == ["n2"]
        given["machines"] = ["n2"]
        assert not on_hosts(cluster_removal, given, self.HOSTS, found=self.FOUND).result.get("failed")
        own = on_hosts(cluster_removal, given, self.HOSTS, found=self.FOUND, munge_key_file="/root/key").result
        assert own["failed"] and "/root/key" in own["msg"]


class TestDrain:
    JOBS = [{"id": 17, "user": "alice", "name": "train", "nodes": ["n2"], "state": "running"}]
    SLURM = {"nodes": [{"name": name, "state": "idle", "flags": []} for name in ("n1", "n2")], "jobs": JOBS}
    STAT = "ansible.builtin.stat"

    @staticmethod
    def there(*exist: bool) -> list[dict[str, Any]]:
        return [{"stat": {"exists": one}} for one in exist]

    def drain(self, jobs: list[Any], more: dict[str, Any], **given: Any) -> Played:
        results = {
            "gpumesh.cluster.host_owner": [{"others": []}],
            self.STAT: self.there(True, True),
            "gpumesh.cluster.slurm_info": [{**self.SLURM, "jobs": jobs}],
            "gpumesh.cluster.slurm_node": [{"changed": True}] * 3,
            **more,
        }
        hosts = held(n1={"holders": []}, n2={"holders": ["vim (7) in /data"]})
        return on_hosts(cluster_drain, {"record": NEW, **given}, hosts, results)

    def test_without_a_controller_there_is_nothing_to_drain(self) -> None:
        played = self.drain([], {self.STAT: self.there(False, False, False)}, machines=["n2"])
        assert (played.result["scheduler"], played.result["changed"]) == (False, False)

    def test_the_controller_is_looked_for_where_the_manager_has_its_programs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The task is that of any host of the play, and is delegated to the manager."""
        monkeypatch.setattr(cluster_drain.ActionModule, "delegated", True)
        hosts = {**held(n2={}), None: {"daemon_supervisor_programs": "/opt/programs"}}
        results = {self.STAT: self.there(True, False, True), "gpumesh.cluster.slurm_info": [self.SLURM]}
        results["gpumesh.cluster.host_owner"] = [{"others": []}]
        played = on_hosts(cluster_drain, {"record": NEW, "machines": ["n2"]}, hosts, results)
        asked = [given["path"] for module, given in played.ran if module == self.STAT]
        assert asked[-1] == "/opt/programs/gpumesh-slurmctld.conf"
        assert "17 of alice (train on n2)" in played.result["msg"]

    @pytest.mark.parametrize("given", [{"machines": ["n2"], "forgotten": ["n2"], "handing_over": True}, {}])
    @pytest.mark.parametrize("force", [False, True])
    def test_the_slurm_of_another_cluster_on_the_host_is_left_alone(self, given: dict[str, Any], force: bool) -> None:
        played = self.drain(
            self.JOBS, {"gpumesh.cluster.host_owner": [{"others": ["munge", "slurm"]}]}, force=force, **given
        )
        owner = {"cluster": "lab", "cluster_id": "0" * 32}
        assert played.ran == [("gpumesh.cluster.host_owner", owner)], "no job is cancelled, no node drained or deleted"
        assert (played.result["scheduler"], played.result["of_another"], played.result["nodes"]) == (False, True, [])
        used = self.drain(
            self.JOBS, {"gpumesh.cluster.host_owner": [{"others": ["slurm"]}]}, holders="held", force=force, **given
        )
        # A removal looks at the users of volumes itself.
        assert ("n2: vim (7) in /data" in used.result.get("msg", "")) == (not force and not given)

    def test_running_jobs_are_a_reason_to_refuse(self) -> None:
        refused = self.drain(self.JOBS, {}, machines=["n2"]).result
        assert refused["failed"] and "17 of alice (train on n2)" in refused["msg"]

    def test_they_get_time_or_are_cancelled(self) -> None:
        played = self.drain(self.JOBS, {}, machines=["n2"], timeout=60, forgotten=["n2"])
        nodes = [parameters for module, parameters in played.ran if module == "gpumesh.cluster.slurm_node"]
        assert [(one["state"], one.get("wait")) for one in nodes] == [("drained", 60), ("absent", None)]
        more = {
            "ansible.builtin.command": [{"changed": True}],
            "gpumesh.cluster.slurm_node": [{"changed": True}, {"failed": True, "error": {}}, {"changed": True}],
        }
        played = self.drain(self.JOBS, more, machines=["n2"], force=True)
        assert ("ansible.builtin.command", {"argv": ["scancel", "17"]}) in played.ran
        nodes = [parameters for module, parameters in played.ran if module == "gpumesh.cluster.slurm_node"]
        assert [one["state"] for one in nodes] == ["drained", "drained", "down"]

    def test_a_job_that_ends_is_waited_for(self) -> None:
        ending = [{**self.JOBS[0], "id": 18, "state": "completing"}]
        played = self.drain(ending, {}, machines=["n2"])
        nodes = [parameters for module, parameters in played.ran if module == "gpumesh.cluster.slurm_node"]
        assert [(one["state"], one.get("wait")) for one in nodes] == [("drained", 10)]
        forced = self.drain(ending, {}, machines=["n2"], force=True)
        nodes = [parameters for module, parameters in forced.ran if module == "gpumesh.cluster.slurm_node"]
        assert [(one["state"], one.get("wait")) for one in nodes] == [("drained", None), ("drained", 90)]
        both = {"ansible.builtin.command": [{"changed": True}]}
        played = self.drain([*self.JOBS, *ending], both, machines=["n2"], force=True)
        assert ("ansible.builtin.command", {"argv": ["scancel", "17"]}) in played.ran
        assert "job 18 of alice" in self.drain(ending, {}).result["msg"]

    def test_processes_that_outlive_their_job_get_the_time_in_which_slurm_asks_again(self) -> None:
        """It does so two minutes after a node that was restarted under a job has come back."""
        late = {"failed": True, "msg": "After 10 s: n2 still has jobs.", "error": {"completing": True}}
        nodes = "gpumesh.cluster.slurm_node"
        played = self.drain([], {nodes: [late, {"changed": False}]}, machines=["n2"])
        assert played.result["changed"] and not played.result.get("failed")
        waits = [(given["state"], given["wait"]) for module, given in played.ran if module == nodes]
        assert waits == [("drained", 10), ("drained", 300)]
        # Whoever sets a longer time has waited long enough.
        assert self.drain([], {nodes: [late, {"changed": True}]}, machines=["n2"], timeout=900).result["failed"]

    @pytest.mark.parametrize("flags", [[], ["drain"]])
    def test_a_node_whose_jobs_do_not_end_returns_to_the_state_that_it_had(self, flags: list[str]) -> None:
        late = {"failed": True, "msg": "After 60 s: n2 still has jobs, or increase the wait.", "error": {}}
        slurm = {"jobs": [], "nodes": [{"name": "n2", "state": "idle", "flags": flags}]}
        more = {"gpumesh.cluster.slurm_info": [slurm], "gpumesh.cluster.slurm_node": [late, {"changed": True}]}
        played = self.drain([], more, machines=["n2"], timeout=60)
        states = [given["state"] for module, given in played.ran if module == "gpumesh.cluster.slurm_node"]
        assert states == (["drained"] if flags else ["drained", "idle"])
        assert "or increase cluster_drain_timeout. Nothing has been removed." in played.result["msg"]
        assert ("n2 accepts jobs again." in played.result["msg"]) == (not flags)

    def test_a_cluster_ends_when_nobody_uses_it(self) -> None:
        refused = self.drain(self.JOBS, {}, holders="held").result
        assert "job 17 of alice" in refused["msg"] and "n2: vim (7) in /data" in refused["msg"]
        assert not self.drain([], {}).result["changed"]
        forced = self.drain([], {}, holders="held", force=True).result
        assert forced["changed"] and forced["nodes"] == ["n1", "n2"]

    @pytest.mark.parametrize("silence", [SILENT, {"failed": True, "msg": "no such file"}])
    def test_a_cluster_does_not_end_while_a_member_cannot_say_who_uses_it(self, silence: dict[str, Any]) -> None:
        results = {"gpumesh.cluster.host_owner": [{"others": []}], self.STAT: self.there(False, False, False)}
        hosts = held(n1={"holders": []}, n2=silence, n9={"skipped": True})
        given = {"record": NEW, "holders": "held"}
        refused = on_hosts(cluster_drain, given, hosts, results).result
        assert refused["failed"] and f"n2: unknown ({silence['msg']})" in refused["msg"]
        assert not on_hosts(cluster_drain, {**given, "force": True}, hosts, results).result.get("failed")


def test_the_overview_is_shown_and_handed_on(tmp_path: Path) -> None:
    hosts = {
        "n1": {"held": holding(NEW), "layers": {"drift": {"names": "would change"}, "munge_key": "ab"}},
        "n2": {"held": SILENT},
    }
    found = {"record": NEW, "outside": {}, "records": {}}
    given = {
        "registered": "held",
        "found": "found",
        "tunnel": "tunnel",
        "tailnet": "tailnet",
        "host": "layers",
        "volumes": "volumes",
    }
    shown = on_hosts(cluster_overview, given, hosts, found=found, check_report_dir=str(tmp_path)).result
    (cluster_shown,) = shown["clusters"]
    assert shown["ansible_stats"]["data"] == {"gpumesh_clusters": shown["clusters"]}
    assert cluster_shown["members"][0]["drift"]["names"] == "would change"
    assert "n2 does not answer" in shown["text"]
    assert "were not compared" not in shown["text"]
    other = on_hosts(cluster_overview, given, hosts, found={**found, "record": None}, cluster_name="lap").result
    assert "were not compared with the record, since cluster_name is 'lap'" in other["text"]
    given["output"] = "json"
    assert on_hosts(cluster_overview, given, hosts, found=found).result["text"].startswith('[{"name": "lab"')

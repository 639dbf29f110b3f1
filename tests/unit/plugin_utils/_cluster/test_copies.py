# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which copy of the record is used, whoever of its holders answers; where a removal is written; what show reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.server_certificate import expiry_time
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import VERSION
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import (
    classify_members,
    find_record,
    select_outside_hosts,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.overview import build_overview, render_overview
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import (
    collect_sent_records,
    read_responses,
)
from ansible_collections.gpumesh.cluster.tests.support import certificates, decisions
from ansible_collections.gpumesh.cluster.tests.support.told_records import replace_records_with_digests

AT = "2026-11-20T20:31:00Z"
SILENT = {"unreachable": True, "msg": "Task failed: no route to host"}
NOTHING: dict[str, Any] = {"clusters": [], "damaged": []}


def build_record(members: int = 3, manager: str = "n1", identity: str = "0" * 32) -> model.Record:
    entries = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in range(1, members + 1)]
    stamp = plan.ChangeStamp(AT, "alice")
    return plan.commit(plan.create(identity, "lab", "10.0.0.0/24", manager, {}, entries, stamp), stamp)


def next_generation(record: model.Record, by: str = "alice", **change: Any) -> model.Record:
    stamp = plan.ChangeStamp(AT, by)
    if "manager" in change:
        return plan.commit(plan.hand_over(record, change["manager"]), stamp)
    return plan.commit(plan.join(record, [{"machine": "n2", "gpus": change["gpus"]}], stamp), stamp)


def respond_with(record: model.Record) -> dict[str, Any]:
    return {"clusters": [record], "damaged": []}


#: The inventory's variables of each machine.
HOSTS: dict[str, dict[str, str]] = {f"n{n}": {"ansible_host": f"198.51.100.{n}"} for n in range(1, 10)}


def find_cluster(answers: dict[str, Any], name: str, **overrides: Any) -> dict[str, Any]:
    selected = decisions.find_cluster(answers, name, machines=list(HOSTS), variables=HOSTS, **overrides)
    # It is the same if each host reports the digest of its record, and each record was sent once.
    records = collect_sent_records(answers.values(), {})
    assert selected == decisions.find_cluster(
        replace_records_with_digests(answers), name, machines=list(HOSTS), variables=HOSTS, records=records, **overrides
    )
    return selected


def damage_of(last_good: str | None = None) -> dict[str, Any]:
    path = "/var/lib/gpumesh/clusters/lab.json"
    return {"clusters": [], "damaged": [{"path": path, "reason": "it is empty", "last_good": last_good}]}


OLD = build_record()
NEW = next_generation(OLD, gpus=4)
MOVED = next_generation(NEW, manager="n2")
#: Another cluster with the same name.
LATER = build_record(members=2, identity="1" * 32)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            {"n1": SILENT, "n2": respond_with(NEW), "n3": respond_with(NEW), "n9": NOTHING},
            ("n2", ["n2", "n3"], ["n1"], ["n1"]),
        ),
        ({"n1": respond_with(NEW), "n3": respond_with(NEW)}, ("n1", ["n1", "n3"], ["n2"], [])),
    ],
)
def test_members_are_classified_by_reachability(answers: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = find_record(read_responses(answers), "lab")
    assert found is not None
    answering = [machine for machine, answer in answers.items() if answer is not SILENT]
    result = classify_members(found, answering, answers)
    assert result.pop("machines") == ["n1", "n2", "n3"]
    assert tuple(result.values()) == expected


class TestFind:
    def test_no_host_has_a_copy(self) -> None:
        found = find_cluster({"n1": NOTHING, "n2": SILENT}, "lab")
        assert (found["refusal"], found["record"]) == ("", None)

    def test_copy_of_the_manager_is_used_and_outdated_copies_are_reported(self) -> None:
        found = find_cluster({"n1": respond_with(NEW), "n2": respond_with(OLD), "n3": NOTHING}, "lab")
        assert (found["source"], found["record"]["generation"]) == ("n1", 2)
        assert found["remarks"] == ["n2 has an outdated copy of the record: generation 1 of 2."]
        assert found["standing"]["n2"]["kind"] == "behind"

    @pytest.mark.parametrize("third", [NEW, MOVED])
    def test_interrupted_hand_over_continues_from_the_former_manager(self, third: model.Record) -> None:
        """The former manager, which its successor still takes for the manager, says so itself."""
        answers = {"n1": respond_with(MOVED), "n2": respond_with(NEW), "n3": respond_with(third)}
        found = find_cluster(answers, "lab")
        assert (found["refusal"], found["record"], found["source"]) == ("", MOVED, "n1")
        # The tasks that are delegated to n2 read its copy.
        assert found["replaced"] == ["n2"]

    def test_other_members_cannot_appoint_a_manager(self) -> None:
        answers = {"n1": respond_with(NEW), "n2": respond_with(NEW), "n3": respond_with(MOVED)}
        assert "contradict" in find_cluster(answers, "lab")["refusal"]

    def test_newest_confirmed_copy_is_used_without_the_manager(self) -> None:
        found = find_cluster(
            {"n1": SILENT, "n2": respond_with(NEW), "n3": respond_with(NEW), "n4": respond_with(OLD)}, "lab"
        )
        assert (found["source"], found["record"]) == ("n2", NEW)
        assert found["remarks"][0] == ("The manager n1 does not answer (no route to host): using generation 2 of n2.")

    def test_confirmed_hand_over_is_accepted_despite_outdated_copies(self) -> None:
        found = find_cluster({"n1": respond_with(MOVED), "n2": respond_with(MOVED), "n3": respond_with(NEW)}, "lab")
        assert (found["source"], found["record"]["manager"]) == ("n2", "n2")
        twice = next_generation(MOVED, manager="n3")
        answers = {
            "n1": respond_with(MOVED),
            "n2": respond_with(twice),
            "n3": respond_with(twice),
            "n4": respond_with(OLD),
        }
        assert find_cluster(answers, "lab")["source"] == "n3"

    def test_successor_of_a_lost_manager_is_accepted_if_the_user_names_it(self) -> None:
        found = find_cluster({"n1": respond_with(NEW), "n2": respond_with(MOVED)}, "lab", successor="n2")
        assert (found["source"], found["record"]["manager"]) == ("n2", "n2")
        assert found["remarks"][0].endswith("It is no longer the manager; that is n2.")

    @pytest.mark.parametrize(
        ("answers", "said"),
        [
            ({"n1": respond_with(OLD), "n2": respond_with(NEW)}, "n2: generation 2, while 1 was expected"),
            (
                {"n1": respond_with(NEW), "n2": respond_with(build_record(identity="1" * 32))},
                "n2: it is another cluster with the name",
            ),
            (
                {"n1": respond_with(next_generation(NEW, by="bob", gpus=8)), "n2": respond_with(MOVED)},
                "both have a generation 3",
            ),
            (
                {"n1": NOTHING, "n2": respond_with(NEW)},
                "n1 manages cluster 'lab' according to the copy of n2 (generation 2), but has",
            ),
            ({"n1": damage_of(), "n2": respond_with(NEW)}, "is invalid: it is empty (last good copy: none)"),
            ({"n1": damage_of("/x.good")}, "last good copy: /x.good"),
            ({"n1": respond_with(NEW), "n2": respond_with(MOVED)}, "n1 does not confirm that n2 follows it"),
            (
                {"n1": SILENT, "n2": respond_with(NEW), "n3": respond_with(OLD)},
                "only n2 has generation 2 of the record",
            ),
        ],
    )
    def test_contradictory_copies_are_refused(self, answers: dict[str, Any], said: str) -> None:
        assert said in find_cluster(answers, "lab")["refusal"]

    def test_trusted_copy_is_used_and_replaced_copies_are_reported(self) -> None:
        found = find_cluster({"n1": respond_with(OLD), "n2": respond_with(NEW), "n3": SILENT}, "lab", trusted="n2")
        assert (found["refusal"], found["source"], found["record"], found["replaced"]) == ("", "n2", NEW, ["n1"])
        assert found["remarks"] == ["The copy of n1 is replaced with that of n2: generation 1 of 2."]

    @pytest.mark.parametrize("first", [NOTHING, damage_of()])
    def test_manager_without_a_copy_gets_the_trusted_one(self, first: dict[str, Any]) -> None:
        found = find_cluster({"n1": first, "n2": respond_with(NEW), "n3": NOTHING}, "lab", trusted="n2")
        assert (found["record"], found["replaced"]) == (NEW, ["n1"])

    def test_older_copy_is_trusted_only_with_its_generation(self) -> None:
        answers = {"n1": respond_with(OLD), "n2": respond_with(NEW)}
        assert "there are newer ones: n2 has 2" in find_cluster(answers, "lab", trusted="n1")["refusal"]
        assert "newer ones" in find_cluster(answers, "lab", trusted="n1", generation=2)["refusal"]
        assert find_cluster(answers, "lab", trusted="n1", generation=1)["replaced"] == ["n2"]

    @pytest.mark.parametrize("first", [respond_with(LATER), SILENT, damage_of()])
    def test_copy_of_a_deleted_cluster_does_not_replace_its_successor(self, first: dict[str, Any]) -> None:
        """n3 was down while the cluster was deleted by force, and created again without it."""
        answers = {"n1": first, "n2": respond_with(LATER), "n3": respond_with(OLD)}
        refusal = find_cluster(answers, "lab", trusted="n3")["refusal"]
        assert "n2 is in another cluster with that name" in refusal or "n1, n2 are in another" in refusal
        assert "cluster_trusted_copy=n1" in refusal
        assert "n2" in find_cluster(answers, "lab", trusted="n3", generation=1)["replaced"]

    def test_loss_of_the_other_cluster_is_reported_before_newer_copies(self) -> None:
        """The same option accepts both."""
        answers = {
            "n1": respond_with(LATER),
            "n2": respond_with(LATER),
            "n3": respond_with(OLD),
            "n4": respond_with(NEW),
        }
        refusal = find_cluster(answers, "lab", trusted="n3")["refusal"]
        assert "n1, n2 are in another cluster with that name" in refusal

    def test_remains_of_a_deleted_cluster_are_replaced(self) -> None:
        answers = {"n1": respond_with(LATER), "n2": respond_with(OLD)}
        assert find_cluster(answers, "lab", trusted="n1")["replaced"] == ["n2"]

    @pytest.mark.parametrize(
        ("trusted", "said"), [("n9", "it is not in this run"), ("n2", "no route"), ("n3", "it has no usable copy")]
    )
    def test_missing_trusted_copy_is_refused(self, trusted: str, said: str) -> None:
        answers = {"n1": respond_with(OLD), "n2": SILENT, "n3": NOTHING}
        assert said in find_cluster(answers, "lab", trusted=trusted)["refusal"]

    def test_damaged_copy_of_a_member_is_only_reported(self) -> None:
        found = find_cluster({"n1": respond_with(NEW), "n2": damage_of()}, "lab")
        assert found["record"] == NEW
        assert found["remarks"] == [
            "n2: the record /var/lib/gpumesh/clusters/lab.json is invalid: it is empty (last good copy: none)."
        ]


class TestOutsideHosts:
    def test_no_outside_host_if_all_members_are_in_the_play(self) -> None:
        assert select_outside_hosts(read_responses({f"n{n}": respond_with(NEW) for n in (1, 2, 3)}), "lab", "n1") == []

    def test_limited_run_queries_the_manager_and_two_members(self) -> None:
        many = build_record(members=9)
        assert select_outside_hosts(read_responses({"n5": respond_with(many)}), "lab", "n5") == ["n1", "n2", "n3"]
        assert select_outside_hosts(read_responses({"n5": respond_with(many)}), "lab", "n8") == ["n1", "n2", "n3", "n8"]

    def test_manager_alone_queries_two_members(self) -> None:
        many = build_record(members=9)
        assert select_outside_hosts(read_responses({"n1": respond_with(many)}), "lab", "n1") == ["n2", "n3"]

    def test_new_machine_queries_the_manager_of_the_inventory(self) -> None:
        assert select_outside_hosts(read_responses({"n7": NOTHING}), "lab", "n1") == ["n1"]


def decide_removal_of(answers: dict[str, Any], leaving: list[str], **more: Any) -> dict[str, Any]:
    lost_to = more.get("new_manager", "") if more.get("manager_lost") else ""
    selected = find_cluster(answers, "lab", successor=lost_to)
    assert selected["refusal"] == ""
    more = {"inventory_machines": ["n1", "n2", "n3", "n9"], "record": selected["record"], **more}
    decision = decisions.plan_removal(answers, "lab", leaving, **more)
    assert decision == decisions.plan_removal(
        replace_records_with_digests(answers),
        "lab",
        leaving,
        records=collect_sent_records(answers.values(), {}),
        **more,
    )
    return decision


class TestRemoval:
    ALL = {f"n{n}": respond_with(NEW) for n in (1, 2, 3)}

    def test_removal_is_written_by_the_manager(self) -> None:
        assert decide_removal_of(self.ALL, ["n2"]) == {"refusal": "", "authority": "n1", "former_manager": ""}
        decided = decide_removal_of(self.ALL, ["n1"], new_manager="n2")
        assert decided == {"refusal": "", "authority": "n1", "former_manager": "n1"}

    def test_interrupted_removal_can_be_repeated(self) -> None:
        gone = respond_with(plan.remove(build_record(), ["n3"], plan.ChangeStamp(AT, "alice")).record)
        assert decide_removal_of({**self.ALL, "n1": gone, "n2": gone, "n3": SILENT}, ["n3"])["refusal"] == ""

    def test_machine_with_a_copy_was_a_member(self) -> None:
        assert decide_removal_of({**self.ALL, "n9": respond_with(OLD)}, ["n9"])["refusal"] == ""

    @pytest.mark.parametrize("answer", [NOTHING, SILENT, respond_with(build_record(4, identity="1" * 32))])
    def test_machine_that_never_was_a_member_is_refused(self, answer: dict[str, Any]) -> None:
        if answer.get("clusters"):
            answer["clusters"][0]["name"] = "other"
        refused = decide_removal_of({**self.ALL, "n9": answer}, ["n9"])["refusal"]
        assert "n9 is not among the members of cluster 'lab', and was not removed from it" in refused

    def test_interrupted_hand_over_names_the_former_manager(self) -> None:
        """n1 was the manager; n2, which leaves too and is named first, was not."""
        stamp = plan.ChangeStamp(AT, "alice")
        handed = plan.commit(plan.remove(NEW, ["n1", "n2"], stamp, "n3"), stamp)
        answers = {"n1": NOTHING, "n2": NOTHING, "n3": respond_with(handed)}
        assert decide_removal_of(answers, ["n2", "n1"], new_manager="n3")["former_manager"] == "n1"
        # Without a change of the manager, there is no hand-over.
        assert decide_removal_of(answers, ["n2"])["former_manager"] == ""
        # Tasks are not delegated to a name that is not in the inventory.
        handed["history"][-1]["detail"] = "the manager is n3, it was localhost; machine n1 left"
        answers["n3"] = respond_with(handed)
        assert decide_removal_of(answers, ["n1"], new_manager="n3") == {
            "refusal": "",
            "authority": "n3",
            "former_manager": "",
        }

    def test_successor_of_a_lost_manager_writes_the_removal(self) -> None:
        answers = {**self.ALL, "n1": SILENT}
        decided = decide_removal_of(answers, ["n1"], new_manager="n3", manager_lost=True)
        assert decided == {"refusal": "", "authority": "n3", "former_manager": ""}

    def test_removal_of_a_lost_manager_can_be_repeated(self) -> None:
        """n9 was the manager, n1 has followed it, and the command is the same."""
        answers = {**self.ALL, "n9": respond_with(OLD)}
        decided = decide_removal_of(answers, ["n9"], new_manager="n1", manager_lost=True)
        assert decided == {"refusal": "", "authority": "n1", "former_manager": ""}

    @pytest.mark.parametrize(
        ("answers", "leaving", "more", "said"),
        [
            ({"n1": NOTHING}, ["n2"], {}, "There is no cluster 'lab'"),
            (ALL, [], {}, "No machine to remove was given"),
            (ALL, ["n8"], {}, "n8 is not among the members of cluster 'lab', and was not removed"),
            (ALL, ["n1"], {}, "'n1' is the manager of cluster 'lab'"),
            (ALL, ["n1"], {"new_manager": "n2", "manager_lost": True}, "n1 answers, so it is not lost"),
            ({**ALL, "n1": SILENT}, ["n2"], {}, "The manager n1 of cluster 'lab' does not answer: no route to host"),
            ({**ALL, "n1": SILENT}, ["n2"], {"manager_lost": True}, "no new manager was given"),
            (
                {**ALL, "n1": SILENT, "n3": NOTHING},
                ["n1"],
                {"new_manager": "n3", "manager_lost": True},
                "n3 has no copy of the record",
            ),
            (
                {**ALL, "n1": SILENT, "n3": respond_with(OLD)},
                ["n1"],
                {"new_manager": "n3", "manager_lost": True},
                "n3 has generation 1 of the record, but another member has the newer generation 2",
            ),
        ],
    )
    def test_invalid_removal_is_refused(
        self, answers: dict[str, Any], leaving: list[str], more: dict[str, Any], said: str
    ) -> None:
        assert said in decide_removal_of(answers, leaving, **more)["refusal"]

    @pytest.mark.parametrize(
        ("playing", "said"),
        [
            (["n1", "n3"], "n2 takes over the cluster, but is not in this run"),
            (["n2", "n3"], "n1 hands over the cluster, but is not in this run"),
        ],
    )
    def test_hand_over_needs_both_managers(self, playing: list[str], said: str) -> None:
        refused = decide_removal_of(self.ALL, ["n1"], new_manager="n2", playing=playing)["refusal"]
        assert said in refused
        # Other machines may leave without them.
        assert decide_removal_of(self.ALL, ["n3"], playing=playing)["refusal"] == ""


class TestOverview:
    def test_members_are_listed_with_the_state_of_their_copy(self) -> None:
        answers = {"n1": respond_with(NEW), "n2": respond_with(OLD), "n3": SILENT, "n9": respond_with(OLD)}
        (cluster,) = build_overview(answers, AT)
        assert build_overview(
            replace_records_with_digests(answers), AT, records_by_digest=collect_sent_records(answers.values(), {})
        ) == [cluster]
        assert (cluster["generation"], cluster["nodes"], cluster["gpus"]) == (2, 3, 4)
        assert (cluster["manager"], cluster["manager_address"]) == ("n1", "10.99.0.1")
        assert [member["copy"] for member in cluster["members"]] == [
            "current",
            "behind: generation 1 of 2",
            "no answer",
        ]
        assert [member["last_seen"] for member in cluster["members"]] == [AT, AT, None]
        assert any("n9 has a copy of the record but is not a member" in problem for problem in cluster["problems"])

    def test_contradictory_copies_are_shown_with_the_cluster(self) -> None:
        (cluster,) = build_overview({"n1": respond_with(OLD), "n2": respond_with(NEW)}, AT)
        assert cluster["generation"] == 1
        assert "contradict" in cluster["problems"][0]

    @pytest.mark.parametrize(
        "answers", [{"n1": damage_of(), "n2": respond_with(NEW)}, {"n1": NOTHING, "n2": respond_with(NEW)}]
    )
    def test_cluster_is_shown_without_the_copy_of_the_manager(self, answers: dict[str, Any]) -> None:
        (cluster,) = build_overview(answers, AT)
        assert cluster["generation"] == 2
        assert "n1" in cluster["problems"][0]

    def test_mesh_drift_is_shown(self) -> None:
        states = {"n1": {"host": {"drift": {"mesh": "would add n2"}, "munge_key": "ab"}}}
        (cluster,) = build_overview({"n1": respond_with(NEW)}, AT, states)
        assert cluster["members"][0]["drift"] == {"mesh": "would add n2"}
        assert "would add n2" in render_overview([cluster], {}, width=0)

    def test_volumes_are_listed_with_space_mounts_and_measurements(self) -> None:
        declared = [
            {"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/data"},
            {"name": "lustre", "mount_point": "/lustre"},
        ]
        record = plan.commit(plan.set_storage(NEW, declared), plan.ChangeStamp(AT, "alice"))
        seen = {"trouble": "", "point": "/data", "filesystem": "nfs4", "total_bytes": 4 << 40, "free_bytes": 1 << 40}
        states: dict[str, Any] = {
            "n1": {"volumes": {"data": seen, "lustre": {"trouble": "no answer within 10 s"}}},
            "n2": {"volumes": {"data": {**seen, "free_bytes": 1 << 39}}},
        }
        rates = {"machine": "n1", "write_mbps": 90.0, "read_mbps": 110.0, "files_per_second": 700.0}
        verdict = {
            "generated_at": "2026-11-19T08:00:00Z",
            "cluster": {"id": record["id"]},
            "volumes": [{"name": "data", "mount_point": "/data", "members": [rates]}],
        }
        (cluster,) = build_overview({"n1": respond_with(record)}, AT, states, verdict)
        data, lustre = (volume["state"] for volume in cluster["volumes"])
        assert (data["mounted_on"], data["free_bytes"], data["measured_at"]) == (
            ["n1", "n2"],
            1 << 39,
            "2026-11-19T08:00:00Z",
        )
        assert (lustre["mounted_on"], lustre["free_bytes"], lustre["measured_at"]) == ([], None, None)
        text = render_overview([cluster], {}, width=0)
        for words in ("n1:/srv/data", "external", "512 GiB", "4 TiB", "n1, n2", "110", "check of 2026-11-19T08:00:00Z"):
            assert words in text
        # A record of another cluster with the same name proves nothing about this one.
        verdict["cluster"] = {"id": "other"}
        (cluster,) = build_overview({"n1": respond_with(record)}, AT, states, verdict)
        assert cluster["volumes"][0]["state"]["measured_at"] is None

    def test_unmeasured_speeds_are_not_mentioned(self) -> None:
        record = plan.commit(
            plan.set_storage(NEW, [{"name": "lustre", "mount_point": "/lustre"}]), plan.ChangeStamp(AT, "alice")
        )
        unmeasured = {"machine": "n1", "write_mbps": None, "read_mbps": None, "files_per_second": None}
        verdict = {
            "generated_at": "2026-11-19T08:00:00Z",
            "cluster": {"id": record["id"]},
            "volumes": [{"name": "lustre", "mount_point": "/lustre", "members": [unmeasured]}],
        }
        assert "Speeds" not in render_overview(build_overview({"n1": respond_with(record)}, AT, {}, verdict), {})

    def test_uncompared_cluster_shows_no_unverified_state(self) -> None:
        record = plan.commit(
            plan.set_storage(NEW, [{"name": "lustre", "mount_point": "/lustre"}]), plan.ChangeStamp(AT, "alice")
        )
        clusters = build_overview({"n1": respond_with(record)}, AT)
        assert "│ none" in render_overview(clusters, {}, compared_cluster="lab")
        text = render_overview(clusters, {}, compared_cluster="lap")
        assert "mounted on" not in text
        assert "since cluster_name is 'lap'. Set cluster_name=lab" in text

    def test_common_layers_are_listed_once(self) -> None:
        host_state = {"munge_key": "ab", "layers": ["storage", "names", "munge", "slurm"], "drift": {}}
        states: dict[str, Any] = {name: {"host": host_state} for name in ("n1", "n2", "n3")}
        text = render_overview(build_overview({"n1": respond_with(NEW)}, AT, states), {}, width=80)
        assert "Layers of every member: names, storage, munge, slurm\n" in text
        assert "Interface of every member: " in text
        assert "layers │" not in text and "interface │" not in text
        states["n3"] = {"host": {**host_state, "drift": {"slurm": "not set up", "names": "/etc/hosts differs"}}}
        states["n2"] = {"host": {**host_state, "userspace_only": True}}
        (cluster,) = build_overview({"n1": respond_with(NEW)}, AT, states)
        layers = ["names", "storage", "munge", "slurm"]
        assert [member["layers"] for member in cluster["members"]] == [layers, layers[:1], layers[:3]]
        text = render_overview([cluster], {}, width=80)
        assert "Layers of every member: names\n" in text
        assert "│ other " in text and "│ storage, " in text
        for member in cluster["members"]:
            member["layers"] = member["layers"][1:]
        text = render_overview([cluster], {}, width=80)
        assert "Layers of" not in text
        assert "│ layers" in text
        cluster["members"][1]["interface"] = "eth7"
        text = render_overview([cluster], {}, width=80)
        assert "Interface of" not in text and "│ eth7" in text

    def test_members_without_jobs_are_no_nodes(self) -> None:
        clusters = build_overview({"n1": respond_with(NEW)}, AT)
        assert "│ jobs" not in render_overview(clusters, {})
        members = [{**NEW["members"][0], "slurm_node": False}, *NEW["members"][1:]]
        (cluster,) = build_overview({"n1": respond_with({**NEW, "members": members})}, AT)
        assert (cluster["nodes"], cluster["machines"]) == (2, ["n1", "n2", "n3"])
        assert [member["slurm_node"] for member in cluster["members"]] == [False, True, True]
        text = render_overview([cluster], {})
        heading, *rows = ([cell.strip() for cell in line.split("│")] for line in text.splitlines() if "│ " in line)
        assert [row[heading.index("jobs")] for row in rows] == ["no", "yes", "yes"]

    def test_no_line_is_wider_than_the_terminal(self) -> None:
        clusters = build_overview({"n1": respond_with(NEW)}, AT)
        clusters[0]["problems"] = ["A problem in many words. " * 8]
        text = render_overview(clusters, {"n7": "no route to host " * 8}, width=80, compared_cluster="lap")
        assert max(map(len, text.splitlines())) <= 80
        assert "3 nodes, 4 GPUs, manager n1 (10.99.0.1)" in " ".join(text.split())

    def test_page_lists_unreachable_hosts(self) -> None:
        clusters = build_overview({"n1": respond_with(NEW)}, AT)
        text = render_overview(clusters, {"n7": "no route to host"})
        assert text.startswith("Cluster lab: subnet 10.0.0.0/24, 3 nodes, 4 GPUs, manager n1 (10.99.0.1)")
        assert "! n7 does not answer: no route to host" in text
        assert render_overview([], {}) == "No host of this run has a cluster record."


@pytest.mark.parametrize(
    ("noted", "shown", "remarks"),
    [
        (VERSION, f"by gpumesh.cluster {VERSION}", 0),
        ("0.9.0", "by gpumesh.cluster 0.9.0", 0),
        ("99.0.0", "by gpumesh.cluster 99.0.0", 1),
        (None, "by an earlier version", 0),
    ],
)
def test_show_names_the_version_that_changed_the_record_last(noted: str | None, shown: str, remarks: int) -> None:
    (cluster,) = build_overview(
        {"n1": respond_with({**OLD, "collection_version": noted}), "n2": NOTHING, "n3": NOTHING}, AT
    )
    assert cluster["collection_version"] == noted
    assert render_overview([cluster], {}, width=0).splitlines()[0].endswith(f"generation 1 of {AT}, {shown}")
    assert len([one for one in cluster["problems"] if "newer than this version" in one]) == remarks


def test_show_tells_how_much_of_the_history_is_folded() -> None:
    record = OLD
    for gpus in range(60):
        record = next_generation(record, gpus=gpus)
    (cluster,) = build_overview({"n1": respond_with(record)}, AT)
    assert cluster["folded"]["count"] == record["generation"] - 50 - 1
    said = f"History: {cluster['folded']['count']} of {record['generation']} changes are summarized, from {AT} to {AT}"
    assert said in render_overview([cluster], {}, width=0)
    (cluster,) = build_overview({"n1": respond_with(OLD)}, AT)
    assert cluster["folded"] is None and "History" not in render_overview([cluster], {}, width=0)


def test_show_tells_which_keys_of_the_tailnet_expire_soon() -> None:
    states = {
        "n1": {"mesh": {"key_expiry": "2026-12-01T00:00:00Z"}},
        "n2": {"mesh": {"key_expiry": "2027-05-01T08:00:00Z"}},
        "n3": {"mesh": {"key_expiry": ""}},
    }
    (cluster,) = build_overview({"n1": respond_with(OLD)}, AT, states)
    ends = [member["key_expiry"] for member in cluster["members"]]
    assert ends == ["2026-12-01T00:00:00Z", "2027-05-01T08:00:00Z", None]
    text = render_overview([cluster], {}, width=0)
    assert "Keys in the tailnet: 2 of 3 expire, the first at 2026-12-01T00:00:00Z" in text
    assert "! The keys of n1 in the tailnet expire on 2026-12-01. Run site with a valid auth key" in text
    (cluster,) = build_overview({"n1": respond_with(OLD)}, AT, {"n1": {"mesh": {"key_expiry": "soon"}}})
    assert cluster["members"][0]["key_expiry"] is None and "tailnet" not in render_overview([cluster], {}, width=0)


@pytest.mark.skipif(certificates.OPENSSL_MISSING, reason="not checked: there is no openssl")
def test_show_tells_when_the_certificate_of_the_tracking_server_expires(tmp_path: Path) -> None:
    pem = certificates.create_self_signed(tmp_path, "n1")[0].read_text()
    end = expiry.format_time(expiry_time(pem))
    tracking = {"server": "n1", "port": 5000, "volume": "data", "tls": True, "certificates": [pem]}
    volume = {"name": "data", "mount_point": "/data"}
    record: Any = {**OLD, "storage": {"volumes": [volume]}, "tracking": tracking}
    at = expiry.format_time(expiry_time(pem) - 24 * 3600)
    (cluster,) = build_overview({"n1": respond_with(record)}, at)
    assert cluster["certificates"] == [end]
    text = render_overview([cluster], {}, width=0)
    assert f"Certificates of the tracking server: valid until {end}" in text
    assert f"! The certificate of the tracking server expires at {end}: run the playbook tracking" in text
    record["tracking"] = {**tracking, "certificates": [pem, pem]}
    assert "! The certificate" not in render_overview(build_overview({"n1": respond_with(record)}, at), {})

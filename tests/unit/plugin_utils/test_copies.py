# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which copy of the record is used, whoever of its holders answers; where a removal is written; what show reports."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils.own_certificate import end_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.version import VERSION
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import read_answers, sent
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import find, outside_holders, reach
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.overview import overview, page
from ansible_collections.gpumesh.cluster.tests.support import certificates, decisions
from ansible_collections.gpumesh.cluster.tests.support.told_records import telling

AT = "2026-11-20T20:31:00Z"
SILENT = {"unreachable": True, "msg": "Task failed: no route to host"}
NOTHING: dict[str, Any] = {"clusters": [], "damaged": []}


def made(members: int = 3, manager: str = "n1", identity: str = "0" * 32) -> model.Record:
    entries = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in range(1, members + 1)]
    stamp = plan.Stamp(AT, "alice")
    return plan.commit(plan.create(identity, "lab", "10.0.0.0/24", manager, {}, entries, stamp), stamp)


def later(record: model.Record, by: str = "alice", **change: Any) -> model.Record:
    stamp = plan.Stamp(AT, by)
    if "manager" in change:
        return plan.commit(plan.hand_over(record, change["manager"]), stamp)
    return plan.commit(plan.join(record, [{"machine": "n2", "gpus": change["gpus"]}], stamp), stamp)


def holding(record: model.Record) -> dict[str, Any]:
    return {"clusters": [record], "damaged": []}


#: The inventory's variables of each machine.
HOSTS: dict[str, dict[str, str]] = {f"n{n}": {"ansible_host": f"198.51.100.{n}"} for n in range(1, 10)}


def find_cluster(answers: dict[str, Any], name: str, **said: Any) -> dict[str, Any]:
    found = decisions.find_cluster(answers, name, machines=list(HOSTS), variables=HOSTS, **said)
    # It is the same if each host reports the digest of its record, and each record was sent once.
    records = sent(answers.values(), {})
    assert found == decisions.find_cluster(
        telling(answers), name, machines=list(HOSTS), variables=HOSTS, records=records, **said
    )
    return found


def damaged(last_good: str | None = None) -> dict[str, Any]:
    path = "/var/lib/gpumesh/clusters/lab.json"
    return {"clusters": [], "damaged": [{"path": path, "reason": "it is empty", "last_good": last_good}]}


OLD = made()
NEW = later(OLD, gpus=4)
MOVED = later(NEW, manager="n2")
#: Another cluster with the same name.
LATER = made(members=2, identity="1" * 32)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"n1": SILENT, "n2": holding(NEW), "n3": holding(NEW), "n9": NOTHING}, ("n2", ["n2", "n3"], ["n1"], ["n1"])),
        ({"n1": holding(NEW), "n3": holding(NEW)}, ("n1", ["n1", "n3"], ["n2"], [])),
    ],
)
def test_which_members_can_be_worked_on(answers: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = find(read_answers(answers), "lab")
    assert found is not None
    answering = [machine for machine, answer in answers.items() if answer is not SILENT]
    result = reach(found, answering, answers)
    assert result.pop("machines") == ["n1", "n2", "n3"]
    assert tuple(result.values()) == expected


class TestFind:
    def test_nobody_has_one(self) -> None:
        found = find_cluster({"n1": NOTHING, "n2": SILENT}, "lab")
        assert (found["refusal"], found["record"]) == ("", None)

    def test_the_managers_is_gone_by_and_old_copies_are_named(self) -> None:
        found = find_cluster({"n1": holding(NEW), "n2": holding(OLD), "n3": NOTHING}, "lab")
        assert (found["source"], found["record"]["generation"]) == ("n1", 2)
        assert found["remarks"] == ["n2 has an outdated copy of the record: generation 1 of 2."]
        assert found["standing"]["n2"]["kind"] == "behind"

    @pytest.mark.parametrize("third", [NEW, MOVED])
    def test_a_hand_over_that_was_cut_off_before_the_new_manager_knew_goes_on(self, third: model.Record) -> None:
        """The former manager, which its successor still takes for the manager, says so itself."""
        answers = {"n1": holding(MOVED), "n2": holding(NEW), "n3": holding(third)}
        found = find_cluster(answers, "lab")
        assert (found["refusal"], found["record"], found["source"]) == ("", MOVED, "n1")
        # The tasks that are delegated to n2 read its copy.
        assert found["replaced"] == ["n2"]

    def test_nobody_else_makes_a_member_the_manager(self) -> None:
        answers = {"n1": holding(NEW), "n2": holding(NEW), "n3": holding(MOVED)}
        assert "contradict" in find_cluster(answers, "lab")["refusal"]

    def test_with_the_manager_away_the_newest_copy_that_two_have_is_gone_by_and_it_says_so(self) -> None:
        found = find_cluster({"n1": SILENT, "n2": holding(NEW), "n3": holding(NEW), "n4": holding(OLD)}, "lab")
        assert (found["source"], found["record"]) == ("n2", NEW)
        assert found["remarks"][0] == ("The manager n1 does not answer (no route to host): using generation 2 of n2.")

    def test_a_hand_over_that_the_former_manager_confirms_is_believed_by_those_who_slept_through_it(self) -> None:
        found = find_cluster({"n1": holding(MOVED), "n2": holding(MOVED), "n3": holding(NEW)}, "lab")
        assert (found["source"], found["record"]["manager"]) == ("n2", "n2")
        twice = later(MOVED, manager="n3")
        answers = {"n1": holding(MOVED), "n2": holding(twice), "n3": holding(twice), "n4": holding(OLD)}
        assert find_cluster(answers, "lab")["source"] == "n3"

    def test_the_successor_of_a_lost_manager_is_believed_where_the_user_says_so(self) -> None:
        found = find_cluster({"n1": holding(NEW), "n2": holding(MOVED)}, "lab", successor="n2")
        assert (found["source"], found["record"]["manager"]) == ("n2", "n2")
        assert found["remarks"][0].endswith("It is no longer the manager; that is n2.")

    @pytest.mark.parametrize(
        ("answers", "said"),
        [
            ({"n1": holding(OLD), "n2": holding(NEW)}, "n2: generation 2, while 1 was expected"),
            ({"n1": holding(NEW), "n2": holding(made(identity="1" * 32))}, "n2: it is another cluster with the name"),
            (
                {"n1": holding(later(NEW, by="bob", gpus=8)), "n2": holding(MOVED)},
                "both have a generation 3",
            ),
            (
                {"n1": NOTHING, "n2": holding(NEW)},
                "n1 manages cluster 'lab' according to the copy of n2 (generation 2), but has",
            ),
            ({"n1": damaged(), "n2": holding(NEW)}, "is invalid: it is empty (last good copy: none)"),
            ({"n1": damaged("/x.good")}, "last good copy: /x.good"),
            ({"n1": holding(NEW), "n2": holding(MOVED)}, "n1 does not confirm that n2 follows it"),
            ({"n1": SILENT, "n2": holding(NEW), "n3": holding(OLD)}, "only n2 has generation 2 of the record"),
        ],
    )
    def test_what_cannot_be_brought_into_one_line_is_refused(self, answers: dict[str, Any], said: str) -> None:
        assert said in find_cluster(answers, "lab")["refusal"]

    def test_the_copy_that_the_user_trusts_counts_and_says_which_ones_give_way(self) -> None:
        found = find_cluster({"n1": holding(OLD), "n2": holding(NEW), "n3": SILENT}, "lab", trusted="n2")
        assert (found["refusal"], found["source"], found["record"], found["replaced"]) == ("", "n2", NEW, ["n1"])
        assert found["remarks"] == ["The copy of n1 is replaced with that of n2: generation 1 of 2."]

    @pytest.mark.parametrize("first", [NOTHING, damaged()])
    def test_a_manager_without_a_copy_gets_the_trusted_one(self, first: dict[str, Any]) -> None:
        found = find_cluster({"n1": first, "n2": holding(NEW), "n3": NOTHING}, "lab", trusted="n2")
        assert (found["record"], found["replaced"]) == (NEW, ["n1"])

    def test_an_older_copy_is_trusted_only_with_its_generation(self) -> None:
        answers = {"n1": holding(OLD), "n2": holding(NEW)}
        assert "there are newer ones: n2 has 2" in find_cluster(answers, "lab", trusted="n1")["refusal"]
        assert "newer ones" in find_cluster(answers, "lab", trusted="n1", generation=2)["refusal"]
        assert find_cluster(answers, "lab", trusted="n1", generation=1)["replaced"] == ["n2"]

    @pytest.mark.parametrize("first", [holding(LATER), SILENT, damaged()])
    def test_a_copy_of_a_deleted_cluster_does_not_replace_the_one_that_followed_it(self, first: dict[str, Any]) -> None:
        """n3 was down while the cluster was deleted by force, and created again without it."""
        answers = {"n1": first, "n2": holding(LATER), "n3": holding(OLD)}
        refusal = find_cluster(answers, "lab", trusted="n3")["refusal"]
        assert "n2 is in another cluster with that name" in refusal or "n1, n2 are in another" in refusal
        assert "cluster_trusted_copy=n1" in refusal
        assert "n2" in find_cluster(answers, "lab", trusted="n3", generation=1)["replaced"]

    def test_the_loss_of_the_other_cluster_is_named_before_that_of_a_newer_copy(self) -> None:
        """The same option accepts both."""
        answers = {"n1": holding(LATER), "n2": holding(LATER), "n3": holding(OLD), "n4": holding(NEW)}
        refusal = find_cluster(answers, "lab", trusted="n3")["refusal"]
        assert "n1, n2 are in another cluster with that name" in refusal

    def test_what_is_left_of_a_deleted_cluster_gives_way(self) -> None:
        answers = {"n1": holding(LATER), "n2": holding(OLD)}
        assert find_cluster(answers, "lab", trusted="n1")["replaced"] == ["n2"]

    @pytest.mark.parametrize(
        ("trusted", "said"), [("n9", "it is not in this run"), ("n2", "no route"), ("n3", "it has no usable copy")]
    )
    def test_a_trusted_copy_has_to_be_there(self, trusted: str, said: str) -> None:
        answers = {"n1": holding(OLD), "n2": SILENT, "n3": NOTHING}
        assert said in find_cluster(answers, "lab", trusted=trusted)["refusal"]

    def test_a_damaged_copy_of_a_member_is_named_and_stops_nobody(self) -> None:
        found = find_cluster({"n1": holding(NEW), "n2": damaged()}, "lab")
        assert found["record"] == NEW
        assert found["remarks"] == [
            "n2: the record /var/lib/gpumesh/clusters/lab.json is invalid: it is empty (last good copy: none)."
        ]


class TestWitnesses:
    def test_all_in_the_play(self) -> None:
        assert outside_holders(read_answers({f"n{n}": holding(NEW) for n in (1, 2, 3)}), "lab", "n1") == []

    def test_a_limited_run_asks_the_manager_and_two_more(self) -> None:
        many = made(members=9)
        assert outside_holders(read_answers({"n5": holding(many)}), "lab", "n5") == ["n1", "n2", "n3"]
        assert outside_holders(read_answers({"n5": holding(many)}), "lab", "n8") == ["n1", "n2", "n3", "n8"]

    def test_a_manager_alone_asks_two_members_whether_it_still_is_one(self) -> None:
        many = made(members=9)
        assert outside_holders(read_answers({"n1": holding(many)}), "lab", "n1") == ["n2", "n3"]

    def test_a_new_machine_asks_the_manager_of_the_inventory(self) -> None:
        assert outside_holders(read_answers({"n7": NOTHING}), "lab", "n1") == ["n1"]


def removal(answers: dict[str, Any], leaving: list[str], **more: Any) -> dict[str, Any]:
    lost_to = more.get("new_manager", "") if more.get("manager_lost") else ""
    found = find_cluster(answers, "lab", successor=lost_to)
    assert found["refusal"] == ""
    more = {"known": ["n1", "n2", "n3", "n9"], "record": found["record"], **more}
    decided = decisions.plan_removal(answers, "lab", leaving, **more)
    assert decided == decisions.plan_removal(
        telling(answers), "lab", leaving, records=sent(answers.values(), {}), **more
    )
    return decided


class TestRemoval:
    ALL = {f"n{n}": holding(NEW) for n in (1, 2, 3)}

    def test_the_manager_writes_it(self) -> None:
        assert removal(self.ALL, ["n2"]) == {"refusal": "", "authority": "n1", "former_manager": ""}
        decided = removal(self.ALL, ["n1"], new_manager="n2")
        assert decided == {"refusal": "", "authority": "n1", "former_manager": "n1"}

    def test_a_removal_that_was_cut_off_can_be_run_again(self) -> None:
        gone = holding(plan.remove(made(), ["n3"], plan.Stamp(AT, "alice")).record)
        assert removal({**self.ALL, "n1": gone, "n2": gone, "n3": SILENT}, ["n3"])["refusal"] == ""

    def test_a_machine_that_keeps_a_copy_was_a_member(self) -> None:
        assert removal({**self.ALL, "n9": holding(OLD)}, ["n9"])["refusal"] == ""

    @pytest.mark.parametrize("answer", [NOTHING, SILENT, holding(made(4, identity="1" * 32))])
    def test_a_machine_that_never_was_a_member_is_not_cleaned_up(self, answer: dict[str, Any]) -> None:
        if answer.get("clusters"):
            answer["clusters"][0]["name"] = "other"
        refused = removal({**self.ALL, "n9": answer}, ["n9"])["refusal"]
        assert "n9 is not among the members of cluster 'lab', and was not removed from it" in refused

    def test_a_hand_over_that_was_cut_off_goes_on_from_who_was_the_manager(self) -> None:
        """n1 was the manager; n2, which leaves too and is named first, was not."""
        stamp = plan.Stamp(AT, "alice")
        handed = plan.commit(plan.remove(NEW, ["n1", "n2"], stamp, "n3"), stamp)
        answers = {"n1": NOTHING, "n2": NOTHING, "n3": holding(handed)}
        assert removal(answers, ["n2", "n1"], new_manager="n3")["former_manager"] == "n1"
        # Without a change of the manager, there is no hand-over.
        assert removal(answers, ["n2"])["former_manager"] == ""
        # Tasks are not delegated to a name that is not in the inventory.
        handed["history"][-1]["detail"] = "the manager is n3, it was localhost; machine n1 left"
        answers["n3"] = holding(handed)
        assert removal(answers, ["n1"], new_manager="n3") == {"refusal": "", "authority": "n3", "former_manager": ""}

    def test_a_lost_manager_is_followed_from_a_copy(self) -> None:
        answers = {**self.ALL, "n1": SILENT}
        decided = removal(answers, ["n1"], new_manager="n3", manager_lost=True)
        assert decided == {"refusal": "", "authority": "n3", "former_manager": ""}

    def test_the_removal_of_a_lost_manager_can_be_run_again(self) -> None:
        """n9 was the manager, n1 has followed it, and the command is the same."""
        answers = {**self.ALL, "n9": holding(OLD)}
        decided = removal(answers, ["n9"], new_manager="n1", manager_lost=True)
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
                {**ALL, "n1": SILENT, "n3": holding(OLD)},
                ["n1"],
                {"new_manager": "n3", "manager_lost": True},
                "n3 has generation 1 of the record, but another member has the newer generation 2",
            ),
        ],
    )
    def test_what_is_refused(
        self, answers: dict[str, Any], leaving: list[str], more: dict[str, Any], said: str
    ) -> None:
        assert said in removal(answers, leaving, **more)["refusal"]

    @pytest.mark.parametrize(
        ("playing", "said"),
        [
            (["n1", "n3"], "n2 takes over the cluster, but is not in this run"),
            (["n2", "n3"], "n1 hands over the cluster, but is not in this run"),
        ],
    )
    def test_a_hand_over_needs_both(self, playing: list[str], said: str) -> None:
        refused = removal(self.ALL, ["n1"], new_manager="n2", playing=playing)["refusal"]
        assert said in refused
        # Other machines may leave without them.
        assert removal(self.ALL, ["n3"], playing=playing)["refusal"] == ""


class TestOverview:
    def test_every_member_with_the_state_of_its_copy(self) -> None:
        answers = {"n1": holding(NEW), "n2": holding(OLD), "n3": SILENT, "n9": holding(OLD)}
        (cluster,) = overview(answers, AT)
        assert overview(telling(answers), AT, records=sent(answers.values(), {})) == [cluster]
        assert (cluster["generation"], cluster["nodes"], cluster["gpus"]) == (2, 3, 4)
        assert (cluster["manager"], cluster["manager_address"]) == ("n1", "10.99.0.1")
        assert [member["copy"] for member in cluster["members"]] == [
            "current",
            "behind: generation 1 of 2",
            "no answer",
        ]
        assert [member["last_seen"] for member in cluster["members"]] == [AT, AT, None]
        assert any("n9 has a copy of the record but is not a member" in problem for problem in cluster["problems"])

    def test_contradictions_are_shown_and_do_not_hide_the_cluster(self) -> None:
        (cluster,) = overview({"n1": holding(OLD), "n2": holding(NEW)}, AT)
        assert cluster["generation"] == 1
        assert "contradict" in cluster["problems"][0]

    @pytest.mark.parametrize("answers", [{"n1": damaged(), "n2": holding(NEW)}, {"n1": NOTHING, "n2": holding(NEW)}])
    def test_a_cluster_without_the_managers_copy_is_shown_all_the_same(self, answers: dict[str, Any]) -> None:
        (cluster,) = overview(answers, AT)
        assert cluster["generation"] == 2
        assert "n1" in cluster["problems"][0]

    def test_drift_of_the_mesh_in_words(self) -> None:
        keyed = copy.deepcopy(NEW)
        for number, member in enumerate(keyed["members"]):
            assert member["mesh"] is not None
            member["mesh"]["public_key"] = "ABCDEFGHIJ"[number] * 42 + "A="
        states = {
            f"n{number}": {
                "mesh": {
                    "public_key": member["mesh"]["public_key"],
                    "interface_up": number != 2,
                    "peers": {"added": ["n2"], "removed": [], "updated": ["n3"]} if number == 1 else {},
                }
            }
            for number, member in enumerate(keyed["members"], start=1)
            if member["mesh"] is not None
        }
        states["n3"]["mesh"]["public_key"] = "Z" * 42 + "Q="
        states["n2"]["mesh"]["peers"] = {"added": [], "removed": [], "updated": []}
        (cluster,) = overview({"n1": holding(keyed)}, AT, states)
        assert [member["drift"] for member in cluster["members"]] == [
            {"mesh": "would add n2, update n3"},
            {"mesh": "gpumesh0 is down"},
            {"mesh": "its key is not the one in the record"},
        ]
        assert "would add n2" in page([cluster], {}, width=0)

    def test_volumes_with_their_room_their_mounts_and_what_the_last_check_measured(self) -> None:
        declared = [
            {"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/data"},
            {"name": "lustre", "mount_point": "/lustre"},
        ]
        record = plan.commit(plan.set_storage(NEW, declared), plan.Stamp(AT, "alice"))
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
        (cluster,) = overview({"n1": holding(record)}, AT, states, verdict)
        data, lustre = (volume["state"] for volume in cluster["volumes"])
        assert (data["mounted_on"], data["free_bytes"], data["measured_at"]) == (
            ["n1", "n2"],
            1 << 39,
            "2026-11-19T08:00:00Z",
        )
        assert (lustre["mounted_on"], lustre["free_bytes"], lustre["measured_at"]) == ([], None, None)
        text = page([cluster], {}, width=0)
        for words in ("n1:/srv/data", "external", "512 GiB", "4 TiB", "n1, n2", "110", "check of 2026-11-19T08:00:00Z"):
            assert words in text
        # A record of another cluster with the same name proves nothing about this one.
        verdict["cluster"] = {"id": "other"}
        (cluster,) = overview({"n1": holding(record)}, AT, states, verdict)
        assert cluster["volumes"][0]["state"]["measured_at"] is None

    def test_no_speeds_are_announced_that_the_last_check_did_not_measure(self) -> None:
        record = plan.commit(
            plan.set_storage(NEW, [{"name": "lustre", "mount_point": "/lustre"}]), plan.Stamp(AT, "alice")
        )
        unmeasured = {"machine": "n1", "write_mbps": None, "read_mbps": None, "files_per_second": None}
        verdict = {
            "generated_at": "2026-11-19T08:00:00Z",
            "cluster": {"id": record["id"]},
            "volumes": [{"name": "lustre", "mount_point": "/lustre", "members": [unmeasured]}],
        }
        assert "Speeds" not in page(overview({"n1": holding(record)}, AT, {}, verdict), {})

    def test_of_a_cluster_with_another_name_nothing_is_said_that_nobody_looked_at(self) -> None:
        record = plan.commit(
            plan.set_storage(NEW, [{"name": "lustre", "mount_point": "/lustre"}]), plan.Stamp(AT, "alice")
        )
        clusters = overview({"n1": holding(record)}, AT)
        assert "│ none" in page(clusters, {}, name="lab")
        text = page(clusters, {}, name="lap")
        assert "mounted on" not in text
        assert "since cluster_name is 'lap'. Set cluster_name=lab" in text

    def test_layers_that_all_members_have_are_said_once(self) -> None:
        record = plan.commit(
            plan.set_storage(NEW, [{"name": "lustre", "mount_point": "/lustre"}]), plan.Stamp(AT, "alice")
        )
        states: dict[str, Any] = {name: {"host": {"munge_key": "ab"}} for name in ("n1", "n2", "n3")}
        text = page(overview({"n1": holding(record)}, AT, states), {}, width=80)
        assert "Layers of every member: storage, munge\n" in text
        assert "│ layers" not in text
        del states["n3"]
        text = page(overview({"n1": holding(record)}, AT, states), {}, width=80)
        assert "Layers of" not in text
        assert "│ layers" in text

    def test_the_page_names_who_is_silent(self) -> None:
        clusters = overview({"n1": holding(NEW)}, AT)
        text = page(clusters, {"n7": "no route to host"})
        assert text.startswith("Cluster lab: subnet 10.0.0.0/24, 3 nodes, 4 GPUs, manager n1 (10.99.0.1)")
        assert "! n7 does not answer: no route to host" in text
        assert page([], {}) == "No host of this run has a cluster record."


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
    (cluster,) = overview({"n1": holding({**OLD, "collection_version": noted}), "n2": NOTHING, "n3": NOTHING}, AT)
    assert cluster["collection_version"] == noted
    assert page([cluster], {}, width=0).splitlines()[0].endswith(f"generation 1 of {AT}, {shown}")
    assert len([one for one in cluster["problems"] if "newer than this version" in one]) == remarks


def test_show_tells_how_much_of_the_history_is_folded() -> None:
    record = OLD
    for gpus in range(60):
        record = later(record, gpus=gpus)
    (cluster,) = overview({"n1": holding(record)}, AT)
    assert cluster["folded"]["count"] == record["generation"] - 50 - 1
    said = f"History: {cluster['folded']['count']} of {record['generation']} changes are folded, from {AT} to {AT}"
    assert said in page([cluster], {}, width=0)
    (cluster,) = overview({"n1": holding(OLD)}, AT)
    assert cluster["folded"] is None and "History" not in page([cluster], {}, width=0)


def test_show_tells_which_keys_of_the_tailnet_expire_soon() -> None:
    states = {
        "n1": {"mesh": {"key_expiry": "2026-12-01T00:00:00Z"}},
        "n2": {"mesh": {"key_expiry": "2027-05-01T08:00:00Z"}},
        "n3": {"mesh": {"key_expiry": ""}},
    }
    (cluster,) = overview({"n1": holding(OLD)}, AT, states)
    ends = [member["key_expiry"] for member in cluster["members"]]
    assert ends == ["2026-12-01T00:00:00Z", "2027-05-01T08:00:00Z", None]
    text = page([cluster], {}, width=0)
    assert "Keys in the tailnet: 2 of 3 expire, the first at 2026-12-01T00:00:00Z" in text
    assert "! The keys of n1 in the tailnet end on 2026-12-01. Run site with a valid auth key" in text
    (cluster,) = overview({"n1": holding(OLD)}, AT, {"n1": {"mesh": {"key_expiry": "soon"}}})
    assert cluster["members"][0]["key_expiry"] is None and "tailnet" not in page([cluster], {}, width=0)


@pytest.mark.skipif(certificates.MISSING, reason="not checked: there is no openssl")
def test_show_tells_when_the_certificate_of_the_tracking_server_expires(tmp_path: Path) -> None:
    pem = certificates.self_signed(tmp_path, "n1")[0].read_text()
    end = expiry.shown(end_of(pem))
    tracking = {"server": "n1", "port": 5000, "volume": "data", "tls": True, "certificates": [pem]}
    volume = {"name": "data", "mount_point": "/data"}
    record: Any = {**OLD, "storage": {"volumes": [volume]}, "tracking": tracking}
    at = expiry.shown(end_of(pem) - 24 * 3600)
    (cluster,) = overview({"n1": holding(record)}, at)
    assert cluster["certificates"] == [end]
    text = page([cluster], {}, width=0)
    assert f"Certificates of the tracking server: valid until {end}" in text
    assert f"! The certificate of the tracking server expires at {end}: run the playbook tracking" in text
    record["tracking"] = {**tracking, "certificates": [pem, pem]}
    assert "! The certificate" not in page(overview({"n1": holding(record)}, at), {})

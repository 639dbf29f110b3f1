# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A history that is folded: what a long one costs, what is kept of it, and how copies are compared."""

from __future__ import annotations

import copy
import datetime
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply, derive, history, model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store, format_record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.tracking import was_enabled

MEMBERS = [{"machine": f"n{n}", "address": f"10.77.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
LONG = 10_000


def timestamp_of(generation: int) -> str:
    begin = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    return (begin + datetime.timedelta(minutes=generation)).strftime("%Y-%m-%dT%H:%M:%SZ")


def change_stamp(generation: int, by: str = "alice") -> plan.ChangeStamp:
    return plan.ChangeStamp(timestamp_of(generation), by)


def create_record() -> model.Record:
    return plan.commit(
        plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {}, MEMBERS, change_stamp(1)), change_stamp(1)
    )


def grow_history(record: model.Record, until: int, by: str = "alice") -> model.Record:
    """As many joins and removals of n9 as it takes, the way an elastic cluster has them."""
    while record["generation"] < until:
        machines = [member["machine"] for member in record["members"]]
        when = change_stamp(record["generation"] + 1, by)
        if "n9" in machines:
            record = plan.commit(plan.remove(record, ["n9"], when), when)
        else:
            member = {"machine": "n9", "address": "10.77.0.9", "interface": "eth0"}
            record = plan.commit(plan.join(record, [member], when), when)
    return record


def build_unfolded(generations: int) -> model.Record:
    """The record that an earlier version has written, with the whole history."""
    record = create_record()
    text = {"by": "alice", "change": "join", "detail": "machine n9 joined"}
    record["history"] += [{"generation": n, "at": timestamp_of(n), **text} for n in range(2, generations + 1)]
    return model.parse({**record, "generation": generations})


@functools.cache
def at_generation(generation: int) -> model.Record:
    return grow_history(at_generation(generation - 40) if generation > 100 else create_record(), generation)


def hand_over_to(record: model.Record, manager: str, by: str = "alice") -> model.Record:
    when = change_stamp(record["generation"] + 1, by)
    return plan.commit(plan.hand_over(record, manager), when)


def test_record_size_is_bounded_after_ten_thousand_changes() -> None:
    hundred = format_record(build_unfolded(100))
    old = build_unfolded(LONG)
    assert len(format_record(old)) > 50 * len(hundred)
    new = hand_over_to(old, "n2")
    assert len(format_record(new)) < len(hundred)
    # What parsing costs is the number of entries, whatever the machine.
    assert len(new["history"]) < 100
    assert model.parse(json.loads(format_record(new))) == new
    assert new["generation"] == LONG + 1
    assert "folded" not in old, "a change must not change what it was given"


def test_incremental_folding_gives_the_same_record() -> None:
    record = at_generation(300)
    assert [entry["generation"] for entry in record["history"]] == [1, *range(300 - history.UNFOLDED_ENTRIES + 1, 301)]
    folded = record["folded"]
    assert (folded["through"], folded["count"]) == (250, 249)
    assert (folded["first"], folded["last"]) == (timestamp_of(2), timestamp_of(250))
    assert model.parse(copy.deepcopy(record)) == record


def test_short_history_is_not_folded() -> None:
    record = at_generation(history.UNFOLDED_ENTRIES + 1)
    assert "folded" not in record and len(record["history"]) == history.UNFOLDED_ENTRIES + 1


def test_next_change_folds_an_old_record_on_disk(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "clusters"), "lab")
    with store.locked("alice"):
        store.write(build_unfolded(500))
    assert len(store.read()["history"]) == 500  # type: ignore[index]
    apply.members_absent(store, ["n3"], None, False, False, "alice", False)
    record = store.read()
    assert record is not None
    assert (record["generation"], record["folded"]["count"]) == (501, 450)


def test_landmark_entries_are_kept() -> None:
    record = hand_over_to(at_generation(60), "n2")
    enabled = {"volumes": [{"name": "data", "server": "n1", "path": "/srv", "mount_point": "/data"}]}
    record = plan.commit(plan.set_storage(record, enabled["volumes"]), change_stamp(62))
    for generation, on in ((63, True), (64, False)):
        record = plan.commit(plan.set_tracking(record, {"enabled": on}), change_stamp(generation))
    record = hand_over_to(record, "n1")
    before = derive.manager_terms(record)
    assert [tenure.generation for tenure in before] == [1, 61, 65] and was_enabled(record)
    record = grow_history(record, 400)
    assert [entry["generation"] for entry in record["history"]][:5] == [1, 61, 64, 65, 351]
    assert derive.manager_terms(record) == before and was_enabled(record)
    assert record["history"][0]["at"] == timestamp_of(1) and record["history"][-1]["at"] == timestamp_of(400)
    assert record["folded"]["count"] == 350 - 4


class TestCopies:
    @pytest.mark.parametrize("generation", [1, 30, 200, 340, 380])
    def test_outdated_copy_is_behind_however_much_is_folded(self, generation: int) -> None:
        older = at_generation(generation) if generation > 100 else grow_history(create_record(), generation)
        newer = grow_history(older, 381)
        assert derive.compare_copies(older, newer).kind == "behind"
        assert derive.compare_copies(newer, older).kind == "ahead"

    def test_difference_in_the_folded_part_of_one_copy_is_a_divergence(self) -> None:
        base = at_generation(200)
        one, other = (
            grow_history(grow_history(base, 205, "alice"), 280),
            grow_history(grow_history(base, 205, "mallory"), 330),
        )
        assert one["folded"]["through"] > 205
        reason = derive.compare_copies(one, other)
        assert reason.kind == "diverged" and "up to generation 280, which are summarized" in reason.reason
        assert derive.compare_copies(other, one).kind == "diverged"

    def test_manager_unaware_of_its_successor_has_diverged(self) -> None:
        base = grow_history(create_record(), 40)
        lost, successor = grow_history(base, 45, "n1"), grow_history(hand_over_to(base, "n2"), 500)
        for one, other in ((lost, successor), (successor, lost)):
            standing = derive.compare_copies(one, other)
            assert standing.kind == "diverged" and "both have a generation 41" in standing.reason
        gone = grow_history(base, 480, "n1")
        for one, other in ((gone, successor), (successor, gone)):
            standing = derive.compare_copies(one, other)
            assert standing.kind == "diverged" and "the manager is n2, it was n1" in standing.reason

    def test_other_cluster_with_the_same_name_is_reported_with_its_creation_date(self) -> None:
        other: Any = {**at_generation(300), "id": "1" * 32}
        assert f"created {timestamp_of(1)}, while" in derive.compare_copies(other, at_generation(300)).reason


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"count": 248}, "history"),
        ({"count": 251}, "history"),
        ({"count": 10**15}, "history"),
        ({"through": 249}, "history"),
        ({"through": 10**15, "count": 10**15 - 1}, "history"),
        ({"count": 0}, "folded.count"),
        ({"through": "250"}, "folded.through"),
        ({"first": "yesterday"}, "folded.first"),
        ({"digest": "0" * 63}, "folded.digest"),
        ({"more": 1}, "folded.more"),
    ],
)
def test_history_without_a_generation_is_refused(change: dict[str, Any], where: str) -> None:
    record = at_generation(300)
    with pytest.raises(model.InvalidRecordError) as refused:
        model.parse({**record, "folded": {**record["folded"], **change}})
    assert refused.value.details["where"] == where


@pytest.mark.parametrize("generations", [[2], [300], [1, 1], [1, 260], [1, 3, 2]])
def test_kept_entries_must_be_ordered_and_older(generations: list[int]) -> None:
    record = at_generation(300)
    older = [{**record["history"][0], "generation": generation} for generation in generations]
    folded = {**record["folded"], "count": 250 - len(older)}
    with pytest.raises(model.InvalidRecordError, match="history"):
        model.parse({**record, "folded": folded, "history": [*older, *record["history"][1:]]})

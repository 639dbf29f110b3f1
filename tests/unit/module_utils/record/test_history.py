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

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import apply, derive, history, model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import Store, to_text
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tracking import was_on

MEMBERS = [{"machine": f"n{n}", "address": f"10.77.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
LONG = 10_000


def at(generation: int) -> str:
    begin = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    return (begin + datetime.timedelta(minutes=generation)).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp(generation: int, by: str = "alice") -> plan.Stamp:
    return plan.Stamp(at(generation), by)


def created() -> model.Record:
    return plan.commit(plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {}, MEMBERS, stamp(1)), stamp(1))


def gone_on(record: model.Record, until: int, by: str = "alice") -> model.Record:
    """As many joins and removals of n9 as it takes, the way an elastic cluster has them."""
    while record["generation"] < until:
        machines = [member["machine"] for member in record["members"]]
        when = stamp(record["generation"] + 1, by)
        if "n9" in machines:
            record = plan.commit(plan.remove(record, ["n9"], when), when)
        else:
            member = {"machine": "n9", "address": "10.77.0.9", "interface": "eth0"}
            record = plan.commit(plan.join(record, [member], when), when)
    return record


def unfolded(generations: int) -> model.Record:
    """The record that an earlier version has written, with the whole history."""
    record = created()
    text = {"by": "alice", "change": "join", "detail": "machine n9 joined"}
    record["history"] += [{"generation": n, "at": at(n), **text} for n in range(2, generations + 1)]
    return model.parse({**record, "generation": generations})


@functools.cache
def at_generation(generation: int) -> model.Record:
    return gone_on(at_generation(generation - 40) if generation > 100 else created(), generation)


def handed(record: model.Record, manager: str, by: str = "alice") -> model.Record:
    when = stamp(record["generation"] + 1, by)
    return plan.commit(plan.hand_over(record, manager), when)


def test_ten_thousand_changes_cost_no_more_than_a_hundred() -> None:
    hundred = to_text(unfolded(100))
    old = unfolded(LONG)
    assert len(to_text(old)) > 50 * len(hundred)
    new = handed(old, "n2")
    assert len(to_text(new)) < len(hundred)
    # What parsing costs is the number of entries, whatever the machine.
    assert len(new["history"]) < 100
    assert model.parse(json.loads(to_text(new))) == new
    assert new["generation"] == LONG + 1
    assert "folded" not in old, "a change must not change what it was given"


def test_a_record_that_grows_by_single_changes_is_folded_alike() -> None:
    record = at_generation(300)
    assert [entry["generation"] for entry in record["history"]] == [1, *range(300 - history.NEWEST + 1, 301)]
    folded = record["folded"]
    assert (folded["through"], folded["count"]) == (250, 249)
    assert (folded["first"], folded["last"]) == (at(2), at(250))
    assert model.parse(copy.deepcopy(record)) == record


def test_a_short_history_is_whole() -> None:
    record = at_generation(history.NEWEST + 1)
    assert "folded" not in record and len(record["history"]) == history.NEWEST + 1


def test_an_old_record_is_folded_on_the_disk_at_its_next_change(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "clusters"), "lab")
    with store.locked("alice"):
        store.write(unfolded(500))
    assert len(store.read()["history"]) == 500  # type: ignore[index]
    apply.members_absent(store, ["n3"], None, False, False, "alice", False)
    record = store.read()
    assert record is not None
    assert (record["generation"], record["folded"]["count"]) == (501, 450)


def test_what_is_read_from_the_history_is_kept() -> None:
    record = handed(at_generation(60), "n2")
    enabled = {"volumes": [{"name": "data", "server": "n1", "path": "/srv", "mount_point": "/data"}]}
    record = plan.commit(plan.set_storage(record, enabled["volumes"]), stamp(62))
    for generation, on in ((63, True), (64, False)):
        record = plan.commit(plan.set_tracking(record, {"enabled": on}), stamp(generation))
    record = handed(record, "n1")
    before = derive.tenures(record)
    assert [tenure.generation for tenure in before] == [1, 61, 65] and was_on(record)
    record = gone_on(record, 400)
    assert [entry["generation"] for entry in record["history"]][:5] == [1, 61, 64, 65, 351]
    assert derive.tenures(record) == before and was_on(record)
    assert record["history"][0]["at"] == at(1) and record["history"][-1]["at"] == at(400)
    assert record["folded"]["count"] == 350 - 4


class TestCopies:
    @pytest.mark.parametrize("generation", [1, 30, 200, 340, 380])
    def test_an_outdated_copy_is_behind_however_much_is_folded(self, generation: int) -> None:
        older = at_generation(generation) if generation > 100 else gone_on(created(), generation)
        newer = gone_on(older, 381)
        assert derive.relation(older, newer).kind == "behind"
        assert derive.relation(newer, older).kind == "ahead"

    def test_copies_that_differ_in_what_only_one_has_folded_have_diverged(self) -> None:
        base = at_generation(200)
        one, other = gone_on(gone_on(base, 205, "alice"), 280), gone_on(gone_on(base, 205, "mallory"), 330)
        assert one["folded"]["through"] > 205
        reason = derive.relation(one, other)
        assert reason.kind == "diverged" and "up to generation 280, which are folded" in reason.reason
        assert derive.relation(other, one).kind == "diverged"

    def test_a_manager_that_does_not_know_of_its_successor_has_diverged_however_long_ago(self) -> None:
        base = gone_on(created(), 40)
        lost, successor = gone_on(base, 45, "n1"), gone_on(handed(base, "n2"), 500)
        for one, other in ((lost, successor), (successor, lost)):
            standing = derive.relation(one, other)
            assert standing.kind == "diverged" and "both have a generation 41" in standing.reason
        gone = gone_on(base, 480, "n1")
        for one, other in ((gone, successor), (successor, gone)):
            standing = derive.relation(one, other)
            assert standing.kind == "diverged" and "the manager is n2, it was n1" in standing.reason

    def test_another_cluster_with_the_name_is_told_with_the_day_it_was_created(self) -> None:
        other: Any = {**at_generation(300), "id": "1" * 32}
        assert f"created {at(1)}, while" in derive.relation(other, at_generation(300)).reason


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
def test_a_history_that_lacks_a_generation_is_refused(change: dict[str, Any], where: str) -> None:
    record = at_generation(300)
    with pytest.raises(model.InvalidRecordError) as refused:
        model.parse({**record, "folded": {**record["folded"], **change}})
    assert refused.value.details["where"] == where


@pytest.mark.parametrize("generations", [[2], [300], [1, 1], [1, 260], [1, 3, 2]])
def test_entries_before_the_newest_are_in_order_and_older(generations: list[int]) -> None:
    record = at_generation(300)
    older = [{**record["history"][0], "generation": generation} for generation in generations]
    folded = {**record["folded"], "count": 250 - len(older)}
    with pytest.raises(model.InvalidRecordError, match="history"):
        model.parse({**record, "folded": folded, "history": [*older, *record["history"][1:]]})

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs at once: what one has read is older than what the other has written."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, InputError, RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import apply, derive
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import Store

JOINS = 20


def entry(number: int) -> dict[str, Any]:
    return {"machine": f"n{number}", "address": f"10.0.0.{number}", "interface": "eth0"}


def request(*numbers: int, joining: list[str] | None = None) -> apply.ClusterRequest:
    members = [entry(number) for number in numbers]
    return apply.ClusterRequest("10.0.0.0/24", "n1", {}, members=members, joining=joining)


def store_in(folder: Path) -> Store:
    return Store(str(folder / "clusters"), "lab")


def create(folder: Path) -> Any:
    return apply.cluster_present(store_in(folder), request(1, 2, 3, joining=["n1", "n2", "n3"]), "alice", False).after


def join(folder: str, number: int) -> str:
    """Run site as one that has read the first generation: it updates all members that it knew, and adds its own."""
    try:
        wanted = request(1, 2, 3, number, joining=[f"n{number}"])
        apply.cluster_present(store_in(Path(folder)), wanted, f"run{number}", False)
    except GpumeshError as refusal:
        return str(refusal)
    return ""


def remove(folder: str) -> str:
    apply.members_absent(store_in(Path(folder)), ["n3"], None, False, False, "bob", False)
    return ""


def test_twenty_joins_and_a_removal_at_once_are_each_done_or_refused_for_a_true_reason(tmp_path: Path) -> None:
    create(tmp_path)
    numbers = range(10, 10 + JOINS)
    with multiprocessing.get_context("fork").Pool(JOINS + 1) as pool:
        joins = [pool.apply_async(join, (str(tmp_path), number)) for number in numbers]
        removal = pool.apply_async(remove, (str(tmp_path),))
        told = {number: done.get(120) for number, done in zip(numbers, joins)}
        assert removal.get(120) == ""
    record = store_in(tmp_path).read()
    assert record is not None
    machines = [member["machine"] for member in record["members"]]
    assert "n3" not in machines, "a run that knew it has taken back who was removed"
    assert {f"n{number}" for number, refusal in told.items() if not refusal} == set(machines) - {"n1", "n2"}
    assert all("n3 left, and it is at generation" in refusal for refusal in told.values() if refusal)
    # The creation, the removal, and one generation for each completed join.
    assert record["generation"] == 2 + len(machines) - 2
    addresses = [member["mesh"]["address"] for member in record["members"] if member["mesh"]]
    assert len(set(addresses)) == len(machines)


def test_joins_alone_are_all_done(tmp_path: Path) -> None:
    create(tmp_path)
    with multiprocessing.get_context("fork").Pool(JOINS) as pool:
        assert pool.starmap(join, [(str(tmp_path), number) for number in range(10, 10 + JOINS)]) == [""] * JOINS
    record = store_in(tmp_path).read()
    assert record is not None
    assert (len(record["members"]), record["generation"]) == (3 + JOINS, 1 + JOINS)


def test_a_cluster_that_was_deleted_meanwhile_is_not_created_again(tmp_path: Path) -> None:
    create(tmp_path)
    apply.cluster_absent(store_in(tmp_path), None, False, "bob", False)
    assert "it was deleted" in join(str(tmp_path), 4)
    assert store_in(tmp_path).read() is None


def test_a_layer_that_registers_a_key_takes_nobody_back(tmp_path: Path) -> None:
    create(tmp_path)
    remove(str(tmp_path))
    keys = [{"machine": "n3", "ssh_host_keys": []}]
    with pytest.raises(InputError, match="n3 left"):
        apply.members_present(store_in(tmp_path), keys, None, "run", False, joining=[])


def test_a_layer_refuses_a_record_that_is_older_than_the_hosts(tmp_path: Path) -> None:
    record = create(tmp_path)
    derive.refuse_newer([record], 1)
    join(str(tmp_path), 4)
    newer = store_in(tmp_path).read()
    assert newer is not None
    with pytest.raises(RecordError, match="generation 1 .* generation 2: machine n4 joined") as refused:
        derive.refuse_newer([newer], 1)
    assert refused.value.details == {"generation": 2}

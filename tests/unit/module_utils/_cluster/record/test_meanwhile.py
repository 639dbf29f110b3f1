# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs at once: what one has read is older than what the other has written."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply, derive
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, InputError, RecordError

JOINS = 20


def member_entry(number: int) -> dict[str, Any]:
    return {"machine": f"n{number}", "address": f"10.0.0.{number}", "interface": "eth0"}


def cluster_request(*numbers: int, joining: list[str] | None = None) -> apply.ClusterRequest:
    members = [member_entry(number) for number in numbers]
    return apply.ClusterRequest("10.0.0.0/24", "n1", {}, members=members, joining=joining)


def open_store(folder: Path) -> Store:
    return Store(str(folder / "clusters"), "lab")


def create_cluster(folder: Path) -> Any:
    return apply.cluster_present(
        open_store(folder), cluster_request(1, 2, 3, joining=["n1", "n2", "n3"]), "alice", False
    ).after


def join_machine(folder: str, number: int) -> str:
    """Run site as one that has read the first generation: it updates all members that it knew, and adds its own."""
    try:
        wanted = cluster_request(1, 2, 3, number, joining=[f"n{number}"])
        apply.cluster_present(open_store(Path(folder)), wanted, f"run{number}", False)
    except GpumeshError as refusal:
        return str(refusal)
    return ""


def remove_machine(folder: str) -> str:
    apply.members_absent(open_store(Path(folder)), ["n3"], None, False, False, "bob", False)
    return ""


def test_concurrent_joins_and_removal_succeed_or_are_refused_with_the_reason(tmp_path: Path) -> None:
    create_cluster(tmp_path)
    numbers = range(10, 10 + JOINS)
    with multiprocessing.get_context("fork").Pool(JOINS + 1) as pool:
        joins = [pool.apply_async(join_machine, (str(tmp_path), number)) for number in numbers]
        removal = pool.apply_async(remove_machine, (str(tmp_path),))
        told = {number: done.get(120) for number, done in zip(numbers, joins)}
        assert removal.get(120) == ""
    record = open_store(tmp_path).read()
    assert record is not None
    machines = [member["machine"] for member in record["members"]]
    assert "n3" not in machines, "a run that knew it has taken back who was removed"
    assert {f"n{number}" for number, refusal in told.items() if not refusal} == set(machines) - {"n1", "n2"}
    assert all("n3 left, and it is at generation" in refusal for refusal in told.values() if refusal)
    # The creation, the removal, and one generation for each completed join.
    assert record["generation"] == 2 + len(machines) - 2
    addresses = [member["mesh"]["address"] for member in record["members"] if member["mesh"]]
    assert len(set(addresses)) == len(machines)


def test_concurrent_joins_all_succeed(tmp_path: Path) -> None:
    create_cluster(tmp_path)
    with multiprocessing.get_context("fork").Pool(JOINS) as pool:
        assert pool.starmap(join_machine, [(str(tmp_path), number) for number in range(10, 10 + JOINS)]) == [""] * JOINS
    record = open_store(tmp_path).read()
    assert record is not None
    assert (len(record["members"]), record["generation"]) == (3 + JOINS, 1 + JOINS)


def test_concurrently_deleted_cluster_is_not_recreated(tmp_path: Path) -> None:
    create_cluster(tmp_path)
    apply.cluster_absent(open_store(tmp_path), None, False, "bob", False)
    assert "it was deleted" in join_machine(str(tmp_path), 4)
    assert open_store(tmp_path).read() is None


def test_key_registration_does_not_readd_a_removed_member(tmp_path: Path) -> None:
    create_cluster(tmp_path)
    remove_machine(str(tmp_path))
    keys = [{"machine": "n3", "ssh_host_keys": []}]
    with pytest.raises(InputError, match="n3 left"):
        apply.members_present(open_store(tmp_path), keys, None, "run", False, joining=[])


def test_layer_refuses_a_record_older_than_the_copy_on_the_host(tmp_path: Path) -> None:
    record = create_cluster(tmp_path)
    derive.refuse_newer_generation([record], 1)
    join_machine(str(tmp_path), 4)
    newer = open_store(tmp_path).read()
    assert newer is not None
    with pytest.raises(RecordError, match="generation 1 .* generation 2: machine n4 joined") as refused:
        derive.refuse_newer_generation([newer], 1)
    assert refused.value.details == {"generation": 2}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On which members a collective runs, and how the action collective_test uses that."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action.collective_test import ActionModule
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.collective import describe_unused, place_ranks
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play_action
from ansible_collections.gpumesh.cluster.tests.unit.action.test_storage import RECORD


def build_record(*gpus: int) -> Any:
    """A record of the members n1, n2, ..., with these numbers of GPUs."""
    first = RECORD["members"][0]
    members = [
        {**first, "machine": f"n{index}", "address": f"192.168.1.{index}", "gpus": number}
        for index, number in enumerate(gpus, 1)
    ]
    return {**RECORD, "members": members}


@pytest.mark.parametrize(
    ("gpus", "binaries", "nodes", "ranks", "uses_gpus", "words"),
    [
        ((8, 8), True, ["n1", "n2"], 16, True, None),
        # A manager without GPUs.
        ((0, 8, 8), True, ["n2", "n3"], 16, True, "n1 has no GPU and does not take part."),
        ((0, 0, 8), True, ["n3"], 8, True, "n1, n2 have no GPUs and do not take part."),
        ((8, 4, 2), True, ["n1", "n2", "n3"], 6, True, "Only 2 GPUs of n1, n2 took part, as of the others."),
        ((1, 2), True, ["n1", "n2"], 2, True, "Only 1 GPU of n2 took part, as of the others."),
        # rccl-tests and stand-ins on hosts without GPUs.
        ((0, 0), True, ["n1", "n2"], 2, False, None),
        # PyTorch: one rank per node, and NCCL only if all ranks have a GPU.
        ((0, 8, 8), False, ["n1", "n2", "n3"], 3, False, None),
        ((4, 8), False, ["n1", "n2"], 2, True, None),
        ((0, 0), False, ["n1", "n2"], 2, False, None),
    ],
)
def test_participating_nodes_have_equal_ranks(
    gpus: tuple[int, ...], binaries: bool, nodes: list[str], ranks: int, uses_gpus: bool, words: str | None
) -> None:
    record = build_record(*gpus)
    chosen = place_ranks(record, (), binaries)
    assert chosen == {"nodes": len(nodes), "nodelist": nodes, "ranks": ranks, "gpus": uses_gpus}
    assert describe_unused(record, (), chosen, binaries) == words


def test_a_userspace_only_member_is_not_a_node() -> None:
    record = build_record(8, 8, 2)
    chosen = place_ranks(record, ["n3"], True)
    assert (chosen["nodelist"], chosen["ranks"]) == (["n1", "n2"], 16)
    assert describe_unused(record, ["n3"], chosen, True) is None
    with pytest.raises(InputError):
        place_ranks(build_record(8), ["n1"], True)


def test_a_member_without_jobs_has_no_ranks_and_is_not_missed() -> None:
    record = build_record(0, 8, 8)
    record["members"][0]["slurm_node"] = False
    for binaries in (False, True):
        chosen = place_ranks(record, (), binaries)
        assert (chosen["nodelist"], chosen["gpus"]) == (["n2", "n3"], True)
        assert describe_unused(record, (), chosen, binaries) is None


def test_action_derives_parameters_from_the_record() -> None:
    arguments = {"record": build_record(0, 8, 8), "path": "/opt/build", "launcher": "srun"}
    done = play_action(
        ActionModule, arguments, {"gpumesh.cluster.collective_test": [{"status": "pass", "left_out": None}]}
    )
    ((name, given),) = done.module_calls
    assert name == "gpumesh.cluster.collective_test"
    assert given == {
        "path": "/opt/build",
        "launcher": "srun",
        "nodes": 2,
        "nodelist": ["n2", "n3"],
        "ranks": 16,
        "gpus": True,
    }
    assert done.result["left_out"] == "n1 has no GPU and does not take part."


def test_module_decides_without_a_record() -> None:
    done = play_action(ActionModule, {"ranks": 8}, {"gpumesh.cluster.collective_test": [{"left_out": None}]})
    assert done.module_calls == [("gpumesh.cluster.collective_test", {"ranks": 8})]

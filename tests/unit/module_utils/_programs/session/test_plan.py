# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All nodes derive the same placement, no two sessions have the same subnet, and the job shows which are in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, plan, sessions, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    SessionSettings,
    SessionSpec,
    SessionToken,
)

POOLS = ["10.192.0.0/10", "192.168.8.0/22"]
MEMBERS = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}
SIMILAR_ROLES = [{"name": "main", "image": "x"}, {"name": "sub", "replicas": 3, "image": "y"}]
#: One GPU for each sub, and none for main.
GPU_ROLES = [SIMILAR_ROLES[0], {**SIMILAR_ROLES[1], "gpus": 1}]


def parse_roles(roles: list[dict[str, Any]]) -> SessionSpec:
    return spec.parse_spec({"name": "demo", "roles": roles})


def best_layout(roles: list[dict[str, Any]], nodes: int, threads: int = 1) -> tuple[tuple[int, ...], ...]:
    return plan.rank_layouts(parse_roles(roles), nodes, threads)[0]


def test_containers_are_spread_over_all_nodes() -> None:
    assert best_layout(SIMILAR_ROLES, 9) == ((1, 0), (0, 1), (0, 1), (0, 1))
    assert best_layout(SIMILAR_ROLES, 3) == ((1, 1), (0, 1), (0, 1))
    assert best_layout(SIMILAR_ROLES, 1) == ((1, 3),)


def test_different_roles_share_nodes() -> None:
    roles = [{**SIMILAR_ROLES[0], "cpus": 2, "memory": "512M"}, {**SIMILAR_ROLES[1], "memory": "256M"}]
    layout = best_layout(roles, 3)
    # The large one first; the last of the small ones goes to the node with the least.
    assert layout == ((1, 0), (0, 2), (0, 1))
    assert plan.largest_node(parse_roles(roles), layout, 1) == plan.NodeSize(0, 2, 512, 2)
    # Slurm allocates whole cores to a step.
    assert plan.largest_node(parse_roles(roles), layout, 2) == plan.NodeSize(0, 4, 512, 2)


def test_nodes_without_gpu_containers_request_no_gpus() -> None:
    # On four nodes, that of main would have one, too.
    assert best_layout(GPU_ROLES, 4) == ((1, 1), (0, 1), (0, 1))
    assert [len(way) for way in plan.rank_layouts(parse_roles(GPU_ROLES), 4, 1)] == [3, 1, 4, 2]
    eight = [{**SIMILAR_ROLES[0], "replicas": 8, "gpus": 1}]
    assert best_layout(eight, 7) == ((2,), (2,), (2,), (2,))


def test_large_container_does_not_enlarge_all_nodes() -> None:
    roles = [{**SIMILAR_ROLES[0], "cpus": 32}, {**SIMILAR_ROLES[1], "replicas": 19}]
    assert best_layout(roles, 20) == ((1, 0), (0, 19))


def test_per_node_is_respected() -> None:
    roles = [SIMILAR_ROLES[0], {**SIMILAR_ROLES[1], "replicas": 4, "per_node": 2}]
    assert best_layout(roles, 9) == ((1, 0), (0, 2), (0, 2))
    assert {len(way) for way in plan.rank_layouts(parse_roles(roles), 1, 1)} == {2}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from([1, 2]),
)
def test_each_container_is_placed_once(sizes: list[tuple[int, int, int]], nodes: int, threads: int) -> None:
    roles = [
        {"name": "main" if not number else "abc"[number - 1], "image": "x", "replicas": one, "cpus": cpus, "gpus": gpus}
        for number, (one, cpus, gpus) in enumerate(sizes)
    ]
    wanted = parse_roles(roles)
    names = [f"n{number}" for number in range(nodes)]
    for layout in plan.rank_layouts(wanted, nodes, threads):
        token = plan.make_token(wanted, layout)
        assert plan.parse_token(plan.format_token(token)) == token
        assert token.replica_counts() == [(role.name, role.replicas) for role in wanted.roles]
        found = plan.place_containers(token, 5, names, {}, POOLS)
        assert [one.rank for one in found] == list(range(sum(role.replicas for role in wanted.roles)))
        assert (found[0].name, found[0].node) == ("main1", "n0")
        assert len({(one.node, one.local) for one in found}) == len({one.vni for one in found}) == len(found)
        for step in plan.group_into_steps(found):
            assert len({one.role for one in step}) == 1
            assert len({one.node for one in step}) == len(step)


def test_container_placement() -> None:
    token = SessionToken(True, "demo", ("main", "sub"), ((1, 0), (0, 2), (0, 1)))
    found = plan.place_containers(token, 5, ["n1", "n2", "n3"], MEMBERS, POOLS)
    assert [(one.name, one.node, one.local, one.address, one.vni) for one in found] == [
        ("main1", "n1", 0, "10.192.5.1", 0x501),
        ("sub1", "n2", 1, "10.192.5.2", 0x502),
        ("sub2", "n2", 2, "10.192.5.3", 0x503),
        ("sub3", "n3", 1, "10.192.5.4", 0x504),
    ]
    # If nodes register themselves, Slurm's own order is arbitrary, and that of squeue is by name.
    assert plan.place_containers(token, 5, ["n2", "n3", "n1"], MEMBERS, POOLS) == found
    assert [[one.name for one in step] for step in plan.group_into_steps(found)] == [
        ["main1"],
        ["sub1", "sub3"],
        ["sub2"],
    ]
    with pytest.raises(InputError, match="needs 3 nodes"):
        plan.place_containers(token, 5, ["n1", "n2"], MEMBERS, POOLS)


def test_first_container_has_its_own_step() -> None:
    """Other replicas of its role would be killed at its end, and their status would be that of the session."""
    found = plan.place_containers(SessionToken(True, "demo", ("main",), ((2,), (1,))), 5, ["n1", "n2"], MEMBERS, POOLS)
    assert [[one.name for one in step] for step in plan.group_into_steps(found)] == [["main1"], ["main3"], ["main2"]]


def test_step_requests_the_resources_of_its_role() -> None:
    main, sub = parse_roles([{**SIMILAR_ROLES[0], "cpus": 2, "memory": "1G"}, {**GPU_ROLES[1], "memory": "512M"}]).roles
    found = plan.place_containers(
        SessionToken(True, "demo", ("main", "sub"), ((1, 1), (0, 2))), 5, ["n1", "n2"], MEMBERS, POOLS
    )
    first, second, third = plan.group_into_steps(found)
    for role, step, words in (
        (main, first, ["--nodelist=n1", "--ntasks=1", "--cpus-per-task=2", "--mem=1024M", "--gres=none"]),
        (sub, second, ["--nodelist=n1,n2", "--ntasks=2", "--cpus-per-task=1", "--mem=512M", "--gres=gpu:1"]),
        (sub, third, ["--nodelist=n2", "--ntasks=1", "--cpus-per-task=1", "--mem=512M", "--gres=gpu:1"]),
    ):
        assert set(words) <= set(job.container_step(7, role, step))
        assert "--exact" in job.container_step(7, role, step)


def test_slow_image_fetch_does_not_end_the_step() -> None:
    assert "--wait=0" in job.step_on_all_nodes(7, 3)


def test_container_on_the_host_network_has_the_address_of_its_node() -> None:
    host = spec.parse_spec({"name": "demo", "roles": SIMILAR_ROLES, "network": "host"})
    token = plan.make_token(host, plan.rank_layouts(host, 4, 1)[0])
    (first, *_rest) = plan.place_containers(
        token, plan.session_slot(token, 7, POOLS), ["n3", "n1", "n2", "n4"], MEMBERS, POOLS
    )
    assert (first.address, first.vni) == ("10.0.0.1", 0)


@given(st.integers(0, 16387), st.integers(0, 16387))
def test_slots_share_no_address_or_vni(one: int, other: int) -> None:
    subnets = plan.slot_subnet(POOLS, one), plan.slot_subnet(POOLS, other)
    assert (one == other) == subnets[0].overlaps(subnets[1])


def test_exhausted_pool_is_reported() -> None:
    assert plan.slot_count(["10.0.0.0/22"]) == 4
    plan.refuse_full(["10.0.0.0/22"], [3, 0, 3, 1])
    with pytest.raises(InputError, match="All 4 subnets"):
        plan.refuse_full(["10.0.0.0/22"], range(4))


def test_slot_depends_only_on_the_job_id() -> None:
    for text in ("+;demo;main;1", "17;demo;main;1"):
        assert plan.session_slot(plan.parse_token(text), 16388 + 9, POOLS) == 9
    assert plan.session_slot(plan.parse_token("-;demo;main;1"), 9, POOLS) == -1


def test_session_with_a_used_slot_is_resubmitted() -> None:
    """Jobs 7 and 8 have the slots of jobs 3 and 4, since there are four slots."""
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: object) -> CommandResult:
        asked.append(argv)
        if argv[0] == "squeue":
            mark = argv[2].partition("=")[2].partition("|")[0]
            lines = (f"{mark}|{job}|bob|RUNNING|n1|n1|None|gpumesh-session +;x;main;1 running\n" for job in (3, 4))
            return CommandResult(0, "".join(lines), "")
        return CommandResult(0, f"{sum('sbatch' in one for one in asked) + 6}\n", "")

    settings = SessionSettings("n1", "n1", "eth0", MEMBERS, ["10.0.0.0/22"], [], True, [], [], [], "/x")
    wanted = parse_roles([SIMILAR_ROLES[0]])
    assert job.submit(run, "/p", wanted, job.SessionFit(((1,),), plan.NodeSize(0, 1, 0, 1)), settings, "/l") == 9
    assert [argv[1] for argv in asked if argv[0] == "scancel"] == ["7", "8"]


@pytest.mark.parametrize("pools", [[], ["10.0.0.0/25"], ["10.0.0.1/8"], ["10.0.0.0/8", "10.1.0.0/16"], ["fd00::/64"]])
def test_invalid_pools_are_refused(pools: list[str]) -> None:
    with pytest.raises(InputError, match="session_subnets"):
        plan.parse_pools(pools)


def test_token_round_trip_and_invalid_tokens() -> None:
    for private in (False, True):
        token = SessionToken(private, "demo", ("main", "sub"), ((1, 0), (0, 1), (0, 1)))
        assert plan.parse_token(plan.format_token(token)) == token
    assert plan.format_token(token) == "+;demo;main,sub;1,0+2*0,1"
    for wrong in (
        "",
        "1;demo",
        "+;demo;main",
        "+;demo;main;0",
        "+;demo;main;251",
        "+;demo;main;1+0",
        "+;demo;main;1,1",
        "+;demo;main,;1,1",
        "+;demo;main,main;1,1",
        "+;demo;main,sub;0,1+1,0",
        "+;demo;main;1+999*1",
        "+;demo;main;1++1",
        "1;a b;main;1",
        "x;d;main;1",
    ):
        with pytest.raises(InputError):
            plan.parse_token(wrong)


def test_queue_is_parsed() -> None:
    text = (
        "8|bob|PENDING||n/a|Resources|gpumesh-session +;web;main,sub;1,1 running\n"
        "7|alice|RUNNING|n[1-2]|n2|None|gpumesh-session +;demo;main,sub;1,0+0,1 running\n"
        "10|eve|RUNNING|n3|n3|None|gpumesh-session nonsense\n11|eve|RUNNING|n3|n3|None|mine\n"
    )
    demo, web = job.parse_queue(text)
    assert (demo.job_id, demo.stage, demo.node_names, demo.token.has_private_network) == (
        7,
        "running",
        ["n1", "n2"],
        True,
    )
    assert (web.job_id, web.stage, web.node_names, web.waiting_reason) == (8, "waiting", [], "Resources")
    assert (demo.log_node, web.log_node) == ("n2", "")


def test_control_characters_in_comments_are_removed() -> None:
    (found,) = job.parse_queue("7|eve|RUNNING|n1|n1|None|gpumesh-session +;demo;main;1 failed \x1b]0;x\x07 bad\n")
    assert "\x1b" not in sessions.format_session(found, "demo")


def test_available_nodes_are_counted() -> None:
    assert job.parse_nodes("n1|idle|2\nn1|idle|2\nn2|mixed|1\nn3|down*|4\nn4|drained|4\n") == (2, 2)
    assert job.parse_nodes("") == (0, 1)


class Slurm:
    """sinfo and sbatch of a cluster whose nodes have this many GPUs each."""

    def __init__(self, *gpus: int) -> None:
        self.gpus = gpus

    def __call__(self, argv: Sequence[str], **_options: object) -> CommandResult:
        if argv[0] == "sinfo":
            return CommandResult(0, "".join(f"n{number}|idle|1\n" for number in range(len(self.gpus))), "")
        asked = dict(word.partition("=")[::2] for word in argv)
        fit = [have for have in self.gpus if have >= int(asked.get("--gres", "gpu:0").partition(":")[2])]
        if len(fit) < int(asked["--nodes"]):
            return CommandResult(1, "", "allocation failure: Requested node configuration is not available\n")
        return CommandResult(0, "", "")


def test_first_layout_that_slurm_accepts_is_used() -> None:
    two = [{**SIMILAR_ROLES[0], "replicas": 8, "gpus": 1}]
    assert len(job.fit_session(Slurm(2, 2, 2, 2, 0), "/p", parse_roles(two)).layout) == 4
    # There is one large node, and the others have no GPU.
    assert job.fit_session(Slurm(8, 0, 0), "/p", parse_roles(two)) == job.SessionFit(((8,),), plan.NodeSize(8, 8, 0, 8))
    with pytest.raises(HostStateError, match="Requested node configuration is not available"):
        job.fit_session(Slurm(1, 1), "/p", parse_roles(two))

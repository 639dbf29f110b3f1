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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job, plan, sessions, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Settings, Spec, Token

POOLS = ["10.192.0.0/10", "192.168.8.0/22"]
MEMBERS = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}
ALIKE = [{"name": "main", "image": "x"}, {"name": "sub", "replicas": 3, "image": "y"}]
#: One GPU for each sub, and none for main.
APART = [ALIKE[0], {**ALIKE[1], "gpus": 1}]


def parsed(roles: list[dict[str, Any]]) -> Spec:
    return spec.parse({"name": "demo", "roles": roles})


def best(roles: list[dict[str, Any]], nodes: int, threads: int = 1) -> tuple[tuple[int, ...], ...]:
    return plan.layouts(parsed(roles), nodes, threads)[0]


def test_containers_are_on_as_many_nodes_as_there_are() -> None:
    assert best(ALIKE, 9) == ((1, 0), (0, 1), (0, 1), (0, 1))
    assert best(ALIKE, 3) == ((1, 1), (0, 1), (0, 1))
    assert best(ALIKE, 1) == ((1, 3),)


def test_roles_that_differ_share_nodes() -> None:
    roles = [{**ALIKE[0], "cpus": 2, "memory": "512M"}, {**ALIKE[1], "memory": "256M"}]
    layout = best(roles, 3)
    # The large one first; the last of the small ones goes to the node with the least.
    assert layout == ((1, 0), (0, 2), (0, 1))
    assert plan.fullest(parsed(roles), layout, 1) == plan.Size(0, 2, 512, 2)
    # Slurm allocates whole cores to a step.
    assert plan.fullest(parsed(roles), layout, 2) == plan.Size(0, 4, 512, 2)


def test_no_gpu_is_taken_for_a_node_that_needs_none() -> None:
    # On four nodes, that of main would have one, too.
    assert best(APART, 4) == ((1, 1), (0, 1), (0, 1))
    assert [len(way) for way in plan.layouts(parsed(APART), 4, 1)] == [3, 1, 4, 2]
    eight = [{**ALIKE[0], "replicas": 8, "gpus": 1}]
    assert best(eight, 7) == ((2,), (2,), (2,), (2,))


def test_a_large_container_does_not_make_all_nodes_large() -> None:
    roles = [{**ALIKE[0], "cpus": 32}, {**ALIKE[1], "replicas": 19}]
    assert best(roles, 20) == ((1, 0), (0, 19))


def test_a_number_for_each_node_is_kept() -> None:
    roles = [ALIKE[0], {**ALIKE[1], "replicas": 4, "per_node": 2}]
    assert best(roles, 9) == ((1, 0), (0, 2), (0, 2))
    assert {len(way) for way in plan.layouts(parsed(roles), 1, 1)} == {2}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from([1, 2]),
)
def test_every_container_has_one_place(sizes: list[tuple[int, int, int]], nodes: int, threads: int) -> None:
    roles = [
        {"name": "main" if not number else "abc"[number - 1], "image": "x", "replicas": one, "cpus": cpus, "gpus": gpus}
        for number, (one, cpus, gpus) in enumerate(sizes)
    ]
    wanted = parsed(roles)
    names = [f"n{number}" for number in range(nodes)]
    for layout in plan.layouts(wanted, nodes, threads):
        token = plan.token_of(wanted, layout)
        assert plan.parse_token(plan.token_text(token)) == token
        assert token.replicas() == [(role.name, role.replicas) for role in wanted.roles]
        found = plan.places(token, 5, names, {}, POOLS)
        assert [one.rank for one in found] == list(range(sum(role.replicas for role in wanted.roles)))
        assert (found[0].name, found[0].node) == ("main1", "n0")
        assert len({(one.node, one.local) for one in found}) == len({one.vni for one in found}) == len(found)
        for step in plan.steps(found):
            assert len({one.role for one in step}) == 1
            assert len({one.node for one in step}) == len(step)


def test_places() -> None:
    token = Token(True, "demo", ("main", "sub"), ((1, 0), (0, 2), (0, 1)))
    found = plan.places(token, 5, ["n1", "n2", "n3"], MEMBERS, POOLS)
    assert [(one.name, one.node, one.local, one.address, one.vni) for one in found] == [
        ("main1", "n1", 0, "10.192.5.1", 0x501),
        ("sub1", "n2", 1, "10.192.5.2", 0x502),
        ("sub2", "n2", 2, "10.192.5.3", 0x503),
        ("sub3", "n3", 1, "10.192.5.4", 0x504),
    ]
    # If nodes register themselves, Slurm's own order is arbitrary, and that of squeue is by name.
    assert plan.places(token, 5, ["n2", "n3", "n1"], MEMBERS, POOLS) == found
    assert [[one.name for one in step] for step in plan.steps(found)] == [["main1"], ["sub1", "sub3"], ["sub2"]]
    with pytest.raises(InputError, match="needs 3 nodes"):
        plan.places(token, 5, ["n1", "n2"], MEMBERS, POOLS)


def test_the_first_container_is_a_step_of_its_own() -> None:
    """Other replicas of its role would be killed at its end, and their status would be that of the session."""
    found = plan.places(Token(True, "demo", ("main",), ((2,), (1,))), 5, ["n1", "n2"], MEMBERS, POOLS)
    assert [[one.name for one in step] for step in plan.steps(found)] == [["main1"], ["main3"], ["main2"]]


def test_a_step_has_what_its_role_asks_for_and_nothing_more() -> None:
    main, sub = parsed([{**ALIKE[0], "cpus": 2, "memory": "1G"}, {**APART[1], "memory": "512M"}]).roles
    found = plan.places(Token(True, "demo", ("main", "sub"), ((1, 1), (0, 2))), 5, ["n1", "n2"], MEMBERS, POOLS)
    first, second, third = plan.steps(found)
    for role, step, words in (
        (main, first, ["--nodelist=n1", "--ntasks=1", "--cpus-per-task=2", "--mem=1024M", "--gres=none"]),
        (sub, second, ["--nodelist=n1,n2", "--ntasks=2", "--cpus-per-task=1", "--mem=512M", "--gres=gpu:1"]),
        (sub, third, ["--nodelist=n2", "--ntasks=1", "--cpus-per-task=1", "--mem=512M", "--gres=gpu:1"]),
    ):
        assert set(words) <= set(job.step(7, role, step))
        assert "--exact" in job.step(7, role, step)


def test_a_node_that_fetches_an_image_longer_than_another_is_waited_for() -> None:
    assert "--wait=0" in job.everywhere(7, 3)


def test_without_a_network_of_its_own_a_container_has_its_nodes_address() -> None:
    host = spec.parse({"name": "demo", "roles": ALIKE, "network": "host"})
    token = plan.token_of(host, plan.layouts(host, 4, 1)[0])
    (first, *_rest) = plan.places(token, plan.slot_of(token, 7, POOLS), ["n3", "n1", "n2", "n4"], MEMBERS, POOLS)
    assert (first.address, first.vni) == ("10.0.0.1", 0)


@given(st.integers(0, 16387), st.integers(0, 16387))
def test_no_two_slots_share_an_address_or_an_identifier(one: int, other: int) -> None:
    subnets = plan.subnet(POOLS, one), plan.subnet(POOLS, other)
    assert (one == other) == subnets[0].overlaps(subnets[1])


def test_a_pool_that_is_used_up_is_told() -> None:
    assert plan.slots(["10.0.0.0/22"]) == 4
    plan.refuse_full(["10.0.0.0/22"], [3, 0, 3, 1])
    with pytest.raises(InputError, match="All 4 subnets"):
        plan.refuse_full(["10.0.0.0/22"], range(4))


def test_the_slot_follows_from_the_job_and_nothing_that_its_user_writes() -> None:
    for text in ("+;demo;main;1", "17;demo;main;1"):
        assert plan.slot_of(plan.parse_token(text), 16388 + 9, POOLS) == 9
    assert plan.slot_of(plan.parse_token("-;demo;main;1"), 9, POOLS) == -1


def test_a_session_whose_slot_is_taken_is_submitted_again() -> None:
    """Of four slots, jobs 7 and 8 have those of jobs 3 and 4."""
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: object) -> Completed:
        asked.append(argv)
        if argv[0] == "squeue":
            mark = argv[2].partition("=")[2].partition("|")[0]
            lines = (f"{mark}|{job}|bob|RUNNING|n1|n1|None|gpumesh-session +;x;main;1 running\n" for job in (3, 4))
            return Completed(0, "".join(lines), "")
        return Completed(0, f"{sum('sbatch' in one for one in asked) + 6}\n", "")

    settings = Settings("n1", "n1", "eth0", MEMBERS, ["10.0.0.0/22"], [], True, [], [], [], "/x")
    wanted = parsed([ALIKE[0]])
    assert job.submit(run, "/p", wanted, job.Fit(((1,),), plan.Size(0, 1, 0, 1)), settings, "/l") == 9
    assert [argv[1] for argv in asked if argv[0] == "scancel"] == ["7", "8"]


@pytest.mark.parametrize("pools", [[], ["10.0.0.0/25"], ["10.0.0.1/8"], ["10.0.0.0/8", "10.1.0.0/16"], ["fd00::/64"]])
def test_pools_that_cannot_be_used(pools: list[str]) -> None:
    with pytest.raises(InputError, match="session_subnets"):
        plan.parse_pools(pools)


def test_a_token_is_read_as_it_was_written_and_nothing_else_is() -> None:
    for private in (False, True):
        token = Token(private, "demo", ("main", "sub"), ((1, 0), (0, 1), (0, 1)))
        assert plan.parse_token(plan.token_text(token)) == token
    assert plan.token_text(token) == "+;demo;main,sub;1,0+2*0,1"
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


def test_the_queue() -> None:
    text = (
        "8|bob|PENDING||n/a|Resources|gpumesh-session +;web;main,sub;1,1 running\n"
        "7|alice|RUNNING|n[1-2]|n2|None|gpumesh-session +;demo;main,sub;1,0+0,1 running\n"
        "10|eve|RUNNING|n3|n3|None|gpumesh-session nonsense\n11|eve|RUNNING|n3|n3|None|mine\n"
    )
    demo, web = job.parse_queue(text)
    assert (demo.job, demo.stage, demo.nodes, demo.token.private) == (7, "running", ["n1", "n2"], True)
    assert (web.job, web.stage, web.nodes, web.reason) == (8, "waiting", [], "Resources")
    assert (demo.host, web.host) == ("n2", "")


def test_what_others_write_into_the_comment_of_a_job_does_not_reach_the_terminal() -> None:
    (found,) = job.parse_queue("7|eve|RUNNING|n1|n1|None|gpumesh-session +;demo;main;1 failed \x1b]0;x\x07 bad\n")
    assert "\x1b" not in sessions.line(found, "demo")


def test_the_nodes_that_there_are() -> None:
    assert job.parse_nodes("n1|idle|2\nn1|idle|2\nn2|mixed|1\nn3|down*|4\nn4|drained|4\n") == (2, 2)
    assert job.parse_nodes("") == (0, 1)


class Slurm:
    """sinfo and sbatch of a cluster whose nodes have this many GPUs each."""

    def __init__(self, *gpus: int) -> None:
        self.gpus = gpus

    def __call__(self, argv: Sequence[str], **_options: object) -> Completed:
        if argv[0] == "sinfo":
            return Completed(0, "".join(f"n{number}|idle|1\n" for number in range(len(self.gpus))), "")
        asked = dict(word.partition("=")[::2] for word in argv)
        fit = [have for have in self.gpus if have >= int(asked.get("--gres", "gpu:0").partition(":")[2])]
        if len(fit) < int(asked["--nodes"]):
            return Completed(1, "", "allocation failure: Requested node configuration is not available\n")
        return Completed(0, "", "")


def test_a_session_is_placed_where_slurm_has_room_for_it() -> None:
    two = [{**ALIKE[0], "replicas": 8, "gpus": 1}]
    assert len(job.fit(Slurm(2, 2, 2, 2, 0), "/p", parsed(two)).layout) == 4
    # There is one large node, and the others have no GPU.
    assert job.fit(Slurm(8, 0, 0), "/p", parsed(two)) == job.Fit(((8,),), plan.Size(8, 8, 0, 8))
    with pytest.raises(HostStateError, match="Requested node configuration is not available"):
        job.fit(Slurm(1, 1), "/p", parsed(two))

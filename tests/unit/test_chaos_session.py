# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make chaos` for sessions can be repeated with a seed or a word, hits what it names, and is judged by what is left."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
import session_lab

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, runtime_podman, sessions
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import PROGRAM_PATH
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime import ContainerPaths
from ansible_collections.gpumesh.cluster.tests.chaos import session_experiments as experiments
from ansible_collections.gpumesh.cluster.tests.chaos.session_experiments import (
    KILL_KINDS,
    LATEST_HIT,
    PROCESS_PATTERNS,
    SessionExperiment,
)

_SHEBANG = "/usr/bin/python3.11 -IS"
NONE: dict[str, list[str]] = {"gpu1": [], "gpu2": [], "gpu3": []}


def test_the_same_seed_gives_the_same_experiments_of_all_kinds() -> None:
    found = experiments.draw_experiments(random.Random(7), 50, list(KILL_KINDS))
    assert found == experiments.draw_experiments(random.Random(7), 50, list(KILL_KINDS))
    assert found != experiments.draw_experiments(random.Random(8), 50, list(KILL_KINDS))
    counts = Counter(one.kind for one in found)
    assert set(counts) == set(KILL_KINDS) and sum(counts.values()) == 50
    assert counts["prolog"] > counts["node"]
    assert all(SessionExperiment.parse(str(one)) == one for one in found)
    assert {one.hit_count for one in found if one.kind == "epilog"} == {1, 3}
    assert {one.hit_count for one in found if one.kind not in ("prolog", "epilog")} == {1}


def test_the_power_of_the_manager_is_not_cut() -> None:
    found = experiments.draw_experiments(random.Random(1), 200, ["node"])
    assert {one.node for one in found} == {"gpu2", "gpu3"}


@pytest.mark.parametrize(
    "text", ["prolog", "power:0.100@gpu2", "task:2.000@gpu1", "task:0.5@gpu1", "task:0.500@gpu4", "node:0.500@gpu1"]
)
def test_an_unknown_experiment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unknown experiment"):
        SessionExperiment.parse(text)


def test_the_moment_is_within_what_is_hit() -> None:
    one = SessionExperiment.parse("epilog:0.500@gpu2x3")
    assert (one.hit_delay({("epilog", "gpu2"): 0.8, ("epilog", "gpu1"): 9.0}), one.process_index) == (0.4, 500)
    assert SessionExperiment("conmon", 1.0, "gpu1").hit_delay({("epilog", "gpu1"): 0.8}) == LATEST_HIT


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("prolog", f"{_SHEBANG} {PROGRAM_PATH} prolog"),
        ("epilog", f"{_SHEBANG} {PROGRAM_PATH} epilog"),
        ("task", f"{_SHEBANG} {PROGRAM_PATH} container 0"),
        ("batch", f"{_SHEBANG} {PROGRAM_PATH} supervise"),
        (
            "podman",
            " ".join(["/usr/bin/podman", *runtime_podman.container_command(ContainerPaths("/r", "/s", "/i"))[1:]])
            + f" run --rm --name={runtime_podman.CONTAINER_NAME} --pidfile=/r/pid",
        ),
        (
            "conmon",
            f"/usr/bin/conmon --api-version 1 -c 0a -u 0a -r /usr/bin/crun -n {runtime_podman.CONTAINER_NAME} --exit-dir /x",
        ),
    ],
)
def test_what_is_hit_is_found_by_its_command_and_nothing_else_is(kind: str, line: str) -> None:
    found = {name for name, pattern in PROCESS_PATTERNS.items() if re.search(pattern, line)}
    # slurmd is restarted when a container starts.
    assert found == {kind} | ({"slurmd"} if kind == "task" else set())
    # The shell that runs the search has the pattern among its arguments.
    assert not re.search(PROCESS_PATTERNS[kind], f"sh -c looks - {PROCESS_PATTERNS[kind]} {line}")
    assert set(PROCESS_PATTERNS) == set(KILL_KINDS) - {"node"}


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("hit\n", 1),
        ("hit\nhit\nhit\n", 3),
        ("hit\nmissed\n", 1),
        ("missed\n", 0),
        ("", 0),
        ("sh: pgrep: not found\n", 0),
    ],
)
def test_a_moment_that_was_missed_is_no_hit(text: str, hits: int) -> None:
    assert experiments.read_hits(text) == hits


@pytest.mark.parametrize(("text", "seconds"), [("740000000\n", 0.74), ("", 0.0), ("sh: no such thing\n", 0.0)])
def test_how_long_a_prolog_takes(text: str, seconds: float) -> None:
    assert experiments.read_seconds(text) == seconds


def test_why_a_session_has_not_started() -> None:
    (found,) = job.parse_queue(
        "7|alice|RUNNING|gpu[1-3]|gpu1|None|gpumesh-session 5;demo;main,sub;1,0+0,2+0,1 running\n"
    )
    runs = sessions.format_session(found, "demo")
    assert experiments.find_start_problem(f"demo: job 7, log /tmp/x\n{runs}\n") == ""
    assert experiments.find_start_problem(
        "demo: job 7, log /tmp/x\ngpumesh-session: The session 'demo' has failed: no.\n"
    ).endswith("has failed: no.")
    # The wait was given up.
    assert "starting on gpu1" in experiments.find_start_problem(runs.replace("running", "starting"))
    assert experiments.find_start_problem("") == "gpumesh-session has printed nothing"


@pytest.mark.parametrize(
    ("hits", "kept_from", "left", "after", "wrong", "word"),
    [
        (1, "", NONE, "", "", "passed"),
        (1, "the session has failed", NONE, "", "", "passed"),
        (0, "", NONE, "", "", "missed"),
        (0, "the session has failed", NONE, "", "nothing was hit, and the session has not started", "failed"),
        (1, "", {**NONE, "gpu2": ["gms7.0", "/run/x"]}, "", "left on gpu2: gms7.0, /run/x", "failed"),
        (0, "", {**NONE, "gpu3": ["gms7.0"]}, "", "left on gpu3: gms7.0", "failed"),
        (1, "", NONE, "no nodes", "the next session: no nodes", "failed"),
    ],
)
def test_a_session_is_judged_by_what_is_left(
    hits: int, kept_from: str, left: dict[str, list[str]], after: str, wrong: str, word: str
) -> None:
    said = experiments.find_problems(hits, kept_from, left, after)
    assert (not said) if not wrong else wrong in "; ".join(said)
    assert experiments.outcome_of(hits, said) == word


def test_sessions_at_the_same_time() -> None:
    found = experiments.plan_parallel_sessions(20)
    assert len({name for _user, name, _subs in found}) == 20
    assert Counter(user for user, _name, _subs in found) == {"alice": 10, "bob": 10}
    # Either user has sessions with two and with three containers.
    assert {(user, subs) for user, _name, subs in found} == {("alice", 1), ("alice", 2), ("bob", 1), ("bob", 2)}
    assert experiments.count_fitting("gpu1|24\ngpu2|8\ngpu3|24\n") == 8
    assert experiments.count_fitting("") == 0


def test_how_far_sessions_are() -> None:
    text = (
        "12|once02|RUNNING|gpumesh-session 9;once02;main;1 starting\n"
        "11|once01|RUNNING|gpumesh-session 8;once01;main;1 running\n"
        "5|once01|CANCELLED|gpumesh-session 8;once01;main;1 running\n"
        "13|once03|COMPLETING|gpumesh-session 7;once03;main;1 failed no image\n"
        "14|other|PENDING|(null)\n"
    )
    found = {"once01": "running", "once02": "starting", "once03": "failed", "other": "pending"}
    assert experiments.parse_stages(text) == found


def test_a_session_that_is_started_again_has_its_names_and_addresses() -> None:
    before = {"main1": ("10.192.5.1", "gpu1"), "sub1": ("10.192.5.2", "gpu2")}
    assert experiments.compare_containers(before, {**before, "sub1": ("10.192.5.2", "gpu3")}, "gpu2") == []
    assert experiments.compare_containers(before, before, "gpu2") == ["sub1 is on gpu2, which is off"]
    assert experiments.compare_containers(before, {"main1": before["main1"]}, "gpu2") == [
        "the names were main1, sub1 and are main1"
    ]
    moved = experiments.compare_containers(before, {**before, "sub1": ("10.192.6.2", "gpu3")}, "gpu2")
    assert moved == ["the address of sub1 was 10.192.5.2 and is 10.192.6.2"]


def test_the_hosts_of_another_lab() -> None:
    hosts = dict(session_lab.HOSTS)
    try:
        session_lab.use_lab("chaos-session", "10.79.83")
        assert session_lab.HOSTS == {"gpu1": "10.79.83.11", "gpu2": "10.79.83.12", "gpu3": "10.79.83.13"}
        assert session_lab.LAB._container_name("gpu2") == "gpumesh-chaos-session-gpu2"
        assert session_lab.LAB.inventory.parent.name == "chaos-session"
    finally:
        session_lab.use_lab("molecule-session", "10.79.91")
    assert hosts == session_lab.HOSTS

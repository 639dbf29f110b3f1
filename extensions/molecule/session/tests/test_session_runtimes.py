# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions whose containers are run by something else than podman. The last tests of the scenario: podman is not chosen
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from session_lab import GONE, LAB, PULLED, TWO, await_nothing, by, everywhere, inside, job_of, role, start

#: Ends with a program in the background that would go on, and keep the output open.
_FAILS = ["sh", "-c", "sleep 600 & echo there is no data >&2; exit 3"]


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    by("alice", "gpumesh-session", "stop", "demo", check=False)


@pytest.fixture(name="runtime", scope="module", params=["charliecloud", "slurm"])
def _runtime(request: pytest.FixtureRequest) -> str:
    done = LAB.play("gpumesh.cluster.slurm", "--extra-vars", f"session_runtime={request.param}")
    assert done.code == 0, done.output
    return str(request.param)


def test_containers_reach_each_other_with_their_own_images_and_environments(runtime: str) -> None:
    secret = "with 'quotes', $NONE and\ntwo lines"
    env = {"TOKEN": secret, "PATH": "/mine:/usr/bin", "HOME": "/tmp"}
    start("alice", [role("main", cpus=2, memory="512M", env=env), role("sub", TWO, replicas=3)])
    found = everywhere("alice", "sh", "-c", "hostname; cat /etc/image; id -u")
    assert found == {"main1": ["main1", "one", "0"], **{f"sub{n}": [f"sub{n}", "two", "0"] for n in (1, 2, 3)}}
    said = inside("alice", "main1", "sh", "-c", 'echo "$TOKEN|$PATH|$HOME|$WORLD_SIZE|${SLURM_JOB_ID:+Slurm}"')
    assert said.strip() == f"{secret}|/mine:/usr/bin|/tmp|4|{'Slurm' if runtime == 'slurm' else ''}"
    for host in ("s1", "s2", "s3"):
        assert "with 'quotes'" not in LAB.run(host, "ps", "axww", "-o", "args")
    # From a container to another one, on another node.
    assert inside("alice", "main1", "ssh", "sub3", "hostname; cat /etc/image; exit 4", check=False).split()[:2] == [
        "sub3",
        "two",
    ]
    # Read-only are the image and what is mounted so.
    assert (
        inside("alice", "sub1", "sh", "-c", "touch /etc/x /usr/x 2>&1; touch /tmp/x", check=False).count("Read-only")
        == 2
    )
    by("alice", "gpumesh-session", "stop", "demo")
    await_nothing()


def test_the_image_of_a_registry(runtime: str) -> None:
    start("alice", [role("main", PULLED)])
    assert everywhere("alice", "cat", "/etc/image") == {"main1": ["pulled"]}
    by("alice", "gpumesh-session", "stop", "demo")
    printed = start("alice", [role("main", PULLED.replace(":1", ":none"))], check=False)
    assert re.search(r"The image \S+:none cannot be fetched on s\d: .*manifest unknown", printed), printed
    await_nothing()


def test_a_command_that_fails_is_told_and_leaves_nothing(runtime: str) -> None:
    printed = start("alice", [role("main"), role("sub", command=_FAILS)], check=False)
    assert re.search("sub1 on s[123] ended with status 3: there is no data\\.", printed), printed
    await_nothing()


def test_a_session_goes_on_without_a_container_that_is_done_and_ends_with_main1(runtime: str) -> None:
    start("alice", [role("main", command="sleep 8"), role("sub", command="true")])
    job_of("alice")
    LAB.wait("the session has ended", lambda: not by("alice", "squeue", "--noheader"), GONE)
    assert "COMPLETED" in by("alice", "squeue", "--states=all", "--noheader", "--format=%T")
    await_nothing()


def test_gpus_are_refused_before_anything_starts(runtime: str) -> None:
    printed = start("alice", [role("main", gpus=1)], check=False)
    assert f"with session_runtime={runtime}, containers get no GPUs" in printed
    assert not by("alice", "squeue", "--noheader")

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes a controller works with, by the table in Slurm's own guide to upgrades."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import release
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.host import parse_version

#: The column "Compatible Prior Version".
TABLE = {
    "22.05": ["21.08", "20.11"],
    "23.02": ["22.05", "21.08"],
    "23.11": ["23.02", "22.05"],
    "24.05": ["23.11", "23.02"],
    "24.11": ["24.05", "23.11", "23.02"],
    "25.05": ["24.11", "24.05", "23.11"],
    "25.11": ["25.05", "24.11", "24.05"],
}
EVERY = ["19.05", "20.02", "20.11", "21.08", *TABLE, "26.05"]


@pytest.mark.parametrize("controller", TABLE)
def test_a_controller_works_with_its_release_and_those_in_the_table(controller: str) -> None:
    fits = [node for node in EVERY if release.works_with(parse_version(f"{controller}.3"), parse_version(f"{node}.11"))]
    assert sorted(fits) == sorted([controller, *TABLE[controller]])
    assert release.oldest(parse_version(f"{controller}.3")) == TABLE[controller][-1]


@given(st.tuples(st.integers(0, 99), st.integers(0, 12), st.integers(0, 99)))
def test_any_controller_works_with_its_own_release(version: tuple[int, int, int]) -> None:
    assert release.works_with(version, version)


def test_both_versions_the_host_and_the_remedy_are_named() -> None:
    release.refuse("n2", "is", (24, 11, 5), "n1", "24.11.1")
    release.refuse("n2", "is", (22, 5, 8), "n1", "")
    release.refuse("n2", "is", None, "n1", "24.11.5")
    with pytest.raises(HostStateError) as newer:
        release.refuse("n2", "is", (24, 11, 5), "n1", "22.05.8")
    assert str(newer.value) == (
        "Slurm 24.11.5 is installed, but the controller on n1 has Slurm 22.05.8, which works with nodes of 20.11 to 22.05. "
        "Upgrade n1 first, or use the release of its distribution on n2 as well."
    )
    with pytest.raises(
        HostStateError, match=r"Slurm 22\.05\.8 would be installed, .*of 23\.02 to 24\.11\. Upgrade n2 to"
    ):
        release.refuse("n2", "would be", (22, 5, 8), "n1", "24.11.5")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurmd:\n  Installed: (none)\n  Candidate: 22.05.8-4+deb12u3\n  Version table:\n", (22, 5, 8)),
        ("slurmd:\n  Installed: (none)\n  Candidate: 1:24.11.5-4\n", (24, 11, 5)),
        ("slurmd:\n  Installed: (none)\n  Candidate: (none)\n", None),
        ("", None),
    ],
)
def test_what_apt_would_install(text: str, version: tuple[int, int, int] | None) -> None:
    assert release.parse_offered(text) == version


def test_the_version_of_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "find", lambda name: None)
    assert release.installed(lambda argv, **_options: Completed(0, "", ""), "slurmctld") is None
    monkeypatch.setattr(release, "find", lambda name: f"/usr/sbin/{name}")
    assert release.installed(lambda argv, **_options: Completed(0, "slurm-wlm 22.05.8\n", ""), "slurmctld") == (
        22,
        5,
        8,
    )
    # A broken one must not be in the way of a removal.
    assert release.installed(lambda argv, **_options: Completed(127, "", "no libslurm"), "slurmctld") is None

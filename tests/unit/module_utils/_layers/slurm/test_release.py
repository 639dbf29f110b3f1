# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes that a controller works with, by the table in Slurm's own guide to upgrades."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import release
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import parse_version

#: The column "Compatible Prior Version".
COMPATIBLE_RELEASES = {
    "22.05": ["21.08", "20.11"],
    "23.02": ["22.05", "21.08"],
    "23.11": ["23.02", "22.05"],
    "24.05": ["23.11", "23.02"],
    "24.11": ["24.05", "23.11", "23.02"],
    "25.05": ["24.11", "24.05", "23.11"],
    "25.11": ["25.05", "24.11", "24.05"],
}
ALL_RELEASES = ["19.05", "20.02", "20.11", "21.08", *COMPATIBLE_RELEASES, "26.05"]


@pytest.mark.parametrize("controller", COMPATIBLE_RELEASES)
def test_controller_accepts_its_own_and_listed_releases(controller: str) -> None:
    fits = [
        node
        for node in ALL_RELEASES
        if release.is_compatible(parse_version(f"{controller}.3"), parse_version(f"{node}.11"))
    ]
    assert sorted(fits) == sorted([controller, *COMPATIBLE_RELEASES[controller]])
    assert release.oldest_compatible(parse_version(f"{controller}.3")) == COMPATIBLE_RELEASES[controller][-1]


@given(st.tuples(st.integers(0, 99), st.integers(0, 12), st.integers(0, 99)))
def test_controller_accepts_its_own_release(version: tuple[int, int, int]) -> None:
    assert release.is_compatible(version, version)


def test_refusal_names_versions_host_and_remedy() -> None:
    release.refuse_incompatible("n2", "is", (24, 11, 5), "n1", "24.11.1")
    release.refuse_incompatible("n2", "is", (22, 5, 8), "n1", "")
    release.refuse_incompatible("n2", "is", None, "n1", "24.11.5")
    with pytest.raises(HostStateError) as newer:
        release.refuse_incompatible("n2", "is", (24, 11, 5), "n1", "22.05.8")
    assert str(newer.value) == (
        "Slurm 24.11.5 is installed, but the controller on n1 has Slurm 22.05.8, which works with nodes of 20.11 to 22.05. "
        "Upgrade n1 first, or use the release of its distribution on n2 as well."
    )
    with pytest.raises(
        HostStateError, match=r"Slurm 22\.05\.8 would be installed, .*of 23\.02 to 24\.11\. Upgrade n2 to"
    ):
        release.refuse_incompatible("n2", "would be", (22, 5, 8), "n1", "24.11.5")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurmd:\n  Installed: (none)\n  Candidate: 22.05.8-4+deb12u3\n  Version table:\n", (22, 5, 8)),
        ("slurmd:\n  Installed: (none)\n  Candidate: 1:24.11.5-4\n", (24, 11, 5)),
        ("slurmd:\n  Installed: (none)\n  Candidate: (none)\n", None),
        ("", None),
    ],
)
def test_candidate_version_is_parsed(text: str, version: tuple[int, int, int] | None) -> None:
    assert release.parse_candidate_version(text) == version


def test_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "find_program", lambda name: None)
    assert release.installed_version(lambda argv, **_options: CommandResult(0, "", ""), "slurmctld") is None
    monkeypatch.setattr(release, "find_program", lambda name: f"/usr/sbin/{name}")
    assert release.installed_version(
        lambda argv, **_options: CommandResult(0, "slurm-wlm 22.05.8\n", ""), "slurmctld"
    ) == (
        22,
        5,
        8,
    )
    # A broken one must not be in the way of a removal.
    assert (
        release.installed_version(lambda argv, **_options: CommandResult(127, "", "no libslurm"), "slurmctld") is None
    )

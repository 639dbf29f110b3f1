# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version of this collection, and the order of versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.utils.version import SemanticVersion

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import version

ORDERED_VERSIONS = [
    "0.9.0",
    "1.0.0-2",
    "1.0.0-10",
    "1.0.0-dev",
    "1.0.0-dev.2",
    "1.0.0-dev.10",
    "1.0.0-dev.beta",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.1",
    "1.2.0",
    "1.10.0",
    "2.0.0",
]


def test_version_matches_galaxy_yml() -> None:
    galaxy = yaml.safe_load((Path(__file__).resolve().parents[4] / "galaxy.yml").read_text(encoding="utf-8"))
    assert galaxy["version"] == version.VERSION


def test_versions_are_ordered_as_by_ansible() -> None:
    for index, one in enumerate(ORDERED_VERSIONS):
        for place, other in enumerate(ORDERED_VERSIONS):
            assert version.is_older(one, other) is (index < place), (one, other)
            assert (SemanticVersion(one) < SemanticVersion(other)) is (index < place), (one, other)


def test_build_metadata_is_ignored() -> None:
    assert not version.is_older("1.0.0", "1.0.0+git.5") and not version.is_older("1.0.0+git.5", "1.0.0")


@pytest.mark.parametrize("text", ["", "1", "1.0", "v1.0.0", "1.0.0-", "1.0.0 ", "1.0.0\n", "*", "1.0.0-" + "a" * 100])
def test_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a semantic version"):
        version.require_version(text)

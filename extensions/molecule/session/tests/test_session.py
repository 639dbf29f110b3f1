# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions on real hosts. The network itself is proven in tests/integration/session."""

from __future__ import annotations

import pytest
from lab_hosts import Lab

MANAGER = "s1"


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return Lab("molecule-session")


def test_a_second_run_of_the_layer_changes_nothing(lab: Lab) -> None:
    done = lab.play("gpumesh.cluster.slurm")
    assert done.code == 0, done.output
    assert set(done.changed.values()) == {0}, done.output


@pytest.mark.parametrize("host", ["s1", "s2", "s3"])
def test_the_plugin_and_the_rules_are_on_every_node(lab: Lab, host: str) -> None:
    assert "gpumesh_session.so" in lab.run(host, "cat", "/etc/slurm/plugstack.conf.d/gpumesh.conf")
    assert "table inet gpumesh_session" in lab.run(host, "nft", "list", "table", "inet", "gpumesh_session")


def test_jobs_that_are_no_sessions_are_as_ever(lab: Lab) -> None:
    printed = lab.run(MANAGER, "srun", "--nodes=3", "--ntasks=3", "hostname")
    assert sorted(printed.split()) == ["s1", "s2", "s3"]

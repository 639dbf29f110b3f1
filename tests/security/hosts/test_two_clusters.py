# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two clusters of one inventory group: neither sees the secrets of the other, or changes its machines."""

from __future__ import annotations

from pathlib import Path

from lab_hosts import Lab

#: e3 is a cluster of its own now.
OTHER = ("-e", "cluster_name=other", "-e", "cluster_machines=e3", "-e", "cluster_manager=e3", "-e", "mesh_backend=none")
KEY = "/etc/munge/munge.key"


def test_a_second_cluster_beside_the_first(lab: Lab, tmp_path: Path) -> None:
    report = ("-e", f"check_report_dir={tmp_path}")
    lab.mark(("e1", "e2"))
    run = lab.play("gpumesh.cluster.site", *OTHER, *report)
    assert run.code == 0, run.output[-4000:]
    assert lab.read("e3", KEY) != lab.read("e1", KEY)
    for member in ("e1", "e2"):
        assert [path for path in lab.changes(member) if path.startswith(("/etc/", "/var/lib/gpumesh/"))] == []
    lab.mark(("e3",))
    run = lab.play("gpumesh.cluster.slurm", "-e", "munge_rotate_key=true")
    assert run.code == 0, run.output[-4000:]
    assert lab.read("e3", KEY) != lab.read("e1", KEY) == lab.read("e2", KEY)
    assert [path for path in lab.changes("e3") if path.startswith(("/etc/", "/var/lib/gpumesh/"))] == []


def test_a_machine_of_one_is_refused_by_the_scheduler_of_the_other(lab: Lab) -> None:
    """A copy of the other cluster's record would do for an attacker, and happens by mistake."""
    before = {member: lab.read(member, KEY) for member in ("e1", "e2", "e3")}
    run = lab.play("gpumesh.cluster.join", "-e", "cluster_machines=e3", "-e", "cluster_prove_subnet=false")
    assert run.code != 0
    assert {member: lab.read(member, KEY) for member in before} == before

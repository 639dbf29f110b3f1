# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two clusters of one inventory group: neither sees the secrets of the other, or changes its machines."""

from __future__ import annotations

from pathlib import Path

from lab_hosts import Lab
from told_secrets import KeyRotation

#: The host that was outside is a cluster of its own now.
OTHER = ("cluster_name=other", "cluster_machines=outsider", "cluster_manager=outsider", "mesh_backend=none")
MEMBERS = ("n1", "n2", "n3")
GROUP = ("-e", "cluster_hosts=everyone")
KEY = "/etc/munge/munge.key"


def of_a_cluster(lab: Lab, host: str) -> list[str]:
    """What has changed there since it was marked, among the files that are a cluster's.

    Except for what the health check notes, which Slurm runs from time to time.
    """
    return [
        path
        for path in lab.find_changed_files(host)
        if path.startswith(("/etc/", "/var/lib/gpumesh/")) and not path.startswith("/var/lib/gpumesh/health/")
    ]


def test_a_second_cluster_beside_the_first(lab: Lab, tmp_path: Path) -> None:
    report = ("-e", f"check_report_dir={tmp_path}")
    lab.mark_time(MEMBERS)
    run = lab.run_playbook(
        "gpumesh.cluster.site", *GROUP, *(word for option in OTHER for word in ("-e", option)), *report
    )
    assert run.exit_status == 0, run.failure_report
    assert lab.read("outsider", KEY) != lab.read("n1", KEY)
    for member in MEMBERS:
        assert of_a_cluster(lab, member) == []
    lab.mark_time(("outsider",))


def test_new_keys_of_the_first_are_its_own(lab: Lab, rotation: KeyRotation) -> None:
    """In the run of test_secrets.py, with the other cluster's host in its group."""
    assert rotation.site.exit_status == 0, rotation.site.failure_report
    assert "outsider: not among the members of cluster 'default'" in rotation.site.flat_output
    assert lab.read("outsider", KEY) != lab.read("n1", KEY) == lab.read("n2", KEY)
    assert of_a_cluster(lab, "outsider") == []


def test_a_machine_of_one_is_refused_by_the_scheduler_of_the_other(lab: Lab) -> None:
    """A copy of the other cluster's record would do for an attacker, and happens by mistake."""
    before = {member: lab.read(member, KEY) for member in (*MEMBERS, "outsider")}
    run = lab.run_playbook(
        "gpumesh.cluster.join", *GROUP, "-e", "cluster_machines=outsider", "-e", "cluster_prove_subnet=false"
    )
    assert run.exit_status != 0
    assert {member: lab.read(member, KEY) for member in before} == before

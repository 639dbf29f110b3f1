# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of the group that is not in the cluster is left as it is, byte for byte, by every playbook.

It was marked before the first run. Each test continues from the state that the previous one left.
"""

from __future__ import annotations

from lab_hosts import Lab

OUTSIDER = "outsider"
#: A group with a host that is not to be in the cluster.
EVERYONE = ("-e", "cluster_hosts=everyone", "-e", "cluster_machines=n1,n2,n3")
SERVICES = ("munge", "slurmd", "slurmctld", "wg-quick@gpumesh0", "nfs-server", "supervisor")


def untouched(lab: Lab) -> bool:
    """No file was made or changed since the scenario marked the bare host; no service runs, nothing is in memory."""
    assert lab.find_changed_files(OUTSIDER) == []
    assert set(lab.run(OUTSIDER, "systemctl", "is-active", *SERVICES, check=False).split()) == {"inactive"}
    assert lab.run(OUTSIDER, "sh", "-c", "ls -d /run/gpumesh* /run/munge /tmp/gpumesh*; ip -o link", check=False).split(
        "\n"
    )[0] == ("/run/gpumesh-lab-mark")
    return "gpumesh0" not in lab.run(OUTSIDER, "ip", "-oneline", "link")


def test_neither_the_first_site_nor_a_playbook_of_a_layer_has_reached_it(lab: Lab) -> None:
    """Those of test_interrupted.py had it in their group."""
    assert untouched(lab)


def test_a_run_on_it_alone_does_nothing(lab: Lab) -> None:
    run = lab.run_playbook("gpumesh.cluster.slurm", *EVERYONE, "--limit", OUTSIDER)
    assert run.exit_status == 0, run.failure_report
    assert "Could not match supplied host pattern" not in run.flat_output, run.failure_report
    assert untouched(lab)


def test_it_is_not_cleaned_up_as_if_it_had_been_a_member(lab: Lab) -> None:
    key = "/etc/munge/munge.key"
    lab.run(OUTSIDER, "sh", "-c", f"mkdir -p /etc/munge && echo its own > {key}")
    try:
        run = lab.run_playbook("gpumesh.cluster.remove", *EVERYONE, "-e", f"cluster_machine={OUTSIDER}")
        assert run.exit_status != 0
        assert (
            f"{OUTSIDER} is not among the members of cluster 'default', and was not removed from it" in run.flat_output
        )
        assert lab.read(OUTSIDER, key) == b"its own\n"
    finally:
        lab.run(OUTSIDER, "rm", key)
    assert untouched(lab)

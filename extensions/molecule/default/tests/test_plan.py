# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run enters only the layers in which a host differs: what is damaged in any of them is seen and repaired."""

from __future__ import annotations

from collections.abc import Mapping

import host_state
import pytest
from lab_hosts import Lab

SITE = "gpumesh.cluster.site"
DAMAGED = "n2"
#: With the firewall, whose table is only in the kernel.
OPTIONS = ("-e", "firewall_enabled=true", "-e", "check_level=quick")
#: A command that damages each layer on a host: contents and processes first, then modes, ages and what starts at boot.
DAMAGES: tuple[Mapping[str, str], ...] = (
    {
        "slurm": "scontrol delete nodename=n2",
        "names": "sed -i /n3/d /etc/hosts",
        "firewall": "nft delete table inet gpumesh-firewall",
        "ssh_trust": "rm /etc/ssh/ssh_config.d/gpumesh-default.conf",
        "munge": "systemctl stop munge",
        "job_environment": "umount --lazy /run/gpumesh/jobs",
        "train": "truncate --size=0 /usr/local/bin/gpumesh-train",
    },
    {
        "slurm": "systemctl disable slurmd",
        "names": "chmod 0600 /etc/hosts",
        "firewall": "systemctl disable gpumesh-firewall.service",
        "ssh_trust": "chmod 0644 /root/.ssh/authorized_keys",
        "munge": "touch --date=+1second /etc/munge/munge.key",
        "job_environment": "chmod 0600 /etc/gpumesh/task_prolog",
        "train": "chmod 0700 /usr/local/bin/gpumesh-trace",
    },
)
#: What `show` does not compare: a run enters this layer in any case.
NOT_SHOWN = {"slurm"}


def drift_of(lab: Lab, machine: str) -> Mapping[str, str]:
    (cluster,) = [
        cluster
        for cluster in lab.run_playbook("gpumesh.cluster.show", *OPTIONS, "-e", "show_output=json").shown_clusters
        if cluster["name"] == "default"
    ]
    (member,) = [member for member in cluster["members"] if member["machine"] == machine]
    drift: Mapping[str, str] = member["drift"]
    return drift


@pytest.fixture(name="state", scope="module")
def _state(lab: Lab) -> dict[str, object]:
    """The state of the host as a run has left it."""
    lab.await_idle("n1")
    run = lab.run_playbook(SITE, *OPTIONS)
    assert run.exit_status == 0, run.failure_report
    return host_state.read_state(lab, DAMAGED)


@pytest.mark.parametrize("damages", DAMAGES, ids=["contents", "modes"])
def test_what_is_damaged_in_a_layer_is_seen_and_repaired(
    lab: Lab, state: dict[str, object], damages: Mapping[str, str]
) -> None:
    for command in damages.values():
        lab.run(DAMAGED, "sh", "-c", command)
    assert set(drift_of(lab, DAMAGED)) >= set(damages) - NOT_SHOWN
    run = lab.run_playbook(SITE, *OPTIONS)
    assert run.exit_status == 0, run.failure_report
    lab.await_idle("n1")
    assert host_state.find_differences(state, host_state.read_state(lab, DAMAGED)) == []


def test_a_setting_that_is_taken_back_is_a_difference(lab: Lab) -> None:
    """Without the firewall, which all other tests of this scenario do without."""
    run = lab.run_playbook(SITE, "-e", "check_level=quick")
    assert run.exit_status == 0, run.failure_report
    assert "gpumesh-firewall" not in lab.run(DAMAGED, "nft", "list", "tables")

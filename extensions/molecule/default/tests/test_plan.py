# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run enters only the layers in which a host differs: what is damaged in any of them is seen and repaired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import host_state
import pytest
from lab_hosts import Lab

SITE = "gpumesh.cluster.site"
#: With the firewall, whose table is only in the kernel.
OPTIONS = ("-e", "firewall_enabled=true", "-e", "check_level=quick")
#: A command that damages each layer, by machine: contents and processes, and modes, ages and what starts at boot.
DAMAGES: Mapping[str, Mapping[str, str]] = {
    "n1": {"slurm": "mariadb --execute='DROP USER slurm@localhost'"},
    "n2": {
        "mesh": "ip link set dev gpumesh0 mtu 1300",
        "slurm": "scontrol delete nodename=n2",
        "names": "sed -i /n3/d /etc/hosts",
        "firewall": "nft delete table inet gpumesh-firewall",
        "ssh_trust": "rm /etc/ssh/ssh_config.d/gpumesh-default.conf",
        "munge": "systemctl stop munge",
        "job_environment": "umount --lazy /run/gpumesh/jobs",
        "train": "truncate --size=0 /usr/local/bin/gpumesh-train",
    },
    "n3": {
        "mesh": "systemctl disable wg-quick@gpumesh0",
        "slurm": "systemctl disable slurmd",
        "names": "chmod 0600 /etc/hosts",
        "firewall": "systemctl disable gpumesh-firewall.service",
        "ssh_trust": "chmod 0644 /root/.ssh/authorized_keys",
        "munge": "touch --date=+1second /etc/munge/munge.key",
        "job_environment": "chmod 0600 /etc/gpumesh/task_prolog",
        "train": "chmod 0700 /usr/local/bin/gpumesh-trace",
    },
}
#: What slurmdbd may do in MariaDB.
SHOW_GRANTS = "SHOW GRANTS FOR slurm@localhost"
READ_MTU = ("cat", "/sys/class/net/gpumesh0/mtu")


@pytest.fixture(name="states", scope="module")
def _states(lab: Lab) -> dict[str, dict[str, Any]]:
    """The states of the machines as a run has left them."""
    lab.await_idle("n1")
    run = lab.run_playbook(SITE, *OPTIONS)
    assert run.exit_status == 0, run.failure_report
    return {machine: host_state.read_state(lab, machine) for machine in DAMAGES}


def read_drift(lab: Lab) -> dict[str, Mapping[str, str]]:
    """Return what the playbook show finds in the layers of each member."""
    run = lab.run_playbook("gpumesh.cluster.show", *OPTIONS, "-e", "show_output=json")
    (cluster,) = [cluster for cluster in run.shown_clusters if cluster["name"] == "default"]
    return {member["machine"]: member["drift"] for member in cluster["members"]}


def test_what_is_damaged_in_a_layer_is_seen_and_repaired(lab: Lab, states: dict[str, dict[str, Any]]) -> None:
    grants, mtu = lab.run("n1", "mariadb", "--execute", SHOW_GRANTS), lab.run("n2", *READ_MTU)
    for machine, damages in DAMAGES.items():
        for command in damages.values():
            lab.run(machine, "sh", "-c", command)
    drift = read_drift(lab)
    assert [machine for machine, damages in DAMAGES.items() if set(damages) - set(drift[machine])] == []
    run = lab.run_playbook(SITE, *OPTIONS)
    assert run.exit_status == 0, run.failure_report
    lab.await_idle("n1")
    for machine, state in states.items():
        assert host_state.find_differences(state, host_state.read_state(lab, machine)) == [], machine
    assert (lab.run("n1", "mariadb", "--execute", SHOW_GRANTS), lab.run("n2", *READ_MTU)) == (grants, mtu)


def test_a_setting_that_is_taken_back_is_a_difference(lab: Lab) -> None:
    """Without the firewall, which all other tests of this scenario do without."""
    run = lab.run_playbook(SITE, "-e", "check_level=quick")
    assert run.exit_status == 0, run.failure_report
    assert "gpumesh-firewall" not in lab.run("n2", "nft", "list", "tables")

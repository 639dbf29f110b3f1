# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is damaged on a machine without systemd is seen and repaired, as in the scenario default on machines with it.

After the operations that were killed, which leave a cluster of all three machines.
"""

from __future__ import annotations

from collections.abc import Mapping

import host_state
from lab_hosts import Lab

SITE = "gpumesh.cluster.site"
OPTIONS = ("-e", "firewall_enabled=true", "-e", "check_level=quick")
#: A command that damages each layer of c3, where supervisord runs the daemons.
DAMAGES: Mapping[str, str] = {
    "mesh": "ip link set dev gpumesh0 mtu 1300",
    "names": "chmod 0600 /etc/hosts",
    "firewall": "nft delete table inet gpumesh-firewall",
    "ssh_trust": "rm /etc/ssh/ssh_config.d/gpumesh-chaos.conf",
    "munge": "supervisorctl stop munge",
    "job_environment": "chmod 0600 /etc/gpumesh/task_prolog",
    # Older than what it reads.
    "slurm": "touch --date=+1second /etc/slurm/node/slurmd.env",
    "train": "truncate --size=0 /usr/local/bin/gpumesh-train",
}
READ_MTU = ("cat", "/sys/class/net/gpumesh0/mtu")


def test_what_is_damaged_under_supervisord_is_seen_and_repaired() -> None:
    lab = Lab("molecule-chaos")
    run = lab.run_playbook(SITE, *OPTIONS)
    assert run.exit_status == 0, run.failure_report
    state, mtu = host_state.read_state(lab, "c3"), lab.run("c3", *READ_MTU)
    for command in DAMAGES.values():
        lab.run("c3", "sh", "-c", command)
    run = lab.run_playbook("gpumesh.cluster.show", *OPTIONS, "-e", "show_output=json")
    (cluster,) = [cluster for cluster in run.shown_clusters if cluster["name"] == "chaos"]
    drift_by_machine = {member["machine"]: member["drift"] for member in cluster["members"]}
    assert set(DAMAGES) - set(drift_by_machine["c3"]) == set(), drift_by_machine
    run = lab.run_playbook(SITE, *OPTIONS)
    assert run.exit_status == 0, run.failure_report
    assert host_state.find_differences(state, host_state.read_state(lab, "c3")) == []
    assert lab.run("c3", *READ_MTU) == mtu
    run = lab.run_playbook(SITE, *OPTIONS)
    assert run.exit_status == 0, run.failure_report
    assert "are left out: mesh, names, firewall, storage, ssh_trust, " in run.flat_output

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster with the oci.conf of an earlier version, by which any user could run commands as root on each node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from lab_hosts import Lab
from slurm_members import LAB, MACHINES, PATIENCE, SLURM, wait_until_idle

from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import conf

FILE = "/etc/slurm/oci.conf"
_CRUN = "unset NOTIFY_SOCKET; r=%r; d=${r%%/bundle/rootfs}/crun; exec crun --cgroup-manager=disabled --root=$d"
FORMER = conf.text_of(
    [
        f'RunTimeQuery="{_CRUN} state %n.%u.%j.%s.%t"',
        f'RunTimeKill="{_CRUN} kill --all %n.%u.%j.%s.%t"',
        f'RunTimeDelete="{_CRUN} delete --force %n.%u.%j.%s.%t"',
        f'RunTimeRun="{_CRUN} run --bundle=%b %n.%u.%j.%s.%t"',
    ]
)
BUNDLE = "/home/mallory/bundle"
#: What Slurm puts in place of %r; root's shell would make a file with the number of its user.
CONFIG = json.dumps({"ociVersion": "1.0.0", "root": {"path": "/x;id>/tmp/oci.$(id -u);#"}})
PREPARE = f"""
id mallory 2>/dev/null || useradd --uid 2300 --create-home mallory
mkdir -p {BUNDLE} && printf %s "$1" > {BUNDLE}/config.json && chmod -R a+rX /home/mallory
"""


@pytest.fixture(name="lab", scope="module")
def _lab() -> Iterator[Lab]:
    for machine in MACHINES:
        LAB.run(machine, "sh", "-c", PREPARE, "-", CONFIG)
    yield LAB
    for machine in MACHINES:
        LAB.run(machine, "sh", "-c", f"userdel --remove mallory; rm -f /tmp/oci.* {FILE}")


def attacked(lab: Lab) -> list[str]:
    """Where root has run what an ordinary user has written, after that user has tried it on each node."""
    for machine in MACHINES:
        lab.run(machine, "sh", "-c", "rm -f /tmp/oci.*")
        attack = ("srun", "--immediate=60", "--chdir=/", f"--nodelist={machine}", f"--container={BUNDLE}", "true")
        lab.run("s1", "runuser", "-u", "mallory", "--", *attack, check=False)
    return [machine for machine in MACHINES if lab.run(machine, "sh", "-c", "ls /tmp/oci.0", check=False)]


@pytest.mark.release
def test_an_oci_conf_of_an_earlier_version_goes_from_every_node(lab: Lab) -> None:
    wait_until_idle(lab)
    lab.run("s1", "sh", "-c", 'printf %s "$1" > "$2"', "-", FORMER, FILE)
    lab.run("s1", "scontrol", "reconfigure")
    lab.wait("the attack succeeds on every node", lambda: attacked(lab) == list(MACHINES), PATIENCE)
    run = lab.play(SLURM)
    assert run.code == 0, run.output
    assert run.changed["s1"], run.output
    lab.wait("no node has it", lambda: not attacked(lab), PATIENCE)
    assert attacked(lab) == []
    assert not [machine for machine in MACHINES if lab.run(machine, "find", "/", "-xdev", "-name", "oci.conf")]


def test_an_oci_conf_of_the_administrators_own_stays(lab: Lab) -> None:
    own = 'RunTimeQuery="true"\n'
    lab.run("s1", "sh", "-c", 'printf %s "$1" > "$2"', "-", own, FILE)
    run = lab.play(SLURM, "--limit", "s1")
    assert run.code == 0, run.output
    assert lab.read("s1", FILE).decode() == own

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts whose administrators have set up ufw (r1) and firewalld (r2): a second cluster comes and goes.

Each test continues from the state that the previous one left. Only the record and the layer firewall are set up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_hosts import AnsibleRun, Lab

LAB = Lab("molecule-registry")
#: The installation takes minutes on a busy machine.
INSTALL_TIMEOUT = 900
#: The daemon starts as on a machine of its own, except for what takes longer than systemd waits on a busy one.
RELAXED_START = "[Service]\\nTimeoutStartSec=600\\n"
SET_UP = {
    "r1": """
        apt-get install --yes -qq --no-install-recommends ufw
        ufw allow 22/tcp
        ufw allow 8080/tcp comment 'of the admin'
        ufw --force enable
    """,
    "r2": f"""
        mkdir -p /etc/systemd/system/firewalld.service.d
        printf '{RELAXED_START}' > /etc/systemd/system/firewalld.service.d/lab.conf
        apt-get install --yes -qq --no-install-recommends firewalld
        systemctl start firewalld
        firewall-cmd --permanent --add-port=8080/tcp
        firewall-cmd --reload
    """,
}
TEAR_DOWN = {
    "r1": "ufw --force disable; apt-get purge --yes -qq ufw; rm -rf /etc/ufw /lib/ufw",
    "r2": "apt-get purge --yes -qq firewalld; rm -rf /etc/firewalld /etc/systemd/system/firewalld.service.d",
}


def on(host: str, script: str) -> str:
    return LAB.run(host, "sh", "-ec", f"export DEBIAN_FRONTEND=noninteractive; {script}", timeout=INSTALL_TIMEOUT)


def states() -> tuple[str, str]:
    """What the administrators have set up: the rules of ufw, and the permanent zones and policies of firewalld."""
    defaults = on("r1", "ufw status verbose | head -4")
    zones = on("r2", "for c in zones policies; do firewall-cmd --permanent --list-all-$c; done; firewall-cmd --state")
    return defaults + on("r1", "ufw show added"), zones


@pytest.fixture(scope="module", autouse=True)
def _firewalls() -> Iterator[None]:
    for host, script in SET_UP.items():
        on(host, f"apt-get update -qq; {script}")
    yield
    for host, script in TEAR_DOWN.items():
        on(host, script)


@pytest.fixture(scope="module")
def before(_firewalls: None) -> tuple[str, str]:
    return states()


def play(folder: Path, *entries: tuple[str, str], **variables: str) -> AnsibleRun:
    """Run these entry points of roles for the second cluster."""
    tasks = [
        {"name": entry, "ansible.builtin.include_role": {"name": f"gpumesh.cluster.{role}", "tasks_from": entry}}
        for role, entry in entries
    ]
    path = folder / "step.yml"
    path.write_text(
        json.dumps([{"name": "Test", "hosts": "r1,r2", "become": True, "gather_facts": False, "tasks": tasks}])
    )
    given = {"cluster_name": "other", "cluster_machines": "r1, r2", "mesh_backend": "none", **variables}
    return LAB.run_playbook(str(path), "-e", json.dumps(given))


def set_up(folder: Path, **variables: str) -> AnsibleRun:
    return play(folder, ("cluster", "register"), ("firewall", "main"), **variables)


def delete(folder: Path) -> None:
    done = play(folder, ("cluster", "delete"), ("firewall", "leave"), ("cluster", "forget"))
    assert done.exit_status == 0, done.output


def test_a_machine_that_cannot_join_keeps_no_rules(tmp_path: Path, before: tuple[str, str]) -> None:
    on("r1", "ip route add blackhole 10.79.60.12/32")
    try:
        done = set_up(tmp_path, firewall_host="auto")
        assert done.exit_status != 0
        assert "0 of 2 pairs reach each other" in done.flat_output
    finally:
        on("r1", "ip route del blackhole 10.79.60.12/32")
    assert states() == before


def test_the_commands_are_said_and_work(tmp_path: Path, before: tuple[str, str]) -> None:
    done = set_up(tmp_path)
    assert done.exit_status != 0
    assert "ufw is active on r1. Set firewall_host=auto, or run there: `ufw allow in on eth0 from 10.79.60.0/24`" in (
        done.flat_output
    )
    assert "firewalld is active on r2. Set firewall_host=auto, or run there: `firewall-cmd" in done.flat_output
    assert states() == before
    commands = re.findall(r"^  ((?:ufw|firewall-cmd) .*)$", done.output, re.MULTILINE)
    assert len(commands) == 7
    for command in commands:
        on("r1" if command.startswith("ufw ") else "r2", command)
    done = set_up(tmp_path)
    assert done.exit_status == 0, done.output
    assert "without the rules of cluster" not in done.output
    delete(tmp_path)
    assert states() == before


def test_the_rules_are_added_and_removed_with_the_cluster(tmp_path: Path, before: tuple[str, str]) -> None:
    done = set_up(tmp_path, firewall_host="auto")
    assert done.exit_status == 0, done.output
    added, zones = states()
    assert added == before[0] + "ufw allow in on eth0 from 10.79.60.0/24 comment 'gpumesh.cluster other'\n"
    assert "gpumesh-in-other" in zones and "gpumesh-in-other (active)" in on("r2", "firewall-cmd --list-all-policies")
    again = set_up(tmp_path, firewall_host="auto")
    assert (again.exit_status, set(again.changed.values())) == (0, {0}), again.output
    assert states() == (added, zones)
    delete(tmp_path)
    assert states() == before
    assert "rule family" not in on("r2", "firewall-cmd --info-policy=gpumesh-in-other")

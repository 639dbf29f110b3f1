# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts whose administrators have set up ufw (r1) and firewalld (r2): two clusters come and go.

Each test continues from the state that the previous one left, the first from that of test_registry, which leaves the hosts
without a cluster. Only the record and the layer firewall are set up. What needs no ufw or firewalld is tested in tests/unit:
which rules there are, and when a machine that cannot join loses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab_hosts import AnsibleRun, Lab, split_by_task

LAB = Lab("molecule-registry")
#: The installation takes minutes on a busy machine.
INSTALL_TIMEOUT = 900
#: The daemon starts as on a machine of its own, except for what takes longer than systemd waits on a busy one.
RELAXED_START = "[Service]\\nTimeoutStartSec=600\\n"
ACCEPT_IN_UFW = "ufw allow in on eth0 from 10.79.60.0/24"
RICH_RULE = 'rule family="ipv4" source address="10.79.60.0/24" accept'
ACCEPT_IN_FIREWALLD = (
    'firewall-cmd --zone="$(firewall-cmd --get-zone-of-interface=eth0 || firewall-cmd --get-default-zone)" '
    f"--add-rich-rule='{RICH_RULE}'"
)
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
# The hosts are about to be destroyed.
TEAR_DOWN = {"r1": "ufw --force disable", "r2": "systemctl stop firewalld"}
#: What the playbook delete does, as far as these hosts have layers.
DELETION = (("cluster", "delete"), ("firewall", "leave"), ("cluster", "forget"))


def on(host: str, script: str) -> str:
    return LAB.run(host, "sh", "-ec", f"export DEBIAN_FRONTEND=noninteractive; {script}", timeout=INSTALL_TIMEOUT)


def states() -> tuple[str, str]:
    """What the administrators have set up: the rules of ufw, and the permanent zones and policies of firewalld."""
    defaults = on("r1", "ufw status verbose | head -4")
    zones = on("r2", "for c in zones policies; do firewall-cmd --permanent --list-all-$c; done; firewall-cmd --state")
    return defaults + on("r1", "ufw show added"), zones


@pytest.fixture(scope="module", autouse=True)
def _firewalls() -> Iterator[None]:
    with ThreadPoolExecutor() as executor:
        list(executor.map(on, SET_UP, (f"apt-get update -qq; {script}" for script in SET_UP.values())))
    yield
    for host, script in TEAR_DOWN.items():
        on(host, script)


@pytest.fixture(scope="module")
def before(_firewalls: None) -> tuple[str, str]:
    return states()


def play(folder: Path, cluster: str, *entries: tuple[str, str], **variables: str) -> AnsibleRun:
    """Run these entry points of roles for a cluster. The mesh itself is not set up."""
    tasks = [
        {"name": entry, "ansible.builtin.include_role": {"name": f"gpumesh.cluster.{role}", "tasks_from": entry}}
        for role, entry in entries
    ]
    path = folder / "step.yml"
    path.write_text(
        json.dumps([{"name": "Test", "hosts": "r1,r2", "become": True, "gather_facts": False, "tasks": tasks}])
    )
    given = {"cluster_name": cluster, "cluster_machines": "r1, r2", "mesh_backend": "wireguard", **variables}
    return LAB.run_playbook(str(path), "-e", json.dumps(given))


def own_firewall_tasks(run: AnsibleRun, words: str) -> list[str]:
    """What each task about the hosts' own firewalls printed whose name has these words."""
    return [output for task, output in split_by_task(run.output) if words in task and "own firewall" in task]


def test_the_remedy_of_a_machine_that_cannot_join_works(tmp_path: Path, before: tuple[str, str]) -> None:
    done = play(tmp_path, "other", ("cluster", "register"))
    assert done.exit_status != 0
    remedies = done.flat_output.replace('\\"', '"')
    assert f"ufw is active on r1. Set firewall_host=auto, or run there: `{ACCEPT_IN_UFW}`" in remedies
    assert f"`{ACCEPT_IN_FIREWALLD}`, also with --permanent" in remedies
    assert states() == before
    on("r1", ACCEPT_IN_UFW)
    for place in ("", "--permanent "):
        on("r2", ACCEPT_IN_FIREWALLD.replace("firewall-cmd ", f"firewall-cmd {place}", 1))


def test_the_commands_are_said_and_work(tmp_path: Path, before: tuple[str, str]) -> None:
    done = play(tmp_path, "other", ("cluster", "register"), ("firewall", "main"))
    assert done.exit_status == 0, done.output
    commands = re.findall(r"^  ((?:ufw|firewall-cmd) .*)$", done.output, re.MULTILINE)
    # What the administrator has just accepted is not among them.
    assert not [command for command in commands if "10.79.60" in command]
    assert len([command for command in commands if command.startswith("ufw ")]) == 3
    for command in commands:
        on("r1" if command.startswith("ufw ") else "r2", command)
    again = play(tmp_path, "other", ("cluster", "load"), ("firewall", "main"), *DELETION, firewall_host="auto")
    assert again.exit_status == 0, again.output
    (compared,) = own_firewall_tasks(again, "Let the members through")
    assert "ok: [r1]" in compared and "ok: [r2]" in compared and "changed:" not in compared, again.output
    on("r1", ACCEPT_IN_UFW.replace("ufw ", "ufw delete "))
    for place in ("", "--permanent"):
        on("r2", f"firewall-cmd {place} --zone=public --remove-rich-rule='{RICH_RULE}'")
    assert states() == before


def test_the_rules_are_added_and_removed_with_the_cluster(tmp_path: Path, before: tuple[str, str]) -> None:
    """The objects that cluster other has left in the running firewalld do not prevent the reload."""
    assert "gpumesh-in-other" in on("r2", "firewall-cmd --get-policies")
    options = {"firewall_host": "auto", "session_enabled": "true"}
    done = play(tmp_path, "third", ("cluster", "register"), ("firewall", "main"), **options)
    assert done.exit_status == 0, done.output
    for_probes, again = own_firewall_tasks(done, "through the host")
    assert "changed: [r1]" in for_probes and "changed: [r2]" in for_probes, done.output
    assert "changed:" not in again, done.output
    added, zones = states()
    assert added.removeprefix(before[0]).splitlines() == [
        f"ufw {rule} comment 'gpumesh.cluster third'"
        for rule in (
            "allow in on eth0 from 10.79.60.0/24",
            "allow 51820/udp",
            "allow in on gpumesh0 from 10.99.0.0/16",
            "route allow in on gpumesh0 out on gpumesh0",
            "route allow in on gms+ from 10.192.0.0/10",
        )
    ]
    assert all(name in zones for name in ("gpumesh-third", "gpumesh-S-third", "gpumesh-in-third", "gpumesh-via-third"))
    assert on("r2", "firewall-cmd --get-zone-of-interface=gpumesh0").strip() == "gpumesh-third"
    assert RICH_RULE in on("r2", "firewall-cmd --info-policy=gpumesh-in-third")
    deleted = play(tmp_path, "third", *DELETION)
    assert deleted.exit_status == 0, deleted.output
    assert states() == before
    for policy in ("gpumesh-in-third", "gpumesh-via-third"):
        assert "rule family" not in on("r2", f"firewall-cmd --info-policy={policy}")

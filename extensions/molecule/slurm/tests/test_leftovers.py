# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an earlier version and former choices leave on the hosts goes.

The tests run in the order of the file. They share their runs of the playbook; the last one leaves the cluster as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from lab_hosts import AnsibleRun, Lab
from slurm_members import (
    LAB,
    MACHINES,
    SLURM_PLAYBOOK,
    WAIT_TIMEOUT,
    find_daemon_pids,
    find_listeners,
    list_accounted_jobs,
    query_rest,
    query_rest_without_tls,
    read_node_states,
    wait_until_idle,
    write_file,
)

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import conf, rest

#: The drop-in of slurmrestd in earlier versions, which had no proxy.
FORMER_REST = """[Unit]
StartLimitIntervalSec=0
[Service]
DynamicUser=yes
Environment=SLURM_JWT=daemon
ExecStart=
ExecStart=/usr/sbin/slurmrestd -a rest_auth/jwt 127.0.0.1:6820
Restart=on-failure
RestartSec=5
"""
#: An oci.conf of an earlier version, by which any user could run commands as root on each node.
FILE = "/etc/slurm/oci.conf"
_CRUN = "unset NOTIFY_SOCKET; r=%r; d=${r%%/bundle/rootfs}/crun; exec crun --cgroup-manager=disabled --root=$d"
FORMER = conf.render_file(
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


@pytest.fixture(name="upgraded", scope="module")
def _upgraded(lab: Lab) -> AnsibleRun:
    """A run without an address of the REST interface, on a cluster as an earlier version made it."""
    wait_until_idle(lab)
    lab.run("s1", "systemctl", "disable", "--now", rest.PROXY_SERVICE)
    write_file(lab, "s1", "/etc/systemd/system/slurmrestd.service.d/gpumesh.conf", FORMER_REST)
    lab.run("s1", "systemctl", "daemon-reload")
    lab.run("s1", "systemctl", "restart", "slurmrestd")
    lab.wait_until("it listens", lambda: find_listeners(lab) == ["slurmrestd"], WAIT_TIMEOUT)
    assert query_rest_without_tls(lab, "127.0.0.1:6820") == "200"
    write_file(lab, "s1", FILE, FORMER)
    lab.run("s1", "scontrol", "reconfigure")
    lab.wait_until("the attack succeeds on every node", lambda: attacked(lab) == list(MACHINES), WAIT_TIMEOUT)
    run = lab.run_playbook(SLURM_PLAYBOOK, "-e", json.dumps({"slurm_rest_address": None}))
    assert run.exit_status == 0, run.failure_report
    return run


@pytest.mark.release
def test_an_oci_conf_of_an_earlier_version_goes_from_every_node(lab: Lab, upgraded: AnsibleRun) -> None:
    assert upgraded.changed["s1"], upgraded.output
    lab.wait_until("no node has it", lambda: not attacked(lab), WAIT_TIMEOUT)
    assert attacked(lab) == []
    # What goes away while it looks is no error.
    find = ("find", "/", "-ignore_readdir_race", "-xdev", "-name", "oci.conf")
    lab.wait_until(
        "no node has the file", lambda: not any(lab.run(machine, *find) for machine in MACHINES), WAIT_TIMEOUT
    )


@pytest.mark.usefixtures("upgraded")
def test_without_an_address_there_is_no_listener_not_even_that_of_an_earlier_version(lab: Lab) -> None:
    assert find_listeners(lab) == []
    assert query_rest_without_tls(lab, rest.SOCKET_PATH) == "200"
    shown = lab.run("s1", "systemctl", "show", "--property=ActiveState,UnitFileState,DropInPaths", rest.PROXY_SERVICE)
    assert shown.split() == ["ActiveState=inactive", "DropInPaths=", "UnitFileState=disabled"]
    for machine in MACHINES:
        assert lab.run(machine, "sh", "-c", f"ls -d {rest.TRUST_PATH} {rest.PROXY_DIRECTORY}", check=False) == ""


@pytest.fixture(name="history", scope="module")
def _history(lab: Lab) -> set[str]:
    """The jobs in the accounting before it was switched off."""
    return list_accounted_jobs(lab, "s1")


def test_what_is_no_longer_chosen_leaves_nothing_behind(lab: Lab, history: set[str]) -> None:
    assert history
    chosen = (rest.PROXY_SERVICE, rest.REST_DAEMON, "slurmdbd", "mariadb")
    off = {"slurm_rest": False, "slurm_accounting": False, "job_environment_dialects": []}
    run = lab.run_playbook(SLURM_PLAYBOOK, "--limit", "s1", "-e", json.dumps(off))
    assert run.exit_status == 0, run.failure_report
    for name in chosen:
        shown = lab.run("s1", "systemctl", "show", "--property=ActiveState,UnitFileState,DropInPaths", name)
        assert shown.split() == ["ActiveState=inactive", "DropInPaths=", "UnitFileState=disabled"], name
    files = ("/etc/slurm/slurmdbd.conf", "/var/lib/slurm/slurmctld/jwt_hs256.key")
    files += (rest.PROXY_DIRECTORY, rest.TRUST_PATH, rest.SOCKET_DIRECTORY)
    assert lab.run("s1", "ls", "-d", *files, check=False) == ""
    lab.wait_until("s1 is idle", lambda: read_node_states(lab).get("s1") == "idle", WAIT_TIMEOUT)
    environment = lab.run("s1", "srun", "--nodelist=s1", "env", timeout=WAIT_TIMEOUT)
    assert "MASTER_ADDR=" in environment
    assert not re.findall(r"^(?:BACKENDAI|DSTACK|SKYPILOT|PRIMARY)_.*", environment, re.MULTILINE)


def test_what_is_chosen_again_comes_back_and_an_oci_conf_of_the_administrators_own_stays(
    lab: Lab, history: set[str]
) -> None:
    own = 'RunTimeQuery="true"\n'
    write_file(lab, "s1", FILE, own)
    run = lab.run_playbook(SLURM_PLAYBOOK)
    assert run.exit_status == 0, run.failure_report
    assert lab.read("s1", FILE).decode() == own
    assert find_listeners(lab) == ["stunnel"]
    assert query_rest(lab, "s4", "s1") == ["s1 s2 s3 s4", "refused", "not verified"]
    wait_until_idle(lab)
    find_daemon_pids(lab)
    assert history <= list_accounted_jobs(lab, "s1")

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What needs a kernel, asked of three hosts that have one: the data of the cluster outlives its machines' troubles.

v1 serves /data, v2 serves /scratch, v3 manages. The tests run in the order of the file; the last ones take v3 out.
"""

from __future__ import annotations

import hashlib
import re
import time

import pytest
from kernel_hosts import KernelLab

MACHINES = ("v1", "v2", "v3")
MESH = "gpumesh0"
#: A softerr mount gives up after 45 s. The rest is for a busy machine.
BOUNDED = 100
CONTENT = "".join(f"{number}\n" for number in range(200_000))
CHECKSUM = hashlib.sha256(CONTENT.encode()).hexdigest()


@pytest.fixture(name="lab", scope="module")
def _lab() -> KernelLab:
    return KernelLab("molecule-kernel")


def address(machine: str) -> str:
    """Where the machine is in the mesh."""
    return f"10.99.0.{machine[1:]}"


def exported(lab: KernelLab, server: str) -> dict[str, set[str]]:
    """To whom the kernel of the server gives each of its folders."""
    found: dict[str, set[str]] = {}
    for path, client in re.findall(r"^(\S+)\s+(\S+)\(", lab.shell(server, "exportfs -s"), re.MULTILINE):
        found.setdefault(path, set()).add(client)
    return found


def checksum(lab: KernelLab, machine: str, path: str = "/data/kept") -> str:
    return lab.shell(machine, f"sha256sum {path}").split()[0]


def nodes(lab: KernelLab, asked: str = "v2") -> set[str]:
    states = lab.ssh(asked, "sinfo --noheader --Node --format='%N %T'").stdout
    return set(states.split("\n")) - {""}


def all_idle(lab: KernelLab, machines: tuple[str, ...] = MACHINES) -> bool:
    return nodes(lab) == {f"{machine} idle" for machine in machines}


def test_the_tunnel_is_the_kernels(lab: KernelLab) -> None:
    for machine in MACHINES:
        assert "wireguard" in lab.shell(machine, f"ip -details link show {MESH}")
        assert lab.ssh(machine, "command -v wireguard-go; pgrep -x wireguard-go").stdout == ""
        assert len(lab.shell(machine, f"wg show {MESH} latest-handshakes").splitlines()) == 2


def test_the_jobs_are_in_control_groups_of_version_2(lab: KernelLab) -> None:
    assert lab.shell("v3", "stat --file-system --format=%T /sys/fs/cgroup").strip() == "cgroup2fs"
    lab.wait("all nodes are idle", lambda: all_idle(lab), seconds=180)
    group = lab.shell("v1", "srun --nodelist=v3 --mem=64M cat /proc/self/cgroup").strip()
    assert group.startswith("0::/"), group
    assert "job_" in group, group


def test_volumes_are_nfs_4_2_over_the_tunnel(lab: KernelLab) -> None:
    for machine in ("v2", "v3"):
        lab.shell(machine, "ls /data")
        kind, options = lab.shell(machine, "findmnt --noheadings --types nfs4 --output FSTYPE,OPTIONS /data").split()
        assert kind == "nfs4"
        assert "vers=4.2" in options
        assert f"addr={address('v1')}" in options
        assert f"clientaddr={address(machine)}" in options


def test_exports_are_for_members_alone(lab: KernelLab) -> None:
    assert exported(lab, "v1") == {"/srv/data": {address("v2"), address("v3")}}
    assert exported(lab, "v2") == {"/srv/scratch": {address("v1"), address("v3")}}


def test_root_of_a_member_is_nobody_on_the_server(lab: KernelLab) -> None:
    lab.shell("v1", "install -d -m 1777 /srv/data /srv/data/open && chmod 1777 /srv/data")
    lab.shell("v2", "chmod 1777 /srv/scratch")
    lab.shell("v3", "touch /data/open/by-root")
    assert lab.shell("v1", "stat --format=%U /srv/data/open/by-root").strip() == "nobody"


def test_a_job_writes_on_one_node_and_another_reads(lab: KernelLab) -> None:
    lab.wait("all nodes are idle", lambda: all_idle(lab), seconds=180)
    written = lab.shell("v2", "srun --nodelist=v3 --mem=64M sh -c 'seq 0 199999 >/data/kept && hostname'")
    assert written.strip() == "v3"
    read = lab.shell("v2", "srun --nodelist=v2 --mem=64M sha256sum /data/kept")
    assert read.split()[0] == CHECKSUM
    assert checksum(lab, "v1", "/srv/data/kept") == CHECKSUM


def test_without_its_server_a_volume_fails_in_bounded_time_and_nothing_else_does(lab: KernelLab) -> None:
    lab.shell("v3", "ls /data /scratch")
    usual = lab.reboot("v3")
    lab.shell("v3", "ls /data")
    lab.cut("v1")
    started = time.monotonic()
    try:
        # The machine stays usable while somebody waits.
        waiting = lab.ssh("v3", "systemd-run --quiet --unit=waits --collect --property=Type=exec ls /data; true")
        assert waiting.returncode == 0
        assert lab.shell("v3", "hostname; ls /; ls /scratch", timeout=BOUNDED).startswith("v3")
        listing = lab.ssh("v3", "ls /data/", timeout=BOUNDED)
        assert listing.returncode != 0, listing.stdout
        assert time.monotonic() - started < BOUNDED
        without = lab.reboot("v3")
        assert without < usual + 90, f"{without:.0f} s without the server, {usual:.0f} s with it"
        listing = lab.ssh("v3", "ls /data/", timeout=BOUNDED)
        assert listing.returncode != 0, listing.stdout
        assert lab.shell("v3", "ls /scratch; hostname", timeout=BOUNDED).strip().endswith("v3")
    finally:
        lab.power("v1")
    lab.wait(
        "v3 has its volume again", lambda: lab.ssh("v3", "sha256sum /data/kept").stdout[:64] == CHECKSUM, seconds=180
    )


def test_who_leaves_is_refused_and_the_data_stays(lab: KernelLab) -> None:
    lab.wait("all nodes are idle", lambda: all_idle(lab), seconds=240)
    run = lab.play("gpumesh.cluster.remove", "-e", "cluster_machine=v3", "-e", "cluster_new_manager=v2")
    assert run.code == 0, run.output[-4000:]
    assert exported(lab, "v1") == {"/srv/data": {address("v2")}}
    assert exported(lab, "v2") == {"/srv/scratch": {address("v1")}}
    for machine in ("v1", "v2"):
        assert checksum(lab, machine) == CHECKSUM
    assert lab.ssh("v3", "findmnt --types nfs4,autofs /data").returncode != 0
    # By the road that every machine of the network has.
    lab.shell("v3", "mkdir -p /tmp/no")
    attempt = lab.ssh("v3", "timeout 60 mount -t nfs4 -o vers=4.2,soft 10.79.0.11:/srv/data /tmp/no")
    assert attempt.returncode != 0
    assert re.search(r"access denied|not permitted|No such file", attempt.stderr), attempt.stderr
    whole = lab.ssh("v3", "timeout 60 mount -t nfs4 -o vers=4.2,soft 10.79.0.11:/ /tmp/no && ls -A /tmp/no")
    assert whole.stdout == ""


def test_the_new_manager_runs_jobs_on_the_same_data(lab: KernelLab) -> None:
    lab.wait("both nodes are idle", lambda: all_idle(lab, ("v1", "v2")), seconds=180)
    read = lab.shell("v1", "srun --nodelist=v2 --mem=64M sha256sum /data/kept")
    assert read.split()[0] == CHECKSUM


def test_the_data_outlives_a_reboot_of_its_server(lab: KernelLab) -> None:
    lab.reboot("v1")
    lab.wait("v2 has its volume", lambda: lab.ssh("v2", "sha256sum /data/kept").stdout[:64] == CHECKSUM, seconds=180)
    assert checksum(lab, "v1") == CHECKSUM
    assert exported(lab, "v1") == {"/srv/data": {address("v2")}}

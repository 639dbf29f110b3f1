# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module storage on hosts that cannot have a volume, on the real mounts of a namespace.

The host is the only member, which serves the volume to nobody and mounts it by a bind mount: that needs no NFS.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.support.module_runs import result_of, start
from ansible_collections.gpumesh.cluster.tests.support.mount_space import host_with_mount

UNIT = "[Mount]\nWhat=/mnt/served\nWhere=/mnt/data\nType=none\nOptions=bind,nosuid,nodev\n"
GIVEN = {
    "cluster": "lab",
    "folders": [{"path": "/mnt/served", "state": "directory", "new_mode": "1777"}],
    "mounts": [
        {"volume": "data", "unit": "mnt-data", "mount_point": "/mnt/data", "mount": UNIT, "automount": "[Automount]\n"}
    ],
}
FSTAB = "tmpfs /mnt/data tmpfs defaults 0 0\n"
#: The setting of the ports is hidden, since a namespace of mounts shares it with this machine.
PORTS = """
mount -t tmpfs none /proc/sys/net/ipv4
echo 1024 >/proc/sys/net/ipv4/ip_unprivileged_port_start
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture(name="host")
def _host() -> Iterator[list[str]]:
    with host_with_mount("disk", FSTAB, PORTS) as prefix:
        yield prefix


def seen(host: list[str], *command: str) -> str:
    return subprocess.run([*host, *command], capture_output=True, text=True, check=False).stdout


def store(host: list[str], **differences: Any) -> dict[str, Any]:
    return result_of(start("storage", {**GIVEN, **differences}, prefix=host))


@pytest.mark.parametrize("server", ["kernel", "ganesha"])
def test_a_host_without_systemd_serves_nothing(host: list[str], server: str) -> None:
    refused = store(host, serves=True, server=server)
    assert refused["msg"].startswith(
        "systemd does not run on this host, so it cannot run an NFS server for volume data."
    )
    assert subprocess.run([*host, "test", "-e", "/mnt/served"], check=False).returncode == 1


def test_a_disk_of_others_is_left_alone_and_the_volume_mounted_once_it_is_gone(host: list[str]) -> None:
    before = seen(host, "findmnt", "/mnt/data")
    refused = store(host)
    assert "volume data at /mnt/data: tmpfs from disk. Unmount it" in refused["msg"]
    assert (seen(host, "findmnt", "/mnt/data"), seen(host, "cat", "/etc/fstab")) == (before, FSTAB)
    assert subprocess.run([*host, "test", "-e", "/mnt/served"], check=False).returncode == 1

    seen(host, "umount", "/mnt/data")
    assert "Remove the line" in store(host)["msg"], "it would be mounted again instead of the volume"
    seen(host, "sh", "-c", ": >/etc/fstab")
    assert store(host)["changed"]
    assert "/served]" in seen(host, "findmnt", "--noheadings", "--output=SOURCE", "/mnt/data")
    assert not store(host)["changed"]

    # A run that is interrupted may have mounted it and lost its line.
    seen(host, "sh", "-c", ": >/etc/fstab")
    assert store(host)["changed"]
    assert not store(host)["changed"]

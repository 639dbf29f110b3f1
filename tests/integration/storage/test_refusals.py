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

from ansible_collections.gpumesh.cluster.tests.support.module_runs import read_result, start_module
from ansible_collections.gpumesh.cluster.tests.support.mount_space import host_with_mount

MOUNT_UNIT = "[Mount]\nWhat=/mnt/served\nWhere=/mnt/data\nType=none\nOptions=bind,nosuid,nodev\n"
STORAGE_OPTIONS = {
    "cluster": "lab",
    "folders": [{"path": "/mnt/served", "state": "directory", "new_mode": "1777"}],
    "mounts": [
        {
            "volume": "data",
            "unit": "mnt-data",
            "mount_point": "/mnt/data",
            "mount": MOUNT_UNIT,
            "automount": "[Automount]\n",
        }
    ],
}
FSTAB_TEXT = "tmpfs /mnt/data tmpfs defaults 0 0\n"
#: The setting of the ports is hidden, since a namespace of mounts shares it with this machine.
PORT_COMMANDS = """
mount -t tmpfs none /proc/sys/net/ipv4
echo 1024 >/proc/sys/net/ipv4/ip_unprivileged_port_start
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture(name="host")
def _host() -> Iterator[list[str]]:
    with host_with_mount("disk", FSTAB_TEXT, PORT_COMMANDS) as prefix:
        yield prefix


def run_on_host(host: list[str], *command: str) -> str:
    return subprocess.run([*host, *command], capture_output=True, text=True, check=False).stdout


def run_storage(host: list[str], **differences: Any) -> dict[str, Any]:
    return read_result(start_module("storage", {**STORAGE_OPTIONS, **differences}, prefix=host))


@pytest.mark.parametrize("server", ["kernel", "ganesha"])
def test_host_without_systemd_serves_nothing(host: list[str], server: str) -> None:
    refused = run_storage(host, serves=True, server=server)
    assert refused["msg"].startswith(
        "systemd does not run on this host, so it cannot run an NFS server for volume data."
    )
    assert subprocess.run([*host, "test", "-e", "/mnt/served"], check=False).returncode == 1


def test_foreign_mount_is_refused_until_it_is_removed(host: list[str]) -> None:
    before = run_on_host(host, "findmnt", "/mnt/data")
    refused = run_storage(host)
    assert "volume data at /mnt/data: tmpfs from disk. Unmount it" in refused["msg"]
    assert (run_on_host(host, "findmnt", "/mnt/data"), run_on_host(host, "cat", "/etc/fstab")) == (before, FSTAB_TEXT)
    assert subprocess.run([*host, "test", "-e", "/mnt/served"], check=False).returncode == 1

    run_on_host(host, "umount", "/mnt/data")
    assert "Remove the line" in run_storage(host)["msg"], "it would be mounted again instead of the volume"
    run_on_host(host, "sh", "-c", ": >/etc/fstab")
    assert run_storage(host)["changed"]
    assert "/served]" in run_on_host(host, "findmnt", "--noheadings", "--output=SOURCE", "/mnt/data")
    assert not run_storage(host)["changed"]

    # A run that is interrupted may have mounted it and lost its line.
    run_on_host(host, "sh", "-c", ": >/etc/fstab")
    assert run_storage(host)["changed"]
    assert not run_storage(host)["changed"]

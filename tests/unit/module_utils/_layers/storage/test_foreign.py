# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Foreign mounts where a volume belongs."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import foreign

ROOT = "29 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
AUTOMOUNT = "50 29 0:42 / /mnt/data rw,relatime shared:5 - autofs systemd-1 rw,fd=41,pgrp=1\n"
NFS = "60 29 0:55 / /mnt/data rw,nosuid,nodev,relatime shared:7 - nfs4 10.99.0.1:/srv/data rw,vers=4.2\n"
OTHER_NFS = NFS.replace("10.99.0.1:/srv/data", "nas:/volume1")
DISK = "61 29 254:16 / /mnt/data rw,relatime shared:8 - ext4 /dev/vdb rw\n"
BIND = "62 29 254:1 /srv/data /mnt/data rw,nosuid,nodev,relatime shared:1 - ext4 /dev/vda1 rw\n"
SERVED_DISK = "63 29 254:32 / /srv rw,relatime shared:9 - xfs /dev/vdc rw\n"
BIND_OF_DISK = "64 29 254:32 /data /mnt/data rw,relatime shared:9 - xfs /dev/vdc rw\n"

MEMBER = foreign.DesiredMount("data", "/mnt/data", "10.99.0.1:/srv/data", "nfs4")
SERVER = foreign.DesiredMount("data", "/mnt/data", "/srv/data", "none")


def refuse_mounts(table: str, desired: foreign.DesiredMount, *ours: str) -> None:
    foreign.refuse_other_mounts(parse_mountinfo(ROOT + table), [desired], ours)


@pytest.mark.parametrize("wanted", [MEMBER, SERVER])
@pytest.mark.parametrize(
    ("table", "what"), [(DISK, "ext4 from /dev/vdb"), (AUTOMOUNT + OTHER_NFS, "nfs4 from nas:/volume1")]
)
def test_foreign_mount_is_refused(wanted: foreign.DesiredMount, table: str, what: str) -> None:
    with pytest.raises(HostStateError, match=f"volume data at /mnt/data: {what}. Unmount it") as refused:
        refuse_mounts(table, wanted)
    assert refused.value.details["mounts"] == [{"volume": "data", "mount_point": "/mnt/data", "mounted": what}]
    # An earlier run has mounted a volume with a unit or a line of ours, and this one changes it.
    refuse_mounts(table, wanted, "/mnt/data")


@pytest.mark.parametrize("table", ["", AUTOMOUNT, DISK.replace("/mnt/data", "/mnt"), SERVED_DISK])
@pytest.mark.parametrize("wanted", [MEMBER, SERVER])
def test_free_mount_point_is_accepted(wanted: foreign.DesiredMount, table: str) -> None:
    refuse_mounts(table, wanted)


@pytest.mark.parametrize(
    ("wanted", "table"), [(MEMBER, NFS), (MEMBER, DISK + NFS), (SERVER, BIND), (SERVER, SERVED_DISK + BIND_OF_DISK)]
)
def test_mounted_volume_without_unit_is_accepted(wanted: foreign.DesiredMount, table: str) -> None:
    refuse_mounts(table, wanted)


@pytest.mark.parametrize(("wanted", "table"), [(MEMBER, BIND), (SERVER, NFS), (SERVER, SERVED_DISK + BIND)])
def test_another_source_is_a_foreign_mount(wanted: foreign.DesiredMount, table: str) -> None:
    with pytest.raises(HostStateError, match="Another file system is mounted"):
        refuse_mounts(table, wanted)


def test_desired_mount_is_parsed_from_the_unit() -> None:
    unit = (
        "[Unit]\nDescription=Volume data\n\n[Mount]\nWhat=10.99.0.1:/srv/data\nWhere=/mnt/data\nType=nfs4\nOptions=x\n"
    )
    assert foreign.parse_desired_mount({"volume": "data", "mount_point": "/mnt/data", "mount": unit}) == MEMBER


def test_conflicting_fstab_line_is_refused() -> None:
    line = "tmpfs /mnt/data/ tmpfs defaults 0 0"
    with pytest.raises(HostStateError, match="for /mnt/data, where volume data is to be mounted: tmpfs /mnt/data/"):
        foreign.refuse_other_lines(["/dev/vda1 / ext4 defaults 0 1", line], [MEMBER], [])
    foreign.refuse_other_lines([line], [MEMBER], ["/mnt/data"])
    foreign.refuse_other_lines([f"# {line}", "", line.replace("data", "more"), "tmpfs"], [MEMBER], [])
    foreign.refuse_other_lines(["10.99.0.1:/srv/data /mnt/data nfs4 noauto 0 0"], [MEMBER], [])

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What others have mounted where a volume belongs."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import foreign

ROOT = "29 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
AUTOMOUNT = "50 29 0:42 / /mnt/data rw,relatime shared:5 - autofs systemd-1 rw,fd=41,pgrp=1\n"
NFS = "60 29 0:55 / /mnt/data rw,nosuid,nodev,relatime shared:7 - nfs4 10.99.0.1:/srv/data rw,vers=4.2\n"
OTHER_NFS = NFS.replace("10.99.0.1:/srv/data", "nas:/volume1")
DISK = "61 29 254:16 / /mnt/data rw,relatime shared:8 - ext4 /dev/vdb rw\n"
BIND = "62 29 254:1 /srv/data /mnt/data rw,nosuid,nodev,relatime shared:1 - ext4 /dev/vda1 rw\n"
SERVED_DISK = "63 29 254:32 / /srv rw,relatime shared:9 - xfs /dev/vdc rw\n"
BIND_OF_DISK = "64 29 254:32 /data /mnt/data rw,relatime shared:9 - xfs /dev/vdc rw\n"

MEMBER = foreign.Wanted("data", "/mnt/data", "10.99.0.1:/srv/data", "nfs4")
SERVER = foreign.Wanted("data", "/mnt/data", "/srv/data", "none")


def refuse(table: str, wanted: foreign.Wanted, *ours: str) -> None:
    foreign.refuse(parse_mountinfo(ROOT + table), [wanted], ours)


@pytest.mark.parametrize("wanted", [MEMBER, SERVER])
@pytest.mark.parametrize(
    ("table", "what"), [(DISK, "ext4 from /dev/vdb"), (AUTOMOUNT + OTHER_NFS, "nfs4 from nas:/volume1")]
)
def test_what_others_have_mounted_is_neither_adopted_nor_altered(wanted: foreign.Wanted, table: str, what: str) -> None:
    with pytest.raises(HostStateError, match=f"volume data at /mnt/data: {what}. Unmount it") as refused:
        refuse(table, wanted)
    assert refused.value.details["mounts"] == [{"volume": "data", "mount_point": "/mnt/data", "mounted": what}]
    # With a unit or a line of ours, an earlier run has mounted it, and this one changes it.
    refuse(table, wanted, "/mnt/data")


@pytest.mark.parametrize("table", ["", AUTOMOUNT, DISK.replace("/mnt/data", "/mnt"), SERVED_DISK])
@pytest.mark.parametrize("wanted", [MEMBER, SERVER])
def test_where_nothing_is_mounted_the_volume_has_its_place(wanted: foreign.Wanted, table: str) -> None:
    refuse(table, wanted)


@pytest.mark.parametrize(
    ("wanted", "table"), [(MEMBER, NFS), (MEMBER, DISK + NFS), (SERVER, BIND), (SERVER, SERVED_DISK + BIND_OF_DISK)]
)
def test_the_volume_itself_is_no_other_one_even_if_its_unit_is_missing(wanted: foreign.Wanted, table: str) -> None:
    refuse(table, wanted)


@pytest.mark.parametrize(("wanted", "table"), [(MEMBER, BIND), (SERVER, NFS), (SERVER, SERVED_DISK + BIND)])
def test_another_source_is_another_file_system(wanted: foreign.Wanted, table: str) -> None:
    with pytest.raises(HostStateError, match="Another file system is mounted"):
        refuse(table, wanted)


def test_what_is_wanted_is_read_from_the_unit() -> None:
    unit = (
        "[Unit]\nDescription=Volume data\n\n[Mount]\nWhat=10.99.0.1:/srv/data\nWhere=/mnt/data\nType=nfs4\nOptions=x\n"
    )
    assert foreign.wanted_of({"volume": "data", "mount_point": "/mnt/data", "mount": unit}) == MEMBER


def test_a_line_of_others_is_what_mount_would_use() -> None:
    line = "tmpfs /mnt/data/ tmpfs defaults 0 0"
    with pytest.raises(HostStateError, match="for /mnt/data, where volume data is to be mounted: tmpfs /mnt/data/"):
        foreign.refuse_lines(["/dev/vda1 / ext4 defaults 0 1", line], [MEMBER], [])
    foreign.refuse_lines([line], [MEMBER], ["/mnt/data"])
    foreign.refuse_lines([f"# {line}", "", line.replace("data", "more"), "tmpfs"], [MEMBER], [])
    foreign.refuse_lines(["10.99.0.1:/srv/data /mnt/data nfs4 noauto 0 0"], [MEMBER], [])

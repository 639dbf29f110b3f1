# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is mounted where, and which external file system is refused."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import mount_table
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import volumes
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.bounded import VolumeError, bounded

MOUNTINFO = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /mnt rw - xfs /dev/nvme0n1 rw
31 30 0:41 / /mnt/my\\040data rw,relatime shared:9 - autofs systemd-1 rw,fd=50
32 31 0:42 / /mnt/my\\040data rw,relatime shared:9 - lustre mgs@tcp:/data rw
33 30 0:43 / /mnt/ro ro,relatime - nfs4 n1:/x rw
"""


def at(path: str) -> mount_table.Mounted:
    return volumes.mount_of(mount_table.parse_mountinfo(MOUNTINFO), path)


def test_a_path_is_on_the_last_and_deepest_mount() -> None:
    assert at("/mnt/my data/deep").filesystem == "lustre"
    assert at("/mnt/other").source == "/dev/nvme0n1"
    assert at("/mntx").point == "/"
    assert (at("/mnt/ro").read_only, at("/mnt").read_only) == (True, False)


@pytest.mark.parametrize(
    ("volume", "path", "trouble"),
    [
        ({}, "/mnt/my data/deep", ""),
        ({"filesystem": "lustre"}, "/mnt/my data", ""),
        ({"filesystem": "lustre"}, "/mnt/other", "it is xfs from /dev/nvme0n1, but lustre is required"),
        ({}, "/srv", "own root file system"),
        ({"filesystem": "ext4"}, "/srv", ""),
        ({}, "/mnt/ro", "read-only"),
        ({"read_only": True}, "/mnt/ro", ""),
    ],
)
def test_what_an_external_volume_has_to_be(volume: dict[str, Any], path: str, trouble: str) -> None:
    found = volumes.trouble_of(volume, at(path)._asdict())
    assert trouble in found
    assert bool(trouble) == bool(found)


def test_every_volume_that_is_not_there_is_named(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/proc")
    wanted = [
        {"volume": "good", "mount_point": "/proc", "filesystem": "proc", "read_only": True},
        {"volume": "gone", "mount_point": str(tmp_path / "none")},
        {"volume": "leads", "mount_point": str(link)},
        {"volume": "other", "mount_point": "/proc", "filesystem": "lustre"},
    ]
    with pytest.raises(HostStateError) as caught:
        volumes.refuse_missing(wanted)
    words = str(caught.value)
    assert "good" not in words
    assert f"volume gone at {tmp_path}/none: No such file" in words
    assert "set mount_point to /proc" in words
    assert "volume other at /proc: it is proc" in words


def test_what_hangs_is_left_behind_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(VolumeError, match="no answer within 0.2 s"):
        bounded(lambda: time.sleep(60) or {}, 0.2)
    assert time.monotonic() - began < 30


def test_what_fails_is_told() -> None:
    assert bounded(lambda: {"pid": os.getpid()}, 30)["pid"] != os.getpid()
    with pytest.raises(VolumeError, match="No such file or directory: /none"):
        bounded(lambda: {"found": os.listdir("/none")}, 30)
    with pytest.raises(VolumeError, match="died"):
        bounded(lambda: os._exit(3), 30)

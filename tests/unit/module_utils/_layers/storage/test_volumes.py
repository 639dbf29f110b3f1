# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounts at paths, and the refusal of wrong external file systems."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import mount_table
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import (
    VolumeError,
    run_with_deadline,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import volumes

MOUNTINFO = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /mnt rw - xfs /dev/nvme0n1 rw
31 30 0:41 / /mnt/my\\040data rw,relatime shared:9 - autofs systemd-1 rw,fd=50
32 31 0:42 / /mnt/my\\040data rw,relatime shared:9 - lustre mgs@tcp:/data rw
33 30 0:43 / /mnt/ro ro,relatime - nfs4 n1:/x rw
"""


def mount_at(path: str) -> mount_table.MountEntry:
    return volumes.require_mount(mount_table.parse_mountinfo(MOUNTINFO), path)


def test_path_belongs_to_the_last_and_deepest_mount() -> None:
    assert mount_at("/mnt/my data/deep").filesystem == "lustre"
    assert mount_at("/mnt/other").source == "/dev/nvme0n1"
    assert mount_at("/mntx").mount_point == "/"
    assert (mount_at("/mnt/ro").read_only, mount_at("/mnt").read_only) == (True, False)


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
def test_wrong_external_volume_is_explained(volume: dict[str, Any], path: str, trouble: str) -> None:
    found = volumes.explain_wrong_mount(volume, volumes.describe_mount(mount_at(path)))
    assert trouble in found
    assert bool(trouble) == bool(found)


def test_all_missing_volumes_are_reported(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/proc")
    wanted = [
        {"volume": "good", "mount_point": "/proc", "filesystem": "proc", "read_only": True},
        {"volume": "gone", "mount_point": str(tmp_path / "none")},
        {"volume": "leads", "mount_point": str(link)},
        {"volume": "other", "mount_point": "/proc", "filesystem": "lustre"},
    ]
    with pytest.raises(HostStateError) as caught:
        volumes.refuse_missing_volumes(wanted)
    words = str(caught.value)
    assert "good" not in words
    assert f"volume gone at {tmp_path}/none: No such file" in words
    assert "set mount_point to /proc" in words
    assert "volume other at /proc: it is proc" in words


def test_hanging_operation_is_abandoned() -> None:
    began = time.monotonic()
    with pytest.raises(VolumeError, match="no answer within 0.2 s"):
        run_with_deadline(lambda: time.sleep(60) or {}, 0.2)
    assert time.monotonic() - began < 30


def test_failed_operation_is_reported() -> None:
    assert run_with_deadline(lambda: {"pid": os.getpid()}, 30)["pid"] != os.getpid()
    with pytest.raises(VolumeError, match="No such file or directory: /none"):
        run_with_deadline(lambda: {"found": os.listdir("/none")}, 30)
    with pytest.raises(VolumeError, match="died"):
        run_with_deadline(lambda: os._exit(3), 30)

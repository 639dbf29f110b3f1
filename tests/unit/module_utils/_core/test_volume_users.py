# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users of volumes and logins, in /proc of this machine and in an artificial one."""

from __future__ import annotations

import _ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import volume_users
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import VolumeError

MOUNTS = """\
proc /proc proc rw 0 0
n1:/srv/data /mnt/data nfs4 rw,relatime 0 0
systemd-1 /mnt/idle autofs rw,relatime 0 0
n1:/srv/two /mnt/with\\040space nfs4 rw 0 0
"""


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["/mnt/data", "/mnt/none"], ["/mnt/data"]),
        (["/mnt/data/"], ["/mnt/data/"]),
        (["/mnt/idle"], []),
        (["/mnt/with space"], ["/mnt/with space"]),
        ([], []),
    ],
)
def test_mount_points_are_selected(wanted: list[str], expected: list[str]) -> None:
    assert volume_users.select_mounted(MOUNTS, wanted) == expected


def test_process_is_found_by_working_directory_and_open_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    program = "import sys; stream = open(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    started = []
    for folder, path in ((tmp_path, "/dev/null"), (Path("/"), tmp_path / "data"), (Path("/"), "/dev/null")):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        found = volume_users.find_volume_users("/proc", [str(tmp_path)])
        pids = {process.pid for process in started}
        assert {user.pid for user in found if user.pid in pids} == {started[0].pid, started[1].pid}
        assert {user.mount_point for user in found} == {str(tmp_path)}
        assert volume_users.find_volume_users("/proc", [f"{tmp_path}/da"]) == [], (
            "a name that begins alike is another folder"
        )
    finally:
        for process in started:
            process.communicate("")


def test_process_with_only_a_mapped_file_is_found(tmp_path: Path) -> None:
    """The process works on one volume, and has only mapped a file of the other."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    shutil.copy(_ctypes.__file__, two / "library.so")
    program = f"import ctypes, sys; ctypes.CDLL('{two}/library.so'); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], cwd=one, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = volume_users.find_volume_users("/proc", [str(one), str(two)])
        process.kill()
    assert [(user.pid, user.mount_point) for user in found] == [(process.pid, str(one)), (process.pid, str(two))]


def test_other_mount_at_the_same_path_in_another_namespace_does_not_count(tmp_path: Path) -> None:
    """A process of a container has its own mount namespace; one that sees the volume itself counts."""
    if os.geteuid() != 0:
        pytest.skip("not checked: only root can mount")
    volume = tmp_path / "volume"
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "volume", str(volume)], check=True)
    wait = f"cd {volume} && echo ready && read line"
    commands = [wait, f"mount -t tmpfs other {volume} && {wait}"]
    started = [
        subprocess.Popen(
            ["unshare", "-m", "sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        assert [user.pid for user in volume_users.find_volume_users("/proc", [str(volume)])] == [started[0].pid]
    finally:
        for process in started:
            process.communicate("\n")
        subprocess.run(["umount", str(volume)], check=True)


HOST_MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
31 22 0:50 / /mnt/data rw - autofs systemd-1 rw
32 31 0:52 / /mnt/data rw shared:9 - nfs4 n2:/srv/data rw
33 22 8:1 /srv/own /mnt/own rw - ext4 /dev/sda1 rw
34 22 8:16 / /srv/disk rw - xfs /dev/sdb rw
35 22 8:16 / /mnt/disk rw - xfs /dev/sdb rw
"""
CONTAINER = "40 1 0:70 / / rw - overlay overlay rw\n"


@pytest.mark.parametrize(
    ("mounts", "places"),
    [
        # A service has a private temporary directory.
        (
            HOST_MOUNTS + "41 22 0:71 / /tmp rw - tmpfs tmpfs rw\n",
            {f"/mnt/{name}": f"/mnt/{name}" for name in ("data", "own", "disk")},
        ),
        (CONTAINER + "41 40 0:52 / /data rw - nfs4 n2:/srv/data rw\n", {"/data": "/mnt/data"}),
        (CONTAINER + "41 40 0:52 / /data rw - nfs4 n2:/srv/data/sub rw\n", {"/data": "/mnt/data"}),
        # Two volumes on one disk of a server have one device.
        (CONTAINER + "41 40 0:52 / /data rw - nfs4 n2:/srv/data2 rw\n", {}),
        (CONTAINER + "41 40 8:1 /srv/own/sub /data rw - ext4 /dev/sda1 rw\n", {"/data": "/mnt/own"}),
        (CONTAINER + "41 40 8:1 /srv/other /data rw - ext4 /dev/sda1 rw\n", {}),
        (CONTAINER + "41 40 8:1 / /host rw - ext4 /dev/sda1 rw\n", {}),
        (CONTAINER + "41 40 8:16 / /data rw - xfs /dev/sdb rw\n", {"/data": "/mnt/disk"}),
        # Another file system, over a copy of the volume.
        (
            HOST_MOUNTS + "41 32 0:71 / /mnt/data rw - tmpfs tmpfs rw\n",
            {f"/mnt/{name}": f"/mnt/{name}" for name in ("own", "disk")},
        ),
        # The image of the container is unpacked on a volume.
        ("40 1 0:52 / / rw - nfs4 n2:/srv/data/image rw\n", {"/": "/mnt/data"}),
        ("", {}),
    ],
)
def test_volumes_are_mapped_to_container_paths(mounts: str, places: dict[str, str]) -> None:
    here = parse_mountinfo(HOST_MOUNTS)
    volumes = {mount.mount_point: mount for mount in here if mount.mount_point.startswith("/mnt/")}
    assert volume_users._view_namespace(parse_mountinfo(mounts), here, volumes).points_by_path == places


def test_mount_inside_a_volume_in_a_container_is_not_part_of_it() -> None:
    table = parse_mountinfo(
        CONTAINER + "41 40 0:52 / /data rw - nfs4 n2:/ rw\n42 41 0:71 / /data/tmp rw - tmpfs tmpfs rw\n"
    )
    view = volume_users._NamespaceView({"/data": "/mnt/data"}, table)
    assert view.used_mount_points(["/data/x"]) == view.used_mount_points(["/data"]) == {"/mnt/data"}
    assert view.used_mount_points(["/data/tmp/x", "/data2", "socket:[/data/x]"]) == set()
    assert view._replace(points_by_path={"/": "/mnt/data"}).used_mount_points(["/usr/bin/sh"]) == {"/mnt/data"}


def test_process_waiting_for_a_dead_server_does_not_hide_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mapped files cannot be read until the server is back."""

    def stuck(_work: object, _seconds: float) -> dict[str, object]:
        raise VolumeError("no answer within 30 s")

    monkeypatch.setattr(volume_users, "run_with_deadline", stuck)
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        try:
            assert [user.pid for user in volume_users.find_volume_users("/proc", [str(tmp_path)])] == [process.pid]
        finally:
            process.kill()


def fake_process(proc: Path, pid: int, title: str, parent: int, socket: str) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_text(title)
    (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")
    (folder / "fd" / "3").symlink_to(f"socket:[{socket}]")


def test_only_logins_over_the_cluster_network_are_listed(tmp_path: Path) -> None:
    if sys.byteorder != "little":
        pytest.skip("the table is recorded on a little-endian machine")
    (tmp_path / "net").mkdir()
    lines = ["header"] + [
        f"   {number}: 0100630A:0016 {remote}:D1F2 01 0:0 0:0 0 0 0 {100 + number} 4"
        for number, remote in enumerate(("0200630A", "0300630A", "0500A8C0", "0200630A"))
    ]
    (tmp_path / "net" / "tcp").write_text("\n".join(lines) + "\n")
    fake_process(tmp_path, 10, "sshd-session: alice@pts/0\0", 1, "100")
    fake_process(tmp_path, 11, "sshd: bob@notty\0\0", 1, "101")
    fake_process(tmp_path, 12, "sshd-session: eve@pts/2", 1, "102")
    fake_process(tmp_path, 13, "sshd-session: alice [priv]", 1, "100")
    # The login that runs the query: an ancestor of this process.
    fake_process(tmp_path, 14, "sshd-session: root@notty", 1, "103")
    fake_process(tmp_path, os.getpid(), "python3", 14, "104")
    found = volume_users.find_logins(str(tmp_path), ["10.99.0.2", "10.99.0.3"])
    assert sorted(found) == [
        volume_users.ClusterLogin(10, "alice", "pts/0", "10.99.0.2"),
        volume_users.ClusterLogin(11, "bob", "notty", "10.99.0.3"),
    ]

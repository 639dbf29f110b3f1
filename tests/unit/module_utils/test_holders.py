# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a volume or a login, with this machine's own /proc and with an artificial one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import holders

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
def test_mounted(wanted: list[str], expected: list[str]) -> None:
    assert holders.mounted(MOUNTS, wanted) == expected


def test_a_process_is_found_by_its_folder_and_by_an_open_file(tmp_path: Path) -> None:
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
        found = holders.volume_users("/proc", [str(tmp_path)])
        pids = {process.pid for process in started}
        assert {user.pid for user in found if user.pid in pids} == {started[0].pid, started[1].pid}
        assert {user.mount_point for user in found} == {str(tmp_path)}
        assert holders.volume_users("/proc", [f"{tmp_path}/da"]) == [], "a name that begins alike is another folder"
    finally:
        for process in started:
            process.communicate("")


def test_a_process_with_another_mount_at_the_same_path_uses_no_volume(tmp_path: Path) -> None:
    """Such as a container's process, in its own mount namespace; one that sees the volume itself counts."""
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
        assert [user.pid for user in holders.volume_users("/proc", [str(volume)])] == [started[0].pid]
    finally:
        for process in started:
            process.communicate("\n")
        subprocess.run(["umount", str(volume)], check=True)


def made_up_process(proc: Path, pid: int, title: str, parent: int, socket: str) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_text(title)
    (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")
    (folder / "fd" / "3").symlink_to(f"socket:[{socket}]")


def test_logins_over_the_cluster_alone(tmp_path: Path) -> None:
    if sys.byteorder != "little":
        pytest.skip("the table is recorded on a little-endian machine")
    (tmp_path / "net").mkdir()
    lines = ["header"] + [
        f"   {number}: 0100630A:0016 {remote}:D1F2 01 0:0 0:0 0 0 0 {100 + number} 4"
        for number, remote in enumerate(("0200630A", "0300630A", "0500A8C0", "0200630A"))
    ]
    (tmp_path / "net" / "tcp").write_text("\n".join(lines) + "\n")
    made_up_process(tmp_path, 10, "sshd-session: alice@pts/0\0", 1, "100")
    made_up_process(tmp_path, 11, "sshd: bob@notty\0\0", 1, "101")
    made_up_process(tmp_path, 12, "sshd-session: eve@pts/2", 1, "102")
    made_up_process(tmp_path, 13, "sshd-session: alice [priv]", 1, "100")
    # The login that runs the query: an ancestor of this process.
    made_up_process(tmp_path, 14, "sshd-session: root@notty", 1, "103")
    made_up_process(tmp_path, os.getpid(), "python3", 14, "104")
    found = holders.logins(str(tmp_path), ["10.99.0.2", "10.99.0.3"])
    assert sorted(found) == [
        holders.Login(10, "alice", "pts/0", "10.99.0.2"),
        holders.Login(11, "bob", "notty", "10.99.0.3"),
    ]

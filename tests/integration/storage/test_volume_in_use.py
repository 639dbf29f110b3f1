# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role storage where a volume is taken away that a process uses, on the real mounts of a namespace.

No kernel of ours has NFS, so another file system stands for the mount; what says that it is ours, and who uses it, is
as on a host without automounts. Scenario kernel does the same with automounts and NFS.
"""

from __future__ import annotations

import _ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import Run
from ansible_collections.gpumesh.cluster.tests.support.module_runs import result_of, start
from ansible_collections.gpumesh.cluster.tests.support.mount_space import host_with_mount
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "tester@here")
VOLUME = {"name": "data", "server": "n2", "path": "/srv/data", "mount_point": "/mnt/data"}
LINE = "10.77.0.2:/srv/data /mnt/data nfs4 rw 0 0"
FSTAB = f"# BEGIN volumes of gpumesh cluster lab\n{LINE}\n# END volumes of gpumesh cluster lab\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture(name="host")
def _host() -> Iterator[list[str]]:
    with host_with_mount("data", FSTAB) as prefix:
        yield prefix


@pytest.fixture(name="record")
def _record(tmp_path: Path) -> model.Record:
    members = [
        {"machine": name, "address": f"10.77.0.{number}", "interface": "eth0"}
        for number, name in ((1, "n1"), (2, "n2"))
    ]
    draft = plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {"backend": "none"}, members, STAMP)
    record = plan.commit(plan.Draft(plan.set_storage(draft.record, [VOLUME]).record, draft.changes), STAMP)
    store = Store(str(tmp_path / "records"), "lab")
    with store.locked("tester"):
        store.write(record)
    return record


def take_away(folder: Path, host: list[str], record: model.Record) -> Run:
    """Do what the playbooks storage and site do on n1 when the inventory has no volume any more."""
    play = {
        "hosts": "all",
        "vars": {"cluster_record": record, "storage_volumes": []},
        "module_defaults": {"gpumesh.cluster.cluster": {"path": str(folder / "records")}},
        # n2 is in the play, without which n1 would be refused, but this machine can have the place of one host only.
        "tasks": [
            {
                "ansible.builtin.include_role": {"name": "gpumesh.cluster.storage"},
                "when": "inventory_hostname == 'n1'",
            }
        ],
    }
    return run_plays(folder, {"n1": {}, "n2": {}}, [play], prefix=host)


def seen(host: list[str], *command: str) -> str:
    return subprocess.run([*host, *command], capture_output=True, text=True, check=False).stdout


def test_it_is_refused_before_anything_changes_and_done_when_nobody_uses_it(
    tmp_path: Path, host: list[str], record: model.Record
) -> None:
    store = Store(str(tmp_path / "records"), "lab")
    with subprocess.Popen([*host, "sh", "-c", "cd /mnt/data && echo there && exec sleep 600"], stdout=-1) as user:
        try:
            assert user.stdout is not None
            assert user.stdout.readline() == b"there\n"
            refused = take_away(tmp_path, host, record)
        finally:
            user.kill()
    assert refused.code != 0, refused.output
    said = f"A volume is in use and was not unmounted: sleep of root (process {user.pid}) uses /mnt/data."
    assert said in refused.words
    assert not any(refused.changed.values())
    assert store.read() == record
    assert seen(host, "cat", "/etc/fstab") == FSTAB
    assert seen(host, "findmnt", "--noheadings", "--output=SOURCE", "/mnt/data") == "data\n"

    done = take_away(tmp_path, host, record)
    assert done.code == 0, done.output
    after = store.read()
    assert after is not None
    assert after["storage"]["volumes"] == []
    assert "/mnt/data" not in seen(host, "cat", "/etc/fstab")
    assert seen(host, "findmnt", "/mnt/data") == ""


#: A program that keeps a library mapped, and not open, as Python does with those of an environment.
MAPS = 'import ctypes, sys; ctypes.CDLL(sys.argv[1]); print("there", flush=True); sys.stdin.read()'
CHANGES_ROOT = 'import os, sys; os.chroot(sys.argv[1]); os.chdir("/"); print("there", flush=True); sys.stdin.read()'
#: A container with the volume at /media, as with docker run -v. Its root directory has no other mount of this host.
CONTAIN = """
mount --make-rprivate / && mkdir /mnt/root && mount --bind / /mnt/root && mount --bind /mnt/data /mnt/root/media
mount --bind /proc /mnt/root/proc && cd /mnt/root && pivot_root . mnt && umount --lazy /mnt && exec "$@"
"""
OPEN = 'exec 3<"$0"; echo there; read -r _'
CONTAINED = ["unshare", "--mount", "sh", "-c", CONTAIN, "sh"]
#: The start of a command with the mounts of a service of systemd with PrivateTmp.
COPIED = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs own /tmp && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("command", "uses"),
    [
        ([sys.executable, "-c", MAPS, "/mnt/data/file"], True),
        ([sys.executable, "-c", MAPS, "/mnt/other"], False),
        ([*CONTAINED, "sh", "-c", OPEN, "/media/file"], True),
        ([*CONTAINED, sys.executable, "-c", MAPS, "/media/file"], True),
        ([*CONTAINED, "sh", "-c", OPEN, "/etc/passwd"], False),
        ([*CONTAINED, sys.executable, "-c", CHANGES_ROOT, "/media"], True),
        ([*CONTAINED, sys.executable, "-c", CHANGES_ROOT, "/proc"], False),
        ([*COPIED, "sh", "-c", OPEN, "/mnt/data/file"], True),
        ([*COPIED, "sh", "-c", f"cd /mnt/data; {OPEN}", "/etc/passwd"], True),
        ([*COPIED, "sh", "-c", OPEN, "/etc/passwd"], False),
    ],
)
def test_a_user_is_found_however_it_uses_the_volume(host: list[str], command: list[str], uses: bool) -> None:
    for copy in ("/mnt/data/file", "/mnt/other"):
        seen(host, "cp", _ctypes.__file__, copy)
    with subprocess.Popen([*host, *command], stdin=-1, stdout=-1) as user:
        try:
            assert user.stdout is not None
            assert user.stdout.readline() == b"there\n"
            found = result_of(start("holder_info", {"mount_points": ["/mnt/data"]}, prefix=host))
        finally:
            user.kill()
    assert [(one["pid"], one["mount_point"]) for one in found["volume_users"]] == (
        [(user.pid, "/mnt/data")] if uses else []
    )

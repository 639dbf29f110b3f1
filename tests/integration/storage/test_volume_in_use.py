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
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.module_runs import read_result, start_module
from ansible_collections.gpumesh.cluster.tests.support.mount_space import host_with_mount
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "tester@here")
VOLUME = {"name": "data", "server": "n2", "path": "/srv/data", "mount_point": "/mnt/data"}
FSTAB_LINE = "10.77.0.2:/srv/data /mnt/data nfs4 rw 0 0"
FSTAB_TEXT = f"# BEGIN volumes of gpumesh cluster lab\n{FSTAB_LINE}\n# END volumes of gpumesh cluster lab\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture(name="host")
def _host() -> Iterator[list[str]]:
    with host_with_mount("data", FSTAB_TEXT) as prefix:
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


def remove_volume(directory: Path, host: list[str], record: model.Record) -> AnsibleRun:
    """Do what the playbooks storage and site do on n1 when the inventory has no volume any more."""
    play = {
        "hosts": "all",
        "vars": {"cluster_record": record, "storage_volumes": []},
        "module_defaults": {"gpumesh.cluster.cluster": {"path": str(directory / "records")}},
        # n2 is in the play, without which n1 would be refused, but this machine can have the place of one host only.
        "tasks": [
            {
                "ansible.builtin.include_role": {"name": "gpumesh.cluster.storage"},
                "when": "inventory_hostname == 'n1'",
            }
        ],
    }
    return run_plays(directory, {"n1": {}, "n2": {}}, [play], prefix=host)


def run_on_host(host: list[str], *command: str) -> str:
    return subprocess.run([*host, *command], capture_output=True, text=True, check=False).stdout


def test_removal_is_refused_while_the_volume_is_in_use(tmp_path: Path, host: list[str], record: model.Record) -> None:
    store = Store(str(tmp_path / "records"), "lab")
    with subprocess.Popen(
        [*host, "sh", "-c", "cd /mnt/data && echo there && exec sleep 600"], stdout=-1
    ) as volume_user:
        try:
            assert volume_user.stdout is not None
            assert volume_user.stdout.readline() == b"there\n"
            refused = remove_volume(tmp_path, host, record)
        finally:
            volume_user.kill()
    assert refused.exit_status != 0, refused.output
    expected_message = (
        f"A volume is in use and was not unmounted: sleep of root (process {volume_user.pid}) uses /mnt/data."
    )
    assert expected_message in refused.flat_output
    assert not any(refused.changed.values())
    assert store.read() == record
    assert run_on_host(host, "cat", "/etc/fstab") == FSTAB_TEXT
    assert run_on_host(host, "findmnt", "--noheadings", "--output=SOURCE", "/mnt/data") == "data\n"

    removal = remove_volume(tmp_path, host, record)
    assert removal.exit_status == 0, removal.output
    record_after = store.read()
    assert record_after is not None
    assert record_after["storage"]["volumes"] == []
    assert "/mnt/data" not in run_on_host(host, "cat", "/etc/fstab")
    assert run_on_host(host, "findmnt", "/mnt/data") == ""


#: A program that keeps a library mapped, and not open, as Python does with those of an environment.
MAP_PROGRAM = 'import ctypes, sys; ctypes.CDLL(sys.argv[1]); print("there", flush=True); sys.stdin.read()'
CHROOT_PROGRAM = 'import os, sys; os.chroot(sys.argv[1]); os.chdir("/"); print("there", flush=True); sys.stdin.read()'
#: A container with the volume at /media, as with docker run -v. Its root directory has no other mount of this host.
CONTAINER_SCRIPT = """
mount --make-rprivate / && mkdir /mnt/root && mount --bind / /mnt/root && mount --bind /mnt/data /mnt/root/media
mount --bind /proc /mnt/root/proc && cd /mnt/root && pivot_root . mnt && umount --lazy /mnt && exec "$@"
"""
OPEN_SCRIPT = 'exec 3<"$0"; echo there; read -r _'
CONTAINER_COMMAND = ["unshare", "--mount", "sh", "-c", CONTAINER_SCRIPT, "sh"]
#: The start of a command with the mounts of a service of systemd with PrivateTmp.
PRIVATE_TMP_COMMAND = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs own /tmp && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("command", "uses"),
    [
        ([sys.executable, "-c", MAP_PROGRAM, "/mnt/data/file"], True),
        ([sys.executable, "-c", MAP_PROGRAM, "/mnt/other"], False),
        ([*CONTAINER_COMMAND, "sh", "-c", OPEN_SCRIPT, "/media/file"], True),
        ([*CONTAINER_COMMAND, sys.executable, "-c", MAP_PROGRAM, "/media/file"], True),
        ([*CONTAINER_COMMAND, "sh", "-c", OPEN_SCRIPT, "/etc/passwd"], False),
        ([*CONTAINER_COMMAND, sys.executable, "-c", CHROOT_PROGRAM, "/media"], True),
        ([*CONTAINER_COMMAND, sys.executable, "-c", CHROOT_PROGRAM, "/proc"], False),
        ([*PRIVATE_TMP_COMMAND, "sh", "-c", OPEN_SCRIPT, "/mnt/data/file"], True),
        ([*PRIVATE_TMP_COMMAND, "sh", "-c", f"cd /mnt/data; {OPEN_SCRIPT}", "/etc/passwd"], True),
        ([*PRIVATE_TMP_COMMAND, "sh", "-c", OPEN_SCRIPT, "/etc/passwd"], False),
    ],
)
def test_volume_user_is_found(host: list[str], command: list[str], uses: bool) -> None:
    for copy in ("/mnt/data/file", "/mnt/other"):
        run_on_host(host, "cp", _ctypes.__file__, copy)
    with subprocess.Popen([*host, *command], stdin=-1, stdout=-1) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"there\n"
            volume_info = read_result(start_module("usage_info", {"mount_points": ["/mnt/data"]}, prefix=host))
        finally:
            process.kill()
    assert [(volume_user["pid"], volume_user["mount_point"]) for volume_user in volume_info["volume_users"]] == (
        [(process.pid, "/mnt/data")] if uses else []
    )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes that are slow and dead, and the nodes' own checks beside each other: one fault of all takes nobody away.

The slow one is a file system that is frozen: it is read, and whoever writes waits. The dead one is a FUSE whose server
never says a word. Both are in a mount namespace of their own. Needs root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from program_builds import build_zipapp

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import program
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import HealthSettings
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.tests.support.mount_space import namespace

pytestmark = pytest.mark.skipif(
    not all(os.path.exists(path) for path in ("/dev/loop-control", "/dev/fuse")), reason="needs loop devices and FUSE"
)

MODULE = Path(__file__).parents[3] / "plugins" / "modules" / "node_health.py"
STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "tester@here")
MACHINES = ("n1", "n2", "n3", "n4")
VOLUME, CHECK = "/mnt/volume", "storage.mounts"
SECONDS = 2.0

PREPARE = "mount -t tmpfs none /mnt && mkdir /mnt/volume"
#: A script that keeps the volume frozen until its standard input ends, also if the test has died.
SLOW = f"{PREPARE} && mount -o loop $1 {VOLUME} && fsfreeze -f {VOLUME} && echo ready; read -r _; fsfreeze -u {VOLUME}"
DEAD = f"""
import os, subprocess, sys
subprocess.run({PREPARE!r}, shell=True, check=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={{fuse}},rootmode=40000,user_id=0,group_id=0,allow_other"
subprocess.run(["mount", "-i", "-t", "fuse", "-o", options, "nobody", {VOLUME!r}], pass_fds=[fuse], check=True)
print("ready", flush=True)
sys.stdin.read()
"""
WELL = f"{PREPARE} && mount -t tmpfs none {VOLUME} && echo ready; read -r _"
#: A controller: one file a node, and a lock.
SCONTROL = """#!{python} -IS
import fcntl, json, os, sys

folder = {folder!r}
with open(os.path.join(folder, ".lock"), "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if sys.argv[1] == "update":
        name, *changes = [word.partition("=")[2] for word in sys.argv[2:3]] + sys.argv[3:]
        path = os.path.join(folder, name)
        with open(path) as stream:
            node = json.load(stream)
        node.update(word.partition("=")[::2] for word in changes)
        with open(path, "w") as stream:
            json.dump(node, stream)
    else:
        for name in sys.argv[4:] or sorted(os.listdir(folder)):
            if not name.startswith("."):
                with open(os.path.join(folder, name)) as stream:
                    node = json.load(stream)
                drained = "+DRAIN" if node.get("state") == "drain" else ""
                reason = " Reason=" + node["reason"] + " [root@2026-11-22T07:00:00]" if drained else ""
                comment = " Comment=" + node["comment"] if node.get("comment") else ""
                print("NodeName=" + name + " CPUTot=2 State=IDLE" + drained + " Version=24.11.5" + reason + comment)
"""


@pytest.fixture(name="slow")
def _slow(tmp_path: Path) -> Iterator[list[str]]:
    disk = tmp_path / "disk"
    with disk.open("wb") as stream:
        stream.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True)
    with namespace("sh", "-c", SLOW, "sh", str(disk)) as prefix:
        yield prefix


@pytest.fixture(name="dead")
def _dead() -> Iterator[list[str]]:
    with namespace(sys.executable, "-c", DEAD) as prefix:
        yield prefix


@pytest.fixture(name="well")
def _well() -> Iterator[list[str]]:
    with namespace("sh", "-c", WELL) as prefix:
        yield prefix


class Cluster:
    """Nodes with the program on them, and their controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = folder / "nodes"
        for name in ("bin", "nodes"):
            (folder / name).mkdir(parents=True)
        members = [
            {"machine": machine, "address": f"10.0.0.{number}", "interface": "eth0"}
            for number, machine in enumerate(MACHINES, start=1)
        ]
        draft = plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, members, STAMP)
        volume = {"name": "data", "mount_point": VOLUME}
        stored = plan.set_storage(draft.record, [volume])
        store = Store(str(folder / "records"), "lab")
        with store.locked("tester"):
            store.write(plan.commit(plan.Draft(stored.record, [*draft.changes, *stored.changes]), STAMP))
        for machine in MACHINES:
            (self.nodes / machine).write_text("{}", encoding="utf-8")
            settings = HealthSettings("lab", machine, str(folder / "records"), [CHECK], 95, mount_timeout=SECONDS)
            self._write(folder / machine, build_zipapp(sys.executable, program.__name__, settings._asdict()))
        script = SCONTROL.format(python=sys.executable, folder=str(self.nodes))
        self._write(folder / "bin" / "scontrol", script.encode())

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o755)

    def look(self, prefix_of: dict[str, Sequence[str]]) -> dict[str, subprocess.CompletedProcess[str]]:
        """Run the program on each of these nodes at the same time, as Slurm does, among the mounts of each."""
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

        def run(machine: str) -> subprocess.CompletedProcess[str]:
            command = [*prefix_of[machine], str(self.folder / machine)]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

        with ThreadPoolExecutor(len(prefix_of)) as pool:
            return dict(zip(prefix_of, pool.map(run, prefix_of), strict=True))

    def shown(self) -> dict[str, dict[str, Any]]:
        return {machine: json.loads((self.nodes / machine).read_text(encoding="utf-8")) for machine in MACHINES}


def test_a_volume_that_is_slow_drains_nobody_and_fails_the_check(tmp_path: Path, slow: list[str]) -> None:
    cluster = Cluster(tmp_path / "cluster")
    done = cluster.look(dict.fromkeys(MACHINES, slow))
    assert {machine: one.returncode for machine, one in done.items()} == dict.fromkeys(MACHINES, 0), done
    assert cluster.shown() == {machine: {} for machine in MACHINES}, "nothing was said to the controller"
    options = {"machine": "n1", "only": [CHECK], "external_mounts": [VOLUME], "mount_timeout": SECONDS}
    asked = subprocess.run(
        [*slow, sys.executable, str(MODULE)],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": options}),
        capture_output=True,
        text=True,
        check=False,
    )
    (check,) = json.loads(asked.stdout)["checks"]
    assert (check["status"], "within 2 s" in check["reason"]) == ("fail", True), check


def test_a_volume_that_is_dead_drains_a_node_and_not_all(tmp_path: Path, dead: list[str], well: list[str]) -> None:
    all_of_them, one_of_them = Cluster(tmp_path / "all"), Cluster(tmp_path / "one")
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(all_of_them.look, dict.fromkeys(MACHINES, dead)),
            pool.submit(one_of_them.look, {"n1": dead, **dict.fromkeys(MACHINES[1:], well)}),
        ]
        shared, alone = (each.result() for each in both)
    noted = {machine: {"comment": f"{program.COMMENT_PREFIX}{CHECK}"} for machine in MACHINES}
    assert all_of_them.shown() == noted, shared
    assert {one.returncode for one in shared.values()} == {0}, "jobs go on starting"
    assert "kept in service" in shared["n1"].stdout
    found = one_of_them.shown()
    assert {machine: found[machine] for machine in MACHINES[1:]} == {machine: {} for machine in MACHINES[1:]}, alone
    assert (found["n1"]["state"], alone["n1"].returncode) == ("drain", 1)
    assert found["n1"]["reason"].endswith(f"{VOLUME}: no answer within 2 s")

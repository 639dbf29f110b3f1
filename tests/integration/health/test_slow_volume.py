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

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import program, shared_faults
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import HealthSettings
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.tests.support.mount_space import create_mount_namespace

pytestmark = pytest.mark.skipif(
    not all(os.path.exists(path) for path in ("/dev/loop-control", "/dev/fuse")), reason="needs loop devices and FUSE"
)

MODULE = Path(__file__).parents[3] / "plugins" / "modules" / "node_health.py"
STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "tester@here")
MACHINES = ("n1", "n2", "n3", "n4")
VOLUME_PATH, CHECK_NAME = "/mnt/volume", "storage.mounts"
MOUNT_TIMEOUT = 2.0

PREPARE_COMMAND = "mount -t tmpfs none /mnt && mkdir /mnt/volume"
#: A script that keeps the volume frozen until its standard input ends, also if the test has died.
SLOW_SCRIPT = f"{PREPARE_COMMAND} && mount -o loop $1 {VOLUME_PATH} && fsfreeze -f {VOLUME_PATH} && echo ready; read -r _; fsfreeze -u {VOLUME_PATH}"
DEAD_PROGRAM = f"""
import os, subprocess, sys
subprocess.run({PREPARE_COMMAND!r}, shell=True, check=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={{fuse}},rootmode=40000,user_id=0,group_id=0,allow_other"
subprocess.run(["mount", "-i", "-t", "fuse", "-o", options, "nobody", {VOLUME_PATH!r}], pass_fds=[fuse], check=True)
print("ready", flush=True)
sys.stdin.read()
"""
HEALTHY_SCRIPT = f"{PREPARE_COMMAND} && mount -t tmpfs none {VOLUME_PATH} && echo ready; read -r _"
#: A controller: one file a node, and a lock.
SCONTROL_PROGRAM = """#!{python} -IS
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
                texts = [" " + key + "=" + node[key.lower()] for key in ("Comment", "Extra") if node.get(key.lower())]
                print("NodeName=" + name, "CPUTot=2 State=IDLE" + drained, "Version=24.11.5" + reason + "".join(texts))
"""


@pytest.fixture(name="slow")
def _slow(tmp_path: Path) -> Iterator[list[str]]:
    disk = tmp_path / "disk"
    with disk.open("wb") as stream:
        stream.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True)
    with create_mount_namespace("sh", "-c", SLOW_SCRIPT, "sh", str(disk)) as prefix:
        yield prefix


@pytest.fixture(name="dead")
def _dead() -> Iterator[list[str]]:
    with create_mount_namespace(sys.executable, "-c", DEAD_PROGRAM) as prefix:
        yield prefix


@pytest.fixture(name="well")
def _well() -> Iterator[list[str]]:
    with create_mount_namespace("sh", "-c", HEALTHY_SCRIPT) as prefix:
        yield prefix


class NodeHealthCluster:
    """Nodes with the program on them, and their controller."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.node_directory = directory / "nodes"
        for name in ("bin", "nodes"):
            (directory / name).mkdir(parents=True)
        members = [
            {"machine": machine, "address": f"10.0.0.{number}", "interface": "eth0"}
            for number, machine in enumerate(MACHINES, start=1)
        ]
        draft = plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, members, STAMP)
        volume = {"name": "data", "mount_point": VOLUME_PATH}
        stored = plan.set_storage(draft.record, [volume])
        for machine in MACHINES:
            records = str(directory / f"state-{machine}" / "records")
            (directory / f"state-{machine}").mkdir()
            store = Store(records, "lab")
            with store.locked("tester"):
                store.write(plan.commit(plan.Draft(stored.record, [*draft.changes, *stored.changes]), STAMP))
            (self.node_directory / machine).write_text("{}", encoding="utf-8")
            settings = HealthSettings("lab", machine, records, [CHECK_NAME], 95, mount_timeout=MOUNT_TIMEOUT)
            self._write(directory / machine, build_zipapp(sys.executable, program.__name__, settings._asdict()))
        script = SCONTROL_PROGRAM.format(python=sys.executable, folder=str(self.node_directory))
        self._write(directory / "bin" / "scontrol", script.encode())

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o755)

    def run_node_health(
        self, prefix_by_machine: dict[str, Sequence[str]]
    ) -> dict[str, subprocess.CompletedProcess[str]]:
        """Run the program on each of these nodes at the same time, as Slurm does, among the mounts of each."""
        environment = {**os.environ, "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}"}

        def run(machine: str) -> subprocess.CompletedProcess[str]:
            command = [*prefix_by_machine[machine], str(self.directory / machine)]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

        with ThreadPoolExecutor(len(prefix_by_machine)) as pool:
            return dict(zip(prefix_by_machine, pool.map(run, prefix_by_machine), strict=True))

    def controller_states(self) -> dict[str, dict[str, Any]]:
        states = {
            machine: json.loads((self.node_directory / machine).read_text(encoding="utf-8")) for machine in MACHINES
        }
        # Whoever counted the faults first has left the counts there.
        states["n1"].pop("extra", None)
        return states


def test_slow_volume_fails_the_check_and_drains_no_node(tmp_path: Path, slow: list[str]) -> None:
    cluster = NodeHealthCluster(tmp_path / "cluster")
    runs_by_machine = cluster.run_node_health(dict.fromkeys(MACHINES, slow))
    assert {machine: completed.returncode for machine, completed in runs_by_machine.items()} == dict.fromkeys(
        MACHINES, 0
    ), runs_by_machine
    assert cluster.controller_states() == {machine: {} for machine in MACHINES}, "nothing was said to the controller"
    options = {"machine": "n1", "only": [CHECK_NAME], "external_mounts": [VOLUME_PATH], "mount_timeout": MOUNT_TIMEOUT}
    module_run = subprocess.run(
        [*slow, sys.executable, str(MODULE)],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": options}),
        capture_output=True,
        text=True,
        check=False,
    )
    (check,) = json.loads(module_run.stdout)["checks"]
    assert (check["status"], "within 2 s" in check["reason"]) == ("fail", True), check


def test_dead_volume_drains_one_node_but_not_all(tmp_path: Path, dead: list[str], well: list[str]) -> None:
    all_affected, one_affected = NodeHealthCluster(tmp_path / "all"), NodeHealthCluster(tmp_path / "one")
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(all_affected.run_node_health, dict.fromkeys(MACHINES, dead)),
            pool.submit(one_affected.run_node_health, {"n1": dead, **dict.fromkeys(MACHINES[1:], well)}),
        ]
        all_runs, one_runs = (future.result() for future in futures)
    comments = {machine: {"comment": f"{shared_faults.COMMENT_PREFIX}{CHECK_NAME}"} for machine in MACHINES}
    assert all_affected.controller_states() == comments, all_runs
    assert {completed.returncode for completed in all_runs.values()} == {0}, "jobs go on starting"
    assert "kept in service" in all_runs["n1"].stdout
    node_states = one_affected.controller_states()
    assert {machine: node_states[machine] for machine in MACHINES[1:]} == {machine: {} for machine in MACHINES[1:]}, (
        one_runs
    )
    assert (node_states["n1"]["state"], one_runs["n1"].returncode) == ("drain", 1)
    assert node_states["n1"]["reason"].endswith(f"{VOLUME_PATH}: no answer within 2 s")

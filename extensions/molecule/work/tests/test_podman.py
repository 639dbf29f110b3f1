# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of a user whose command is `podman run`: after a kill, podman starts again on the same nodes."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from session_lab import FIRST_IMAGE, PARTITION, UNCOVER_SCRIPT
from train_programs import MANAGER
from train_runs import WAIT_TIMEOUT, TrainLab, list_causes

USER, NAME = "alice", "boxed"
HELD, STEPS = 15, 30
#: The image has no programs of its own. podman's images are in a folder of each node, which has no overlay.
PODMAN = (
    *("podman", "--root=/var/tmp/alice", "--storage-driver=vfs", "run", "--rm", "--env-host", "--network=host"),
    *("--volume=/usr:/usr:ro", "--volume=/tmp:/tmp", "--volume=/mnt/shared:/mnt/shared", FIRST_IMAGE),
)
PROGRAM = ("python3", "/mnt/shared/held.py", str(HELD), "/mnt/shared/trainer.py", str(STEPS), "0.01")
#: The rank in the container. podman and conmon have other command lines.
RANK = r"^\S*python3 /mnt/shared/held.py "


def test_podman_starts_again_after_a_kill() -> None:
    lab = TrainLab("molecule-work")
    lab.runs_directory = lab.shared_volume / USER / "runs"
    lab.clear_queue()
    for program in ("held.py", "trainer.py"):
        shutil.copy(Path(__file__).with_name(program), lab.shared_volume)
    for node in ("gpu1", "gpu2", "gpu3"):
        lab.run(node, "sh", "-c", UNCOVER_SCRIPT)
    options = ("--detach", "--name", NAME, "--nodes", "2", "--sbatch", f"--partition={PARTITION}")
    line = shlex.join(["gpumesh-train", *options, "--", *PODMAN, *PROGRAM])
    lab.run(MANAGER, "su", "-", USER, "-c", line, timeout=WAIT_TIMEOUT)
    before = lab.await_run(NAME, "waits to be killed", lambda found: found["attempts"] and found.get("step") == HELD)
    nodes = before["attempts"][0]["nodes"]
    lab.run(nodes[1], "pkill", "-KILL", "-f", RANK)
    found = lab.await_end(NAME)
    assert list_causes(found) == [("crash", 1, nodes[1]), ("finished", None, "")], found
    first, second = found["attempts"]
    assert "SIGKILL" in first["cause"]["detail"]
    assert (second["nodes"], second["first"], second["last"]) == (nodes, first["checkpoint"] + 1, STEPS)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""examples/plain on this machine: an interrupted run ends like an undisturbed one, also with another number of ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.tests.support.waiting import BUSY_MACHINE_TIMEOUT

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "examples" / "plain" / "train.py"


def train(checkpoint_directory: Path, steps: int, world_size: int) -> dict[str, Any]:
    """Run all ranks to the end. Returns the checkpoint."""
    checkpoint_directory.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {
        **os.environ,
        "GPUMESH_CHECKPOINT_DIR": str(checkpoint_directory),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(ROOT / "plugins" / "module_utils" / "_programs" / "train"),
        "WORLD_SIZE": str(world_size),
    }
    command = [sys.executable, str(PROGRAM), "--steps", str(steps), "--pause", "0"]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(world_size)]
    assert [rank.wait(BUSY_MACHINE_TIMEOUT) for rank in ranks] == [0] * world_size
    return dict(json.loads((checkpoint_directory / "curve.json").read_text(encoding="ascii")))


def test_an_interrupted_run_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "undisturbed", 60, 3)
    assert train(tmp_path / "interrupted", 40, 3)["step"] == 40
    assert train(tmp_path / "interrupted", 60, 3) == undisturbed


def test_other_numbers_of_ranks_read_the_same_points(tmp_path: Path) -> None:
    weights = [train(tmp_path / str(size), 20, size)["weights"] for size in (1, 2)]
    assert all(abs(one - two) < 1e-12 for one, two in zip(*weights))

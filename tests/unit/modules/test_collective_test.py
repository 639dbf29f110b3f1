# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module collective_test as Ansible runs it, with each launcher, on a host with stand-ins for what it starts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from module_runs import read_result, start_module

FIXTURES = Path(__file__).parents[1] / "module_utils" / "_checks" / "collective" / "fixtures"
MODULE = Path(__file__).parents[3] / "plugins" / "modules" / "collective_test.py"
#: Both start the binary once, as if on several nodes, and print their arguments on stderr.
LAUNCHER = """#!/bin/sh
echo "$0 $*" >>"{record}"
while [ $# -gt 1 ]; do case $1 in */all_reduce_perf) break ;; esac; shift; done
exec "$@"
"""


class Stage:
    """A host: launchers on its PATH, and a folder with one binary of nccl-tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "record"
        # If the tests run as root, the programs run as nobody.
        self.record.touch()
        self.record.chmod(0o666)
        for name in ("srun", "mpirun"):
            self.write(folder / "bin" / name, LAUNCHER.format(record=self.record))

    def write(self, path: Path, script: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)

    def prints(self, fixture: str, more: str = "") -> None:
        self.write(self.folder / "build" / "all_reduce_perf", f"#!/bin/sh\ncat '{FIXTURES / fixture}'\n{more}\n")

    def run(self, **arguments: Any) -> dict[str, Any]:
        module_options = {"path": str(self.folder / "build"), "timeout": 60, **arguments}
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return read_result(start_module("collective_test", module_options, environment))


@pytest.fixture(name="stage")
def _stage() -> Iterator[Stage]:
    """Create the host outside of the directories of pytest, which other users cannot access."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Stage(Path(folder))


def test_one_host_passes_and_returns_the_documented_keys(stage: Stage) -> None:
    stage.prints("01-new-table.txt")
    result = stage.run(ranks=8)
    assert (result["status"], result["error"], result["changed"]) == ("pass", None, False)
    assert (result["collective"], result["ranks"], result["nodes"]) == ("all_reduce", 8, 1)
    assert (result["busbw_gbps"], result["out_of_bounds"], len(result["devices"])) == (189.30, 0, 8)
    documented = yaml.safe_load(MODULE.read_text(encoding="utf-8").split('RETURN = r"""')[1].split('"""')[0])
    assert set(result) - {"changed", "invocation"} == set(documented)
    row = {"size_bytes", "count", "type", "redop", "time_us", "algbw_gbps", "busbw_gbps", "wrong", "in_place"}
    assert all(set(one) == row for one in result["rows"])
    assert not stage.record.read_text(encoding="utf-8")


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_launcher_starts_it_on_the_nodes(stage: Stage, launcher: str) -> None:
    stage.prints("02-two-nodes.txt")
    result = stage.run(launcher=launcher, ranks=16, nodes=2, nodelist=["n1", "n2"])
    assert (result["status"], result["ranks"], result["nodes"]) == ("pass", 16, 2)
    asked = stage.record.read_text(encoding="utf-8")
    assert f"/{launcher} " in asked
    assert ("--nodelist=n1,n2" if launcher == "srun" else "--host n1:8,n2:8") in asked


def test_a_missed_threshold_fails_and_is_reported(stage: Stage) -> None:
    stage.prints("01-new-table.txt")
    result = stage.run(ranks=8, min_busbw_gbps=200)
    assert (result["status"], result["error"]["kind"], result["min_busbw_gbps"]) == ("fail", "slow", 200)
    assert "189.3 GB/s" in result["error"]["message"]


@pytest.mark.parametrize(
    ("fixture", "ranks", "kind"),
    [
        ("17-usage.txt", 8, "usage"),
        ("18-truncated.txt", 16, "truncated"),
        ("23-without-mpi.txt", 2, "wrong_ranks"),
        ("26-empty.txt", 8, "truncated"),
    ],
)
def test_exit_status_0_alone_is_not_a_pass(stage: Stage, fixture: str, ranks: int, kind: str) -> None:
    stage.prints(fixture)
    result = stage.run(launcher="srun", ranks=ranks, nodes=1 if ranks == 8 else 2)
    assert (result["status"], result["error"]["kind"]) == ("fail", kind)
    assert result["error"]["remedy"]


def test_a_hanging_collective_is_killed(stage: Stage) -> None:
    stage.prints("27-hang-after-devices.txt", more="exec sleep 300")
    result = stage.run(launcher="srun", ranks=3, nodes=3, timeout=2)
    assert (result["status"], result["error"]["kind"]) == ("fail", "timeout")
    assert "within 2 s" in result["error"]["message"]
    assert "Rank 2" in result["error"]["message"]


def test_check_mode_starts_nothing(stage: Stage) -> None:
    stage.prints("02-two-nodes.txt")
    result = stage.run(launcher="srun", ranks=16, nodes=2, _ansible_check_mode=True)
    assert result["status"] == "skipped"
    assert not stage.record.read_text(encoding="utf-8")


def test_invalid_requests_are_refused(stage: Stage) -> None:
    result = stage.run(ranks=3, nodes=2)
    assert result["failed"]
    assert "3 ranks cannot be distributed evenly over 2 nodes" in result["msg"]

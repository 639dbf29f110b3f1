# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which folders all nodes see, and what nodes lack."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import preflight
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.settings import TrainSettings

MOUNTS = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:35 / /home rw,relatime - nfs4 files:/home rw
31 22 0:36 / /data\040one rw - lustre mgs:/data rw
32 22 0:37 / /s3 rw - fuse.geesefs geesefs rw
33 30 254:2 / /home/local rw - xfs /dev/vdb rw
34 22 0:38 / /workspace rw - fuse mfs#provider:9421 rw
35 22 0:39 / /srv/container rw - fuse.fuse-overlayfs fuse-overlayfs rw
"""
REQUEST = RunRequest(name="nano", command=("python9", "x"), folder="/x/nano", nodes=2, directory="/mnt/a b")


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        ("/home/alice/runs/nano", True),
        ("/home", True),
        ("/homework/runs", False),
        ("/home/local/runs", False),
        ("/data one/runs", True),
        ("/s3/runs", True),
        ("/workspace/runs", True),
        ("/srv/container/runs", False),
        ("/root/runs", False),
        ("/mnt/shared/runs", True),
        ("/mnt/shared", True),
        ("/mnt/shared2", False),
    ],
)
def test_shared_directories_are_recognized(path: str, shared: bool) -> None:
    assert preflight.is_shared(path, ["/mnt/shared"], MOUNTS) is shared


@pytest.mark.parametrize("volumes", [[], ["/mnt/shared"]])
def test_a_directory_of_one_node_is_refused_with_the_way_to_a_volume(volumes: list[str]) -> None:
    with pytest.raises(InputError) as refusal:
        preflight.require_shared("/proc/nano", volumes)
    assert refusal.value.message == "/proc/nano is not on a shared volume."
    assert ("The cluster has /mnt/shared." in refusal.value.remedy) is bool(volumes)
    assert ("storage_volumes" in refusal.value.remedy) is (not volumes)
    assert refusal.value.remedy.endswith("et --run-dir to a directory that all nodes share.")


def test_a_cluster_without_a_volume_is_told_how_it_gets_one() -> None:
    with pytest.raises(InputError) as refusal:
        TrainSettings({"volumes": [], "run_dir": ""}).runs_dir("")
    assert refusal.value.message == "The cluster has no shared volume."
    # The first mounts the volume, the second tells the programs of its mount point.
    for words in ("storage_volumes", "gpumesh.cluster.storage", "gpumesh.cluster.slurm", "--run-dir"):
        assert words in refusal.value.remedy


def slurm(states: str) -> Any:
    answers = {"sinfo": CommandResult(0, states, ""), "scontrol": CommandResult(0, "n2\nn3\n", "")}
    return lambda argv, **_options: answers[argv[0]]


def test_nodes_that_cannot_be_used_are_named_with_their_state() -> None:
    states = "n1|idle\nn2|drained\nn3|down*\n"
    with pytest.raises(
        HostStateError, match=r"requests 2 nodes, but only 1 can be used \(n2 is drained, n3 is down\*\)"
    ):
        preflight.usable_nodes(slurm(states), REQUEST)
    assert preflight.usable_nodes(slurm(states), REQUEST._replace(nodes=1)) == ["n1"]


def test_excluded_nodes_do_not_count() -> None:
    request = REQUEST._replace(sbatch=("--exclude=n[2-3]",))
    with pytest.raises(HostStateError, match="but only 1 can be used"):
        preflight.usable_nodes(slurm("n1|idle\nn2|idle\nn3|idle\n"), request)


def test_a_partition_without_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="no partition 'fast'"):
        preflight.usable_nodes(slurm(""), REQUEST._replace(partition="fast"))


def test_each_node_is_queried_for_the_requirements_of_the_run() -> None:
    asked = {}

    def run(argv: list[str], **_options: Any) -> CommandResult:
        asked[argv[5]] = argv[6]
        if argv[5] == "n3":
            raise CommandError(argv, "did not end within 10 s")
        return {
            "n1": CommandResult(13, "command python9\n", ""),
            "n2": CommandResult(0, "", ""),
            "n4": CommandResult(255, "", ""),
        }[argv[5]]

    found = preflight.missing_requirements(run, REQUEST, ["n1", "n2", "n3", "n4"])
    assert found == {"n1": "command python9"}
    assert "/mnt/a b" in asked["n1"]
    with pytest.raises(HostStateError, match="n1 has no command python9"):
        preflight.require_on_nodes(found)


def test_a_command_in_the_code_snapshot_is_not_required_on_nodes() -> None:
    asked = []

    def run(argv: list[str], **_options: Any) -> CommandResult:
        asked.append(argv[-1])
        return CommandResult(0, "", "")

    for command in ("./train.sh", "/usr/bin/python9"):
        preflight.missing_requirements(run, REQUEST._replace(code="/x", command=(command,)), ["n1"])
    assert "train.sh" not in asked[0] and "/usr/bin/python9" in asked[1]
    assert not [text for text in asked if "/mnt/a b" in text]

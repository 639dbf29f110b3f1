# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ch-run is told of a container, and how others get into it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import runtime, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import runtime_charliecloud as charliecloud
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container

OWN = Container("sub1", "sub", 1, 1, "n1", 0, "10.192.0.2", 0)


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> runtime.Place:
    for name in ("run", "trees/x/rootfs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("hosts", "hostfile", "resolv.conf"):
        (tmp_path / "run" / name).touch()
    image = {"config": {"User": "5:6", "Env": ["LD_LIBRARY_PATH=/cuda", "A=image"], "WorkingDir": "/app"}}
    (tmp_path / "trees" / "x" / "image.json").write_text(json.dumps(image))
    return runtime.Place(f"{tmp_path}/run", f"{tmp_path}/storage", f"{tmp_path}/images")


def started(place: runtime.Place, variables: dict[str, str], **more: Any) -> runtime.Start:
    role = spec.parse({"name": "demo", "roles": [{"name": "main", "image": "x", **more}]}).roles[0]
    image = runtime.Image(f"{Path(place.run).parent}/trees/x", True)
    return charliecloud.Charliecloud(run).start(runtime.Task(7, role, OWN, place, variables, []), image)


def test_a_container_has_its_name_user_and_directory(place: runtime.Place) -> None:
    argv = started(place, {}, command="train --fast").argv
    assert argv[argv.index("--hostname") + 1] == "sub1"
    assert {"--uid=5", "--gid=6", "--cd=/app", "--die-with-parent", "--unshare-pid"} < set(argv)
    assert argv[-4:] == [f"{Path(place.run).parent}/trees/x/rootfs", "--", "train", "--fast"]


def test_mounts_that_are_read_only_are_so_before_charliecloud_gets_them(place: runtime.Place) -> None:
    argv = started(place, {}, mounts=["/usr:/usr:ro", "/var:/var/data"]).argv
    at = argv.index("/usr")
    assert argv[at - 1 : at + 2] == ["--ro-bind", "/usr", f"{place.run}/mounts/3"]
    assert {f"--bind={place.run}/mounts/3:/usr", "--bind=/var:/var/data"} < set(argv)
    assert f"--bind={place.run}/mounts/0:/etc/hosts" in argv


def test_values_are_in_no_list_of_processes_and_do_not_mislead_the_programs_of_the_host(place: runtime.Place) -> None:
    begin = started(place, {"TOKEN": "secret", "A": "own", "HOME": "/h", "CH_IMAGE_STORAGE": "/x", "USER": "me"})
    assert "secret" not in " ".join(begin.argv)
    sets = [word for word in begin.argv if word.startswith("--set-env")]
    assert sets == [
        "--set-env=CH_IMAGE_STORAGE='/x'",
        "--set-env=HOME='/h'",
        "--set-env=LD_LIBRARY_PATH='/cuda'",
        "--set-env=PATH='/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'",
        "--set-env=USER='me'",
    ]
    assert {name: begin.environment.get(name) for name in ("TOKEN", "A", "LD_LIBRARY_PATH", "SLURM_JOB_ID")} == {
        "TOKEN": "secret",
        "A": "own",
        "LD_LIBRARY_PATH": None,
        "SLURM_JOB_ID": None,
    }
    kept = Path(place.run) / "environment"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text())["HOME"] == "/h"


def test_whoever_enters_has_the_environment_of_the_container() -> None:
    begin = charliecloud.entering(42, {"TOKEN": "secret", "LD_LIBRARY_PATH": "/cuda"}, ["sh"])
    assert begin.argv[:2] == ["nsenter", "--target=42"]
    assert begin.argv[-4:] == ["--", "env", "LD_LIBRARY_PATH=/cuda", "sh"]
    assert begin.environment == {"TOKEN": "secret"}


@pytest.mark.parametrize("text", [None, "", "4294967295\n"])
def test_a_container_that_has_not_begun(place: runtime.Place, text: str | None) -> None:
    if text is not None:
        (Path(place.run) / runtime.PROCESS).write_text(text)
    assert not charliecloud.Charliecloud(run).runs(place)


def test_a_container_runs_once_it_is_in_its_own_root(place: runtime.Place) -> None:
    """Its process is a child of the init that bwrap is the parent of."""
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 60; true'; true"], start_new_session=True) as outer:
        try:
            (Path(place.run) / runtime.PROCESS).write_text(f"{outer.pid}\n")
            end = time.monotonic() + 120
            while not charliecloud._child(charliecloud._child(outer.pid)):
                assert time.monotonic() < end
                time.sleep(0.05)
            assert not charliecloud.Charliecloud(run).runs(place)
        finally:
            os.killpg(outer.pid, 9)

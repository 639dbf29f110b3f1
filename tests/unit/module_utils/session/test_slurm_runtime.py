# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What srun and crun are told of a container."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import runtime, runtime_slurm, spec, tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container

OWN = Container("sub1", "sub", 1, 1, "n2", 3, "10.192.0.2", 257)
#: As umoci writes it for an image, in parts.
UMOCI = {
    "process": {"terminal": True, "args": ["sh"], "env": ["A=image"], "rlimits": [{"type": "RLIMIT_NOFILE"}], "x": 1},
    "mounts": [{"destination": "/proc"}],
    "linux": {"namespaces": [{"type": "user"}], "uidMappings": [{"containerID": 0, "hostID": 9, "size": 1}]},
}


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> runtime.Place:
    for name in ("run", "run/ssh", "trees/x/rootfs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("hosts", "hostfile", "resolv.conf", "ssh/config"):
        (tmp_path / "run" / name).touch()
    image = {"config": {"User": "5:6", "Env": ["A=image"], "WorkingDir": "/app"}}
    (tmp_path / "trees" / "x" / "image.json").write_text(json.dumps(image))
    (tmp_path / "trees" / "x" / "config.json").write_text(json.dumps(UMOCI))
    return runtime.Place(f"{tmp_path}/run", f"{tmp_path}/storage", f"{tmp_path}/images")


def started(place: runtime.Place, variables: dict[str, str], **more: Any) -> tuple[runtime.Start, dict[str, Any]]:
    role = spec.parse({"name": "demo", "roles": [{"name": "main", "image": "x", "cpus": 2, **more}]}).roles[0]
    image = runtime.Image(f"{Path(place.run).parent}/trees/x", True)
    begin = runtime_slurm.Slurm(nothing).start(runtime.Task(7, role, OWN, place, variables, []), image)
    return begin, json.loads((Path(place.run) / "bundle" / "config.json").read_text())


def nothing(_argv: list[str], **_options: object) -> Completed:
    return Completed(1, "", "")


def test_a_container_is_a_step_in_its_place_with_what_its_role_asks_for(
    place: runtime.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    begin, _document = started(place, {"TOKEN": "secret"}, command="train --fast")
    assert {"--jobid=7", "--nodelist=n2", "--cpus-per-task=2", f"--container={place.run}/bundle"} < set(begin.argv)
    # Process 1 would ignore the signals by which Slurm ends it.
    assert begin.argv[-4:] == ["/dev/init", "--", "train", "--fast"]
    assert begin.environment["GPUMESH_SESSION_PLACE"] == "3"
    # Neither what another step has set nor what others could list.
    assert "SLURM_STEP_ID" not in begin.environment
    assert "secret" not in " ".join([*begin.argv, *begin.environment.values()])


def test_the_bundle_is_that_of_the_image_and_nobody_else_reads_it(place: runtime.Place) -> None:
    _begin, document = started(place, {"TOKEN": "secret", "A": "own"}, mounts=["/usr:/usr:ro", "/var:/data"])
    assert (Path(place.run) / "bundle" / "config.json").stat().st_mode & 0o777 == 0o600
    process = document["process"]
    assert (process["terminal"], process["cwd"], process["user"]) == (False, "/app", {"uid": 5, "gid": 6})
    assert {"TOKEN=secret", "A=own"} < set(process["env"]) and "A=image" not in process["env"]
    assert "rlimits" not in process and process["x"] == 1
    assert document["hostname"] == "sub1"
    assert document["linux"]["uidMappings"] == [{"containerID": 5, "hostID": os.geteuid(), "size": 1}]
    assert document["linux"]["gidMappings"] == [{"containerID": 6, "hostID": os.getegid(), "size": 1}]
    assert document["root"] == {"path": "rootfs", "readonly": True}
    assert os.readlink(f"{place.run}/bundle/rootfs") == tree.read(f"{Path(place.run).parent}/trees/x").path
    binds = {one["destination"]: (one["source"], one["options"]) for one in document["mounts"] if "source" in one}
    assert binds["/usr"] == ("/usr", ["rbind", "ro"])
    assert binds["/data"] == ("/var", ["rbind", "rw"])
    assert binds["/etc/hosts"] == (f"{place.run}/hosts", ["rbind", "ro"])


def test_who_enters_finds_the_container_by_its_state(place: runtime.Place) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: object) -> Completed:
        asked.append(argv)
        return Completed(0, '{"status": "running"}', "")

    known = runtime_slurm.Slurm(run)
    assert not known.runs(place) and asked == []
    with pytest.raises(HostStateError, match="no longer running"):
        known.enter(place, ["sh"], False)
    (Path(place.run) / "crun" / "n2.alice.7.4.0").mkdir(parents=True)
    assert known.runs(place)
    assert asked[0][-2:] == ["state", "n2.alice.7.4.0"]
    assert known.enter(place, ["sh"], True).argv[-4:] == ["exec", "--tty", "n2.alice.7.4.0", "sh"]
    assert not runtime_slurm.Slurm(nothing).runs(place)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's own containers: a step of srun with --container, which the runtime of oci.conf runs: crun.

The step is started from outside of the network of the session, where srun reaches Slurm.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in, read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job, tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime import Image, Place, Start, Task, mounts
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container

#: In the directory of a container: what srun is given, and what crun keeps, as oci.conf has it.
_BUNDLE, _STATE = "bundle", "crun"
#: Process 1 of the container. Others would ignore the signals by which Slurm ends it.
_INIT = "/dev/init"
_CONFIG, _ROOT = "config.json", "rootfs"


class Slurm(tree.Unpacked):
    """See Runtime."""

    def start(self, task: Task, image: Image) -> Start:
        """A step of its own, with an OCI bundle that nobody else reads."""
        known, wanted = tree.read(image.identifier), mounts(task)
        tree.make_targets(known.path, wanted)
        document = bundle(json.loads(read_text(f"{image.identifier}/{_CONFIG}") or "{}"), known, task, wanted)
        folder = f"{task.place.run}/{_BUNDLE}"
        for made in (folder, f"{task.place.run}/{_STATE}"):
            os.makedirs(made, mode=0o700, exist_ok=True)
        os.symlink(known.path, f"{folder}/{_ROOT}")
        write_atomic(f"{folder}/{_CONFIG}", json.dumps(document), 0o600)
        words = [*job.step(task.job, task.role, [task.own]), "--quiet", f"--container={folder}"]
        words.append(f"--export={job.PLACE}")
        return Start([*words, _INIT, "--", *known.command(task.role)], job.clean_environment(task.own.local))

    def runs(self, place: Place) -> bool:
        """As crun says."""
        name = _name(place)
        done = self._run([*_crun(place), "state", name], check=False) if name else None
        if done is None or done.rc:
            return False
        try:
            return bool(json.loads(done.stdout)["status"] == "running")
        except (ValueError, LookupError, TypeError) as failure:
            raise ParseError("crun state", "it has no status") from failure

    def enter(self, place: Place, words: Sequence[str], terminal: bool) -> Start:
        """``crun exec``, with the environment of the container."""
        name = _name(place)
        if not name:
            raise HostStateError("The container is no longer running.", "See the log of the session.")
        options = ["--tty"] if terminal else []
        return Start([*_crun(place), "exec", *options, name, *words], dict(os.environ))


def beside(number: int, own: Container, argv: Sequence[str]) -> Start:
    """Run a program of the host in the network of a container."""
    return Start([*job.beside(number, own), *argv], job.clean_environment(own.local))


def bundle(given: Mapping[str, Any], known: tree.Tree, task: Task, wanted: Sequence[str]) -> Dict[str, Any]:
    """config.json of a container. ``given``: as umoci has written it for the image. ``wanted``: the mounts."""
    variables = {**known.environment, **task.variables}
    process = {
        **given["process"],
        "terminal": False,
        # Slurm replaces them with those of srun.
        "args": [],
        "env": [f"{name}={text}" for name, text in variables.items()],
        "cwd": known.directory,
        "user": dict(zip(("uid", "gid"), known.user)),
    }
    # Those of the step apply.
    process.pop("rlimits", None)
    own_ids = zip(("uidMappings", "gidMappings"), known.user, (os.geteuid(), os.getegid()))
    mappings = {kind: [{"containerID": inner, "hostID": outer, "size": 1}] for kind, inner, outer in own_ids}
    memory = {"type": "tmpfs", "source": "tmpfs", "destination": os.path.join("/", "tmp"), "options": ["mode=1777"]}
    return {
        **given,
        "process": process,
        "hostname": task.own.name,
        "root": {"path": _ROOT, "readonly": True},
        "mounts": [
            *given["mounts"],
            memory,
            _mount(f"{find('catatonit')}:{_INIT}:ro"),
            *(_mount(one) for one in wanted),
        ],
        "linux": {**given["linux"], **mappings},
    }


def _mount(text: str) -> Dict[str, Any]:
    source, target, *mode = text.split(":")
    return {"type": "bind", "source": source, "destination": target, "options": ["rbind", *(mode or ["rw"])]}


def _crun(place: Place) -> List[str]:
    return ["crun", "--cgroup-manager=disabled", f"--root={place.run}/{_STATE}"]


def _name(place: Place) -> str:
    """Of the only container whose state is there; empty where there is none."""
    return next((name for name in names_in(f"{place.run}/{_STATE}") if not name.startswith(".")), "")

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Charliecloud: ch-run, within namespaces that it does not make itself.

bubblewrap makes those of the host name, of the processes, which end with the container, and of shared memory, and mounts
what is read-only.
"""

from __future__ import annotations

import json
import os
import re
from typing import Dict, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import own_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime import (
    PROCESS,
    Image,
    Place,
    Start,
    Task,
    mounts,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container

#: Variables by which ch-run, or a program before it, finds its files and libraries.
_HEEDED = re.compile(r"PATH|HOME|USER|TMPDIR|CH_\w+|LD_\w+|GCONV_PATH|GLIBC_TUNABLES")
_ENVIRONMENT = "environment"
#: Where programs share memory.
_MEMORY = os.path.join("/dev", "shm")
_ISOLATED = (
    "--unshare-user",
    "--unshare-uts",
    "--unshare-pid",
    "--unshare-ipc",
    "--dev-bind",
    "/",
    "/",
    "--proc",
    "/proc",
)


class Charliecloud(tree.Unpacked):
    """See Runtime."""

    def start(self, task: Task, image: Image) -> Start:
        """``ch-run`` in ``bwrap``. Keeps the environment for those who enter."""
        known, wanted = tree.read(image.identifier), mounts(task)
        tree.make_targets(known.path, wanted)
        whole = {**known.environment, **task.variables}
        write_atomic(f"{task.place.run}/{_ENVIRONMENT}", json.dumps(whole), 0o600)
        argv = [*arguments(known, task.own, task.place, wanted, whole), *known.command(task.role)]
        given = {name: text for name, text in whole.items() if not _HEEDED.fullmatch(name)}
        return Start(argv, {**given, "USER": own_name(), "PATH": os.environ.get("PATH", "")})

    def runs(self, place: Place) -> bool:
        """Whether it is in its own root directory by now."""
        return _first(place) > 0

    def enter(self, place: Place, words: Sequence[str], terminal: bool) -> Start:
        """``nsenter``, which joins a container that ch-run cannot join any more."""
        whole: Dict[str, str] = json.loads(read_text(f"{place.run}/{_ENVIRONMENT}") or "{}")
        if terminal:
            whole.setdefault("TERM", os.environ.get("TERM", "xterm"))
        process = _first(place)
        if not process:
            raise HostStateError("The container is no longer running.", "See the log of the session.")
        return entering(process, whole, words)


def arguments(
    known: tree.Tree, own: Container, place: Place, wanted: Sequence[str], variables: Mapping[str, str]
) -> List[str]:
    """The arguments up to the command. Most variables are in the environment. ``wanted``: the mounts."""
    read_only, binds = _binds(place, wanted)
    words = ["bwrap", "--die-with-parent", *_ISOLATED, "--hostname", own.name, "--tmpfs", _MEMORY, *read_only]
    words += [find("ch-run") or "ch-run", "--no-passwd", "--private-tmp", "--env-no-expand", f"--cd={known.directory}"]
    words += [f"--uid={known.user[0]}", f"--gid={known.user[1]}", *(f"--bind={one}" for one in binds)]
    # ch-run removes one pair of quotation marks.
    heeded = sorted((name, text) for name, text in variables.items() if _HEEDED.fullmatch(name))
    return [*words, *(f"--set-env={name}='{text}'" for name, text in heeded), known.path, "--"]


def _binds(place: Place, wanted: Sequence[str]) -> Tuple[List[str], List[str]]:
    """The arguments of bwrap for what is read-only, and the mounts of ch-run, which has no such option."""
    read_only: List[str] = []
    binds = []
    for number, one in enumerate(wanted):
        source, target, *mode = one.split(":")
        if mode == ["ro"]:
            read_only += ["--ro-bind", source, f"{place.run}/mounts/{number}"]
            source = f"{place.run}/mounts/{number}"
        binds.append(f"{source}:{target}")
    return read_only, binds


def entering(process: int, variables: Mapping[str, str], words: Sequence[str]) -> Start:
    """nsenter, which has to find its own libraries."""
    argv = ["nsenter", f"--target={process}", "--user", "--mount", "--uts", "--ipc", "--pid", "--root", "--wd"]
    argv += ["--preserve-credentials", "--"]
    heeded = [f"{name}={text}" for name, text in variables.items() if name.startswith("LD_")]
    given = {name: text for name, text in variables.items() if not name.startswith("LD_")}
    return Start([*argv, *(["env", *heeded] if heeded else []), *words], given)


def _first(place: Place) -> int:
    """The first process of the container; 0 as long as it has not left the root directory of the host."""
    text = read_text(f"{place.run}/{PROCESS}") or ""
    outer = int(text) if text.strip().isdecimal() else 0
    # bwrap, and its init, which is process 1 in there.
    found = _child(_child(outer))
    if not found:
        return 0
    try:
        inside, outside = os.stat(f"/proc/{found}/root"), os.stat("/")
    except OSError:
        return 0
    return found if (inside.st_dev, inside.st_ino) != (outside.st_dev, outside.st_ino) else 0


def _child(process: int) -> int:
    """Its first one, or 0. Those that lose their parent come after it."""
    if not process:
        return 0
    try:
        text = read_text(f"/proc/{process}/task/{process}/children") or ""
    except HostStateError:
        return 0
    return int(text.split()[0]) if text.split() else 0

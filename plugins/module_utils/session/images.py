# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images that a user's sessions have left on this node, where later ones find them."""

from __future__ import annotations

import os
import tempfile
from typing import Dict, List, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.container import image_store
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime import Place
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime_podman import Podman, is_alias
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Settings

ALL = "all"
_NAMELESS = "<none>"


class Stored(NamedTuple):
    """An image. ``names``: none for one from a file. ``size``: for people."""

    identifier: str
    size: str
    names: List[str]


def parse(text: str) -> List[Stored]:
    """From ``podman images --no-trunc --format={{.ID}}|{{.Size}}|{{.Repository}}:{{.Tag}}``, a line for each tag."""
    found: Dict[str, Stored] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 3:
            one = found.setdefault(fields[0], Stored(fields[0].rpartition(":")[2], fields[1], []))
            if not is_alias(fields[2]) and _NAMELESS not in fields[2]:
                one.names.append(fields[2])
    return sorted(found.values(), key=lambda one: (one.names, one.identifier))


def listed(run: Runner, settings: Settings) -> List[Stored]:
    """The user's images on this node. Raises CommandError."""
    store = image_store(settings.storage)
    if not os.path.isdir(store):
        return []
    with tempfile.TemporaryDirectory() as folder:
        return parse(Podman(run).listed(Place(folder, "", store)))


def remove(run: Runner, settings: Settings, wanted: Sequence[str]) -> List[str]:
    """Remove images from this node; a line for each. Raises GpumeshError.

    A container needs the files of its image as long as it runs, and podman does not know of containers in other stores.
    """
    using = [one.token.name for one in job.queue(run, "--me", f"--nodelist={settings.machine}") if not one.over]
    if using:
        raise InputError(
            f"{settings.machine} runs the session '{using[0]}', which may need the images.",
            f"Wait for its end, or: gpumesh-session stop {using[0]}",
        )
    stored = listed(run, settings)
    identifiers = [one.identifier for one in stored]
    names = identifiers if ALL in wanted else list(wanted)
    if not stored and ALL not in wanted:
        raise InputError(f"You have no images on {settings.machine}.", "See 'gpumesh-session images'.")
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            removed = Podman(run).remove(Place(folder, "", image_store(settings.storage)), name)
        lines.append(f"{settings.machine}: {removed[:12] if removed in identifiers else name} removed")
    return lines

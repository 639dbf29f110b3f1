# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose state a controller's folder contains: a marker in it, and the handling of an obsolete state.

The existence of a state proves nothing: a machine that was the manager before may have an old one. So the marker
records the cluster, and in which tenures of which managers, as generations of the record, the queue was built.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_bytes, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import acting_as
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import state
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

#: Beside the controller's state, until the new manager has loaded it.
ACCOUNTING = "accounting.sql"


class Marker(NamedTuple):
    """The ID of the cluster, the machine that had the queue last, and the generations with which the tenures began."""

    cluster: str
    machine: str
    tenures: Tuple[int, ...]

    @property
    def generation(self) -> int:
        """The generation from which on the machine had the queue."""
        return self.tenures[-1]


class Kept(NamedTuple):
    """A controller's state on a host.

    ``used``: a controller has written it. ``accounting``: accounting has to be loaded.
    """

    used: bool
    marker: Optional[Marker]
    accounting: bool


def parse(document: object) -> Marker:
    """Validate an untrusted document. Raises ValueError."""
    values = document if isinstance(document, dict) else {}
    cluster, machine, tenures = (values.get(name) for name in Marker._fields)
    named = isinstance(cluster, str) and isinstance(machine, str)
    numbers = tenures if isinstance(tenures, (list, tuple)) else ()
    counted = all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in numbers)
    if not (named and numbers and counted):
        raise ValueError("expected cluster, machine and tenures, a list of generations")
    return Marker(str(cluster), str(machine), tuple(numbers))


def render(marker: Marker) -> str:
    """The text of the file."""
    return json.dumps(marker._asdict()) + "\n"


def read(folder: str) -> Kept:
    """The current state. Raises HostStateError if the marker cannot be read."""
    path = os.path.join(folder, state.MARKER)
    raw = read_bytes(path, follow=False)
    marker = None
    if raw is not None:
        try:
            marker = parse(from_json(raw))
        except ValueError as failure:
            raise HostStateError(
                f"{path} does not show whose queue is there: {failure}.",
                "Delete it if the queue is that of this cluster; otherwise move the whole directory away.",
            ) from failure
    return Kept(state.in_use(folder), marker, os.path.lexists(os.path.join(folder, ACCOUNTING)))


def is_there(folder: str) -> bool:
    """Whether there is a state, or a marker."""
    return state.in_use(folder) or os.path.lexists(os.path.join(folder, state.MARKER))


def mark(folder: str, marker: Marker, user: str) -> None:
    """Write the marker, readable only by the controller's account."""
    with acting_as(user):
        write_atomic(os.path.join(folder, state.MARKER), render(marker))


def retire(folder: str, keep: bool, user: str) -> str:
    """Empty the folder: delete its content, or with ``keep``, move it into a folder beside it, whose path is returned.

    The marker of the state is removed last, so that an interrupted run can be continued.
    """
    if not os.path.isdir(folder):
        return ""
    with acting_as(user):
        names = sorted(os.listdir(folder), key=lambda name: (name in (state.MARKER, state.SIGN), name == state.SIGN))
        aside = f"{folder}.{_began(folder)}" if keep and names else ""
        if aside:
            os.makedirs(aside, mode=0o700, exist_ok=True)
        for name in names:
            path = os.path.join(folder, name)
            if aside:
                # One by one: the folder itself may be a part of a container's image, which cannot be moved.
                shutil.move(path, os.path.join(aside, name))
            elif os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                remove_file(path)
    return aside


def _began(folder: str) -> str:
    """When the controller started there: the same name after each interruption."""
    marks = (os.path.join(folder, name) for name in (state.SIGN, state.MARKER))
    path = next((mark for mark in marks if os.path.lexists(mark)), folder)
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(os.lstat(path).st_mtime))

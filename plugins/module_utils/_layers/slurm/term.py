# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The marker in a controller's state directory, which names its cluster and manager, and the removal of obsolete state.

The existence of a state proves nothing: a machine that was the manager before may have an old one. So the marker
records the cluster, the last manager, and the generations of the record in which the terms of all managers began.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_bytes, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import acting_as
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import state

#: The accounting is stored beside the controller's state until the new manager has loaded it.
ACCOUNTING_FILE = "accounting.sql"


class StateMarker(NamedTuple):
    """The ID of the cluster, the machine that had the queue last, and the generations with which the terms began."""

    cluster: str
    machine: str
    tenures: Tuple[int, ...]

    @property
    def generation(self) -> int:
        """The first generation in which the machine had the queue."""
        return self.tenures[-1]


class ControllerState(NamedTuple):
    """A controller's state on a host.

    ``in_use``: a controller has written it. ``pending_accounting``: accounting has to be loaded.
    """

    in_use: bool
    marker: Optional[StateMarker]
    pending_accounting: bool


def parse_marker(document: object) -> StateMarker:
    """Validate an untrusted document. Raises ValueError."""
    fields_by_name = document if isinstance(document, dict) else {}
    cluster, machine, raw_terms = (fields_by_name.get(name) for name in StateMarker._fields)
    has_names = isinstance(cluster, str) and isinstance(machine, str)
    generations = raw_terms if isinstance(raw_terms, (list, tuple)) else ()
    valid_generations = all(
        isinstance(generation, int) and not isinstance(generation, bool) and generation > 0
        for generation in generations
    )
    if not (has_names and generations and valid_generations):
        raise ValueError("expected cluster, machine and tenures, a list of generations")
    return StateMarker(str(cluster), str(machine), tuple(generations))


def is_current(marker: Optional[StateMarker], cluster_id: str, generation: int) -> bool:
    """Whether a state belongs to the term of a cluster that began with this generation of its record."""
    return marker is not None and marker.cluster == cluster_id and generation in marker.tenures


def render_marker(marker: StateMarker) -> str:
    """Return the text of the marker file."""
    return json.dumps(marker._asdict()) + "\n"


def read_controller_state(state_directory: str) -> ControllerState:
    """Read the current state. Raises HostStateError if the marker cannot be read."""
    marker_path = os.path.join(state_directory, state.MARKER_FILE)
    marker_bytes = read_bytes(marker_path, follow_links=False)
    marker = None
    if marker_bytes is not None:
        try:
            marker = parse_marker(parse_json(marker_bytes))
        except ValueError as failure:
            raise HostStateError(
                f"{marker_path} does not show whose queue is there: {failure}.",
                "Delete it if the queue is that of this cluster; otherwise move the whole directory away.",
            ) from failure
    return ControllerState(
        state.has_controller_state(state_directory),
        marker,
        os.path.lexists(os.path.join(state_directory, ACCOUNTING_FILE)),
    )


def state_exists(state_directory: str) -> bool:
    """Whether the directory has a state or a marker."""
    return state.has_controller_state(state_directory) or os.path.lexists(
        os.path.join(state_directory, state.MARKER_FILE)
    )


def write_marker(state_directory: str, marker: StateMarker, user: str) -> None:
    """Write the marker, readable only by the controller's account."""
    with acting_as(user):
        write_atomic(os.path.join(state_directory, state.MARKER_FILE), render_marker(marker))


def retire_state(state_directory: str, keep_copy: bool, user: str) -> str:
    """Empty the directory: delete its content, or move it to a backup directory beside it (``keep_copy``).

    Returns the path of the backup, or an empty string. The marker of the state is removed last, so that an interrupted
    run can be continued.
    """
    if not os.path.isdir(state_directory):
        return ""
    with acting_as(user):
        entry_names = sorted(
            os.listdir(state_directory),
            key=lambda entry_name: (
                entry_name in (state.MARKER_FILE, state.CLUSTERNAME_FILE),
                entry_name == state.CLUSTERNAME_FILE,
            ),
        )
        backup_directory = f"{state_directory}.{_start_timestamp(state_directory)}" if keep_copy and entry_names else ""
        if backup_directory:
            os.makedirs(backup_directory, mode=0o700, exist_ok=True)
        for entry_name in entry_names:
            entry_path = os.path.join(state_directory, entry_name)
            if backup_directory:
                # Entries are moved one by one: the directory may be part of a container's image, which cannot be moved.
                shutil.move(entry_path, os.path.join(backup_directory, entry_name))
            elif os.path.isdir(entry_path) and not os.path.islink(entry_path):
                shutil.rmtree(entry_path)
            else:
                remove_file(entry_path)
    return backup_directory


def _start_timestamp(state_directory: str) -> str:
    """Return when the controller started there, so that an interrupted run finds its backup directory again."""
    candidate_paths = (os.path.join(state_directory, name) for name in (state.CLUSTERNAME_FILE, state.MARKER_FILE))
    reference_path = next((candidate for candidate in candidate_paths if os.path.lexists(candidate)), state_directory)
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(os.lstat(reference_path).st_mtime))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the layers of a cluster on this host with what the record requires. Read-only."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files, names
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import parse_unit, started_at, unread
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.job_environment import files as job_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import install as session
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust import files as ssh_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import mounts
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import server
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import install

NOT_SET_UP = "not set up"
_RUNNING = ("active", "activating", "reloading")
_AT_BOOT = ("enabled", "enabled-runtime", "static", "generated", "alias", "linked")

#: The layers that compare the host with the parameters of their modules themselves.
LAYERS: Mapping[str, Callable[[Runner, Mapping[str, Any]], host_files.Differences]] = {
    "names": names.differences,
    "ssh": ssh_files.differences,
    "job environment": job_files.differences,
    "storage": mounts.differences,
    "train": install.differences,
    "session": session.differences,
    "tracking": server.differences,
}


def difference(expected: Mapping[str, Any], text: Optional[str]) -> str:
    """The differences of one file as a message; empty if there are none. ``text`` is None if the file does not exist."""
    path = expected["path"]
    missing = f"{path} is missing"
    if text is None:
        return missing
    return "" if not expected.get("contains") or expected["contains"] in text else f"{path} differs"


def parse_units(shown: str) -> Dict[str, Dict[str, str]]:
    """The properties of each unit, from `systemctl show --property=Id,…` with several units."""
    units = {}
    for paragraph in shown.strip().split("\n\n"):
        properties = parse_unit(paragraph)
        if "Id" in properties:
            units[properties["Id"]] = properties
    return units


def service_differences(unit: str, properties: Mapping[str, str], reads: Sequence[str] = ()) -> List[str]:
    """The problems of one unit as messages. ``reads``: files that it reads at its start."""
    if properties.get("LoadState") != "loaded":
        return [f"{unit} is missing"]
    words = []
    if properties.get("ActiveState") not in _RUNNING:
        words.append(f"{unit} does not run")
    if properties.get("UnitFileState") not in _AT_BOOT:
        words.append(f"{unit} does not start at boot")
    late = unread(started_at(whole_number(properties.get("MainPID")) or 0), reads)
    if late:
        words.append(f"{unit} has not read {', '.join(late)} yet")
    return words


def read_file(path: str) -> Optional[str]:
    """The text of a file, or None if it does not exist. Raises HostStateError if it is not a file."""
    current = host_files.read(path)
    return None if current.kind == host_files.ABSENT else current.text


def compare(run: Runner, files: Sequence[Mapping[str, Any]], services: Sequence[Mapping[str, Any]]) -> Dict[str, str]:
    """The differences by layer, as messages. A layer of which nothing exists is not set up.

    Services are compared if systemd runs them.
    """
    found: Dict[str, List[str]] = {}
    asked: Dict[str, int] = {}
    for expected in files:
        asked[expected["layer"]] = asked.get(expected["layer"], 0) + 1
        try:
            words = difference(expected, read_file(expected["path"]))
        except HostStateError as failure:
            words = failure.message.rstrip(".")
        found.setdefault(expected["layer"], []).extend([words] if words else [])
    names = [service["unit"] for service in services]
    if names and find("systemctl") is not None and runs_systemd():
        shown = run(
            ["systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState,MainPID", *names], check=False
        )
        units = parse_units(shown.stdout)
        for service in services:
            asked[service["layer"]] = asked.get(service["layer"], 0) + 1
            words_of = service_differences(service["unit"], units.get(service["unit"], {}), service.get("reads") or [])
            found.setdefault(service["layer"], []).extend(words_of)
    return {layer: _in_words(words, asked[layer]) for layer, words in found.items() if words}


def compare_modules(run: Runner, asked: Mapping[str, Mapping[str, Any]]) -> Dict[str, str]:
    """The same for the layers in LAYERS. ``asked``: the parameters of each layer's module."""
    found = {}
    for layer, params in asked.items():
        try:
            words, nothing_there = LAYERS[layer](run, params)
        except GpumeshError as failure:
            words, nothing_there = [failure.message.rstrip(".")], False
        if words:
            found[layer] = NOT_SET_UP if nothing_there else ", ".join(words)
    return found


def _in_words(words: Sequence[str], asked: int) -> str:
    gone = [word for word in words if word.endswith((" is missing", " does not run"))]
    return NOT_SET_UP if len(gone) == asked else ", ".join(words)

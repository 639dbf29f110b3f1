# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which cluster owns what exists only once on a host: its munge key, the environment of its jobs, its Slurm.

A host may be in several clusters, but a second one would replace the key, the files and the queue of the first. So the
cluster that sets them up writes its ID beside its records. Other clusters refuse to set them up, and skip them when
they leave.
"""

from __future__ import annotations

import json
import os
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import files
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import store
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

THINGS = ("munge", "job_environment", "slurm")
_FILE = "owners.json"
_LAYER_FILE = "/etc/gpumesh/job_environment.json"


class Owner(NamedTuple):
    """A cluster."""

    name: str
    id: str


Owners = Mapping[str, Owner]


class Note(NamedTuple):
    """The file of this host, current and desired. Without owners, there is no file.

    ``member``: whether the host has a copy of the cluster's record, or something that it owned. ``others``: what
    belongs to other clusters. ``owned``: what belonged to the cluster before.
    """

    path: str
    before: Optional[str]
    after: Optional[str]
    member: bool
    others: List[str]
    owned: Sequence[str] = ()

    @property
    def changed(self) -> bool:
        """Whether the file has to be written."""
        return self.before != self.after


def path_beside(records: str) -> str:
    """The path of the file with the owners, for a folder of records."""
    return os.path.join(os.path.dirname(records.rstrip("/")), _FILE)


def parse(text: Optional[str], path: str = _FILE) -> Dict[str, Owner]:
    """The owner of each thing; none without a text. Raises HostStateError."""
    if text is None:
        return {}
    try:
        document = from_json(text)
        return {str(thing): Owner(str(owner["name"]), str(owner["id"])) for thing, owner in document.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as failure:
        raise HostStateError(
            f"{path} does not show which cluster owns what on this host: {failure}.",
            "Delete it; the next run of the owning cluster writes it again.",
            path=path,
        ) from failure


def render(owners: Owners) -> str:
    """The text of the file."""
    return json.dumps({thing: owner._asdict() for thing, owner in sorted(owners.items())}, indent=2) + "\n"


def known(
    owners: Owners, held: Sequence[Record], layer: Optional[str], damaged: Sequence[str] = ()
) -> Dict[str, Owner]:
    """The owners that are still clusters of this host: those whose record it has.

    ``damaged``: the names of clusters whose record is unreadable, and which may be the owners. ``layer``: the text of
    the job environment, which names the cluster if an earlier version did not record an owner.
    """
    here = {record["name"]: Owner(record["name"], record["id"]) for record in held}
    found = {thing: owner for thing, owner in owners.items() if owner in here.values() or owner.name in damaged}
    if not owners and layer is not None:
        named = here.get(_cluster_in(layer))
        if named is not None:
            found = dict.fromkeys(THINGS, named)
    return found


def claim(owners: Owners, things: Iterable[str], owner: Owner) -> Dict[str, Owner]:
    """The owners once ``owner`` has these too. Raises HostStateError if another cluster has one of them."""
    theirs = of_others(owners, owner)
    taken = [thing for thing in things if thing in theirs]
    if taken:
        other = owners[taken[0]].name
        raise HostStateError(
            f"A host can have only one of each of these, and here they belong to cluster '{other}': "
            f"{', '.join(taken)}. Cluster '{owner.name}' would replace its key, its files and its queue, so nothing "
            "was changed.",
            f"Remove the machine from cluster '{other}' first (playbook remove), or from '{owner.name}'.",
            cluster=other,
            things=taken,
        )
    return {**owners, **dict.fromkeys(things, owner)}


def release(owners: Owners, owner: Owner) -> Dict[str, Owner]:
    """The owners once ``owner`` has left."""
    return {thing: one for thing, one in owners.items() if one != owner}


def of_others(owners: Owners, owner: Owner) -> List[str]:
    """The things that belong to other clusters."""
    return sorted(thing for thing, one in owners.items() if one != owner)


def _cluster_in(layer: str) -> str:
    try:
        document = from_json(layer)
    except ValueError:
        return ""
    return str(document.get("cluster", "")) if isinstance(document, dict) else ""


# --- This host


def look(records: str, cluster: Owner, things: Optional[Sequence[str]]) -> Note:
    """The file once the cluster has these things too; with None, once it has left. ``records``: their folder.

    With no things, it stays as it is, also with owners that are gone, so that the others can be queried. Raises
    HostStateError if another cluster has one of them.
    """
    path = path_beside(records)
    found = store.scan(records)
    held = [one.record for one in found.records]
    damaged = found.unreadable
    text = files.read_text(path)
    noted = parse(text, path)
    present = known(noted, held, files.read_text(_LAYER_FILE), damaged)
    wanted = release(present, cluster) if things is None else claim(present, things, cluster)
    # A damaged copy shows that there was a valid one.
    copies = [record["id"] for record in held] + [cluster.id for name in damaged if name == cluster.name]
    member = cluster in noted.values() or cluster.id in copies
    # Also where its record has been lost.
    owned = [thing for thing, one in {**noted, **present}.items() if one == cluster]
    after = text if things == [] else render(wanted) if wanted else None
    return Note(path, text, after, member, of_others(present, cluster), owned)


def write(note: Note) -> None:
    """Write or remove the file."""
    if note.changed and note.after is None:
        files.remove_file(note.path)
    elif note.changed and note.after is not None:
        os.makedirs(os.path.dirname(note.path), mode=0o755, exist_ok=True)
        files.write_atomic(note.path, note.after, 0o644)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out one request on one host's file: read, plan and write while holding the lock."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any, Callable, ContextManager, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError, RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model, plan, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.plan import Change, Draft, Stamp
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import Store, scan


class Applied(NamedTuple):
    """The record before and after, None if there was or is none, and the changes."""

    before: Optional[Record]
    after: Optional[Record]
    changes: Sequence[Change]


class ClusterRequest(NamedTuple):
    """The requested cluster. None keeps the current value, or uses the default for a new cluster.

    ``older_version``: whether this version of the collection may change what a newer one has applied.
    """

    subnet: Optional[str] = None
    manager: Optional[str] = None
    mesh: Optional[Mapping[str, Any]] = None
    volumes: Optional[Sequence[Mapping[str, Any]]] = None
    tracking: Optional[Mapping[str, Any]] = None
    keys_changed: bool = False
    older_version: bool = False
    members: Sequence[Mapping[str, Any]] = ()
    #: The members that may be new; None: all.
    joining: Optional[Sequence[str]] = None


class MissingRecordError(RecordError):
    """There is no such cluster on this host."""


class ReplicaRefusedError(RecordError):
    """A copy must not replace the record of this host."""


def cluster_present(store: Store, request: ClusterRequest, by: str, check_mode: bool) -> Applied:
    """Create the cluster, or change the existing one as requested, in one generation."""
    stamp = Stamp(values.now(), by)

    def draft(before: Optional[Record]) -> Draft:
        _refuse_left(store.name, before, request.members, request.joining)
        if before is None:
            return _create(store.name, request, stamp)
        plan.check_subnet(before, request.subnet)
        if request.manager is not None and request.manager != before["manager"]:
            raise InputError(
                f"Cluster '{before['name']}' has the manager {before['manager']}, not {request.manager}.",
                f"Omit cluster_manager or set it to {before['manager']}; the playbook remove changes the manager.",
                manager=before["manager"],
            )
        return _revise(before, request, stamp)

    return _change(store, draft, stamp, check_mode, request.older_version, on_manager=True)


def members_present(
    store: Store,
    members: Sequence[Mapping[str, Any]],
    new_manager: Optional[str],
    by: str,
    check_mode: bool,
    joining: Optional[Sequence[str]] = None,
    older_version: bool = False,
) -> Applied:
    """Add or update members, and hand the cluster over if there is a new manager, in one generation.

    ``joining``: the members that may be new; None: all. ``older_version``: see ``ClusterRequest``.
    """
    stamp = Stamp(values.now(), by)

    def draft(before: Optional[Record]) -> Draft:
        steps: List[Callable[[Record], Draft]] = [lambda record: plan.join(record, members, stamp)]
        if new_manager is not None:
            manager = new_manager
            steps.append(lambda record: plan.hand_over(record, manager))
        present = _existing(store, before)
        _refuse_left(store.name, present, members, joining)
        return plan.chain(present, *steps)

    return _change(store, draft, stamp, check_mode, older_version)


def members_absent(
    store: Store,
    machines: Sequence[str],
    new_manager: Optional[str],
    force: bool,
    untrusted: bool,
    by: str,
    check_mode: bool,
    older_version: bool = False,
) -> Applied:
    """Remove members, and hand the cluster over first if the manager is among them, in one generation."""
    stamp = Stamp(values.now(), by)

    def draft(before: Optional[Record]) -> Draft:
        return plan.chain(
            _existing(store, before),
            lambda record: plan.remove(record, machines, stamp, new_manager, force),
            lambda record: plan.distrust(record, machines if untrusted else ()),
        )

    return _change(store, draft, stamp, check_mode, older_version)


def replica(
    store: Store, document: object, force: bool, by: str, check_mode: bool, machine: Optional[str] = None
) -> Applied:
    """Replace this host's copy by the given record, which another host sent. A newer or foreign one is not overwritten.

    ``machine``: this host in the record, which is refused if it uses what belongs to another cluster here.
    """
    record = model.parse(document)

    def write(before: Optional[Record]) -> Record:
        standing = derive.relation(before, record) if before is not None else None
        if standing is None or standing.kind in ("same", "behind") or force:
            return record
        raise ReplicaRefusedError(
            f"The copy of the cluster record in {store.path} was not replaced: {standing.reason}.",
            "Find out which copy is right (playbook show), and set cluster_trusted_copy to a machine that has it.",
            path=store.path,
            relation=standing.kind,
        )

    with _hold(store, by, check_mode):
        before = _read_or_replace(store, force)
        after = write(before)
        if before == after:
            return Applied(before, after, [])
        if machine is not None:
            _refuse_conflicts(store, machine, before, after)
        if not check_mode:
            store.write(after)
        detail = f"copy of generation {after['generation']}"
        return Applied(before, after, [Change("replica", detail, ())])


def cluster_absent(store: Store, only: object, force: bool, by: str, check_mode: bool) -> Applied:
    """Delete the file. ``only``: None, or the record to which it must belong; another cluster's file is left alone."""
    if check_mode:
        return _absent(store, only, force, None)
    if not store.exists():
        # Taking the lock would create the directory that has to be removed.
        return Applied(None, None, [])
    with store.locked(by):
        return _absent(store, only, force, store.remove)


def _absent(store: Store, only: object, force: bool, remove: Optional[Callable[[], bool]]) -> Applied:
    before = _read_or_replace(store, force)
    if before is not None and only is not None and before["id"] != model.parse(only)["id"]:
        return Applied(before, before, [])
    if before is None and not store.exists():
        return Applied(None, None, [])
    if remove is not None:
        remove()
    return Applied(before, None, [Change("delete", f"deleted {store.path}", ())])


def _refuse_conflicts(store: Store, machine: str, before: Optional[Record], after: Record) -> None:
    """Refuse what would conflict with the other records on ``machine``, this host."""
    derive.refuse_conflicts([stored.record for stored in scan(store.folder).records], machine, before, after)


def _refuse_left(
    name: str, before: Optional[Record], members: Sequence[Mapping[str, Any]], joining: Optional[Sequence[str]]
) -> None:
    """Refuse to add machines that have left since this run read the record: they would get their keys and mounts again."""
    if joining is None:
        return
    present = {member["machine"] for member in before["members"]} if before else set()
    left = [str(one["machine"]) for one in members if one["machine"] not in present and one["machine"] not in joining]
    if left:
        now = f"it is at generation {before['generation']} now" if before else "it was deleted"
        raise InputError(
            f"Cluster '{name}' has changed since this run read its record: {', '.join(left)} left, and {now}.",
            "Run it again without the machine; the playbook join adds it again.",
            machines=left,
        )


def _create(name: str, request: ClusterRequest, stamp: Stamp) -> Draft:
    if request.subnet is None or request.manager is None:
        raise InputError(
            f"There is no cluster '{name}' on this host; a subnet, a manager and members are required to create it.",
            "Set them, or give the name of an existing cluster.",
            cluster=name,
        )
    draft = plan.create(
        uuid.uuid4().hex, name, request.subnet, request.manager, request.mesh or {}, request.members, stamp
    )
    if not request.volumes:
        return draft
    volumes = request.volumes
    stored = plan.set_storage(draft.record, volumes)
    return Draft(stored.record, [*draft.changes, *stored.changes])


def _revise(record: Record, request: ClusterRequest, stamp: Stamp) -> Draft:
    # The mesh first: its backend decides whether new members get a mesh address.
    return plan.chain(
        record,
        lambda draft: plan.set_mesh(draft, request.mesh or {}),
        lambda draft: plan.join(draft, request.members, stamp),
        lambda draft: plan.set_storage(draft, request.volumes) if request.volumes is not None else Draft(draft, []),
        lambda draft: plan.set_tracking(draft, request.tracking) if request.tracking is not None else Draft(draft, []),
        lambda draft: plan.keys_changed(draft) if request.keys_changed else Draft(draft, []),
    )


def _change(
    store: Store,
    draft: Callable[[Optional[Record]], Draft],
    stamp: Stamp,
    check_mode: bool,
    older_version: bool,
    on_manager: bool = False,
) -> Applied:
    with _hold(store, stamp.by, check_mode):
        before = store.read()
        if before is not None and not older_version:
            derive.refuse_older_version(before)
        wanted = draft(before)
        # Last, since the kind of a generation in the history is that of its first change.
        noted = plan.note_version(wanted.record)
        drafted = Draft(noted.record, [*wanted.changes, *noted.changes])
        after = plan.commit(drafted, stamp)
        if on_manager and drafted.changes:
            _refuse_conflicts(store, after["manager"], before, after)
        if drafted.changes and not check_mode:
            store.write(after)
        return Applied(before, after, drafted.changes)


def _hold(store: Store, by: str, check_mode: bool) -> ContextManager[None]:
    """The lock; in check mode nothing, since a lock is a file, and would be a change."""
    return contextlib.nullcontext() if check_mode else store.locked(by)


def _existing(store: Store, record: Optional[Record]) -> Record:
    if record is None:
        raise MissingRecordError(
            f"There is no cluster '{store.name}' on this host: {store.path} does not exist.",
            "Create it first (playbook create), or set cluster_name to an existing one.",
            path=store.path,
        )
    return record


def _read_or_replace(store: Store, force: bool) -> Optional[Record]:
    """The record. With force, a damaged one counts as none, since the user allowed to replace it."""
    try:
        return store.read()
    except RecordError:
        if force:
            return None
        raise

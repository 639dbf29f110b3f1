# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out one request on one host's file: read, plan and write while holding the lock."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any, Callable, ContextManager, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model, plan, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.plan import Change, ChangeStamp, Draft
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store, scan_directory
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, RecordError


class RecordResult(NamedTuple):
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
    """The host has no record of this cluster."""


class ReplicaRefusedError(RecordError):
    """A copy must not replace the record of this host."""


def cluster_present(store: Store, request: ClusterRequest, actor_name: str, check_mode: bool) -> RecordResult:
    """Create the cluster, or change the existing one as requested, in one generation."""
    stamp = ChangeStamp(values.current_time(), actor_name)

    def draft_cluster(current_record: Optional[Record]) -> Draft:
        _refuse_departed_members(store.name, current_record, request.members, request.joining)
        if current_record is None:
            return _draft_new_cluster(store.name, request, stamp)
        plan.check_subnet(current_record, request.subnet)
        if request.manager is not None and request.manager != current_record["manager"]:
            raise InputError(
                f"Cluster '{current_record['name']}' has the manager {current_record['manager']}, not {request.manager}.",
                f"Omit cluster_manager or set it to {current_record['manager']}; the playbook remove changes the manager.",
                manager=current_record["manager"],
            )
        return _draft_revision(current_record, request, stamp)

    return _change_record(store, draft_cluster, stamp, check_mode, request.older_version, on_manager=True)


def members_present(
    store: Store,
    members: Sequence[Mapping[str, Any]],
    new_manager: Optional[str],
    actor_name: str,
    check_mode: bool,
    joining: Optional[Sequence[str]] = None,
    older_version: bool = False,
) -> RecordResult:
    """Add or update members, and hand the cluster over if there is a new manager, in one generation.

    ``joining``: the members that may be new; None: all. ``older_version``: see ``ClusterRequest``.
    """
    stamp = ChangeStamp(values.current_time(), actor_name)

    def draft_members(current_record: Optional[Record]) -> Draft:
        planned_steps: List[Callable[[Record], Draft]] = [lambda record: plan.join(record, members, stamp)]
        if new_manager is not None:
            successor = new_manager
            planned_steps.append(lambda record: plan.hand_over(record, successor))
        existing_record = _require_record(store, current_record)
        _refuse_departed_members(store.name, existing_record, members, joining)
        return plan.chain_steps(existing_record, *planned_steps)

    return _change_record(store, draft_members, stamp, check_mode, older_version)


def members_absent(
    store: Store,
    leaving_machines: Sequence[str],
    new_manager: Optional[str],
    force: bool,
    untrusted: bool,
    actor_name: str,
    check_mode: bool,
    older_version: bool = False,
) -> RecordResult:
    """Remove members, and hand the cluster over first if the manager is among them, in one generation."""
    stamp = ChangeStamp(values.current_time(), actor_name)

    def draft_removal(current_record: Optional[Record]) -> Draft:
        return plan.chain_steps(
            _require_record(store, current_record),
            lambda record: plan.remove(record, leaving_machines, stamp, new_manager, force),
            lambda record: plan.distrust(record, leaving_machines if untrusted else ()),
        )

    return _change_record(store, draft_removal, stamp, check_mode, older_version)


def replace_copy(
    store: Store, sent_document: object, force: bool, actor_name: str, check_mode: bool, machine: Optional[str] = None
) -> RecordResult:
    """Replace this host's copy by the given record, which another host sent. A newer or foreign one is not overwritten.

    ``machine``: this host in the record, which is refused if it uses what belongs to another cluster here.
    """
    sent_record = model.parse(sent_document)

    def accept_record(present_copy: Optional[Record]) -> Record:
        copy_relation = derive.compare_copies(present_copy, sent_record) if present_copy is not None else None
        if copy_relation is None or copy_relation.kind in ("same", "behind") or force:
            return sent_record
        raise ReplicaRefusedError(
            f"The copy of the cluster record in {store.path} was not replaced: {copy_relation.reason}.",
            "Find out which copy is right (playbook show), and set cluster_trusted_copy to a machine that has it.",
            path=store.path,
            relation=copy_relation.kind,
        )

    with _lock_unless_check_mode(store, actor_name, check_mode):
        current_record = _read_unless_forced(store, force)
        new_record = accept_record(current_record)
        if current_record == new_record:
            return RecordResult(current_record, new_record, [])
        if machine is not None:
            _refuse_conflicts(store, machine, current_record, new_record)
        if not check_mode:
            store.write(new_record)
        detail = f"copy of generation {new_record['generation']}"
        return RecordResult(current_record, new_record, [Change("replica", detail, ())])


def cluster_absent(
    store: Store, expected_record: object, force: bool, actor_name: str, check_mode: bool
) -> RecordResult:
    """Delete the file.

    ``expected_record``: None, or the record to which the file must belong; the file of another cluster is left alone.
    """
    if check_mode:
        return _delete_record(store, expected_record, force, None)
    if not store.exists():
        # Taking the lock would create the directory that has to be removed.
        return RecordResult(None, None, [])
    with store.locked(actor_name):
        return _delete_record(store, expected_record, force, store.remove)


def _delete_record(
    store: Store, expected_record: object, force: bool, remove_files: Optional[Callable[[], bool]]
) -> RecordResult:
    deleted_record = _read_unless_forced(store, force)
    if (
        deleted_record is not None
        and expected_record is not None
        and deleted_record["id"] != model.parse(expected_record)["id"]
    ):
        return RecordResult(deleted_record, deleted_record, [])
    if deleted_record is None and not store.exists():
        return RecordResult(None, None, [])
    if remove_files is not None:
        remove_files()
    return RecordResult(deleted_record, None, [Change("delete", f"deleted {store.path}", ())])


def _refuse_conflicts(store: Store, machine: str, record_before: Optional[Record], record_after: Record) -> None:
    """Refuse what would conflict with the other records on ``machine``, this host."""
    derive.refuse_conflicts(
        [stored_record.record for stored_record in scan_directory(store.directory).records],
        machine,
        record_before,
        record_after,
    )


def _refuse_departed_members(
    cluster_name: str,
    current_record: Optional[Record],
    members: Sequence[Mapping[str, Any]],
    joining_machines: Optional[Sequence[str]],
) -> None:
    """Refuse to add machines that have left since this run read the record.

    Otherwise, they would get their keys and mounts again.
    """
    if joining_machines is None:
        return
    present_machines = {member["machine"] for member in current_record["members"]} if current_record else set()
    departed_machines = [
        str(member["machine"])
        for member in members
        if member["machine"] not in present_machines and member["machine"] not in joining_machines
    ]
    if departed_machines:
        current_state = (
            f"it is at generation {current_record['generation']} now" if current_record else "it was deleted"
        )
        raise InputError(
            f"Cluster '{cluster_name}' has changed since this run read its record: {', '.join(departed_machines)} left, and {current_state}.",
            "Run it again without the machine; the playbook join adds it again.",
            machines=departed_machines,
        )


def _draft_new_cluster(cluster_name: str, request: ClusterRequest, stamp: ChangeStamp) -> Draft:
    if request.subnet is None or request.manager is None:
        raise InputError(
            f"There is no cluster '{cluster_name}' on this host; a subnet, a manager and members are required to create it.",
            "Set them, or give the name of an existing cluster.",
            cluster=cluster_name,
        )
    draft = plan.create(
        uuid.uuid4().hex, cluster_name, request.subnet, request.manager, request.mesh or {}, request.members, stamp
    )
    if not request.volumes:
        return draft
    volumes = request.volumes
    storage_draft = plan.set_storage(draft.record, volumes)
    return Draft(storage_draft.record, [*draft.changes, *storage_draft.changes])


def _draft_revision(record: Record, request: ClusterRequest, stamp: ChangeStamp) -> Draft:
    # The mesh is changed first: its backend decides whether new members get a mesh address.
    return plan.chain_steps(
        record,
        lambda draft: plan.set_mesh(draft, request.mesh or {}),
        lambda draft: plan.join(draft, request.members, stamp),
        lambda draft: plan.set_storage(draft, request.volumes) if request.volumes is not None else Draft(draft, []),
        lambda draft: plan.set_tracking(draft, request.tracking) if request.tracking is not None else Draft(draft, []),
        lambda draft: plan.mark_keys_changed(draft) if request.keys_changed else Draft(draft, []),
    )


def _change_record(
    store: Store,
    draft_changes: Callable[[Optional[Record]], Draft],
    stamp: ChangeStamp,
    check_mode: bool,
    older_version: bool,
    on_manager: bool = False,
) -> RecordResult:
    with _lock_unless_check_mode(store, stamp.actor_name, check_mode):
        record_before = store.read()
        if record_before is not None and not older_version:
            derive.refuse_older_version(record_before)
        requested_draft = draft_changes(record_before)
        # The version is noted last, since the kind of a generation in the history is that of its first change.
        version_draft = plan.note_version(requested_draft.record)
        complete_draft = Draft(version_draft.record, [*requested_draft.changes, *version_draft.changes])
        record_after = plan.commit(complete_draft, stamp)
        if on_manager and complete_draft.changes:
            _refuse_conflicts(store, record_after["manager"], record_before, record_after)
        if complete_draft.changes and not check_mode:
            store.write(record_after)
        return RecordResult(record_before, record_after, complete_draft.changes)


def _lock_unless_check_mode(store: Store, actor_name: str, check_mode: bool) -> ContextManager[None]:
    """Return the lock, or a null context in check mode, since a lock is a file, and would be a change."""
    return contextlib.nullcontext() if check_mode else store.locked(actor_name)


def _require_record(store: Store, record: Optional[Record]) -> Record:
    if record is None:
        raise MissingRecordError(
            f"There is no cluster '{store.name}' on this host: {store.path} does not exist.",
            "Create it first (playbook create), or set cluster_name to an existing one.",
            path=store.path,
        )
    return record


def _read_unless_forced(store: Store, force: bool) -> Optional[Record]:
    """Read the record. With ``force``, a damaged one counts as none, since the user allowed to replace it."""
    try:
        return store.read()
    except RecordError:
        if force:
            return None
        raise

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The records that hosts report, and which hosts to query for a whole one. Pure.

All members have the same record, which grows with their number. So each reports only the digest of its own, and one
that has it sends it. A reported digest has the same weight as a record that was sent: a host can claim anything about
itself with either, and neither changes the content of the record.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DEFAULT_FOLDER
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record

#: How many hosts are queried for a record that the first one did not send.
_OTHERS = 2

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Told(NamedTuple):
    """A record that a host announced without sending it."""

    name: str
    generation: int
    digest: str


class Answer(NamedTuple):
    """The answer of one host. ``silence``: why it did not answer, or None."""

    records: Sequence[Record]
    damaged: Sequence[Mapping[str, Any]]
    silence: str | None

    def copy_of(self, name: str) -> Record | None:
        """The host's copy of the record of one cluster."""
        return next((record for record in self.records if record["name"] == name), None)


class Request(TypedDict):
    """The hosts to query, and for which records: the clusters' names, and the expected digests."""

    machine: str
    whole: list[str]
    digests: list[str]


def read_answers(
    results: Mapping[str, Mapping[str, Any]], records: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Answer]:
    """Each host's answer, from the results of the module cluster_info. Everything in them is validated.

    ``records``: those sent by any host, by digest, as returned by ``sent``.
    """
    store = _Store(records or {})
    return {machine: _answer(result, store) for machine, result in results.items()}


def sent(results: Iterable[Mapping[str, Any]], records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The records that hosts have sent, by digest, together with those in ``records``, which were sent before."""
    found: dict[str, Any] = dict(records)
    for result in results:
        for document in _held(result):
            if not _is_told(document):
                try:
                    record = model.parse(document)
                except GpumeshError:
                    # It is reported with the host's answer.
                    continue
                found.setdefault(derive.digest(record), record)
    return found


def to_read(
    results: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Mapping[str, Any]],
    names: Collection[str] | None = None,
    machines: Collection[str] | None = None,
    asked: Sequence[Mapping[str, Any]] = (),
) -> list[Request]:
    """The hosts to query for records that were announced but not sent: for each record, one of those that announced it.

    ``names``: only for these clusters; ``machines``: only records announced by these; None for all. ``asked``: earlier
    requests. If none of them returned a record, two others are queried, since one may have announced what it does not
    have.
    """
    have = sent(results.values(), records)
    holders: dict[Told, list[str]] = {}
    for machine, result in results.items():
        for document in _held(result) if machines is None or machine in machines else []:
            told = _told(document)
            if told is not None and told.digest not in have and (names is None or told.name in names):
                holders.setdefault(told, []).append(machine)
    before = {(str(request["machine"]), str(digest)) for request in asked for digest in request["digests"]}
    requests: dict[str, Request] = {}
    for told, known in holders.items():
        rest = [machine for machine in known if (machine, told.digest) not in before]
        for machine in rest[: _OTHERS if len(rest) < len(known) else 1] or known[:1]:
            request = requests.setdefault(machine, {"machine": machine, "whole": [], "digests": []})
            request["digests"].append(told.digest)
            if told.name not in request["whole"]:
                request["whole"].append(told.name)
    return list(requests.values())


def outdated_members(results: Mapping[str, Mapping[str, Any]], record: Record) -> list[str]:
    """The members among the hosts that have no copy of exactly this record."""
    wanted = derive.digest(record)
    members = {member["machine"] for member in record["members"]}
    return [machine for machine, result in results.items() if machine in members and wanted not in _digests(result)]


def _digests(result: Mapping[str, Any]) -> set[str]:
    told = {one.digest for document in _held(result) if (one := _told(document))}
    return told | set(sent([result], {}))


def _answer(result: Mapping[str, Any], store: _Store) -> Answer:
    held, damaged = result.get("clusters"), result.get("damaged")
    if not isinstance(held, list) or not isinstance(damaged, list):
        said = str(result.get("module_stderr") or result.get("msg") or "it was not asked")
        return Answer([], [], " ".join(said.split()).removeprefix("Task failed: "))
    records, spoilt = [], [one for one in damaged if _is_damage(one)]
    for document in held:
        try:
            records.append(store.record(document))
        except GpumeshError as failure:
            # The module itself refuses such a record, so this host runs a different version.
            name = document.get("name") if isinstance(document, Mapping) else None
            spoilt.append({"path": f"{DEFAULT_FOLDER}/{name}.json", "reason": str(failure), "last_good": None})
    return Answer(records, spoilt, None)


class _Store:
    """The records that were sent. Each is parsed on first use, once for all hosts that announced it."""

    def __init__(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        self._documents = records
        self._read: dict[str, Record] = {}

    def record(self, document: object) -> Record:
        """The record in a document, or the one that it announces. Raises RecordError."""
        if not _is_told(document):
            return model.parse(document)
        told = _told(document)
        if told is None:
            raise model.InvalidRecordError("digest", "this is not a record and does not refer to one")
        if told.digest not in self._documents:
            raise model.InvalidRecordError("digest", f"generation {told.generation} was announced but not sent")
        if told.digest not in self._read:
            self._read[told.digest] = model.parse(self._documents[told.digest])
        record = self._read[told.digest]
        if (record["name"], record["generation"]) != (told.name, told.generation):
            raise model.InvalidRecordError("digest", "it belongs to another record")
        return record


def _held(result: Mapping[str, Any]) -> list[Any]:
    held = result.get("clusters")
    return held if isinstance(held, list) else []


def _is_told(document: object) -> bool:
    return isinstance(document, Mapping) and "digest" in document


def _told(document: object) -> Told | None:
    """The announcement in a document; None if it is a record, or anything else."""
    if not isinstance(document, Mapping):
        return None
    name, generation, digest = (document.get(key) for key in Told._fields)
    if not (isinstance(name, str) and isinstance(generation, int) and isinstance(digest, str)):
        return None
    try:
        values.cluster_name(name)
    except ValueError:
        return None
    return Told(str(name), int(generation), str(digest)) if _DIGEST.fullmatch(digest) else None


def _is_damage(one: object) -> bool:
    return (
        isinstance(one, Mapping)
        and isinstance(one.get("path"), str)
        and isinstance(one.get("reason"), str)
        and isinstance(one.get("last_good"), (str, NoneType))
    )

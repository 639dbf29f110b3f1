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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DEFAULT_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError

#: The number of hosts that are queried for a record that the first one did not send.
_FALLBACK_HOSTS = 2

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Announcement(NamedTuple):
    """A record that a host announced without sending it."""

    name: str
    generation: int
    digest: str


class HostResponse(NamedTuple):
    """The response of one host. ``unreachable_reason``: why it did not respond, or None."""

    records: Sequence[Record]
    damage_reports: Sequence[Mapping[str, Any]]
    unreachable_reason: str | None

    def find_copy(self, cluster_name: str) -> Record | None:
        """Return the host's copy of the record of one cluster."""
        return next((record for record in self.records if record["name"] == cluster_name), None)


class RecordRequest(TypedDict):
    """The hosts to query, and for which records: the clusters' names, and the expected digests."""

    machine: str
    complete: list[str]
    digests: list[str]


def read_responses(
    results: Mapping[str, Mapping[str, Any]], records_by_digest: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, HostResponse]:
    """Return each host's response, from the results of the module cluster_info. Everything in them is validated.

    ``records_by_digest``: those sent by any host, as returned by ``collect_sent_records``.
    """
    sent_records = _SentRecords(records_by_digest or {})
    return {machine: _parse_response(result, sent_records) for machine, result in results.items()}


def collect_sent_records(
    results: Iterable[Mapping[str, Any]], earlier_records: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Collect the records that hosts have sent, by digest, together with ``earlier_records``."""
    sent_records: dict[str, Any] = dict(earlier_records)
    for result in results:
        for reported_record in _reported_records(result):
            if not _is_announcement(reported_record):
                try:
                    record = model.parse(reported_record)
                except GpumeshError:
                    # The damage is reported with the host's response.
                    continue
                sent_records.setdefault(derive.record_digest(record), record)
    return sent_records


def plan_record_requests(
    results: Mapping[str, Mapping[str, Any]],
    records_by_digest: Mapping[str, Mapping[str, Any]],
    cluster_names: Collection[str] | None = None,
    machines: Collection[str] | None = None,
    earlier_requests: Sequence[Mapping[str, Any]] = (),
) -> list[RecordRequest]:
    """Choose the hosts to query for records that were announced but not sent: one for each record.

    ``cluster_names``: only these clusters; ``machines``: only records announced by these; None for all.
    ``earlier_requests``: if none of them returned a record, two other hosts are queried, since one may have announced
    what it does not have.
    """
    sent_records = collect_sent_records(results.values(), records_by_digest)
    machines_by_announcement: dict[Announcement, list[str]] = {}
    for machine, result in results.items():
        for reported_record in _reported_records(result) if machines is None or machine in machines else []:
            announcement = _parse_announcement(reported_record)
            if (
                announcement is not None
                and announcement.digest not in sent_records
                and (cluster_names is None or announcement.name in cluster_names)
            ):
                machines_by_announcement.setdefault(announcement, []).append(machine)
    queried_digests = {
        (str(request["machine"]), str(digest)) for request in earlier_requests for digest in request["digests"]
    }
    requests_by_machine: dict[str, RecordRequest] = {}
    for announcement, announcing_machines in machines_by_announcement.items():
        unqueried_machines = [
            machine for machine in announcing_machines if (machine, announcement.digest) not in queried_digests
        ]
        for machine in (
            unqueried_machines[: _FALLBACK_HOSTS if len(unqueried_machines) < len(announcing_machines) else 1]
            or announcing_machines[:1]
        ):
            request = requests_by_machine.setdefault(machine, {"machine": machine, "complete": [], "digests": []})
            request["digests"].append(announcement.digest)
            if announcement.name not in request["complete"]:
                request["complete"].append(announcement.name)
    return list(requests_by_machine.values())


def outdated_members(results: Mapping[str, Mapping[str, Any]], record: Record) -> list[str]:
    """Return the members among the hosts that have no copy of exactly this record."""
    expected_digest = derive.record_digest(record)
    member_machines = {member["machine"] for member in record["members"]}
    return [
        machine
        for machine, result in results.items()
        if machine in member_machines and expected_digest not in _reported_digests(result)
    ]


def _reported_digests(result: Mapping[str, Any]) -> set[str]:
    announced_digests = {
        announcement.digest
        for reported_record in _reported_records(result)
        if (announcement := _parse_announcement(reported_record))
    }
    return announced_digests | set(collect_sent_records([result], {}))


def _parse_response(result: Mapping[str, Any], sent_records: _SentRecords) -> HostResponse:
    reported_records, reported_damage = result.get("clusters"), result.get("damaged")
    if not isinstance(reported_records, list) or not isinstance(reported_damage, list):
        failure_text = str(result.get("module_stderr") or result.get("msg") or "it was not queried")
        return HostResponse([], [], " ".join(failure_text.split()).removeprefix("Task failed: "))
    valid_records, damage_reports = [], [report for report in reported_damage if _is_damage_report(report)]
    for reported_record in reported_records:
        try:
            valid_records.append(sent_records.resolve(reported_record))
        except GpumeshError as failure:
            # The module itself refuses such a record, so this host runs a different version.
            cluster_name = reported_record.get("name") if isinstance(reported_record, Mapping) else None
            damage_reports.append(
                {"path": f"{DEFAULT_DIRECTORY}/{cluster_name}.json", "reason": str(failure), "last_good": None}
            )
    return HostResponse(valid_records, damage_reports, None)


class _SentRecords:
    """The records that were sent. Each is parsed on first use, once for all hosts that announced it."""

    def __init__(self, records_by_digest: Mapping[str, Mapping[str, Any]]) -> None:
        self._records_by_digest = records_by_digest
        self._parsed_records: dict[str, Record] = {}

    def resolve(self, document: object) -> Record:
        """Return the record in a document, or the one that it announces. Raises RecordError."""
        if not _is_announcement(document):
            return model.parse(document)
        announcement = _parse_announcement(document)
        if announcement is None:
            raise model.InvalidRecordError("digest", "this is not a record and does not refer to one")
        if announcement.digest not in self._records_by_digest:
            raise model.InvalidRecordError("digest", f"generation {announcement.generation} was announced but not sent")
        if announcement.digest not in self._parsed_records:
            self._parsed_records[announcement.digest] = model.parse(self._records_by_digest[announcement.digest])
        record = self._parsed_records[announcement.digest]
        if (record["name"], record["generation"]) != (announcement.name, announcement.generation):
            raise model.InvalidRecordError("digest", "it belongs to another record")
        return record


def _reported_records(result: Mapping[str, Any]) -> list[Any]:
    reported_records = result.get("clusters")
    return reported_records if isinstance(reported_records, list) else []


def _is_announcement(document: object) -> bool:
    return isinstance(document, Mapping) and "digest" in document


def _parse_announcement(document: object) -> Announcement | None:
    """Parse the announcement in a document; None if it is a record, or anything else."""
    if not isinstance(document, Mapping):
        return None
    cluster_name, generation, digest = (document.get(field_name) for field_name in Announcement._fields)
    if not (isinstance(cluster_name, str) and isinstance(generation, int) and isinstance(digest, str)):
        return None
    try:
        values.cluster_name(cluster_name)
    except ValueError:
        return None
    return Announcement(str(cluster_name), int(generation), str(digest)) if _DIGEST.fullmatch(digest) else None


def _is_damage_report(report: object) -> bool:
    return (
        isinstance(report, Mapping)
        and isinstance(report.get("path"), str)
        and isinstance(report.get("reason"), str)
        and isinstance(report.get("last_good"), (str, NoneType))
    )

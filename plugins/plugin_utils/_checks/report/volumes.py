# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert the results of volume_probe on each member to checks, to the volumes of a verdict, and to a table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import probe
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage.volumes import explain_wrong_mount
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.checks import (
    ONLY_AT_FULL_LEVELS,
    make_check,
    make_unjudged_check,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import Check, worst_status
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table

#: The phases of volume_probe whose results count.
PHASES = ("write", "compare")

#: The measurements: the check, its key in a result, the phase that has it, its unit and its purpose.
RATE_METRICS = (
    ("storage.write", "write_mbps", "MB/s", "Writing to volumes is fast enough"),
    ("storage.read", "read_mbps", "MB/s", "Reading from volumes is fast enough"),
    ("storage.files", "files_per_second", "files/s", "Small files on volumes are fast enough"),
)
_SHARED_TITLE = ("storage.shared", "Volumes are the same file systems on all members")
_LOCKS_TITLE = ("storage.locks", "Locks on volumes exclude other members")
_SPACE_TITLE = ("storage.space", "No volume is too full")
_USERS_TITLE = ("storage.users", "Users have the same UID on all members")

_RATE_REMEDY = (
    "All members were measured at the same time and share the capacity of the server and its link: compare with "
    "reachability.bandwidth, and check the server's disks (iostat -x 1) and the mount options of the volume."
)
_NO_MINIMUM = (
    "Not judged: no minimum is set (check_min_volume_write_mbps, check_min_volume_read_mbps, check_min_volume_files)."
)
_LOCK_REMEDY = (
    "Mount it so that locks reach the other members: NFS without nolock and local_lock, Lustre with the option flock, "
    "BeeGFS with tuneUseGlobalFileLocks. Until then, no two members may write to the same file or database there."
)


class VolumeLimits(NamedTuple):
    """The requirements for volumes. 0: no requirement."""

    write_mbps: float = 0.0
    read_mbps: float = 0.0
    files_per_second: float = 0.0
    max_used_percent: float = 95.0


class VolumeFinding(NamedTuple):
    """The result of one check of one volume on one member."""

    status: str
    description: str = ""
    remedy: str = ""
    measurement: float | None = None


class VolumeEvidence:
    """The results by phase, machine and volume. ``member_ring``: the participating members in their order."""

    def __init__(self, record: Record, results_by_phase: Mapping[str, Any]) -> None:
        self.volumes = record["storage"]["volumes"]
        self.results_by_phase = results_by_phase
        self.member_ring = list(results_by_phase.get("members") or [])

    def _results(self, phase: str, machine: str) -> Mapping[str, Any]:
        result = (self.results_by_phase.get(phase) or {}).get(machine) or {}
        return result.get("volumes") or {}

    def result_of(self, phase: str, machine: str, volume: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return one result. If there is none, it contains the reason."""
        volume_result = self._results(phase, machine).get(volume["name"])
        if volume_result is not None:
            return dict(volume_result)
        error_message = str(
            ((self.results_by_phase.get(phase) or {}).get(machine) or {}).get("msg") or "no result"
        ).rstrip(".")
        return {"trouble": f"volume_probe on {machine} failed: {error_message}"}

    def user_ids(self, machine: str) -> Mapping[str, int]:
        """Return the UIDs of the accounts of human users on a machine."""
        return ((self.results_by_phase.get("write") or {}).get(machine) or {}).get("users") or {}

    def has_written(self, machine: str, volume: Mapping[str, Any]) -> bool:
        """Whether the member's files are on the volume."""
        write_result = self.result_of("write", machine, volume)
        return not write_result["trouble"] and write_result.get("uid") is not None

    def find_untested_reason(self, machine: str, volume: Mapping[str, Any]) -> VolumeFinding | None:
        """Return why checks that need files cannot be performed; None if they can."""
        write_result = self.result_of("write", machine, volume)
        if volume.get("read_only"):
            return VolumeFinding("skipped", f"{volume['name']} is read-only, so no member can write a file there.")
        if write_result["trouble"]:
            return VolumeFinding(
                "error", f"{volume['name']} could not be examined: {write_result['trouble']}.", _volume_remedy(volume)
            )
        if write_result.get("uid") is None:
            return VolumeFinding("skipped", f"{volume['name']} could not be written to: {write_result['refusal']}.")
        if len(self.member_ring) < 2:
            return VolumeFinding("skipped", "No other member was examined.")
        return None


def _volume_remedy(volume: Mapping[str, Any]) -> str:
    if "server" in volume:
        return f"Check its server {volume['server']}, then run the storage playbook again."
    return "Mount it according to its own instructions: this collection does not mount it."


def volume_checks(
    record: Record, evidence: Mapping[str, Any] | None, limits: VolumeLimits, level: str
) -> tuple[list[Check], list[dict[str, Any]]]:
    """Return the checks, and the volumes as the verdict lists them."""
    check_titles = [
        _SHARED_TITLE,
        _LOCKS_TITLE,
        _SPACE_TITLE,
        _USERS_TITLE,
        *((check_id, purpose) for check_id, _key, _unit, purpose in RATE_METRICS),
    ]
    if not record["storage"]["volumes"] or evidence is None:
        reason = (
            "The volumes were not checked in this run." if record["storage"]["volumes"] else "The record has no volume."
        )
        return [make_check(check_id, purpose, None, "skipped", reason=reason) for check_id, purpose in check_titles], []
    volume_evidence = VolumeEvidence(record, evidence)
    checks = [_check_space(volume_evidence, limits.max_used_percent), _check_users(volume_evidence)]
    for machine in volume_evidence.member_ring:
        checks += _check_all_volumes(_SHARED_TITLE, machine, volume_evidence, _judge_shared)
        checks += _check_all_volumes(_LOCKS_TITLE, machine, volume_evidence, _judge_locks)
        for rate_metric, min_rate in zip(RATE_METRICS, limits[:3], strict=True):
            if level != "quick":
                checks += _rate_checks(rate_metric, machine, volume_evidence, min_rate)
    if level == "quick":
        reason = ONLY_AT_FULL_LEVELS
        checks += [
            make_check(check_id, purpose, None, "skipped", reason=reason)
            for check_id, _key, _unit, purpose in RATE_METRICS
        ]
    return checks, [_report_volume(volume_evidence, volume) for volume in volume_evidence.volumes]


def _check_all_volumes(
    check_title: tuple[str, str],
    machine: str,
    volume_evidence: VolumeEvidence,
    judge_volume: Callable[[VolumeEvidence, str, Mapping[str, Any]], VolumeFinding],
) -> list[Check]:
    """Return one check of a member for all its volumes, and one for those that could not be tested."""
    findings = [judge_volume(volume_evidence, machine, volume) for volume in volume_evidence.volumes]
    status = worst_status([finding.status for finding in findings])
    decisive_findings = [finding for finding in findings if finding.status == status and finding.description]
    member_check = make_check(
        *check_title,
        machine,
        status,
        None if status == "skipped" else sum(1 for finding in findings if finding.status == "pass"),
        None if status == "skipped" else len(findings),
        "" if status == "skipped" else "volumes",
        _join_unique(finding.description for finding in decisive_findings),
        _join_unique(finding.remedy for finding in decisive_findings),
    )
    return [member_check, *_make_untested_checks(member_check, findings)]


def _make_untested_checks(member_check: Check, findings: Sequence[VolumeFinding], unit: str = "") -> list[Check]:
    """Return a check for the volumes that another check does not judge, with the reasons."""
    skipped_findings = [finding for finding in findings if finding.status == "skipped"]
    if not skipped_findings or member_check["status"] == "skipped":
        return []
    measurements = [finding.measurement for finding in skipped_findings if finding.measurement is not None]
    reason = _join_unique(finding.description for finding in skipped_findings)
    return [
        make_unjudged_check(
            member_check, reason, min(measurements) if measurements else None, unit if measurements else ""
        )
    ]


def _join_unique(sentences: Iterable[str]) -> str:
    """Join the sentences, each of them once."""
    return " ".join(dict.fromkeys(sentence for sentence in sentences if sentence))


def _judge_shared(volume_evidence: VolumeEvidence, machine: str, volume: Mapping[str, Any]) -> VolumeFinding:
    write_result = volume_evidence.result_of("write", machine, volume)
    volume_name = volume["name"]
    if "server" not in volume and not write_result["trouble"]:
        mount_problem = explain_wrong_mount(volume, write_result)
        if mount_problem:
            return VolumeFinding(
                "fail", f"{volume_name} at {volume['mount_point']}: {mount_problem}.", _volume_remedy(volume)
            )
    untested_finding = volume_evidence.find_untested_reason(machine, volume)
    if untested_finding is not None:
        return untested_finding
    compare_result = volume_evidence.result_of("compare", machine, volume)
    if compare_result["trouble"]:
        return VolumeFinding(
            "error", f"{volume_name} could not be compared: {compare_result['trouble']}.", _volume_remedy(volume)
        )
    unseen_writers = sorted(
        writer for writer in compare_result["missing_members"] if volume_evidence.has_written(writer, volume)
    )
    if unseen_writers:
        sentence = (
            f"{machine} does not see what {', '.join(unseen_writers)} wrote to {volume_name} at {volume['mount_point']}: it has "
            f"{write_result['source']} ({write_result['filesystem']}) there."
        )
        return VolumeFinding(
            "fail", sentence, f"Mount the same file system there on every member. {_volume_remedy(volume)}"
        )
    return VolumeFinding("pass")


def _judge_locks(volume_evidence: VolumeEvidence, machine: str, volume: Mapping[str, Any]) -> VolumeFinding:
    untested_finding = volume_evidence.find_untested_reason(machine, volume)
    if untested_finding is not None:
        return untested_finding
    volume_name = volume["name"]
    lock_owner = probe.next_machine(machine, volume_evidence.member_ring)
    if lock_owner is None or not volume_evidence.has_written(lock_owner, volume):
        return VolumeFinding("skipped", f"{lock_owner} holds no lock on {volume_name}.")
    compare_result = volume_evidence.result_of("compare", machine, volume)
    if compare_result.get("lock") is None and lock_owner in compare_result.get("missing_members", []):
        return VolumeFinding("skipped", f"{volume_name} is not the same file system on {lock_owner}.")
    lost_lock_reason = next(
        filter(None, (volume_evidence.result_of(phase, lock_owner, volume).get("lock_error") for phase in PHASES)), ""
    )
    lock_problem = compare_result["trouble"] or (
        lost_lock_reason and f"{lock_owner} could not keep its lock: {lost_lock_reason}"
    )
    if lock_problem:
        return VolumeFinding(
            "error", f"The locks of {volume_name} could not be tested: {lock_problem}.", _volume_remedy(volume)
        )
    if compare_result["lock"] == probe.LOCK_GRANTED:
        return VolumeFinding("fail", f"{machine} got a lock on {volume_name} while {lock_owner} held it.", _LOCK_REMEDY)
    if compare_result["lock"] != probe.LOCK_BUSY:
        return VolumeFinding(
            "fail", f"{volume_name} has no locks on {machine}: {compare_result['lock']}.", _LOCK_REMEDY
        )
    released_lock = compare_result["released_lock"]
    if released_lock != probe.LOCK_GRANTED:
        sentence = f"{lock_owner} has released a lock on {volume_name}, but {machine} still cannot acquire it: {released_lock}."
        return VolumeFinding("fail", sentence, "Check the server's locks (/proc/locks) and its log.")
    return VolumeFinding("pass")


def _rate_checks(
    rate_metric: tuple[str, str, str, str], machine: str, volume_evidence: VolumeEvidence, min_rate: float
) -> list[Check]:
    """Return the check of a measurement on the slowest volume, and one for the volumes that are not judged."""
    check_id, _key, unit, purpose = rate_metric
    findings = [
        _judge_rate(rate_metric, machine, volume_evidence, volume, min_rate) for volume in volume_evidence.volumes
    ]
    status = worst_status([finding.status for finding in findings])
    decisive_findings = [finding for finding in findings if finding.status == status]
    measurements = [finding.measurement for finding in decisive_findings if finding.measurement is not None]
    member_check = make_check(
        check_id,
        purpose,
        machine,
        status,
        min(measurements) if measurements else None,
        f"≥ {min_rate:g}" if min_rate and status != "skipped" else None,
        unit if measurements else "",
        _join_unique(finding.description for finding in decisive_findings),
        _join_unique(finding.remedy for finding in decisive_findings),
    )
    return [member_check, *_make_untested_checks(member_check, findings, unit)]


def _judge_rate(
    rate_metric: tuple[str, str, str, str],
    machine: str,
    volume_evidence: VolumeEvidence,
    volume: Mapping[str, Any],
    min_rate: float,
) -> VolumeFinding:
    _name, result_key, unit, _purpose = rate_metric
    phase = "compare" if result_key == "read_mbps" else "write"
    untested_finding = volume_evidence.find_untested_reason(machine, volume)
    if untested_finding is not None and (phase == "compare" or not volume_evidence.has_written(machine, volume)):
        return untested_finding
    phase_result = volume_evidence.result_of(phase, machine, volume)
    measured_rate = phase_result.get(result_key)
    refusal = volume_evidence.result_of("write", machine, volume)["refusal"]
    if measured_rate is None and refusal:
        remedy = "Free some space, or reduce check_volume_size_mib."
        return VolumeFinding("error", f"{volume['name']} was not measured: {refusal}.", remedy)
    if measured_rate is None:
        # The neighbour in the ring has written nothing to read, and reports that itself.
        read_problem = phase_result["trouble"]
        if not read_problem:
            return VolumeFinding("skipped", f"{volume['name']} had nothing to read on {machine}.")
        return VolumeFinding("error", f"{volume['name']} was not measured: {read_problem}.", _volume_remedy(volume))
    if min_rate and measured_rate < min_rate:
        sentence = f"{volume['name']} reaches {measured_rate:g} {unit} on {machine}, but {min_rate:g} are required."
        return VolumeFinding("fail", sentence, _RATE_REMEDY, measured_rate)
    return VolumeFinding("pass" if min_rate else "skipped", "" if min_rate else _NO_MINIMUM, measurement=measured_rate)


def _check_space(volume_evidence: VolumeEvidence, max_used_percent: float) -> Check:
    """Check the fullest volume, as seen by the member with the least space, since quotas differ."""
    usage_reports = [
        (volume_evidence.result_of("write", machine, volume).get("used_percent"), volume, machine)
        for volume in volume_evidence.volumes
        for machine in volume_evidence.member_ring
    ]
    known_usages = [
        (used_percent, volume, machine) for used_percent, volume, machine in usage_reports if used_percent is not None
    ]
    if not known_usages:
        return make_check(*_SPACE_TITLE, None, "skipped", reason="No volume could be examined.")
    used_percent, volume, machine = max(known_usages, key=lambda usage: float(usage[0]))
    return make_check(
        *_SPACE_TITLE,
        None,
        "pass" if used_percent <= max_used_percent else "fail",
        used_percent,
        f"≤ {max_used_percent:g}",
        "%",
        f"{volume['name']} at {volume['mount_point']} is {used_percent:g} % full, as {machine} sees it.",
        f"Free some space: du -xh --max-depth=2 {volume['mount_point']} | sort -h shows what uses it.",
    )


def _check_users(volume_evidence: VolumeEvidence) -> Check:
    """Check that users have the same UID everywhere, since volumes identify users by their UIDs."""
    machines_by_user_id: dict[str, dict[int, list[str]]] = {}
    for machine in volume_evidence.member_ring:
        for user_name, user_id in volume_evidence.user_ids(machine).items():
            machines_by_user_id.setdefault(user_name, {}).setdefault(user_id, []).append(machine)
    if not machines_by_user_id:
        return make_check(*_USERS_TITLE, None, "skipped", reason="No member has accounts of human users.")
    conflicting_users = {
        user_name: machines_by_id
        for user_name, machines_by_id in sorted(machines_by_user_id.items())
        if len(machines_by_id) > 1
    }
    sentences = []
    for user_name, machines_by_id in conflicting_users.items():
        id_descriptions = [
            f"{user_id} on {', '.join(machines)}" for user_id, machines in sorted(machines_by_id.items())
        ]
        sentences.append(f"{user_name} is {join_names(id_descriptions)}.")
    return make_check(
        *_USERS_TITLE,
        None,
        "fail" if conflicting_users else "pass",
        len(machines_by_user_id) - len(conflicting_users),
        len(machines_by_user_id),
        "users",
        _join_unique(sentences),
        "Give each user the same UID on all members (usermod --uid, then chown their files), or use a directory service "
        "such as LDAP on all members.",
    )


def _report_volume(volume_evidence: VolumeEvidence, volume: Mapping[str, Any]) -> dict[str, Any]:
    member_reports = []
    for machine in volume_evidence.member_ring:
        write_result, compare_result = (
            volume_evidence.result_of("write", machine, volume),
            volume_evidence.result_of("compare", machine, volume),
        )
        member_reports.append(
            {
                "machine": machine,
                "mounted": not write_result["trouble"],
                "trouble": write_result["trouble"],
                "write_mbps": write_result.get("write_mbps"),
                "read_mbps": compare_result.get("read_mbps"),
                "files_per_second": write_result.get("files_per_second"),
                "shared": _judge_shared(volume_evidence, machine, volume).status,
                "locks": _judge_locks(volume_evidence, machine, volume).status,
            }
        )
    return {
        **describe_volume(volume),
        **merge_states(
            {
                ring_member: volume_evidence.result_of("write", ring_member, volume)
                for ring_member in volume_evidence.member_ring
            }
        ),
        "members": member_reports,
    }


def describe_volume(volume: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a volume of the record, with null for values that it does not have without a server."""
    return {
        "name": volume["name"],
        "server": volume.get("server"),
        "path": volume.get("path"),
        "mount_point": volume["mount_point"],
    }


def merge_states(results_by_machine: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return where a volume is mounted, and its free space, from the results of all members."""
    mounted_results = {
        machine: result
        for machine, result in results_by_machine.items()
        if not result.get("trouble") and "point" in result
    }
    fullest_result = min(mounted_results.values(), key=lambda result: int(result["free_bytes"]), default={})
    return {
        # A volume has the type of the local file system on its server, and that of the network file system elsewhere.
        "filesystem": ", ".join(sorted({result["filesystem"] for result in mounted_results.values()})) or None,
        "total_bytes": fullest_result.get("total_bytes"),
        "free_bytes": fullest_result.get("free_bytes"),
        "mounted_on": list(mounted_results),
    }


def format_bytes(byte_count: int | None) -> str:
    """Format a size in readable form; empty for None."""
    if byte_count is None:
        return ""
    amount, units = float(byte_count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.3g} {units[0]}" if amount < 1000 else f"{amount:.0f} {units[0]}"


def format_span(values: Sequence[float]) -> str:
    """Format the lowest and the highest value; one number if they are equal, and empty if there is none."""
    if not values:
        return ""
    low, high = (f"{float(f'{value:.3g}'):g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} – {high}"


def _format_member_span(volume: Mapping[str, Any], rate_key: str) -> str:
    """Format the rates of the slowest and the fastest member."""
    return format_span(
        [float(member[rate_key]) for member in volume.get("members", []) if member.get(rate_key) is not None]
    )


def has_speeds(volume: Mapping[str, Any]) -> bool:
    """Whether the speed of a volume was measured."""
    return any(_format_member_span(volume, key) for key in ("write_mbps", "read_mbps", "files_per_second"))


def _format_mounted_on(machines: Sequence[str] | None, member_count: int) -> str:
    """Format the machines; empty if nothing was examined."""
    if machines is None:
        return ""
    return "every member" if len(machines) == member_count else ", ".join(machines) or "none"


def format_rows(volumes: Sequence[Mapping[str, Any]], member_count: int) -> list[dict[str, str]]:
    """Return the volumes as texts, for a table in a terminal or on a page."""
    return [
        {
            "volume": volume["name"],
            "server": f"{volume['server']}:{volume['path']}" if volume["server"] else "external",
            "mount_point": volume["mount_point"],
            "filesystem": volume["filesystem"] or "",
            "free": format_bytes(volume["free_bytes"]),
            "total": format_bytes(volume["total_bytes"]),
            "mounted_on": _format_mounted_on(volume["mounted_on"], member_count),
            "write": _format_member_span(volume, "write_mbps"),
            "read": _format_member_span(volume, "read_mbps"),
            "files": _format_member_span(volume, "files_per_second"),
        }
        for volume in volumes
    ]


def format_table(
    volumes: Sequence[Mapping[str, Any]], member_count: int, width: int = 0, hidden_columns: Collection[str] = ()
) -> str:
    """Draw the volumes as a table, without empty columns."""
    table_rows = format_rows(volumes, member_count)
    columns: list[dict[str, str]] = [
        {"key": "volume"},
        {"key": "server"},
        {"key": "mount_point", "title": "mount point"},
        {"key": "free", "align": "right"},
        {"key": "total", "align": "right"},
        {"key": "mounted_on", "title": "mounted on"},
        {"key": "write", "title": "write MB/s", "align": "right"},
        {"key": "read", "title": "read MB/s", "align": "right"},
        {"key": "files", "title": "files/s", "align": "right"},
    ]
    filled_columns = [
        column
        for column in columns
        if column["key"] not in hidden_columns and any(row[column["key"]] for row in table_rows)
    ]
    return render_table(table_rows, filled_columns, width=width)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert the results of volume_probe on each member to checks, to the volumes of a verdict, and to a table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import probe
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.volumes import trouble_of
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.checks import check, unjudged
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import Check, worst
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tables import render

#: The phases of volume_probe whose results count.
PHASES = ("write", "compare", "release", "take")

#: The measurements: the check, its key in a result, the phase that has it, its unit and its purpose.
_RATES = (
    ("storage.write", "write_mbps", "MB/s", "Writing to volumes is fast enough"),
    ("storage.read", "read_mbps", "MB/s", "Reading from volumes is fast enough"),
    ("storage.files", "files_per_second", "files/s", "Small files on volumes are fast enough"),
)
_SHARED = ("storage.shared", "Volumes are the same file systems on all members")
_LOCKS = ("storage.locks", "Locks on volumes exclude other members")
_SPACE = ("storage.space", "No volume is too full")
_USERS = ("storage.users", "Users have the same UID on all members")

_RATE_REMEDY = (
    "All members were measured at the same time and share the capacity of the server and its link: compare with "
    "reachability.bandwidth, and check the server's disks (iostat -x 1) and the mount options of the volume."
)
_NO_MINIMUM = (
    "Measured, but not judged: no minimum is set (check_min_volume_write_mbps, check_min_volume_read_mbps, "
    "check_min_volume_files)."
)
_LOCK_REMEDY = (
    "Mount it so that locks reach the other members: NFS without nolock and local_lock, Lustre with the option flock, "
    "BeeGFS with tuneUseGlobalFileLocks. Until then, no two members may write to the same file or database there."
)


class Limits(NamedTuple):
    """The requirements for volumes. 0: no requirement."""

    write_mbps: float = 0.0
    read_mbps: float = 0.0
    files_per_second: float = 0.0
    max_used_percent: float = 95.0


class Finding(NamedTuple):
    """The result of one check of one volume on one member."""

    status: str
    words: str = ""
    remedy: str = ""
    value: float | None = None


class Found:
    """The results of all phases: by phase, machine and volume. ``ring``: the participating members in their order."""

    def __init__(self, record: Record, evidence: Mapping[str, Any]) -> None:
        self.volumes = record["storage"]["volumes"]
        self.evidence = evidence
        self.ring = list(evidence.get("members") or [])

    def _results(self, phase: str, machine: str) -> Mapping[str, Any]:
        result = (self.evidence.get(phase) or {}).get(machine) or {}
        return result.get("volumes") or {}

    def of(self, phase: str, machine: str, volume: Mapping[str, Any]) -> Mapping[str, Any]:
        """One result. If there is none, it contains the reason."""
        found = self._results(phase, machine).get(volume["name"])
        if found is not None:
            return dict(found)
        said = str(((self.evidence.get(phase) or {}).get(machine) or {}).get("msg") or "no result").rstrip(".")
        return {"trouble": f"volume_probe on {machine} failed: {said}"}

    def users(self, machine: str) -> Mapping[str, int]:
        """The UIDs of people's accounts on a machine."""
        return ((self.evidence.get("write") or {}).get(machine) or {}).get("users") or {}

    def wrote(self, machine: str, volume: Mapping[str, Any]) -> bool:
        """Whether the member's files are on the volume."""
        found = self.of("write", machine, volume)
        return not found["trouble"] and found.get("uid") is not None

    def unproven(self, machine: str, volume: Mapping[str, Any]) -> Finding | None:
        """Why checks that need files cannot be made; None if they can."""
        found = self.of("write", machine, volume)
        if volume.get("read_only"):
            return Finding("skipped", f"{volume['name']} is read-only, so no member can write a file there.")
        if found["trouble"]:
            return Finding("error", f"{volume['name']} could not be examined: {found['trouble']}.", _remedy(volume))
        if found.get("uid") is None:
            return Finding("skipped", f"{volume['name']} could not be written to: {found['refusal']}.")
        if len(self.ring) < 2:
            return Finding("skipped", "No other member was examined.")
        return None


def _remedy(volume: Mapping[str, Any]) -> str:
    if "server" in volume:
        return f"Check its server {volume['server']}, then run the storage playbook again."
    return "Mount it according to its own instructions: this collection does not mount it."


def volume_checks(
    record: Record, evidence: Mapping[str, Any] | None, limits: Limits, level: str
) -> tuple[list[Check], list[dict[str, Any]]]:
    """The checks, and the volumes as the verdict lists them."""
    titles = [_SHARED, _LOCKS, _SPACE, _USERS, *((name, purpose) for name, _key, _unit, purpose in _RATES)]
    if not record["storage"]["volumes"] or evidence is None:
        reason = (
            "The volumes were not checked in this run." if record["storage"]["volumes"] else "The record has no volume."
        )
        return [check(name, purpose, None, "skipped", reason=reason) for name, purpose in titles], []
    found = Found(record, evidence)
    checks = [_space(found, limits.max_used_percent), _users(found)]
    for machine in found.ring:
        checks += _over_volumes(_SHARED, machine, found, _shared)
        checks += _over_volumes(_LOCKS, machine, found, _locks)
        for rate, least in zip(_RATES, limits[:3], strict=True):
            if level != "quick":
                checks += _rate(rate, machine, found, least)
    if level == "quick":
        reason = "Volumes are only measured at levels full and burn."
        checks += [check(name, purpose, None, "skipped", reason=reason) for name, _key, _unit, purpose in _RATES]
    return checks, [_shown(found, volume) for volume in found.volumes]


def _over_volumes(
    title: tuple[str, str],
    machine: str,
    found: Found,
    judge: Callable[[Found, str, Mapping[str, Any]], Finding],
) -> list[Check]:
    """One check of a member for all its volumes, and one for those that could not be tested."""
    findings = [judge(found, machine, volume) for volume in found.volumes]
    status = worst([finding.status for finding in findings])
    telling = [finding for finding in findings if finding.status == status and finding.words]
    made = check(
        *title,
        machine,
        status,
        None if status == "skipped" else sum(1 for finding in findings if finding.status == "pass"),
        None if status == "skipped" else len(findings),
        "" if status == "skipped" else "volumes",
        _joined(finding.words for finding in telling),
        _joined(finding.remedy for finding in telling),
    )
    return [made, *_left_out(made, findings)]


def _left_out(made: Check, findings: Sequence[Finding], unit: str = "") -> list[Check]:
    """A check for the volumes that a check does not judge, with the reasons."""
    left = [finding for finding in findings if finding.status == "skipped"]
    if not left or made["status"] == "skipped":
        return []
    values = [finding.value for finding in left if finding.value is not None]
    reason = _joined(finding.words for finding in left)
    return [unjudged(made, reason, min(values) if values else None, unit if values else "")]


def _joined(texts: Iterable[str]) -> str:
    """Each text once, joined."""
    return " ".join(dict.fromkeys(text for text in texts if text))


def _shared(found: Found, machine: str, volume: Mapping[str, Any]) -> Finding:
    written = found.of("write", machine, volume)
    name = volume["name"]
    if "server" not in volume and not written["trouble"]:
        trouble = trouble_of(volume, written)
        if trouble:
            return Finding("fail", f"{name} at {volume['mount_point']}: {trouble}.", _remedy(volume))
    unproven = found.unproven(machine, volume)
    if unproven is not None:
        return unproven
    compared = found.of("compare", machine, volume)
    if compared["trouble"]:
        return Finding("error", f"{name} could not be compared: {compared['trouble']}.", _remedy(volume))
    unseen = sorted(other for other in compared["unseen"] if found.wrote(other, volume))
    if unseen:
        words = (
            f"{machine} does not see what {', '.join(unseen)} wrote to {name} at {volume['mount_point']}: it has "
            f"{written['source']} ({written['filesystem']}) there."
        )
        return Finding("fail", words, f"Mount the same file system there on every member. {_remedy(volume)}")
    return Finding("pass")


def _locks(found: Found, machine: str, volume: Mapping[str, Any]) -> Finding:
    unproven = found.unproven(machine, volume)
    if unproven is not None:
        return unproven
    name = volume["name"]
    holder = probe.neighbour_of(machine, found.ring)
    if holder is None or not found.wrote(holder, volume):
        return Finding("skipped", f"{holder} holds no lock on {name}.")
    compared, taken = found.of("compare", machine, volume), found.of("take", machine, volume)
    if compared.get("lock") is None and holder in compared.get("unseen", []):
        return Finding("skipped", f"{name} is not the same file system on {holder}.")
    held = found.of("write", holder, volume)["held"] or found.of("release", holder, volume).get("held")
    trouble = compared["trouble"] or taken["trouble"] or (held and f"{holder} could not keep its lock: {held}")
    if trouble:
        return Finding("error", f"The locks of {name} could not be tested: {trouble}.", _remedy(volume))
    if compared["lock"] == probe.GRANTED:
        return Finding("fail", f"{machine} got a lock on {name} while {holder} held it.", _LOCK_REMEDY)
    if compared["lock"] != probe.BUSY:
        return Finding("fail", f"{name} has no locks on {machine}: {compared['lock']}.", _LOCK_REMEDY)
    if taken["lock"] != probe.GRANTED:
        words = f"{holder} has released its lock on {name}, but {machine} still cannot acquire it: {taken['lock']}."
        return Finding("fail", words, "Check the server's locks (/proc/locks) and its log.")
    return Finding("pass")


def _rate(rate: tuple[str, str, str, str], machine: str, found: Found, least: float) -> list[Check]:
    """One measurement of a member, on its slowest volume, and a check for the volumes that are not judged."""
    name, _key, unit, purpose = rate
    findings = [_rate_of(rate, machine, found, volume, least) for volume in found.volumes]
    status = worst([finding.status for finding in findings])
    telling = [finding for finding in findings if finding.status == status]
    values = [finding.value for finding in telling if finding.value is not None]
    made = check(
        name,
        purpose,
        machine,
        status,
        min(values) if values else None,
        f"≥ {least:g}" if least and status != "skipped" else None,
        unit if values else "",
        _joined(finding.words for finding in telling),
        _joined(finding.remedy for finding in telling),
    )
    return [made, *_left_out(made, findings, unit)]


def _rate_of(
    rate: tuple[str, str, str, str], machine: str, found: Found, volume: Mapping[str, Any], least: float
) -> Finding:
    _name, key, unit, _purpose = rate
    phase = "compare" if key == "read_mbps" else "write"
    unproven = found.unproven(machine, volume)
    if unproven is not None and (phase == "compare" or not found.wrote(machine, volume)):
        return unproven
    result = found.of(phase, machine, volume)
    value = result.get(key)
    refusal = found.of("write", machine, volume)["refusal"]
    if value is None and refusal:
        remedy = "Free some space, or reduce check_volume_size_mib."
        return Finding("error", f"{volume['name']} was not measured: {refusal}.", remedy)
    if value is None:
        # Its neighbour in the ring has left nothing to read, and reports that itself.
        trouble = result["trouble"]
        if not trouble:
            return Finding("skipped", f"{volume['name']} had nothing to read on {machine}.")
        return Finding("error", f"{volume['name']} was not measured: {trouble}.", _remedy(volume))
    if least and value < least:
        words = f"{volume['name']} does {value:g} {unit} on {machine}, but {least:g} are required."
        return Finding("fail", words, _RATE_REMEDY, value)
    return Finding("pass" if least else "skipped", "" if least else _NO_MINIMUM, value=value)


def _space(found: Found, limit: float) -> Check:
    """The fullest volume, as seen by the member with the least space, since quotas differ."""
    seen = [
        (found.of("write", machine, volume).get("used_percent"), volume, machine)
        for volume in found.volumes
        for machine in found.ring
    ]
    known = [(used, volume, machine) for used, volume, machine in seen if used is not None]
    if not known:
        return check(*_SPACE, None, "skipped", reason="No volume could be examined.")
    used, volume, machine = max(known, key=lambda one: float(one[0]))
    return check(
        *_SPACE,
        None,
        "pass" if used <= limit else "fail",
        used,
        f"≤ {limit:g}",
        "%",
        f"{volume['name']} at {volume['mount_point']} is {used:g} % full, as {machine} sees it.",
        f"Free some space: du -xh --max-depth=2 {volume['mount_point']} | sort -h shows what uses it.",
    )


def _users(found: Found) -> Check:
    """Volumes identify users by their UIDs, whatever their names."""
    holders: dict[str, dict[int, list[str]]] = {}
    for machine in found.ring:
        for name, number in found.users(machine).items():
            holders.setdefault(name, {}).setdefault(number, []).append(machine)
    if not holders:
        return check(*_USERS, None, "skipped", reason="No member has accounts of human users.")
    torn = {name: numbers for name, numbers in sorted(holders.items()) if len(numbers) > 1}
    words = []
    for name, numbers in torn.items():
        places = [f"{number} on {', '.join(machines)}" for number, machines in sorted(numbers.items())]
        words.append(f"{name} is {' and '.join(places)}.")
    return check(
        *_USERS,
        None,
        "fail" if torn else "pass",
        len(holders) - len(torn),
        len(holders),
        "users",
        _joined(words),
        "Give each user the same UID on all members (usermod --uid, then chown their files), or use a directory service "
        "such as LDAP on all members.",
    )


def _shown(found: Found, volume: Mapping[str, Any]) -> dict[str, Any]:
    members = []
    for machine in found.ring:
        written, compared = found.of("write", machine, volume), found.of("compare", machine, volume)
        members.append(
            {
                "machine": machine,
                "mounted": not written["trouble"],
                "trouble": written["trouble"],
                "write_mbps": written.get("write_mbps"),
                "read_mbps": compared.get("read_mbps"),
                "files_per_second": written.get("files_per_second"),
                "shared": _shared(found, machine, volume).status,
                "locks": _locks(found, machine, volume).status,
            }
        )
    return {**described(volume), **state({m: found.of("write", m, volume) for m in found.ring}), "members": members}


def described(volume: Mapping[str, Any]) -> dict[str, Any]:
    """A volume in the record, with null for values that it does not have without a server."""
    return {
        "name": volume["name"],
        "server": volume.get("server"),
        "path": volume.get("path"),
        "mount_point": volume["mount_point"],
    }


def state(looked: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Where a volume is mounted, and its free space, from the results of all members."""
    seen = {machine: result for machine, result in looked.items() if not result.get("trouble") and "point" in result}
    room = min(seen.values(), key=lambda result: int(result["free_bytes"]), default={})
    return {
        # On its server, a volume has the type of the file system below, elsewhere that of the network file system.
        "filesystem": ", ".join(sorted({result["filesystem"] for result in seen.values()})) or None,
        "total_bytes": room.get("total_bytes"),
        "free_bytes": room.get("free_bytes"),
        "mounted_on": list(seen),
    }


def in_bytes(value: int | None) -> str:
    """A size in readable form; empty for None."""
    if value is None:
        return ""
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.3g} {units[0]}" if amount < 1000 else f"{amount:.0f} {units[0]}"


def span(values: Sequence[float]) -> str:
    """The lowest and the highest value; one number if they are equal, and empty if there is none."""
    if not values:
        return ""
    low, high = (f"{float(f'{value:.3g}'):g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} – {high}"


def _of_members(volume: Mapping[str, Any], key: str) -> str:
    """The slowest and the fastest member."""
    return span([float(member[key]) for member in volume.get("members", []) if member.get(key) is not None])


def has_speeds(volume: Mapping[str, Any]) -> bool:
    """Whether the speed of a volume was measured."""
    return any(_of_members(volume, key) for key in ("write_mbps", "read_mbps", "files_per_second"))


def _mounted_on(machines: Sequence[str] | None, members: int) -> str:
    """Empty if nobody looked."""
    if machines is None:
        return ""
    return "every member" if len(machines) == members else ", ".join(machines) or "none"


def rows(volumes: Sequence[Mapping[str, Any]], members: int) -> list[dict[str, str]]:
    """The volumes as texts, for a table in a terminal or on a page."""
    return [
        {
            "volume": volume["name"],
            "server": f"{volume['server']}:{volume['path']}" if volume["server"] else "external",
            "mount_point": volume["mount_point"],
            "filesystem": volume["filesystem"] or "",
            "free": in_bytes(volume["free_bytes"]),
            "total": in_bytes(volume["total_bytes"]),
            "mounted_on": _mounted_on(volume["mounted_on"], members),
            "write": _of_members(volume, "write_mbps"),
            "read": _of_members(volume, "read_mbps"),
            "files": _of_members(volume, "files_per_second"),
        }
        for volume in volumes
    ]


def table(volumes: Sequence[Mapping[str, Any]], members: int, width: int = 0) -> str:
    """The volumes as a drawn table, without empty columns."""
    drawn = rows(volumes, members)
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
    shown = [column for column in columns if any(row[column["key"]] for row in drawn)]
    return render(drawn, shown, width=width)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's view of nodes, partitions and jobs, in one form for every version of Slurm.

Source: `scontrol show -o` and, since 23.02, `scontrol show --json`, whose fields change less than the text and whose
reasons cannot be mistaken for other fields; recorded from 22.05.8 and 24.11.5.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, ParseError, reading
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.conf import parse_pairs
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.host import parse_version
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.hostlist import expand
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json, whole_number

_JSON_SINCE = (23, 2, 0)
#: Texts that stand for an empty value.
_NOTHING = ("", "(null)", "N/A", "None", "Unknown", "NONE")
_RUNNING = ("idle", "mixed", "allocated")
#: States of a job that has nodes.
HOLDING = ("running", "completing", "suspended", "configuring", "stopped", "resizing", "signaling", "stage_out")
#: Flags of a job that Slurm's text output shows in place of its state, in this order.
_JOB_FLAGS = (
    *("completing", "stage_out", "configuring", "resizing", "requeued", "requeue_fed", "requeue_hold"),
    *("special_exit", "stopped", "revoked", "resv_del_hold", "signaling"),
)
#: Flags of a node that does not accept new jobs.
_BARRED = {
    "drain",
    "fail",
    "invalid_reg",
    "not_responding",
    "powered_down",
    "powering_down",
    "power_down",
    "power_drain",
    "powering_up",
    "power_up",
    "reboot_issued",
    "reboot_requested",
    "maintenance",
}
#: Flags that remain until they are cleared.
_HELD = {"drain", "fail", "maintenance"}
#: The one-word state of sinfo, by state and flag. "drained" has no more jobs, "draining" does.
_WORDS = {
    "drained": ("idle", "drain"),
    "draining": ("mixed", "drain"),
    "fail": ("idle", "fail"),
    "failing": ("mixed", "fail"),
    "inval": ("unknown", "invalid_reg"),
    "maint": ("idle", "maintenance"),
    **{
        flag: ("idle", flag)
        for flag in (
            *("blocked", "completing", "planned", "reserved", "invalid_reg", "maintenance"),
            *("power_down", "power_drain", "power_up", "powered_down", "powering_down", "powering_up"),
            *("reboot_issued", "reboot_requested"),
        )
    },
}
#: The meaning of a suffix of the state.
_MARKS = {
    "*": "not_responding",
    "~": "powered_down",
    "#": "powering_up",
    "!": "power_down",
    "%": "powering_down",
    "$": "maintenance",
    "@": "reboot_requested",
    "^": "reboot_issued",
    "-": "planned",
    "+": "completing",
}
_MARK_LETTERS = "".join(_MARKS)
_REASON = re.compile(r"^(.*?)\s*\[(\S+)@([^\]]+)\](?:\s+(?:Comment|ReservationName)=.*)?$", re.DOTALL)
#: The same flag under other names, in other outputs and versions.
_FLAG_NAMES = {"inval": "invalid_reg", "maint": "maintenance", "no_respond": "not_responding", "res": "reserved"}


class Node(TypedDict):
    """``state`` is idle, mixed, allocated, down, unknown, …; ``flags`` are additional ones, such as drain.

    ``memory`` is in MB. ``ready``: it accepts jobs. ``held``: it accepts none until it is resumed. ``slurmd_started``:
    when the slurmd that registered last was started, in seconds since 1970.
    """

    name: str
    address: str
    hostname: str
    state: str
    flags: List[str]
    ready: bool
    held: bool
    reason: str
    reason_user: str
    cpus: int
    cpus_allocated: int
    memory: int
    gres: str
    features: List[str]
    partitions: List[str]
    version: str
    slurmd_started: Optional[int]


class Job(TypedDict):
    """``nodes``: those that it runs on. ``time_limit`` in minutes, None for no limit; times in seconds since 1970."""

    id: int
    name: str
    user: str
    state: str
    reason: str
    partition: str
    nodes: List[str]
    node_count: int
    submitted: Optional[int]
    started: Optional[int]
    time_limit: Optional[int]
    restarts: int
    comment: str


class Partition(TypedDict):
    """``max_time`` in minutes, None for no limit."""

    name: str
    state: str
    default: bool
    nodes: List[str]
    cpus: int
    max_time: Optional[int]


def version(run: Runner) -> Tuple[int, int, int]:
    """The version of the client commands."""
    return parse_version(run(["scontrol", "-V"]).stdout)


def nodes(run: Runner, release: Tuple[int, int, int]) -> List[Node]:
    """All nodes that the controller knows, by name. Raises CommandError if there is no controller."""
    found = _show(run, release, "node", parse_nodes_json, parse_nodes_text)
    return sorted(found, key=lambda node: _natural(node["name"]))


def jobs(run: Runner, release: Tuple[int, int, int]) -> List[Job]:
    """All jobs that the controller still remembers, by number."""
    return sorted(_show(run, release, "job", parse_jobs_json, parse_jobs_text), key=lambda job: job["id"])


def partitions(run: Runner) -> List[Partition]:
    """All partitions, from the text output of all versions: 24.11's JSON does not show which one is the default."""
    return parse_partitions_text(run(["scontrol", "show", "-o", "partition"], timeout=60).stdout)


def _show(
    run: Runner,
    release: Tuple[int, int, int],
    what: str,
    from_json: Callable[[str], List[Any]],
    from_text: Callable[[str], List[Any]],
) -> List[Any]:
    if release >= _JSON_SINCE:
        return from_json(run(["scontrol", "show", what, "--json"], timeout=60).stdout)
    return from_text(run(["scontrol", "show", "-o", what], timeout=60).stdout)


def ready(state: str, flags: Sequence[str]) -> bool:
    """Whether the node accepts jobs."""
    return state in _RUNNING and not _BARRED.intersection(flags)


def held(flags: Sequence[str]) -> bool:
    """Whether an administrator, a program or Slurm has taken the node out of service, so that waiting does not help."""
    return bool(_HELD.intersection(flags))


def node_state(words: Sequence[str]) -> Tuple[str, List[str]]:
    """The state and its flags, from ``IDLE+DRAIN``, the list of the JSON output, or a word of sinfo such as ``mixed-``.

    For all states and flags of Slurm 22.05 to 25.05, according to slurm.h and the manual page of sinfo.
    """
    flags: List[str] = []
    states: List[str] = []
    for word in words:
        name = word.strip().lower()
        bare = name.rstrip(_MARK_LETTERS)
        flags += [_MARKS[mark] for mark in name[len(bare) :]]
        if not states:
            state, flag = _WORDS.get(bare, (bare or "unknown", ""))
            states.append(state)
            flags += [flag] if flag else []
        elif bare:
            flags.append(_FLAG_NAMES.get(bare, bare))
    return (states or ["unknown"])[0], sorted(set(flags))


@reading("scontrol show node --json")
def parse_nodes_json(text: str) -> List[Node]:
    """The nodes in the output of `scontrol show node --json`."""
    found: List[Node] = []
    for entry in _listed(text, "nodes", "scontrol show node --json"):
        state, flags = node_state([str(word) for word in entry.get("state", [])])
        found.append(
            {
                "name": str(entry["name"]),
                "address": str(entry.get("address", "")),
                "hostname": str(entry.get("hostname", "")),
                "state": state,
                "flags": flags,
                "ready": ready(state, flags),
                "held": held(flags),
                "reason": str(entry.get("reason", "")),
                "reason_user": str(entry.get("reason_set_by_user", "")),
                "cpus": int(entry.get("cpus", 0)),
                "cpus_allocated": int(entry.get("alloc_cpus", 0)),
                "memory": int(entry.get("real_memory", 0)),
                "gres": str(entry.get("gres", "")),
                "features": _words(entry.get("features", [])),
                "partitions": _words(entry.get("partitions", [])),
                "version": str(entry.get("version", "")),
                "slurmd_started": _number(entry.get("slurmd_start_time")) or None,
            }
        )
    return found


@reading("scontrol show -o node")
def parse_nodes_text(text: str) -> List[Node]:
    """The nodes in the output of `scontrol show -o node`."""
    found: List[Node] = []
    for line in _lines(text, "NodeName="):
        # A reason may contain anything, including what looks like another field. It is the last one, except for a
        # comment and a reservation.
        head, _mark, rest = line.partition(" Reason=")
        fields = dict(parse_pairs(head))
        reason = _REASON.match(rest.strip())
        state, flags = node_state(fields.get("State", "UNKNOWN").split("+"))
        found.append(
            {
                "name": fields["NodeName"],
                "address": _or_empty(fields.get("NodeAddr")),
                "hostname": _or_empty(fields.get("NodeHostName")),
                "state": state,
                "flags": flags,
                "ready": ready(state, flags),
                "held": held(flags),
                "reason": reason.group(1) if reason else rest.strip(),
                "reason_user": reason.group(2) if reason else "",
                "cpus": int(fields.get("CPUTot", 0)),
                "cpus_allocated": int(fields.get("CPUAlloc", 0)),
                "memory": int(fields.get("RealMemory", 0)),
                "gres": _or_empty(fields.get("Gres")),
                "features": _words(_or_empty(fields.get("AvailableFeatures"))),
                "partitions": _words(_or_empty(fields.get("Partitions"))),
                "version": _or_empty(fields.get("Version")),
                "slurmd_started": _time(fields.get("SlurmdStartTime")),
            }
        )
    return found


def job_state(words: Any) -> str:
    """The state of a job as in the text output, from the JSON output: a word, or a list with flags after the state.

    Until a job that has ended has left its nodes, it is ["CANCELLED", "COMPLETING"].
    """
    states = [str(word).lower() for word in words] if isinstance(words, list) else [str(words).lower()]
    flags = [flag for flag in _JOB_FLAGS if flag in states]
    return (flags or states or [""])[0]


@reading("scontrol show job --json")
def parse_jobs_json(text: str) -> List[Job]:
    """The jobs in the output of `scontrol show job --json`."""
    return [
        {
            "id": int(entry["job_id"]),
            "name": str(entry.get("name", "")),
            "user": str(entry.get("user_name", "")),
            "state": job_state(entry.get("job_state", [])),
            "reason": str(entry.get("state_description") or _or_empty(entry.get("state_reason"))),
            "partition": str(entry.get("partition", "")),
            "nodes": expand(_or_empty(entry.get("nodes"))),
            "node_count": _number(entry.get("node_count")) or 0,
            "submitted": _number(entry.get("submit_time")) or None,
            "started": _number(entry.get("start_time")) or None,
            "time_limit": _number(entry.get("time_limit")),
            "restarts": int(entry.get("restart_cnt", 0)),
            "comment": str(entry.get("comment", "")),
        }
        for entry in _listed(text, "jobs", "scontrol show job --json")
    ]


@reading("scontrol show -o job")
def parse_jobs_text(text: str) -> List[Job]:
    """The jobs in the output of `scontrol show -o job`."""
    found: List[Job] = []
    for line in _lines(text, "JobId="):
        fields: Dict[str, str] = {}
        # The user's own texts (Command, Comment, …) come later, and cannot replace the first field of a name.
        for key, value in parse_pairs(line):
            fields.setdefault(key, value)
        found.append(
            {
                "id": int(fields["JobId"]),
                "name": fields.get("JobName", ""),
                "user": fields.get("UserId", "").split("(")[0],
                "state": fields.get("JobState", "").lower(),
                "reason": _or_empty(fields.get("Reason")).replace("_", " "),
                "partition": fields.get("Partition", ""),
                "nodes": expand(_or_empty(fields.get("NodeList"))),
                "node_count": int(fields.get("NumNodes", "0").split("-")[0]),
                "submitted": _time(fields.get("SubmitTime")),
                "started": _time(fields.get("StartTime")),
                "time_limit": minutes(fields.get("TimeLimit", "")),
                "restarts": int(fields.get("Restarts", 0)),
                "comment": _or_empty(fields.get("Comment")),
            }
        )
    return found


@reading("scontrol show -o partition")
def parse_partitions_text(text: str) -> List[Partition]:
    """The partitions in the output of `scontrol show -o partition`."""
    found: List[Partition] = []
    for line in _lines(text, "PartitionName="):
        fields = dict(parse_pairs(line))
        found.append(
            {
                "name": fields["PartitionName"],
                "state": fields.get("State", "").lower(),
                "default": fields.get("Default") == "YES",
                "nodes": expand(_or_empty(fields.get("Nodes"))),
                "cpus": int(fields.get("TotalCPUs", 0)),
                "max_time": minutes(fields.get("MaxTime", "")),
            }
        )
    return found


def minutes(text: str) -> Optional[int]:
    """Convert ``1-02:30:00``, ``02:30:00`` or ``30:00`` to whole minutes; None for no limit."""
    days, dash, clock = text.rpartition("-")
    parts = [whole_number(part) for part in (days if dash else "0", *clock.split(":"))]
    numbers = [part for part in parts if part is not None]
    if len(numbers) < len(parts):
        return None
    hours, mins = [0, numbers[1]] if len(numbers) < 4 else numbers[1:3]
    return numbers[0] * 1440 + hours * 60 + mins


def _lines(text: str, begin: str) -> List[str]:
    return [line for line in text.splitlines() if line.startswith(begin)]


def _listed(text: str, key: str, command: str) -> List[Mapping[str, Any]]:
    try:
        document = from_json(text)
    except ValueError as failure:
        raise ParseError(command, f"it is not JSON ({failure})") from failure
    found = document.get(key) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise ParseError(command, f"it has no list '{key}'")
    return found


def _number(value: Any) -> Optional[int]:
    """A number of Slurm's: plain, or with ``set`` and ``infinite`` beside it."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, (int, float)) else None


def _words(value: Any) -> List[str]:
    items = value.split(",") if isinstance(value, str) else value
    return [str(item) for item in items if item]


def _or_empty(value: Any) -> str:
    return "" if value is None or value in _NOTHING else str(value)


def _time(text: Optional[str]) -> Optional[int]:
    """Slurm prints local time without a zone; this runs on the same host."""
    if text is None or text in _NOTHING:
        return None
    try:
        return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def _natural(name: str) -> List[Tuple[int, int, str]]:
    return [
        (1, 0, part) if whole_number(part) is None else (0, int(part), "") for part in re.split(r"(\d+)", name) if part
    ]


def controller_up(run: Runner) -> bool:
    """Whether a controller answers."""
    try:
        return " is UP" in run(["scontrol", "ping"], check=False, timeout=30).stdout
    except CommandError:
        return False

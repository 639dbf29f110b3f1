# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's view of nodes, partitions and jobs, in one form for every version of Slurm.

Source: `scontrol show -o` and, since 23.02, `scontrol show --json`, whose fields change less than the text and whose
reasons cannot be mistaken for other fields; recorded from 22.05.8, 24.11.5 and 26.05.5.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    ParseError,
    translate_parse_errors,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import (
    lower_names,
    parse_tool_json,
    parse_whole_number,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.conf import parse_pairs
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import parse_version
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import expand_hostlist

_JSON_SINCE = (23, 2, 0)
#: Texts that stand for an empty value.
_EMPTY_TEXTS = ("", "(null)", "N/A", "None", "Unknown", "NONE")
_ACTIVE_STATES = ("idle", "mixed", "allocated")
#: States of a job that has nodes.
ACTIVE_JOB_STATES = (
    "running",
    "completing",
    "suspended",
    "configuring",
    "stopped",
    "resizing",
    "signaling",
    "stage_out",
)
#: Flags of a job that Slurm's text output shows in place of its state, in this order.
_JOB_FLAGS = (
    *("completing", "stage_out", "configuring", "resizing", "requeued", "requeue_fed", "requeue_hold"),
    *("special_exit", "stopped", "revoked", "resv_del_hold", "signaling"),
)
#: Flags of a node that does not accept new jobs.
_UNAVAILABLE_FLAGS = {
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
_PERSISTENT_FLAGS = {"drain", "fail", "maintenance"}
#: The one-word state of sinfo, by state and flag. "drained" has no more jobs, "draining" does.
_SINFO_STATES = {
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
_FLAG_BY_SUFFIX = {
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
_STATE_SUFFIXES = "".join(_FLAG_BY_SUFFIX)
_REASON_FIELD = re.compile(r"\sReason=", re.IGNORECASE)
#: A reason, who has given it, and when. Other fields may follow.
_REASON_PATTERN = re.compile(r"^(.*?)\s*\[(\S+)@(\d{4}-\d\d-\d\dT[\d:]+|Unknown)\](\s+[A-Za-z]\w*=.*)?$", re.DOTALL)
#: The same flag under other names, in other outputs and versions.
_FLAG_NAMES = {"inval": "invalid_reg", "maint": "maintenance", "no_respond": "not_responding", "res": "reserved"}


class SlurmNode(TypedDict):
    """A node. ``state`` is idle, mixed, allocated, down, unknown, …; ``flags`` are additional ones, such as drain.

    ``memory`` is in MB. ``ready``: the node accepts jobs. ``drained``: an administrator, a check or Slurm has drained it.
    ``slurmd_started``: when the slurmd that registered last was started, in seconds since 1970.
    """

    name: str
    address: str
    hostname: str
    state: str
    flags: List[str]
    ready: bool
    drained: bool
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


class SlurmJob(TypedDict):
    """A job. ``nodes``: those that it runs on. ``time_limit`` in minutes, None for no limit; times since 1970."""

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


class SlurmPartition(TypedDict):
    """A partition. ``max_time`` is in minutes, None for no limit."""

    name: str
    state: str
    default: bool
    nodes: List[str]
    cpus: int
    max_time: Optional[int]


def client_version(run: Runner) -> Tuple[int, int, int]:
    """Return the version of the client commands."""
    return parse_version(run(["scontrol", "-V"]).stdout)


def list_nodes(run: Runner, slurm_version: Tuple[int, int, int]) -> List[SlurmNode]:
    """Return all nodes that the controller knows, by name. Raises CommandError if there is no controller."""
    unsorted_nodes = _show_entities(run, slurm_version, "node", parse_nodes_json, parse_nodes_text)
    return sorted(unsorted_nodes, key=lambda node: _natural_key(node["name"]))


def readiness(node_states: Sequence[SlurmNode]) -> Dict[str, bool]:
    """Return whether each node accepts jobs, by name."""
    return {node["name"]: node["ready"] for node in node_states}


def list_jobs(run: Runner, slurm_version: Tuple[int, int, int]) -> List[SlurmJob]:
    """Return all jobs that the controller still remembers, by number."""
    return sorted(
        _show_entities(run, slurm_version, "job", parse_jobs_json, parse_jobs_text), key=lambda job: job["id"]
    )


def list_partitions(run: Runner) -> List[SlurmPartition]:
    """Return all partitions, always from the text output: 24.11's JSON does not show which one is the default."""
    return parse_partitions_text(run(["scontrol", "show", "-o", "partition"], timeout=60).stdout)


def _show_entities(
    run: Runner,
    slurm_version: Tuple[int, int, int],
    entity: str,
    parse_json_output: Callable[[str], List[Any]],
    parse_text_output: Callable[[str], List[Any]],
) -> List[Any]:
    if slurm_version >= _JSON_SINCE:
        return parse_json_output(run(["scontrol", "show", entity, "--json"], timeout=60).stdout)
    return parse_text_output(run(["scontrol", "show", "-o", entity], timeout=60).stdout)


def accepts_jobs(state: str, flags: Sequence[str]) -> bool:
    """Whether the node accepts jobs."""
    return state in _ACTIVE_STATES and not _UNAVAILABLE_FLAGS.intersection(flags)


def is_drained(flags: Sequence[str]) -> bool:
    """Whether an administrator, a program or Slurm has taken the node out of service, so that waiting does not help."""
    return bool(_PERSISTENT_FLAGS.intersection(flags))


def parse_node_state(state_words: Sequence[str]) -> Tuple[str, List[str]]:
    """Parse the state and its flags from ``IDLE+DRAIN``, the list of the JSON output, or sinfo's form ``mixed-``.

    This covers all states and flags of Slurm 22.05 to 25.05, according to slurm.h and the manual page of sinfo.
    """
    flags: List[str] = []
    states: List[str] = []
    for state_word in state_words:
        lower_word = state_word.strip().lower()
        bare_state = lower_word.rstrip(_STATE_SUFFIXES)
        flags += [_FLAG_BY_SUFFIX[mark] for mark in lower_word[len(bare_state) :]]
        if not states:
            state, flag = _SINFO_STATES.get(bare_state, (bare_state or "unknown", ""))
            states.append(state)
            flags += [flag] if flag else []
        elif bare_state:
            flags.append(_FLAG_NAMES.get(bare_state, bare_state))
    return (states or ["unknown"])[0], sorted(set(flags))


@translate_parse_errors("scontrol show node --json")
def parse_nodes_json(json_text: str) -> List[SlurmNode]:
    """Parse the output of `scontrol show node --json`."""
    parsed_nodes: List[SlurmNode] = []
    for entry in _require_entries(json_text, "nodes", "scontrol show node --json"):
        state, flags = parse_node_state(_list_words(entry.get("state")))
        parsed_nodes.append(
            {
                "name": str(entry["name"]),
                "address": _read_text(entry, "address"),
                "hostname": _read_text(entry, "hostname"),
                "state": state,
                "flags": flags,
                "ready": accepts_jobs(state, flags),
                "drained": is_drained(flags),
                "reason": _read_text(entry, "reason"),
                "reason_user": _read_text(entry, "reason_set_by_user"),
                "cpus": _parse_number(entry.get("cpus")) or 0,
                "cpus_allocated": _parse_number(entry.get("alloc_cpus")) or 0,
                "memory": _parse_number(entry.get("real_memory")) or 0,
                "gres": _read_text(entry, "gres"),
                "features": _split_names(entry.get("features") or []),
                "partitions": _split_names(entry.get("partitions") or []),
                "version": _read_text(entry, "version"),
                "slurmd_started": _parse_number(entry.get("slurmd_start_time")) or None,
            }
        )
    return parsed_nodes


@translate_parse_errors("scontrol show -o node")
def parse_nodes_text(scontrol_output: str) -> List[SlurmNode]:
    """Parse the output of `scontrol show -o node`."""
    parsed_nodes: List[SlurmNode] = []
    for line in _lines_starting_with(scontrol_output, "NodeName="):
        # A reason may contain anything, including what looks like another field, and ends with its user and time.
        leading_fields, *reason_texts = _REASON_FIELD.split(line, maxsplit=1)
        reason_text = "".join(reason_texts).strip()
        reason_match = _REASON_PATTERN.match(reason_text)
        fields = _read_fields(leading_fields + ((reason_match.group(4) or "") if reason_match else ""))
        state, flags = parse_node_state(fields.get("state", "UNKNOWN").split("+"))
        parsed_nodes.append(
            {
                "name": fields["nodename"],
                "address": _empty_if_unset(fields.get("nodeaddr")),
                "hostname": _empty_if_unset(fields.get("nodehostname")),
                "state": state,
                "flags": flags,
                "ready": accepts_jobs(state, flags),
                "drained": is_drained(flags),
                "reason": reason_match.group(1) if reason_match else reason_text,
                "reason_user": reason_match.group(2) if reason_match else "",
                "cpus": int(fields.get("cputot", 0)),
                "cpus_allocated": int(fields.get("cpualloc", 0)),
                "memory": int(fields.get("realmemory", 0)),
                "gres": _empty_if_unset(fields.get("gres")),
                "features": _split_names(_empty_if_unset(fields.get("availablefeatures"))),
                "partitions": _split_names(_empty_if_unset(fields.get("partitions"))),
                "version": _empty_if_unset(fields.get("version")),
                "slurmd_started": _parse_time(fields.get("slurmdstarttime")),
            }
        )
    return parsed_nodes


def parse_job_state(state_words: Any) -> str:
    """Return the state of a job as in the text output, from the JSON output: a string, or a list of a state and flags.

    A job that has ended, but not yet left its nodes, is ["CANCELLED", "COMPLETING"].
    """
    states = (
        [str(state_word).lower() for state_word in state_words]
        if isinstance(state_words, list)
        else [str(state_words).lower()]
    )
    flags = [flag for flag in _JOB_FLAGS if flag in states]
    return (flags or states or [""])[0]


@translate_parse_errors("scontrol show job --json")
def parse_jobs_json(json_text: str) -> List[SlurmJob]:
    """Parse the output of `scontrol show job --json`."""
    return [
        {
            "id": int(entry["job_id"]),
            "name": _read_text(entry, "name"),
            "user": _read_text(entry, "user_name"),
            "state": parse_job_state(entry.get("job_state") or []),
            "reason": str(entry.get("state_description") or _empty_if_unset(entry.get("state_reason"))),
            "partition": _read_text(entry, "partition"),
            "nodes": expand_hostlist(_empty_if_unset(entry.get("nodes"))),
            "node_count": _parse_number(entry.get("node_count")) or 0,
            "submitted": _parse_number(entry.get("submit_time")) or None,
            "started": _parse_number(entry.get("start_time")) or None,
            "time_limit": _parse_number(entry.get("time_limit")),
            "restarts": _parse_number(entry.get("restart_cnt")) or 0,
            "comment": _read_text(entry, "comment"),
        }
        for entry in _require_entries(json_text, "jobs", "scontrol show job --json")
    ]


@translate_parse_errors("scontrol show -o job")
def parse_jobs_text(scontrol_output: str) -> List[SlurmJob]:
    """Parse the output of `scontrol show -o job`."""
    parsed_jobs: List[SlurmJob] = []
    for line in _lines_starting_with(scontrol_output, "JobId="):
        # The user's own texts (Command, Comment, …) come later, and cannot replace the first field of a name.
        fields = _read_fields(line)
        parsed_jobs.append(
            {
                "id": int(fields["jobid"]),
                "name": fields.get("jobname", ""),
                "user": fields.get("userid", "").split("(")[0],
                "state": fields.get("jobstate", "").lower(),
                "reason": _empty_if_unset(fields.get("reason")).replace("_", " "),
                "partition": fields.get("partition", ""),
                "nodes": expand_hostlist(_empty_if_unset(fields.get("nodelist"))),
                "node_count": int(fields.get("numnodes", "0").split("-")[0]),
                "submitted": _parse_time(fields.get("submittime")),
                "started": _parse_time(fields.get("starttime")),
                "time_limit": parse_time_limit(fields.get("timelimit", "")),
                "restarts": int(fields.get("restarts", 0)),
                "comment": _empty_if_unset(fields.get("comment")),
            }
        )
    return parsed_jobs


@translate_parse_errors("scontrol show -o partition")
def parse_partitions_text(scontrol_output: str) -> List[SlurmPartition]:
    """Parse the output of `scontrol show -o partition`."""
    parsed_partitions: List[SlurmPartition] = []
    for line in _lines_starting_with(scontrol_output, "PartitionName="):
        fields = _read_fields(line)
        parsed_partitions.append(
            {
                "name": fields["partitionname"],
                "state": fields.get("state", "").lower(),
                "default": fields.get("default", "").lower() == "yes",
                "nodes": expand_hostlist(_empty_if_unset(fields.get("nodes"))),
                "cpus": int(fields.get("totalcpus", 0)),
                "max_time": parse_time_limit(fields.get("maxtime", "")),
            }
        )
    return parsed_partitions


def parse_time_limit(duration: str) -> Optional[int]:
    """Convert ``1-02:30:00``, ``02:30:00`` or ``30:00`` to whole minutes; None for no limit."""
    days, dash, clock = duration.rpartition("-")
    optional_numbers = [parse_whole_number(part) for part in (days if dash else "0", *clock.split(":"))]
    valid_numbers = [part for part in optional_numbers if part is not None]
    if len(valid_numbers) < len(optional_numbers):
        return None
    hours, clock_minutes = [0, valid_numbers[1]] if len(valid_numbers) < 4 else valid_numbers[1:3]
    return valid_numbers[0] * 1440 + hours * 60 + clock_minutes


def _lines_starting_with(text: str, prefix: str) -> List[str]:
    return [line for line in text.splitlines() if line.lower().startswith(prefix.lower())]


def _read_fields(line: str) -> Dict[str, str]:
    """Return the fields of a line by their lower-case names."""
    return lower_names(parse_pairs(line))


def _list_words(value: Any) -> List[str]:
    """Return a state as a list of words. Before 23.02, the JSON has only one."""
    return [str(state_word) for state_word in (value if isinstance(value, list) else [value]) if state_word]


def _read_text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return "" if value is None else str(value)


def _require_entries(json_text: str, key: str, command: str) -> List[Mapping[str, Any]]:
    try:
        json_document = parse_tool_json(json_text)
    except ValueError as failure:
        raise ParseError(command, f"it is not JSON ({failure})") from failure
    entries = json_document.get(key) if isinstance(json_document, dict) else None
    if not isinstance(entries, list):
        raise ParseError(command, f"it has no list '{key}'")
    return entries


def _parse_number(value: Any) -> Optional[int]:
    """Parse a number of Slurm's JSON: plain, or with ``set`` and ``infinite`` beside it."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, (int, float)) else None


def _split_names(value: Any) -> List[str]:
    names = value.split(",") if isinstance(value, str) else value
    return [str(name) for name in names if name]


def _empty_if_unset(value: Any) -> str:
    return "" if value is None or value in _EMPTY_TEXTS else str(value)


def _parse_time(time_text: Optional[str]) -> Optional[int]:
    """Parse a time. Slurm prints local time without a zone, and this runs on the same host."""
    if time_text is None or time_text in _EMPTY_TEXTS:
        return None
    try:
        return int(time.mktime(time.strptime(time_text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def _natural_key(name: str) -> List[Tuple[int, int, str]]:
    return [
        (1, 0, part) if parse_whole_number(part) is None else (0, int(part), "")
        for part in re.split(r"(\d+)", name)
        if part
    ]


def is_controller_up(run: Runner) -> bool:
    """Whether a controller responds."""
    try:
        return " is up" in run(["scontrol", "ping"], check=False, timeout=30).stdout.lower()
    except CommandError:
        return False

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the GPUs, from nvidia-smi, dcgmi and the kernel log. Parsing and judging only; nothing is run here."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import kernel_log
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import (
    Judgement,
    failed,
    passed,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json, whole_number

#: The fields that are requested from nvidia-smi, in one call.
QUERY = (
    "index",
    "name",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "temperature.gpu",
)
QUERY_COMMAND = ("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits")
REMAP_COMMAND = (
    "nvidia-smi",
    "--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure",
    "--format=csv,noheader,nounits",
)
NVLINK_COMMAND = ("nvidia-smi", "nvlink", "--status")
MIG_COMMAND = ("nvidia-smi", "--query-gpu=index,mig.mode.current", "--format=csv,noheader")

#: Xid errors after which a GPU or its link cannot be trusted (NVIDIA's catalogue of Xid errors: hardware, ECC, NVLink,
#: fallen off the bus). Others, such as 13, 31 and 43, are caused by programs.
BAD_XIDS = {
    48: "double-bit memory error",
    62: "internal micro-controller halt",
    63: "memory row remapped, not yet in effect",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "fell off the bus",
    92: "high rate of single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GPU system processor does not respond",
    120: "GPU system processor error",
    140: "unrecovered memory error",
    149: "NVLink error",
}
#: The driver's own message, from its start: "NVRM: Xid (PCI:0000:3d:00): 79, pid=...". Other messages contain the name
#: of a crashed program, but only up to 15 characters, which is shorter than this pattern.
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\): "
    r"(?P<number>[0-9]{1,4})(?![^,\s])"
)
_NOT_THERE = ("", "[n/a]", "n/a", "[not supported]", "not supported")
_RESET = "Drain the node, wait for its jobs to end and reboot it. Replace the GPU if the error recurs."


class Gpu(Dict[str, Optional[str]]):
    """One GPU: the fields of QUERY; None if this model has no such value."""


def _rows(text: str) -> List[List[str]]:
    """The fields of each line. nvidia-smi does not quote them."""
    return [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]


def parse_query(text: str) -> List[Gpu]:
    """The GPUs in QUERY_COMMAND's output. Raises ParseError on lines of another form, such as an error message."""
    gpus = []
    for values in _rows(text):
        if len(values) != len(QUERY):
            raise ParseError("nvidia-smi --query-gpu", f"a line has {len(values)} fields instead of {len(QUERY)}")
        gpus.append(Gpu((key, None if value.lower() in _NOT_THERE else value) for key, value in zip(QUERY, values)))
    return gpus


#: What nvidia-smi prints for a GPU that does not respond, also as a value of one of its fields.
_LOST = re.compile(
    r"GPU is lost|Unable to determine the device handle|fallen off the bus|No devices were found", re.IGNORECASE
)


def lost(text: str) -> Optional[str]:
    """nvidia-smi's message about a GPU that does not respond; None if all of them do.

    The driver keeps the device file of such a GPU, so that it is only missing in nvidia-smi's output.
    """
    for line in text.splitlines():
        if _LOST.search(line):
            return line.strip()
    return None


def judge_lost(message: str, files: int, expected: Optional[int]) -> Judgement:
    """The judgement of a GPU that nvidia-smi reports as lost. ``files``: the number of device files."""
    return failed(
        f"fewer than {files}",
        expected,
        f"nvidia-smi reports a GPU that does not respond: {message.rstrip('.')}.",
        _RESET,
        "GPUs",
    )


def judge_count(found: int, problem: Optional[str], expected: Optional[int]) -> Judgement:
    """Judge whether the number of GPUs matches the record.

    If it does, others on the bus may belong to a virtual machine, or to other containers.
    """
    if problem and (not found or expected not in (None, found)):
        return failed(
            found, expected, problem, "Load the driver, or make the GPUs available in this container.", "GPUs"
        )
    if expected is None:
        return skipped("The expected number of GPUs is not set.")
    if found == expected:
        return passed(found, expected, "GPUs")
    return failed(
        found,
        expected,
        f"{found} of {expected} GPUs are present."
        if found < expected
        else f"{found} GPUs are present, but {expected} are in the record.",
        "Check the kernel log for GPUs that fell off the bus, and reboot. If the machine has fewer GPUs from now on, join "
        "it again (playbook join with its name in cluster_machines)."
        if found < expected
        else "Run the site playbook again, which updates the record.",
        "GPUs",
    )


def judge_ecc(gpus: Sequence[Gpu]) -> Judgement:
    """Judge whether there were memory errors that ECC could not correct since the driver was loaded."""
    counted = {gpu["index"]: whole_number(gpu["ecc.errors.uncorrected.volatile.total"]) for gpu in gpus}
    known = {index: number for index, number in counted.items() if number is not None}
    if not known:
        return skipped("These GPUs have no ECC, or it is disabled.")
    total = sum(known.values())
    if not total:
        return passed(0, 0, "errors")
    named = ", ".join(f"GPU {index}: {number}" for index, number in known.items() if number)
    return failed(total, 0, f"Uncorrected memory errors: {named}.", _RESET, "errors")


def judge_retired(gpus: Sequence[Gpu], remapped: Optional[str]) -> Judgement:
    """Judge whether a memory page or row waits for a reboot, or could not be replaced."""
    pending = [f"GPU {gpu['index']}" for gpu in gpus if (gpu["retired_pages.pending"] or "").lower() == "yes"]
    failures: List[str] = []
    seen = any(gpu["retired_pages.pending"] is not None for gpu in gpus)
    for row in _rows(remapped or ""):
        waiting, failed_rows = map(whole_number, row[1:]) if len(row) == 3 else (None, None)
        if waiting is not None and failed_rows is not None:
            seen = True
            pending += [row[0]] if waiting else []
            failures += [row[0]] if failed_rows else []
    if not seen:
        return skipped("These GPUs do not report retired memory.")
    if failures:
        reason = f"Bad memory rows could not be replaced on {', '.join(failures)}."
        return failed(len(failures), 0, reason, "Drain the node and replace the GPU.", "GPUs")
    if pending:
        reason = f"Memory will be retired at the next reset of {', '.join(pending)}."
        return failed(len(pending), 0, reason, "Drain the node and reboot it.", "GPUs")
    return passed(0, 0, "GPUs")


def judge_pcie(gpus: Sequence[Gpu]) -> Judgement:
    """Judge whether links have their full width. Their speed decreases when idle to save power, so it is not judged."""
    narrow, known = [], 0
    widest = 0
    for gpu in gpus:
        now, full = whole_number(gpu["pcie.link.width.current"]), whole_number(gpu["pcie.link.width.max"])
        if now is None or full is None:
            continue
        known += 1
        widest = max(widest, full)
        if now < full:
            narrow.append(f"GPU {gpu['index']} at x{now} of x{full}")
    if not known:
        return skipped("nvidia-smi does not report the width of the links.")
    if not narrow:
        return passed(f"x{widest}", f"x{widest}")
    return failed(
        f"{known - len(narrow)} of {known}",
        f"{known} at full width",
        "; ".join(narrow) + ".",
        "Reseat the card; look for PCI errors in the kernel log.",
        "links",
    )


def _links(text: str) -> Dict[str, List[bool]]:
    """Whether each link is up, by GPU, from NVLINK_COMMAND's output. A GPU whose links are all down may list none."""
    links: Dict[str, List[bool]] = {}
    gpu = ""
    for line in text.splitlines():
        head = re.match(r"^GPU (\d+):", line)
        if head:
            gpu = head.group(1)
            links[gpu] = []
            continue
        link = re.match(r"^\s+Link (\d+): (.+)$", line)
        if link and gpu:
            links[gpu].append("inactive" not in link.group(2).lower())
    return links


def parse_mig(text: str) -> List[str]:
    """The indexes of the GPUs that are partitioned, from MIG_COMMAND's output."""
    return [row[0] for row in _rows(text) if len(row) == 2 and row[1].lower() == "enabled"]


def judge_nvlink(text: str, rc: int = 0, switched: bool = False, partitioned: Sequence[str] = ()) -> Judgement:
    """Judge whether the links are up that should be. ``rc``: the exit status of NVLINK_COMMAND.

    With NVSwitches, these are all links, except those of ``partitioned`` GPUs, which an A100 switches off. Otherwise,
    bridges connect some GPUs and use some of their slots: each GPU with a bridge must have as many links as the others
    that have one.
    """
    # Of GPUs without NVLink, it prints nothing, or that it is not supported.
    known = not text.strip() or "not supported" in text.lower() or re.search(r"^GPU \d+:", text, re.MULTILINE)
    if lost(text) or not known or (rc and "not supported" not in text.lower()):
        said = (text.strip() or f"exit status {rc}").splitlines()[-1].rstrip(".")
        return unknown(f"nvidia-smi does not show the state of NVLink: {said}.", "Run nvidia-smi nvlink --status.")
    links = {index: states for index, states in _links(text).items() if switched or any(states)}
    judged = {index: sum(states) for index, states in links.items() if index not in partitioned}
    if not judged:
        return skipped("These GPUs have no NVLink in use.")
    most = max([len(links[index]) for index in judged] if switched else judged.values())
    down = [f"GPU {index} has {up} of {most or 'its'} links" for index, up in judged.items() if up < most or not most]
    total, up = most * len(judged), sum(judged.values())
    if not down:
        return passed(up, total, "links")
    return failed(
        up,
        total or "all",
        "; ".join(down) + ".",
        "Restart nvidia-fabricmanager if there is one, then reboot. Replace the baseboard or bridge if the error persists.",
        "links",
    )


def judge_xid(records: Optional[str], container: bool = False) -> Judgement:
    """Judge whether the kernel log, in the format of /dev/kmsg, has an Xid after which a GPU cannot be trusted.

    None means that the log cannot be read, which only privileged containers can.
    """
    if records is None and container:
        return skipped("This is a container that cannot read the kernel log of its host.")
    if records is None:
        return unknown("/dev/kmsg cannot be read.", "Run as root.")
    bad: Dict[str, int] = {}
    for message in kernel_log.messages(records):
        found = _XID.match(message)
        number = int(found.group("number")) if found else 0
        if found and number in BAD_XIDS:
            name = f"Xid {number} ({BAD_XIDS[number]}) on {found.group('device')}"
            bad[name] = bad.get(name, 0) + 1
    if not bad:
        return passed(0, 0, "faults")
    shown = "; ".join(f"{name}, {times} ×" for name, times in bad.items())
    return failed(sum(bad.values()), 0, f"{shown}.", _RESET, "faults")


def judge_fabric_manager(state: Optional[str], has_switch: bool, container: bool = False) -> Judgement:
    """``state`` is the output of systemctl is-active; None without systemctl, as in containers without systemd."""
    if not has_switch:
        return skipped("There is no NVSwitch in this host.")
    if state is None and container:
        return skipped("This is a container, and the fabric manager is a service of its host.")
    if state is None:
        return unknown("The state of nvidia-fabricmanager cannot be determined.", "Check it with systemctl status.")
    if state == "active":
        return passed("active", "active")
    return failed(
        state,
        "active",
        "Without the fabric manager, the GPUs cannot be opened or cannot communicate with each other.",
        "Install the fabric manager in exactly the driver's version and start nvidia-fabricmanager.",
    )


def _verdicts(value: Any, path: Sequence[str] = ()) -> Iterator[Dict[str, Any]]:
    """Every ``{status: …}`` in a DCGM document, with its path, since the nesting differs between versions."""
    if isinstance(value, dict):
        name = value.get("name") or value.get("category")
        here = [*path, str(name)] if name else list(path)
        if isinstance(value.get("status"), str):
            yield {**value, "path": here}
        for inner in value.values():
            yield from _verdicts(inner, here)
    elif isinstance(value, list):
        for inner in value:
            yield from _verdicts(inner, path)


def judge_dcgm(text: str) -> Judgement:
    """Judge ``dcgmi diag -j`` by every result in it, since some versions exit 0 with failed tests."""
    start = text.find("{")
    try:
        document = from_json(text[start:]) if start >= 0 else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return unknown("dcgmi diag printed no JSON.", "Start nvidia-dcgm, and run dcgmi diag -r 1 -j manually.")
    results = list(_verdicts(document))
    bad = [one for one in results if one["status"].lower() not in ("pass", "skip", "skipped", "not run", "warn")]
    ran = [one for one in results if one["status"].lower() in ("pass", "warn")] + bad
    if not ran:
        return unknown("dcgmi diag ran no test.", "Run dcgmi diag -r 1 -j manually to see why.")
    if not bad:
        return passed(len(ran), len(ran), "tests")
    named = "; ".join(f"{' / '.join(one['path']) or 'test'} {one['status']}{_warning(one)}" for one in bad[:8])
    return failed(len(ran) - len(bad), len(ran), f"{named}.", _RESET, "tests")


def _warning(result: Dict[str, Any]) -> str:
    """DCGM's warning about a failed test: a string, or a list of strings or mappings, depending on the version."""
    said = result.get("warnings") or result.get("warning") or result.get("info")
    if isinstance(said, list) and said:
        said = said[0]
    if isinstance(said, dict):
        said = said.get("warning") or said.get("message")
    return f" ({said.strip()})" if isinstance(said, str) and said.strip() else ""

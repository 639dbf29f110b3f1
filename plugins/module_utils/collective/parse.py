# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the output of nccl-tests, rccl-tests and our own program, with any launcher, into one structure.

Formats: the table and footer of nccl-tests (1.x to 2.17) and rccl-tests on stdout, and the file that ``-J`` writes
(versions 1 and 2). That file contains the whole environment of the process, so only named keys are read from it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json


class Device(TypedDict):
    """A rank and where it runs."""

    rank: int
    host: str
    device: Optional[int]
    name: str


class Row(TypedDict):
    """One size, out of place or in place. Bandwidths in 10^9 bytes/s; ``wrong`` is None if values were not checked."""

    size_bytes: int
    count: int
    type: str
    redop: Optional[str]
    time_us: Optional[float]
    algbw_gbps: Optional[float]
    busbw_gbps: Optional[float]
    wrong: Optional[int]
    in_place: bool


class Output(TypedDict):
    """The parsed output.

    ``concluded`` is whether the footer is present: without it, the program did not complete, whatever its exit status.
    ``failures`` are the messages of the program and the launcher; ``usage`` is whether it printed its usage instead.
    """

    collective: Optional[str]
    devices: List[Device]
    rows: List[Row]
    out_of_bounds: Optional[int]
    avg_busbw_gbps: Optional[float]
    versions: Dict[str, str]
    concluded: bool
    usage: bool
    failures: List[str]
    warnings: List[str]


_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Prefixes that launchers add to lines: srun -l, mpirun --tag-output (with or without a time), prterun.
_PREFIX = re.compile(
    r"^(?:\s{0,3}\d{1,6}: ?|(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})?\[[^\[\]\s]*,[^\[\]\s]*\]"
    r"<(?:stdout|stderr|stddiag)>: ?)"
)
_DEVICE = re.compile(
    r"^#?\s+Rank\s+(?P<rank>[0-9]{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+(?P<device>[0-9]{1,9})"
    r"\s+\[[^\]]*\]\s*(?P<name>.*)$"
)
_OUT_OF_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*([0-9]{1,18})\s*(OK|FAILED)?")
_AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*(\S+)")
_STARTING = re.compile(r"^#\s*Collective test starting:\s*(\S+)")
_VERSION_LINE = re.compile(r"^#\s*nccl-tests version\s+(\S+)(?:\s+nccl-headers=(\S+))?(?:\s+nccl-library=(\S+))?")
_NCCL_VERSION = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*(\d[\w.+-]*)")
_RCCL_TESTS = re.compile(r"^#?\s*rccl-tests:\s*Version\s+(\S+)", re.IGNORECASE)
_USAGE = re.compile(r"^\s*USAGE:\s", re.IGNORECASE)
_LOG = re.compile(r"\b(?:NCCL|RCCL) (INFO|WARN|TRACE|ERROR)\b")
_FAILURE = re.compile(
    r"Test (?:NCCL |CUDA |HIP )?failure\b|Test timeout\b|unhandled (?:system|cuda) error|"
    r"^srun: error: |^slurmstepd: error: |noticed that process rank \d+|exited on signal|MPI_ABORT was invoked|"
    r"^Traceback \(most recent|^[\w.]*(?:Error|Exception): ",
    re.IGNORECASE,
)
_TIMESTAMP = (re.compile(r"^\d{4}-\d{2}-\d{2}$"), re.compile(r"^\d{2}:\d{2}:\d{2}$"))
#: The lines of our own program.
RANK_MARK = "GPUMESH-RANK "
RESULT_MARK = "GPUMESH-RESULT "
_MOST_MESSAGES = 20


def empty() -> Output:
    """An output without any content."""
    return {
        "collective": None,
        "devices": [],
        "rows": [],
        "out_of_bounds": None,
        "avg_busbw_gbps": None,
        "versions": {},
        "concluded": False,
        "usage": False,
        "failures": [],
        "warnings": [],
    }


def _lines(text: str) -> Iterator[str]:
    """Yield the lines without colours and launchers' prefixes."""
    for line in text.splitlines():
        clean = _ANSI.sub("", line)
        # Prefixes can be nested: srun -l of an mpirun.
        for _again in range(3):
            shorter = _PREFIX.sub("", clean, count=1)
            if shorter == clean:
                break
            clean = shorter
        yield clean


def _float(token: str) -> Optional[float]:
    try:
        value = float(token)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _wrong(token: str) -> Optional[int]:
    """A count, which is printed as 2.1e+06 if it is large; None for N/A."""
    value = _float(token)
    return None if value is None or value < 0 else int(value)


def _body(tokens: Sequence[str], head: Dict[str, Any], in_place: bool, counts_wrong: bool) -> Optional[Row]:
    numbers = [_float(token) for token in tokens[:3]]
    if any(number is None for number in numbers):
        return None
    return {
        "size_bytes": head["size"],
        "count": head["count"],
        "type": head["type"],
        "redop": head["redop"],
        "time_us": numbers[0],
        "algbw_gbps": numbers[1],
        "busbw_gbps": numbers[2],
        "wrong": _wrong(tokens[3]) if counts_wrong else None,
        "in_place": in_place,
    }


#: By the number of fields after redop: whether there is a root, where the bodies start, and whether they are in place.
_SHAPES: Dict[int, Tuple[bool, Tuple[Tuple[int, bool], ...]]] = {
    9: (True, ((1, False), (5, True))),
    8: (False, ((0, False), (4, True))),
    5: (True, ((1, True),)),
    17: (True, ((1, False), (9, True))),
}


def parse_row(line: str) -> List[Row]:
    """The out-of-place and the in-place row of a line of the table; empty for any other line."""
    tokens = line.split()
    if len(tokens) >= 2 and _TIMESTAMP[0].match(tokens[-2]) and _TIMESTAMP[1].match(tokens[-1]):
        tokens = tokens[:-2]
    if len(tokens) < 7 or not (tokens[0].isdecimal() and tokens[1].isdecimal()) or not tokens[2][0].isalpha():
        return []
    # Collectives that do not reduce have "none" here, and in some versions nothing.
    has_redop = tokens[3][0].isalpha()
    rest = tokens[4:] if has_redop else tokens[3:]
    if len(rest) not in _SHAPES:
        return []
    has_root, bodies = _SHAPES[len(rest)]
    if has_root and not re.match(r"^-?\d+$", rest[0]):
        return []
    try:
        head = {"size": int(tokens[0]), "count": int(tokens[1]), "type": tokens[2]}
    except ValueError:
        return []
    redop = tokens[3] if has_redop and tokens[3] != "none" else None
    # Before there was a root column, the last column was the largest rounding error, not the number of wrong values.
    rows = [_body(rest[start : start + 4], {**head, "redop": redop}, in_place, has_root) for start, in_place in bodies]
    return [row for row in rows if row is not None] if all(row is not None for row in rows) else []


def _name(program: str) -> str:
    """``all_reduce`` from ``/opt/nccl-tests/build/all_reduce_perf_mpi``."""
    return re.sub(r"_perf(_mpi)?$", "", program.rstrip("/").rsplit("/", 1)[-1])


def parse_text(text: str) -> Output:
    """Parse what was printed. Never raises: unreadable lines are skipped, and then there is no footer."""
    seen = empty()
    bounds = None
    for line in _lines(text):
        if line.startswith((RANK_MARK, RESULT_MARK)):
            _own_line(line, seen)
        elif not _log_line(line, seen) and not _table_line(line, seen):
            bounds = _OUT_OF_BOUNDS.match(line) or bounds
            _other_line(line, seen)
    if bounds is not None:
        seen["out_of_bounds"] = int(bounds.group(1))
        if bounds.group(2) == "FAILED" and not seen["out_of_bounds"]:
            # The tool reports FAILED, so a zero beside it is not trusted.
            seen["out_of_bounds"] = 1
        seen["concluded"] = seen["avg_busbw_gbps"] is not None
    seen["failures"] = seen["failures"][:_MOST_MESSAGES]
    seen["warnings"] = seen["warnings"][:_MOST_MESSAGES]
    return seen


def _log_line(line: str, seen: Output) -> bool:
    """Whether this is a line of the library's log, of which versions and warnings are kept."""
    version = _NCCL_VERSION.search(line)
    if version:
        seen["versions"].setdefault(version.group(1).lower(), version.group(2))
    log = _LOG.search(line)
    if log and log.group(1) in ("WARN", "ERROR"):
        seen["warnings"].append(line.strip())
    return log is not None


def _table_line(line: str, seen: Output) -> bool:
    """Whether this is the line of a rank or of a size."""
    device = _DEVICE.match(line)
    if device:
        seen["devices"].append(
            {
                "rank": int(device.group("rank")),
                "host": device.group("host"),
                "device": int(device.group("device")),
                "name": device.group("name").strip(),
            }
        )
    rows = [] if device else parse_row(line)
    seen["rows"] += rows
    return bool(device or rows)


def _other_line(line: str, seen: Output) -> None:
    """Parse a header, footer, usage or failure."""
    average = _AVERAGE.match(line)
    if average:
        seen["avg_busbw_gbps"] = _float(average.group(1))
    starting = _STARTING.match(line)
    if starting:
        seen["collective"] = _name(starting.group(1))
    _versions(line, seen["versions"])
    seen["usage"] = seen["usage"] or bool(_USAGE.match(line))
    if _FAILURE.search(line):
        seen["failures"].append(line.strip())


def _versions(line: str, versions: Dict[str, str]) -> None:
    tests = _VERSION_LINE.match(line)
    if tests:
        names = ("nccl-tests", "nccl-headers", "nccl-library")
        versions.update({name: value for name, value in zip(names, tests.groups()) if value})
    rccl = _RCCL_TESTS.match(line)
    if rccl:
        versions["rccl-tests"] = rccl.group(1)


def _own_line(line: str, seen: Output) -> None:
    """Parse a line of our own program: the start of a rank, or the result, which only a completed run prints."""
    mark, _space, text = line.partition(" ")
    try:
        value = from_json(text)
    except ValueError:
        return
    if not isinstance(value, dict):
        return
    if mark == RANK_MARK.strip():
        device = _device(value)
        if device is not None:
            seen["devices"].append(device)
        return
    _document(value, seen)


def _integer(value: Any) -> Optional[int]:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, str) and re.match(r"^\s*-?[0-9]{1,18}\s*$", value) else None


def _decimal(value: Any) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return _float(str(value))
    except OverflowError:
        return None


def _device(value: Dict[str, Any]) -> Optional[Device]:
    rank, host = _integer(value.get("rank")), value.get("hostname", value.get("host"))
    if rank is None or not isinstance(host, str):
        return None
    name = value.get("device_info", value.get("name"))
    return {
        "rank": rank,
        "host": host,
        "device": _integer(value.get("device")),
        "name": name if isinstance(name, str) else "",
    }


def _document(document: Dict[str, Any], seen: Output) -> None:
    """Read the known keys of a ``-J`` document, or of our own program's, into ``seen``."""
    _document_head(document, seen)
    for result in _dicts(document.get("results")):
        seen["rows"] += _document_rows(result)
    bounds, average = document.get("out_of_bounds"), document.get("average_bus_bandwidth")
    if isinstance(bounds, dict):
        seen["out_of_bounds"] = _integer(bounds.get("count"))
        if str(bounds.get("okay")).lower() == "false" and not seen["out_of_bounds"]:
            seen["out_of_bounds"] = 1
    if isinstance(average, dict):
        seen["avg_busbw_gbps"] = _decimal(average.get("bandwidth"))
    errors = document.get("errors")
    if isinstance(errors, list):
        texts = [one if isinstance(one, str) else json.dumps(one, sort_keys=True) for one in errors]
        seen["failures"] += texts[:_MOST_MESSAGES]
    # The summary is written after all sizes: it is the footer of this format.
    seen["concluded"] = seen["out_of_bounds"] is not None and isinstance(average, dict)


def _dicts(value: Any) -> List[Dict[str, Any]]:
    """The mappings in a list; empty for any other value."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _document_head(document: Dict[str, Any], seen: Output) -> None:
    """Read the program, its versions and its devices."""
    arguments = document.get("args")
    if isinstance(arguments, list) and arguments and isinstance(arguments[0], str):
        seen["collective"] = _name(arguments[0])
    if isinstance(document.get("collective"), str):
        seen["collective"] = document["collective"]
    version = _integer(document.get("nccl_version"))
    if version is not None:
        seen["versions"]["nccl"] = _dotted(version)
    for name in ("torch", "backend"):
        if isinstance(document.get(name), str):
            seen["versions"][name] = document[name]
    config = document.get("config")
    listed = document.get("devices") or (config.get("devices") if isinstance(config, dict) else None)
    devices = [_device(one) for one in _dicts(listed)]
    seen["devices"] = [device for device in devices if device is not None] or seen["devices"]


def _dotted(version: int) -> str:
    """22703 is 2.27.3; before 2.9, 2804 was 2.8.4."""
    base = 10000 if version >= 10000 else 1000
    return f"{version // base}.{version % base // 100}.{version % 100}"


def _document_rows(result: Dict[str, Any]) -> List[Row]:
    size, count = _integer(result.get("size")), _integer(result.get("count"))
    rows: List[Row] = []
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        body = result.get(key)
        if size is None or not isinstance(body, dict):
            continue
        redop = result.get("redop")
        kind = result.get("type")
        rows.append(
            {
                "size_bytes": size,
                "count": count or 0,
                "type": kind if isinstance(kind, str) else "",
                "redop": redop if isinstance(redop, str) and redop not in ("", "none") else None,
                "time_us": _decimal(body.get("time", body.get("cpu_time"))),
                "algbw_gbps": _decimal(body.get("alg_bw")),
                "busbw_gbps": _decimal(body.get("bus_bw")),
                "wrong": _integer(body.get("nwrong")),
                "in_place": in_place,
            }
        )
    return rows


def parse_json(text: str) -> Output:
    """Parse a ``-J`` file. Never raises: a truncated file counts as one without a footer."""
    seen = empty()
    try:
        document = from_json(text)
    except ValueError:
        return seen
    if isinstance(document, dict):
        _document(document, seen)
    return seen

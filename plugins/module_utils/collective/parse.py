# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the output of nccl-tests, rccl-tests and our own program, with any launcher, into one structure.

Formats: the table and footer of nccl-tests (1.x to 2.17) and rccl-tests on stdout, and the lines of our own program.
"""

from __future__ import annotations

import contextlib
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
    """Parse a line of our own program: the start of a rank, or the result, which only a completed run prints.

    A damaged line is skipped, as any other text.
    """
    mark, _space, text = line.partition(" ")
    with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError):
        value = from_json(text)
        if mark == RANK_MARK.strip():
            seen["devices"].append(_own_device(value))
        else:
            _own_result(value, seen)


def _own_device(value: Any) -> Device:
    return {
        "rank": int(value["rank"]),
        "host": str(value["host"]),
        "device": int(value["device"]),
        # Known only once PyTorch has been loaded.
        "name": str(value.get("name", "")),
    }


def _own_result(value: Any, seen: Output) -> None:
    rows, devices = [_own_row(one) for one in value["results"]], [_own_device(one) for one in value["devices"]]
    seen["out_of_bounds"] = int(value["out_of_bounds"]["count"])
    seen["avg_busbw_gbps"] = _float(str(value["average_bus_bandwidth"]["bandwidth"]))
    seen["collective"] = str(value["collective"])
    seen["versions"].update({name: str(value[name]) for name in ("torch", "backend") if name in value})
    seen["devices"] = devices
    seen["rows"] += rows
    seen["concluded"] = True


def _own_row(result: Any) -> Row:
    body = result["in_place"]
    return {
        "size_bytes": int(result["size"]),
        "count": int(result["count"]),
        "type": str(result["type"]),
        "redop": None if result["redop"] == "none" else str(result["redop"]),
        "time_us": _float(str(body["time"])),
        "algbw_gbps": _float(str(body["alg_bw"])),
        "busbw_gbps": _float(str(body["bus_bw"])),
        "wrong": int(body["nwrong"]),
        "in_place": True,
    }

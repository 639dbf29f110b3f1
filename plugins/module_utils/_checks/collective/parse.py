# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the output of nccl-tests, rccl-tests and our own program, with any launcher, into one structure.

Formats: the table and footer of nccl-tests (1.x to 2.20) and rccl-tests on stdout, and the lines of our own program.
"""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json


class RankDevice(TypedDict):
    """A rank and where it runs."""

    rank: int
    host: str
    device: Optional[int]
    name: str


class ResultRow(TypedDict):
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


class ParsedOutput(TypedDict):
    """The parsed output.

    ``concluded`` is whether the footer is present: without it, the program did not complete, whatever its exit status.
    ``failures`` are the messages of the program and the launcher; ``usage`` is whether it printed its usage instead.
    """

    collective: Optional[str]
    devices: List[RankDevice]
    rows: List[ResultRow]
    out_of_bounds: Optional[int]
    avg_busbw_gbps: Optional[float]
    versions: Dict[str, str]
    concluded: bool
    usage: bool
    failures: List[str]
    warnings: List[str]


_ANSI_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Prefixes that launchers add to lines: srun -l, mpirun --tag-output (with or without a time), prterun.
_LAUNCHER_PREFIX = re.compile(
    r"^(?:\s{0,3}\d{1,6}: ?|(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})?\[[^\[\]\s]*,[^\[\]\s]*\]"
    r"<(?:stdout|stderr|stddiag)>: ?)"
)
_DEVICE_LINE = re.compile(
    r"^#?\s+Rank\s+(?P<rank>[0-9]{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+(?P<device>[0-9]{1,9})"
    r"\s+\[[^\]]*\]\s*(?P<name>.*)$"
)
_OUT_OF_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*([0-9]{1,18})\s*(OK|FAILED)?")
_AVERAGE_LINE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*(\S+)")
_STARTING_LINE = re.compile(r"^#\s*Collective test starting:\s*(\S+)")
_VERSION_LINE = re.compile(r"^#\s*((?:nccl|rccl)-tests) version\s+(\S+)(.*)$")
#: The versions after that of the tests. From 2.18 on, nccl-tests can print its commit in parentheses before them.
_VERSION_FIELD = re.compile(r"\b((?:nccl|rccl)-(?:headers|library))=(\S+)")
_NCCL_VERSION = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*(\d[\w.+-]*)")
_RCCL_TESTS = re.compile(r"^#?\s*rccl-tests:\s*Version\s+(\S+)", re.IGNORECASE)
_USAGE_LINE = re.compile(r"^\s*USAGE:\s", re.IGNORECASE)
_LOG_LINE = re.compile(r"\b(?:NCCL|RCCL) (INFO|WARN|TRACE|ERROR)\b")
_FAILURE_LINE = re.compile(
    r"Test (?:NCCL |CUDA |HIP )?failure\b|Test timeout\b|unhandled (?:system|cuda) error|"
    r"^srun: error: |^slurmstepd[\w.-]*: error: |noticed that process rank \d+|exited on signal|MPI_ABORT was invoked|"
    r"^Traceback \(most recent|^[\w.]*(?:Error|Exception): |^Invalid number of GPUs: ",
    re.IGNORECASE,
)
#: What the dynamic linker, mpirun and the programs that start others print, such as timeout, env and setpriv.
_START_FAILURE_LINE = re.compile(
    r": error while loading shared libraries: |^(?:timeout|env|setpriv): .*: (?:Permission denied|No such file or directory)$|"
    r"was unable to (?:find the specified executable|launch the specified application as it could not access)"
)
_TIMESTAMP_PATTERNS = (re.compile(r"^\d{4}-\d{2}-\d{2}$"), re.compile(r"^\d{2}:\d{2}:\d{2}$"))
#: The lines of our own program.
RANK_MARK = "GPUMESH-RANK "
RESULT_MARK = "GPUMESH-RESULT "
_MAX_MESSAGES = 20


def make_empty_output() -> ParsedOutput:
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


def _clean_lines(text: str) -> Iterator[str]:
    """Yield the lines without colours and launchers' prefixes."""
    for line in text.splitlines():
        clean = _ANSI_SEQUENCE.sub("", line)
        # Prefixes can be nested: srun -l of an mpirun.
        for _again in range(3):
            shorter = _LAUNCHER_PREFIX.sub("", clean, count=1)
            if shorter == clean:
                break
            clean = shorter
        yield clean


def _parse_finite(token: str) -> Optional[float]:
    try:
        number = float(token)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _parse_wrong_count(token: str) -> Optional[int]:
    """A count, which is printed as 2.1e+06 if it is large; None for N/A."""
    wrong_count = _parse_finite(token)
    return None if wrong_count is None or wrong_count < 0 else int(wrong_count)


def _parse_body(
    body_tokens: Sequence[str], row_head: Dict[str, Any], is_in_place: bool, has_wrong_count: bool
) -> Optional[ResultRow]:
    body_numbers = [_parse_finite(token) for token in body_tokens[:3]]
    if any(number is None for number in body_numbers):
        return None
    return {
        "size_bytes": row_head["size"],
        "count": row_head["count"],
        "type": row_head["type"],
        "redop": row_head["redop"],
        "time_us": body_numbers[0],
        "algbw_gbps": body_numbers[1],
        "busbw_gbps": body_numbers[2],
        "wrong": _parse_wrong_count(body_tokens[3]) if has_wrong_count else None,
        "in_place": is_in_place,
    }


#: The layout of a row by the number of fields after redop: whether there is a root, where the bodies start, and whether
#: they are in place.
_ROW_LAYOUTS: Dict[int, Tuple[bool, Tuple[Tuple[int, bool], ...]]] = {
    9: (True, ((1, False), (5, True))),
    8: (False, ((0, False), (4, True))),
    5: (True, ((1, True),)),
    17: (True, ((1, False), (9, True))),
}


def parse_row(line: str) -> List[ResultRow]:
    """The out-of-place and the in-place row of a line of the table; empty for any other line."""
    row_tokens = line.split()
    if (
        len(row_tokens) >= 2
        and _TIMESTAMP_PATTERNS[0].match(row_tokens[-2])
        and _TIMESTAMP_PATTERNS[1].match(row_tokens[-1])
    ):
        row_tokens = row_tokens[:-2]
    if (
        len(row_tokens) < 7
        or not (row_tokens[0].isdecimal() and row_tokens[1].isdecimal())
        or not row_tokens[2][0].isalpha()
    ):
        return []
    # Collectives that do not reduce have "none" in this column, and in some versions nothing.
    has_redop = row_tokens[3][0].isalpha()
    body_tokens = row_tokens[4:] if has_redop else row_tokens[3:]
    if len(body_tokens) not in _ROW_LAYOUTS:
        return []
    has_root, body_layouts = _ROW_LAYOUTS[len(body_tokens)]
    if has_root and not re.match(r"^-?\d+$", body_tokens[0]):
        return []
    try:
        head = {"size": int(row_tokens[0]), "count": int(row_tokens[1]), "type": row_tokens[2]}
    except ValueError:
        return []
    redop = row_tokens[3] if has_redop and row_tokens[3] != "none" else None
    # The last column was the largest rounding error, not the number of wrong values, before there was a root column.
    rows = [
        _parse_body(body_tokens[start : start + 4], {**head, "redop": redop}, in_place, has_root)
        for start, in_place in body_layouts
    ]
    return [row for row in rows if row is not None] if all(row is not None for row in rows) else []


def _collective_name(program: str) -> str:
    """Return ``all_reduce`` for ``/opt/nccl-tests/build/all_reduce_perf_mpi``."""
    return re.sub(r"_perf(_mpi)?$", "", program.rstrip("/").rsplit("/", 1)[-1])


def parse_text(output_text: str) -> ParsedOutput:
    """Parse what was printed. Never raises: unreadable lines are skipped, and then there is no footer."""
    parsed_output = make_empty_output()
    bounds_match = None
    for line in _clean_lines(output_text):
        if line.startswith((RANK_MARK, RESULT_MARK)):
            _parse_own_line(line, parsed_output)
        elif not _parse_log_line(line, parsed_output) and not _parse_table_line(line, parsed_output):
            bounds_match = _OUT_OF_BOUNDS.match(line) or bounds_match
            _parse_other_line(line, parsed_output)
    if bounds_match is not None:
        parsed_output["out_of_bounds"] = int(bounds_match.group(1))
        if bounds_match.group(2) == "FAILED" and not parsed_output["out_of_bounds"]:
            # The tool reports FAILED, so a zero beside it is not trusted.
            parsed_output["out_of_bounds"] = 1
        parsed_output["concluded"] = parsed_output["avg_busbw_gbps"] is not None
    parsed_output["failures"] = parsed_output["failures"][:_MAX_MESSAGES]
    parsed_output["warnings"] = parsed_output["warnings"][:_MAX_MESSAGES]
    return parsed_output


def _parse_log_line(line: str, parsed_output: ParsedOutput) -> bool:
    """Whether this is a line of the library's log, of which versions and warnings are kept."""
    version = _NCCL_VERSION.search(line)
    if version:
        parsed_output["versions"].setdefault(version.group(1).lower(), version.group(2))
    log = _LOG_LINE.search(line)
    if log and log.group(1) in ("WARN", "ERROR"):
        parsed_output["warnings"].append(line.strip())
    return log is not None


def _parse_table_line(output_line: str, parsed_output: ParsedOutput) -> bool:
    """Whether this is the line of a rank or of a size."""
    device_match = _DEVICE_LINE.match(output_line)
    if device_match:
        parsed_output["devices"].append(
            {
                "rank": int(device_match.group("rank")),
                "host": device_match.group("host"),
                "device": int(device_match.group("device")),
                "name": device_match.group("name").strip(),
            }
        )
    rows = [] if device_match else parse_row(output_line)
    parsed_output["rows"] += rows
    return bool(device_match or rows)


def _parse_other_line(output_line: str, parsed_output: ParsedOutput) -> None:
    """Parse a header, footer, usage or failure."""
    average = _AVERAGE_LINE.match(output_line)
    if average:
        parsed_output["avg_busbw_gbps"] = _parse_finite(average.group(1))
    starting = _STARTING_LINE.match(output_line)
    if starting:
        parsed_output["collective"] = _collective_name(starting.group(1))
    _parse_versions(output_line, parsed_output["versions"])
    parsed_output["usage"] = parsed_output["usage"] or bool(_USAGE_LINE.match(output_line))
    if _FAILURE_LINE.search(output_line) or _START_FAILURE_LINE.search(output_line):
        parsed_output["failures"].append(output_line.strip())


def _parse_versions(line: str, versions: Dict[str, str]) -> None:
    tests = _VERSION_LINE.match(line)
    if tests:
        versions[tests.group(1)] = tests.group(2)
        versions.update(dict(_VERSION_FIELD.findall(tests.group(3))))
    rccl = _RCCL_TESTS.match(line)
    if rccl:
        versions["rccl-tests"] = rccl.group(1)


def _parse_own_line(line: str, parsed_output: ParsedOutput) -> None:
    """Parse a line of our own program: the start of a rank, or the result, which only a completed run prints.

    A damaged line is skipped, as any other text.
    """
    mark, _space, json_text = line.partition(" ")
    with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError):
        json_document = parse_json(json_text)
        if mark == RANK_MARK.strip():
            parsed_output["devices"].append(_parse_own_device(json_document))
        else:
            _parse_own_result(json_document, parsed_output)


def _parse_own_device(device_document: Any) -> RankDevice:
    return {
        "rank": int(device_document["rank"]),
        "host": str(device_document["host"]),
        "device": int(device_document["device"]),
        # The name is known only once PyTorch has been loaded.
        "name": str(device_document.get("name", "")),
    }


def _parse_own_result(result_document: Any, parsed_output: ParsedOutput) -> None:
    rows, devices = (
        [_parse_own_row(entry) for entry in result_document["results"]],
        [_parse_own_device(entry) for entry in result_document["devices"]],
    )
    parsed_output["out_of_bounds"] = int(result_document["out_of_bounds"]["count"])
    parsed_output["avg_busbw_gbps"] = _parse_finite(str(result_document["average_bus_bandwidth"]["bandwidth"]))
    parsed_output["collective"] = str(result_document["collective"])
    parsed_output["versions"].update(
        {name: str(result_document[name]) for name in ("torch", "backend") if name in result_document}
    )
    parsed_output["devices"] = devices
    parsed_output["rows"] += rows
    parsed_output["concluded"] = True


def _parse_own_row(result: Any) -> ResultRow:
    in_place_body = result["in_place"]
    return {
        "size_bytes": int(result["size"]),
        "count": int(result["count"]),
        "type": str(result["type"]),
        "redop": None if result["redop"] == "none" else str(result["redop"]),
        "time_us": _parse_finite(str(in_place_body["time"])),
        "algbw_gbps": _parse_finite(str(in_place_body["alg_bw"])),
        "busbw_gbps": _parse_finite(str(in_place_body["bus_bw"])),
        "wrong": int(in_place_body["nwrong"]),
        "in_place": True,
    }

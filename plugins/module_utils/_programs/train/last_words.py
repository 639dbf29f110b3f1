# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the error that has ended a rank in its last output."""

from __future__ import annotations

from functools import lru_cache
from typing import List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable, strip_terminal_codes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import error_words as error_patterns
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.output_lines import (
    OutputLine,
    parse_lines,
)

#: The maximum number of characters of a message that are shown.
_MAX_MESSAGE_LENGTH = 300
#: The maximum number of lines of a message, apart from indented ones.
_MAX_MESSAGE_LINES = 12
#: The number of ordinary lines after an error that show that the program has handled it.
_HANDLED_AFTER_LINES = 10


class ReportedError(NamedTuple):
    """One error in the output.

    ``is_last``: no other output follows it; ``is_consequence``: the peer of the rank is to blame;
    ``maybe_consequence``: a peer or an external server is; ``lines_before``: the number of ordinary lines before it;
    ``preceding_error``: the error after which it occurred, according to Python.
    """

    text: str
    rank: Optional[int]
    is_last: bool
    is_consequence: bool
    maybe_consequence: bool
    lines_before: int
    preceding_error: str = ""


class RootCause(NamedTuple):
    """The process that failed first according to torchrun: its rank, its exit code, and its error if known."""

    rank: int
    exit_code: int
    reported_error: str


@lru_cache(maxsize=1024)
def find_errors(tail: str) -> Sequence[ReportedError]:
    """Return the errors in the output that can have ended the program, the first one first."""
    scan = _ErrorScan(parse_lines(tail))
    scan.run()
    return tuple(error for error in scan.errors if error.text)


class _ErrorScan:
    """Find the errors in lines, from the first to the last."""

    def __init__(self, output_lines: Sequence[OutputLine]) -> None:
        self._output_lines = output_lines
        self._index = 0
        self._previous_error = ""
        #: The error that was the direct cause of the next one.
        self._direct_cause = ""
        #: The direct cause of the next error, or the error during whose handling it occurred.
        self._preceding_error = ""
        #: Whether Python reports the next error without ending the program.
        self._next_ignored = False
        #: The number of lines so far that belong to no error.
        self._ordinary_lines = 0
        self.errors: List[ReportedError] = []

    def run(self) -> None:
        """Fill ``errors``."""
        while self._index < len(self._output_lines):
            start_index, line = self._index, self._output_lines[self._index]
            frame_match = error_patterns.FRAME_LINE.match(line.text)
            if frame_match:
                self._index = _skip_frames(self._output_lines, start_index, len(frame_match.group("indent")))
                self._read_exception()
            elif (
                line.fatal
                or error_patterns.EXCEPTION_NAME.match(line.text)
                or error_patterns.FATAL_LINE.search(line.text)
            ):
                self._add_error(*_read_message(self._output_lines, start_index), line.rank)
            elif line.text.startswith("terminate called after throwing"):
                self._read_cpp_exception()
            elif line.text.strip() == error_patterns.ROOT_CAUSE:
                self._index = _skip_block(self._output_lines, start_index)
            elif error_patterns.IGNORED_EXCEPTION.match(line.text):
                self._next_ignored = True
            elif line.text == error_patterns.DIRECT_CAUSE:
                self._direct_cause = self._preceding_error = self._previous_error
            elif line.text == error_patterns.DURING_HANDLING:
                self._preceding_error = self._previous_error
            elif line.text and not _starts_entry(line):
                self._ordinary_lines += 1
            self._index = max(self._index, start_index + 1)

    def _read_exception(self) -> None:
        """Read the exception below the frames of a stack."""
        if self._index < len(self._output_lines) and error_patterns.EXCEPTION_LINE.match(
            self._output_lines[self._index].text
        ):
            rank = self._output_lines[self._index].rank
            message, next_index = _read_message(self._output_lines, self._index)
            if not self._next_ignored:
                self._add_error(message, next_index, rank)
            self._index, self._next_ignored, self._direct_cause, self._preceding_error = next_index, False, "", ""

    def _read_cpp_exception(self) -> None:
        """Read the message of an exception of C++, in the line below."""
        if self._index + 1 < len(self._output_lines) and self._output_lines[self._index + 1].text.strip().startswith(
            "what():"
        ):
            self._index += 1
            message, next_index = _read_message(self._output_lines, self._index)
            self._add_error(message[len("what():") :].strip(), next_index, self._output_lines[self._index].rank)

    def _add_error(self, message: str, next_index: int, rank: Optional[int]) -> None:
        first_index, lines_before, self._index = self._index, self._ordinary_lines, next_index
        self._ordinary_lines += sum(
            1 for line in self._output_lines[first_index + 1 : next_index] if not line.text[:1].isspace()
        )
        if error_patterns.SECONDARY_ERROR.search(message):
            if not self._previous_error:
                return
            message = self._previous_error
        is_last = not any(line.text for line in self._output_lines[first_index + 1 :])
        is_consequence = names_peer(message) or names_peer(self._direct_cause)
        maybe_consequence = any(
            error_patterns.CONNECTION_ERROR.search(candidate) for candidate in (message, self._direct_cause)
        )
        self.errors.append(
            ReportedError(
                error_patterns.WRAPPER_TEXT.sub("", message),
                rank,
                is_last,
                is_consequence,
                maybe_consequence,
                lines_before,
                self._preceding_error,
            )
        )
        self._previous_error = message


def _skip_frames(output_lines: Sequence[OutputLine], line_index: int, indent: int) -> int:
    """Return the index of the first line that does not belong to the frames of a stack."""
    while line_index < len(output_lines):
        text = output_lines[line_index].text
        if text and len(text) - len(text.lstrip()) < indent:
            return line_index
        if not text and not indent:
            return line_index
        line_index += 1
    return line_index


def _skip_block(output_lines: Sequence[OutputLine], line_index: int) -> int:
    while line_index < len(output_lines) and output_lines[line_index].text:
        line_index += 1
    return line_index


def _read_message(output_lines: Sequence[OutputLine], line_index: int) -> Tuple[str, int]:
    """Return the message that begins in a line, and the index of the line after it."""
    first_line = output_lines[line_index]
    message_parts = [first_line.text.strip()]
    line_index += 1
    if first_line.text.endswith(":"):
        # The message begins with an empty line.
        while line_index < len(output_lines) and not output_lines[line_index].text:
            line_index += 1
    while (
        line_index < len(output_lines)
        and output_lines[line_index].text
        and output_lines[line_index].rank == first_line.rank
        and not _starts_entry(output_lines[line_index])
    ):
        if not output_lines[line_index].text[0].isspace() and len(message_parts) > _MAX_MESSAGE_LINES:
            break
        message_parts.append(output_lines[line_index].text.strip())
        line_index += 1
    return " ".join(message_parts), line_index


def _starts_entry(line: OutputLine) -> bool:
    """Whether the line starts something new instead of continuing a message."""
    text = line.text
    return bool(
        line.fatal
        or line.logged
        or (error_patterns.EXCEPTION_NAME.match(text) and not text.startswith("nccl"))
        or text.startswith(("Traceback", "Original Traceback", "terminate called", "Exception in thread", '"""'))
        or text in (error_patterns.DIRECT_CAUSE, error_patterns.DURING_HANDLING)
        or error_patterns.FRAME_LINE.match(text)
        or error_patterns.IGNORED_EXCEPTION.match(text)
        or error_patterns.FATAL_LINE.search(text)
    )


def names_peer(text: str) -> bool:
    """Whether an error only says that a peer is gone or late."""
    peer_match = error_patterns.PEER_ERROR.search(text) or (
        error_patterns.CONNECTION_ERROR.search(text) and error_patterns.BETWEEN_RANKS.search(text)
    )
    return bool(peer_match) and not error_patterns.LOCAL_ERROR.search(text)


def find_root_cause(tail: str) -> Optional[RootCause]:
    """Return what torchrun names as the root cause, if it has run the program."""
    _before, marker, block = strip_terminal_codes(tail).rpartition(error_patterns.ROOT_CAUSE)
    if not marker:
        return None
    root_rank, exit_code, root_error = -1, 1, ""
    block_lines = block.splitlines()
    for line_index, line in enumerate(block_lines):
        for pattern in (error_patterns.ROOT_RANK, error_patterns.ROOT_CODE):
            field_match = pattern.match(line)
            if field_match and pattern is error_patterns.ROOT_RANK:
                root_rank = int(field_match.group(1))
            elif field_match:
                exit_code = int(field_match.group(1))
        trace_match = error_patterns.ROOT_TRACE.match(line)
        if trace_match and trace_match.group(1).startswith("Traceback"):
            inner_errors = [
                error
                for error in find_errors("\n".join([trace_match.group(1), *block_lines[line_index + 1 :]]))
                if not error.is_consequence
            ]
            root_error = inner_errors[-1].text if inner_errors else ""
    return RootCause(root_rank, exit_code, root_error) if root_rank >= 0 else None


def choose_error(tail: str, rank: Optional[int] = None) -> Optional[ReportedError]:
    """Return the error that ended the program: its last own error, or else the last one that names a peer.

    An error of its own was handled if the program has then continued for a while. ``rank``: only errors with the prefix
    of this rank, if there are any.
    """
    candidates = find_errors(tail)
    if rank is not None:
        candidates = [error for error in candidates if error.rank == rank] or candidates
    own_errors = [
        error
        for error in candidates
        if not error.is_consequence and candidates[-1].lines_before - error.lines_before < _HANDLED_AFTER_LINES
    ]
    candidates = own_errors or candidates
    return candidates[-1] if candidates else None


def last_line(tail: str) -> str:
    """Return the last line that is not empty."""
    text_lines = [line.text.strip() for line in parse_lines(tail) if line.text.strip()]
    return text_lines[-1] if text_lines else ""


def shorten(text: str) -> str:
    """Return the message in one line of limited length, without control characters."""
    return printable(" ".join(text.split()))[:_MAX_MESSAGE_LENGTH]


def find_hardware_error(tail: str) -> str:
    """Return the text in the output that shows a fault of the node's hardware or driver; empty if there is none."""
    hardware_match = error_patterns.HARDWARE_ERROR.search(strip_terminal_codes(tail))
    return hardware_match.group() if hardware_match else ""


def reports_out_of_memory(tail: str) -> bool:
    """Whether Slurm or the kernel reports in the output that the memory of the job was used up."""
    return bool(error_patterns.OUT_OF_MEMORY.search(strip_terminal_codes(tail)))


def reports_killed_process(tail: str) -> bool:
    """Whether the program's error is that one of its own processes was killed."""
    fatal_error = choose_error(tail)
    return fatal_error is not None and error_patterns.KILLED_PROCESS.search(fatal_error.text) is not None


def find_final_error(tail: str) -> str:
    """Return the rank's own error with which its output ends; empty if there is none. The rank may still run."""
    output_errors = find_errors(tail)
    return (
        shorten(output_errors[-1].text)
        if output_errors and output_errors[-1].is_last and not output_errors[-1].is_consequence
        else ""
    )

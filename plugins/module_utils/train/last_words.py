# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the last output of a rank: which error has ended it."""

from __future__ import annotations

from functools import lru_cache
from typing import List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable, untyped
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import error_words as words
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.output_lines import Line, lines

#: The characters of a message that are shown.
_LONGEST = 300
#: The number of lines of a message, apart from those that are indented.
_LINES = 12
#: The number of ordinary lines after an error by which the program has handled it.
_HANDLED = 10


class Error(NamedTuple):
    """One error in the output. ``last``: no other output follows it; ``follows``: the peer of the rank is to blame;
    ``perhaps``: a peer, or a server outside; ``passed``: the number of ordinary lines before it; ``before``: the error after which it occurred, according to Python.
    """

    text: str
    rank: Optional[int]
    last: bool
    follows: bool
    perhaps: bool
    passed: int
    before: str = ""


class Root(NamedTuple):
    """What torchrun says of the process that failed first: its rank, its exit code, and its error if known."""

    rank: int
    status: int
    error: str


@lru_cache(maxsize=1024)
def errors(tail: str) -> Sequence[Error]:
    """The errors in the output that can have ended the program, the first one first."""
    scan = _Scan(lines(tail))
    scan.run()
    return tuple(error for error in scan.found if error.text)


class _Scan:
    """Finds the errors in lines, from the first to the last."""

    def __init__(self, read: Sequence[Line]) -> None:
        self._read = read
        self._at = 0
        self._previous = ""
        #: The error that was the direct cause of the next one.
        self._caused = ""
        #: The same, or the error during the handling of which the next one occurred.
        self._before = ""
        #: Python reports the next one without ending the program.
        self._ignored = False
        #: The number of lines so far that belong to no error.
        self._passed = 0
        self.found: List[Error] = []

    def run(self) -> None:
        """Fill ``found``."""
        while self._at < len(self._read):
            start, line = self._at, self._read[self._at]
            frames = words.FRAME_LINE.match(line.text)
            if frames:
                self._at = _after_frames(self._read, start, len(frames.group("indent")))
                self._exception()
            elif line.fatal or words.NAMED.match(line.text) or words.FATAL.search(line.text):
                self._add(*_message(self._read, start), line.rank)
            elif line.text.startswith("terminate called after throwing"):
                self._thrown()
            elif line.text.strip() == words.ROOT:
                self._at = _after_block(self._read, start)
            elif words.IGNORED.match(line.text):
                self._ignored = True
            elif line.text == words.CAUSED:
                self._caused = self._before = self._previous
            elif line.text == words.DURING:
                self._before = self._previous
            elif line.text and not _begins(line):
                self._passed += 1
            self._at = max(self._at, start + 1)

    def _exception(self) -> None:
        """The exception below the frames of a stack."""
        if self._at < len(self._read) and words.EXCEPTION.match(self._read[self._at].text):
            rank = self._read[self._at].rank
            text, after = _message(self._read, self._at)
            if not self._ignored:
                self._add(text, after, rank)
            self._at, self._ignored, self._caused, self._before = after, False, "", ""

    def _thrown(self) -> None:
        """The message of an exception of C++, in the line below."""
        if self._at + 1 < len(self._read) and self._read[self._at + 1].text.strip().startswith("what():"):
            self._at += 1
            text, after = _message(self._read, self._at)
            self._add(text[len("what():") :].strip(), after, self._read[self._at].rank)

    def _add(self, text: str, after: int, rank: Optional[int]) -> None:
        first, passed, self._at = self._at, self._passed, after
        self._passed += sum(1 for line in self._read[first + 1 : after] if not line.text[:1].isspace())
        if words.EMPTY.search(text):
            if not self._previous:
                return
            text = self._previous
        last = not any(line.text for line in self._read[first + 1 :])
        follows = names_peer(text) or names_peer(self._caused)
        perhaps = any(words.CONNECTION.search(one) for one in (text, self._caused))
        self.found.append(Error(words.WRAPPED.sub("", text), rank, last, follows, perhaps, passed, self._before))
        self._previous = text


def _after_frames(read: Sequence[Line], rest: int, indent: int) -> int:
    """The index of the first line that does not belong to the frames of a stack."""
    while rest < len(read):
        text = read[rest].text
        if text and len(text) - len(text.lstrip()) < indent:
            return rest
        if not text and not indent:
            return rest
        rest += 1
    return rest


def _after_block(read: Sequence[Line], rest: int) -> int:
    while rest < len(read) and read[rest].text:
        rest += 1
    return rest


def _message(read: Sequence[Line], rest: int) -> Tuple[str, int]:
    """The message that begins in a line, and the index of the line after it."""
    first = read[rest]
    parts = [first.text.strip()]
    rest += 1
    if first.text.endswith(":"):
        # The message begins with an empty line.
        while rest < len(read) and not read[rest].text:
            rest += 1
    while rest < len(read) and read[rest].text and read[rest].rank == first.rank and not _begins(read[rest]):
        if not read[rest].text[0].isspace() and len(parts) > _LINES:
            break
        parts.append(read[rest].text.strip())
        rest += 1
    return " ".join(parts), rest


def _begins(line: Line) -> bool:
    """Whether the line begins something else than the rest of a message."""
    text = line.text
    return bool(
        line.fatal
        or line.logged
        or (words.NAMED.match(text) and not text.startswith("nccl"))
        or text.startswith(("Traceback", "Original Traceback", "terminate called", "Exception in thread", '"""'))
        or text in (words.CAUSED, words.DURING)
        or words.FRAME_LINE.match(text)
        or words.IGNORED.match(text)
        or words.FATAL.search(text)
    )


def names_peer(text: str) -> bool:
    """Whether an error only says that a peer is gone or late."""
    peer = words.CONSEQUENCE.search(text) or (words.CONNECTION.search(text) and words.BETWEEN_RANKS.search(text))
    return bool(peer) and not words.OWN.search(text)


def root(tail: str) -> Optional[Root]:
    """What torchrun names as the root cause, if it has run the program."""
    _before, found, block = untyped(tail).rpartition(words.ROOT)
    if not found:
        return None
    rank, status, trace = -1, 1, ""
    rest = block.splitlines()
    for number, line in enumerate(rest):
        for pattern in (words.ROOT_RANK, words.ROOT_CODE):
            named = pattern.match(line)
            if named and pattern is words.ROOT_RANK:
                rank = int(named.group(1))
            elif named:
                status = int(named.group(1))
        told = words.ROOT_TRACE.match(line)
        if told and told.group(1).startswith("Traceback"):
            within = [error for error in errors("\n".join([told.group(1), *rest[number + 1 :]])) if not error.follows]
            trace = within[-1].text if within else ""
    return Root(rank, status, trace) if rank >= 0 else None


def chosen(tail: str, rank: Optional[int] = None) -> Optional[Error]:
    """The error that ended the program: the last one of its own, or else the last one that names a peer.

    An error of its own was handled if the program has then gone on for a while. ``rank``: only errors with the prefix of
    this rank, if there are any.
    """
    found = errors(tail)
    if rank is not None:
        found = [error for error in found if error.rank == rank] or found
    own = [error for error in found if not error.follows and found[-1].passed - error.passed < _HANDLED]
    found = own or found
    return found[-1] if found else None


def last_line(tail: str) -> str:
    """The last line that says something."""
    said = [line.text.strip() for line in lines(tail) if line.text.strip()]
    return said[-1] if said else ""


def shortened(text: str) -> str:
    """A message of one line, without control characters and of limited length."""
    return printable(" ".join(text.split()))[:_LONGEST]


def hardware(tail: str) -> str:
    """The words in the output by which the hardware or the driver of the node is at fault; empty if there are none."""
    found = words.HARDWARE.search(untyped(tail))
    return found.group() if found else ""


def memory(tail: str) -> bool:
    """Whether Slurm or the kernel say in the output that the memory of the job was used up."""
    return bool(words.MEMORY.search(untyped(tail)))


def lost_process(tail: str) -> bool:
    """Whether the error of the program is that a process of its own was killed."""
    told = chosen(tail)
    return told is not None and words.LOST.search(told.text) is not None


def failed(tail: str) -> str:
    """The error of the rank itself with which its output ends; empty if there is none. It may yet live."""
    found = errors(tail)
    return shortened(found[-1].text) if found and found[-1].last and not found[-1].follows else ""

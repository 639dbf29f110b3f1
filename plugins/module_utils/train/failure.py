# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether attempts have failed in the same way: at the same place of the program, for the same reason."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Sequence, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt

#: The kinds of causes for which the program may be to blame.
OF_PROGRAM = ("crash", "hang", "start")
#: Seconds: a program that fails sooner, before it has reported a step, has failed at its start.
_START = 300.0
#: Who has failed, and how many others then did: cause writes both around the error.
_CULPRIT = re.compile(r"^rank \d+ on \S+(?::| is) ")
_OTHERS = re.compile(r"(?: \(\d+ other ranks? failed after it\)|; \d+ other ranks? gave up waiting for it: .*)$")
#: The error of a rank of which nothing is known but that it was killed.
_KILLED = re.compile(r"killed by (?:SIG[A-Z0-9]+|signal \d+)")
#: What differs between two reports of the same error, and what is compared instead. The order matters: a time may
#: contain what looks like a size.
_VARYING = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        # The prefixes of PyTorch, of srun --label, and of the loggers of Google and of containers.
        (r"\[?\b[Rr]ank ?:?=? ?\d+\]?:?", "RANK"),
        (r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "TIME"),
        (r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?", "TIME"),
        (r"\b[IWEF]\d{3,4} TIME(?: +\d+)?", "TIME"),
        (r"\b0x[0-9a-fA-F]+", "ADDRESS"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?:[:<]\d+>?)?", "ADDRESS"),
        (r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}(?:%\w+)?(?![\w:])", "ADDRESS"),
        (r"(?i)\b(pid|tid|process|thread|port)([ :=(#]*)\d+", r"\1 NUMBER"),
        (r"\b\d+(?:\.\d+)? ?(?:[KMGTP]i?B|[kmgt]b|bytes|ms|milliseconds|us|s|secs?|seconds)\b", "SIZE"),
    )
)


class Failure(NamedTuple):
    """What two attempts must have in common. ``step``: the step reported last, or "start" before the first one."""

    kind: str
    error: str
    step: Union[int, str]


def error(attempt: Attempt) -> str:
    """The error of an attempt without what differs between ranks, nodes and times; empty if none is known."""
    if attempt.cause is None:
        return ""
    text = _OTHERS.sub("", _CULPRIT.sub("", attempt.cause.detail))
    for node in sorted(attempt.nodes, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "NODE", text)
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text


def of(attempt: Attempt) -> Optional[Failure]:
    """How an attempt has failed; None if it has not, or if too little is known to compare it with others.

    A rank that was killed may have been killed by anything. If the program reports no steps either, three of them have
    nothing in common.
    """
    cause = attempt.cause
    if cause is None or cause.kind not in OF_PROGRAM:
        return None
    if attempt.last is not None:
        return Failure(cause.kind, error(attempt), attempt.last)
    lasted = (attempt.begin if attempt.end is None else attempt.end) - attempt.begin
    if _KILLED.fullmatch(error(attempt)) or lasted > _START:
        return None
    return Failure(cause.kind, error(attempt), "start")


def same(attempts: Sequence[Attempt]) -> bool:
    """Whether these attempts have all failed in the same way at the same step."""
    failures = {of(attempt) for attempt in attempts}
    return len(failures) == 1 and None not in failures

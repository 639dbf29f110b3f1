# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether attempts have failed in the same way: at the same place of the program, for the same reason."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, Optional, Sequence, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import cause as causes
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import error_words as words
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt

#: The kinds of causes for which the program may be to blame.
OF_PROGRAM = ("crash", "hang", "start")
#: Seconds: a program that fails sooner, before it has reported a step, has failed at its start.
_START = 300.0
#: Who has failed, and how many others then did: cause writes both around the error.
_CULPRIT = re.compile(r"^rank \d+ on \S+(?::| is) ")
_OTHERS = re.compile(
    r"(?: \(\d+ other ranks? failed after it\)|; \d+ other ranks? gave up waiting for it: .*|; the others wait for it\b.*)$"
)
#: A signal that others send, rather than one by which a process ends because of its own error.
_SENT = rf"(?:SIG(?!(?:{'|'.join(sorted(number.name[3:] for number in causes.OWN_SIGNALS))})\b)[A-Z0-9]+|signal \d+)"
#: The end of a rank, or of the rank that torchrun names, of which nothing is known but that it was killed. What a shell or
#: podman have printed before they tell of the signal is not its error.
_KILLED = re.compile(
    rf"(?:exit status \d+(?: \(\w+\))?: torchrun's rank \d+: )?(?:killed by {_SENT}|exit status \d+ \({_SENT}\)(?:: .*)?)"
)
#: The characters of an error that are compared: it is shortened where what differs has not been removed yet.
_COMPARED = 200
#: What has another number on each node, or in each attempt.
_NUMBERED = r"pid|tid|daemon|process|thread|port|worker|seqnum|gpu|gpu node|device|device ordinal|\bcuda"
#: What differs between two reports of the same error, and what is compared instead. The order matters: a time may
#: contain what looks like a size.
_VARYING = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        # The prefixes of PyTorch, of srun --label, and of the loggers of Google and of containers.
        (r"(?i)\[?(?:\b|_)ranks?[ :=_-]{0,2}\d+(?:, ?\d+)*\]?:?", "RANK"),
        # Files of which each rank has one: rng_state_0.pth, __1_0.distcp, model-00001-of-00004.safetensors.
        (r"(?i)(?<=[a-z][_.-])\d+(?=\.(?:pt|pth|bin|ckpt|pkl)\b)|__\d+_\d+(?=\.distcp)", "NUMBER"),
        (r"\b\d+-of-\d+\b", "NUMBER"),
        (r"\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "TIME"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "ID"),
        # A device on the PCI bus, before what looks like a time.
        (
            r"(?<![0-9a-fA-F:])(?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?(?!\w|:\w)",
            "DEVICE",
        ),
        (r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?", "TIME"),
        (r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2}(?: TIME)?(?: \d{4}\b)?", "TIME"),
        # Seconds since 1970, of this century.
        (r"\b[12]\d{9}(?:\.\d+)?\b(?!\.)", "TIME"),
        (r"\b[IWEF]\d{3,4} TIME(?: +\d+)?", "TIME"),
        (r"\b0x[0-9a-fA-F]+", "ADDRESS"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ADDRESS"),
        (r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}(?:[0-9a-fA-F]{0,4}|ADDRESS)(?:%[\w.-]+)?(?![\w:])", "ADDRESS"),
        (
            r"(?<![\w:.])(?:[0-9a-fA-F]{1,4})?::(?:[0-9a-fA-F]{1,4}(?::ADDRESS)?|ADDRESS)?(?:%[\w.-]+)?(?![\w:])",
            "ADDRESS",
        ),
        (r"\[?\bADDRESS\b\]?(?:(?:[:<|]|', )\d+>?)?", "ADDRESS"),
        # A node with its domain, and the port, process or thread there, as NCCL and UCX write them.
        (r"\bNODE(?:\.[A-Za-z][\w-]*)*(?:[:<]\d+>?(?: *:\d+)*)?(?: \[\d+\](?= NCCL))?", "NODE"),
        # A shell tells of the process that was killed, syslog and the kernel of the one that has written a line.
        (r"(\bline \d+: +)\d+(?= +[A-Z])", r"\1NUMBER"),
        (r"((?:^|: )|\b[A-Za-z][\w.+-]*)\[\d{3,}\](?=:? )", r"\1[NUMBER]"),
        (
            rf"(?i)({_NUMBERED})(\(s\)|s)?((?: '[^']*')?[ :=(#<\[-]*)\d+(?:, ?\d+)*\b(?!\.\d)",
            r"\1\2\3NUMBER",
        ),
        (r"(?i)(step|iteration|\biter|epoch|checkpoint|ckpt)(s?[ :=_#-]*)\d+", r"\1\2NUMBER"),
        (r"(?i)(at step|the others at) \d+", r"\1 NUMBER"),
        # Temporary names of Python, its multiprocessing, PyTorch and NCCL.
        (r"/(tmp|pymp-|torch_|nccl-|sem\.|gpumesh-train-)(?!/)\w+", r"/\1NAME"),
        (
            r"\b\d+(?:\.\d+)? ?(?:[KMGTP]i?B|[kmgt]b|bytes|ms|milliseconds|us|s|secs?|seconds|min|minutes|h|hours)\b",
            "SIZE",
        ),
    )
)


class Failure(NamedTuple):
    """What two attempts must have in common. ``step``: the step reported last, or "start" before the first one."""

    kind: str
    error: str
    step: Union[int, str]


def _said(attempt: Attempt) -> str:
    """The error of an attempt without who has failed, and how many others then did."""
    return "" if attempt.cause is None else _OTHERS.sub("", _CULPRIT.sub("", attempt.cause.detail))


@lru_cache(maxsize=1024)
def error(attempt: Attempt) -> str:
    """The error of an attempt without what differs between ranks, nodes, steps and times; empty if none is known."""
    text = _said(attempt)
    for node in sorted(attempt.nodes, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "NODE", text)
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text[:_COMPARED]


def killed(attempt: Attempt) -> bool:
    """Whether nothing is known of a failure but that a process was killed, which anything may have done."""
    text = _said(attempt)
    return causes.USED_UP not in text and bool(_KILLED.fullmatch(text) or words.LOST.search(text))


def of_job(attempt: Attempt) -> bool:
    """Whether an attempt has failed since the memory of the job was used up, which is no fault of a node."""
    return causes.USED_UP in _said(attempt)


def lasted(attempt: Attempt) -> float:
    """The seconds that an attempt has run; 0 if it has not ended."""
    return (attempt.begin if attempt.end is None else attempt.end) - attempt.begin


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
    if killed(attempt) or lasted(attempt) > _START:
        return None
    return Failure(cause.kind, error(attempt), "start")


def same(attempts: Sequence[Attempt]) -> bool:
    """Whether these attempts have all failed in the same way at the same step."""
    failures = {of(attempt) for attempt in attempts}
    return len(failures) == 1 and None not in failures

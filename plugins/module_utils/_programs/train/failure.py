# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare failures: whether attempts have failed at the same point of the program, for the same reason."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, Optional, Sequence, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import attribution as causes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import error_words as error_patterns
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Attempt

#: The kinds of causes for which the program may be to blame.
PROGRAM_KINDS = ("crash", "hang", "start")
#: Seconds: a program that fails sooner, before it has reported a step, has failed at its start.
_START_SECONDS = 300.0
#: Text that the attribution writes before an error, the rank that has failed, and after it, how many others then did.
_CULPRIT_PREFIX = re.compile(r"^rank \d+ on \S+(?::| is) ")
_OTHER_RANKS_SUFFIX = re.compile(
    r"(?: \(\d+ other ranks? failed after it\)|; \d+ other ranks? gave up waiting for it: .*|; the others wait for it\b.*)$"
)
#: A signal that others send, rather than one by which a process ends because of its own error.
_EXTERNAL_SIGNAL = (
    rf"(?:SIG(?!(?:{'|'.join(sorted(number.name[3:] for number in causes.CRASH_SIGNALS))})\b)[A-Z0-9]+|signal \d+)"
)
#: The message for a rank, or the rank that torchrun names, of which nothing is known but that it was killed. The output
#: of a shell or podman before they report the signal is not its error.
_KILLED_MESSAGE = re.compile(
    rf"(?:exit status \d+(?: \(\w+\))?: torchrun's rank \d+: )?(?:killed by {_EXTERNAL_SIGNAL}|exit status \d+ \({_EXTERNAL_SIGNAL}\)(?:: .*)?)"
)
#: The number of characters of an error that are compared, since a message is shortened before its varying parts are
#: removed.
_COMPARED_LENGTH = 200
#: Nouns before a number that differs between nodes or attempts.
_NUMBERED_NOUNS = r"pid|tid|daemon|process|thread|port|worker|seqnum|gpu|gpu node|device|device ordinal|\bcuda"
#: Patterns of what differs between two reports of the same error, with what is compared instead. The order matters: a
#: time may contain what looks like a size.
_VARYING_PARTS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        # PyTorch, srun --label, and the loggers of Google and of containers put such prefixes before a line.
        (r"(?i)\[?(?:\b|_)ranks?[ :=_-]{0,2}\d+(?:, ?\d+)*\]?:?", "RANK"),
        # Each rank has its own file: rng_state_0.pth, __1_0.distcp, model-00001-of-00004.safetensors.
        (r"(?i)(?<=[a-z][_.-])\d+(?=\.(?:pt|pth|bin|ckpt|pkl)\b)|__\d+_\d+(?=\.distcp)", "NUMBER"),
        (r"\b\d+-of-\d+\b", "NUMBER"),
        (r"\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "TIME"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "ID"),
        # A device on the PCI bus comes first, since it looks like a time.
        (
            r"(?<![0-9a-fA-F:])(?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?(?!\w|:\w)",
            "DEVICE",
        ),
        (r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?", "TIME"),
        (r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2}(?: TIME)?(?: \d{4}\b)?", "TIME"),
        # Seconds since 1970 have ten digits in this century.
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
        # NCCL and UCX write a node with its domain, and the port, process or thread there.
        (r"\bNODE(?:\.[A-Za-z][\w-]*)*(?:[:<]\d+>?(?: *:\d+)*)?(?: \[\d+\](?= NCCL))?", "NODE"),
        # A shell names the process that was killed, syslog and the kernel the process that has written the line.
        (r"(\bline \d+: +)\d+(?= +[A-Z])", r"\1NUMBER"),
        (r"((?:^|: )|\b[A-Za-z][\w.+-]*)\[\d{3,}\](?=:? )", r"\1[NUMBER]"),
        (
            rf"(?i)({_NUMBERED_NOUNS})(\(s\)|s)?((?: '[^']*')?[ :=(#<\[-]*)\d+(?:, ?\d+)*\b(?!\.\d)",
            r"\1\2\3NUMBER",
        ),
        (r"(?i)(step|iteration|\biter|epoch|checkpoint|ckpt)(s?[ :=_#-]*)\d+", r"\1\2NUMBER"),
        (r"(?i)(at step|the others at) \d+", r"\1 NUMBER"),
        # Python, its multiprocessing, PyTorch and NCCL make up temporary names.
        (r"/(tmp|pymp-|torch_|nccl-|sem\.|gpumesh-train-)(?!/)\w+", r"/\1NAME"),
        (
            r"\b\d+(?:\.\d+)? ?(?:[KMGTP]i?B|[kmgt]b|bytes|ms|milliseconds|us|s|secs?|seconds|min|minutes|h|hours)\b",
            "SIZE",
        ),
    )
)


class FailureSignature(NamedTuple):
    """The properties that two attempts share if their failures are the same.

    ``step``: the last reported step, or "start" before the first one.
    """

    kind: str
    error: str
    step: Union[int, str]


def _bare_error(attempt: Attempt) -> str:
    """Return the error of an attempt, without the rank that has failed and without how many others then did."""
    return "" if attempt.cause is None else _OTHER_RANKS_SUFFIX.sub("", _CULPRIT_PREFIX.sub("", attempt.cause.detail))


@lru_cache(maxsize=1024)
def normalized_error(attempt: Attempt) -> str:
    """Return the error of an attempt without what differs between ranks, nodes, steps and times.

    The result is empty if no error is known.
    """
    error_text = _bare_error(attempt)
    for node in sorted(attempt.nodes, key=len, reverse=True):
        error_text = re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "NODE", error_text)
    for pattern, replacement in _VARYING_PARTS:
        error_text = pattern.sub(replacement, error_text)
    return error_text[:_COMPARED_LENGTH]


def was_killed(attempt: Attempt) -> bool:
    """Whether a failure is known only as a killed process, which anything may have killed."""
    error_text = _bare_error(attempt)
    return causes.OUT_OF_MEMORY not in error_text and bool(
        _KILLED_MESSAGE.fullmatch(error_text) or error_patterns.KILLED_PROCESS.search(error_text)
    )


def ran_out_of_memory(attempt: Attempt) -> bool:
    """Whether an attempt has failed because the memory of the job was used up, which is no fault of a node."""
    return causes.OUT_OF_MEMORY in _bare_error(attempt)


def run_seconds(attempt: Attempt) -> float:
    """Return for how many seconds an attempt has run; 0 if it has not ended."""
    return (attempt.begin if attempt.end is None else attempt.end) - attempt.begin


def failure_signature(attempt: Attempt) -> Optional[FailureSignature]:
    """Return how an attempt has failed; None if it has not, or if too little is known to compare it with others.

    Anything may have killed a rank that was killed. If the program reports no steps either, such failures have nothing
    in common.
    """
    cause = attempt.cause
    if cause is None or cause.kind not in PROGRAM_KINDS:
        return None
    if attempt.last is not None:
        return FailureSignature(cause.kind, normalized_error(attempt), attempt.last)
    if was_killed(attempt) or run_seconds(attempt) > _START_SECONDS:
        return None
    return FailureSignature(cause.kind, normalized_error(attempt), "start")


def have_same_failure(attempts: Sequence[Attempt]) -> bool:
    """Whether these attempts have all failed in the same way at the same step."""
    signatures = {failure_signature(attempt) for attempt in attempts}
    return len(signatures) == 1 and None not in signatures

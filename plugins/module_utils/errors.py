# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The exceptions of this collection. They are raised in pure code, and turned into a failed result once, in module.py."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Sequence

#: What the kernel answers where a disk or a quota is full, and also where a file system is read-only.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (*NO_ROOM, errno.EROFS)
#: What code raises that reads values of an unexpected type or form.
_UNEXPECTED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


class GpumeshError(Exception):
    """What failed, with which value, and what to do about it.

    ``message`` states the fact and the value. ``remedy`` is a sentence in the imperative.
    ``details`` are JSON-serialisable values for programs; never a secret.
    """

    def __init__(self, message: str, remedy: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details

    @property
    def kind(self) -> str:
        """The class in snake case without its suffix: ``command``, ``damaged_record``."""
        name = type(self).__name__[: -len("Error")]
        return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    def as_result(self) -> Dict[str, Any]:
        """The ``error`` key of a failed module's result."""
        return {"kind": self.kind, "message": self.message, "remedy": self.remedy, **self.details}


class InputError(GpumeshError):
    """A value that the user gave is refused; nothing has been changed."""


class HostStateError(GpumeshError):
    """The state of the host does not allow the request to be carried out."""


class ParseError(GpumeshError):
    """The output of a tool cannot be parsed. Names the command."""

    def __init__(self, command: str, reason: str, remedy: str = "", **details: Any) -> None:
        super().__init__(f"The output of '{command}' cannot be read: {reason}.", remedy, command=command, **details)


class CommandError(GpumeshError):
    """A command could not be run, exceeded its time limit, or exited non-zero."""

    def __init__(
        self,
        argv: Sequence[str],
        reason: str,
        rc: Optional[int] = None,
        stderr: str = "",
        remedy: str = "",
    ) -> None:
        text = stderr.strip()
        tail = f": {text[-800:]}" if text else ""
        #: What happened, without the command.
        self.outcome = f"{reason}{tail}"
        super().__init__(f"'{' '.join(argv)}' {self.outcome}.", remedy, argv=list(argv), rc=rc)


class RecordError(GpumeshError):
    """The cluster record cannot be used as it is."""


@contextmanager
def reading(command: str) -> Iterator[None]:
    """Turn whatever an unexpected output of a command causes into ParseError: also for a whole function, as a decorator.

    The fields of an output differ between versions, and may contain users' texts.
    """
    try:
        yield
    except _UNEXPECTED as failure:
        raise ParseError(command, f"{type(failure).__name__} at {failure}") from failure


@contextmanager
def refused_writes() -> Iterator[None]:
    """Turn the OSError of a full disk, or a read-only file system, into HostStateError.

    Whatever writes may encounter one, so this is around the whole work of a module or program.
    """
    try:
        yield
    except OSError as failure:
        if failure.errno not in _UNWRITABLE:
            raise
        raise HostStateError(
            f"{failure.filename or 'A file'} cannot be written: {failure.strerror}.",
            "Free some space or make the file system writable, and run again.",
        ) from failure

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The exceptions of this collection. Pure code raises them, and module.py alone turns them into a failed result."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Sequence

#: The kernel reports these errors if a disk or a quota is full; ``_UNWRITABLE_ERRNOS`` adds a read-only file system.
NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE_ERRNOS = (*NO_SPACE_ERRNOS, errno.EROFS)
#: Code raises these exceptions when it parses values of an unexpected type or form.
_PARSE_EXCEPTIONS = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


class GpumeshError(Exception):
    """An error: what failed, with which value, and what to do about it.

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
        """Return the class name in snake case without its suffix: ``command``, ``damaged_record``."""
        class_name = type(self).__name__[: -len("Error")]
        return "".join("_" + letter.lower() if letter.isupper() else letter for letter in class_name).lstrip("_")

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    def to_result(self) -> Dict[str, Any]:
        """Return the ``error`` key of the result of a failed module."""
        return {"kind": self.kind, "message": self.message, "remedy": self.remedy, **self.details}


class InputError(GpumeshError):
    """A value from the user is refused; nothing has been changed."""


class HostStateError(GpumeshError):
    """The state of the host does not allow the request to be carried out."""


class ParseError(GpumeshError):
    """The output of a command cannot be parsed."""

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
        stderr_text = stderr.strip()
        stderr_tail = f": {stderr_text[-800:]}" if stderr_text else ""
        #: The reason and the end of stderr, without the command.
        self.outcome = f"{reason}{stderr_tail}"
        super().__init__(f"'{' '.join(argv)}' {self.outcome}.", remedy, argv=list(argv), rc=rc)


class RecordError(GpumeshError):
    """The cluster record cannot be used as it is."""


@contextmanager
def translate_parse_errors(command: str) -> Iterator[None]:
    """Turn the exceptions that unexpected output of a command causes into ParseError. Also usable as a decorator.

    The fields of an output differ between versions, and may contain users' texts.
    """
    try:
        yield
    except _PARSE_EXCEPTIONS as failure:
        raise ParseError(command, f"{type(failure).__name__} at {failure}") from failure


@contextmanager
def translate_write_errors() -> Iterator[None]:
    """Turn the OSError of a full disk, or a read-only file system, into HostStateError.

    Every write may fail in this way, so this context surrounds the whole work of a module or program.
    """
    try:
        yield
    except OSError as failure:
        if failure.errno not in _UNWRITABLE_ERRNOS:
            raise
        raise HostStateError(
            f"{failure.filename or 'A file'} cannot be written: {failure.strerror}.",
            "Free some space or make the file system writable, and run again.",
        ) from failure

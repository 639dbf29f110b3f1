# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of a rank's output, without what loggers and launchers write before them."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import untyped
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import error_words as words

#: The characters of a line that are read.
_LINE = 2000


class Line(NamedTuple):
    """A line without its prefixes. ``rank``: that of the prefix, if it has one; ``fatal``: logged as a fatal error;
    ``logged``: by a logger, so that it does not continue the line before.
    """

    text: str
    rank: Optional[int] = None
    fatal: bool = False
    logged: bool = False


def lines(tail: str) -> List[Line]:
    """The lines of the output, without colours, prefixes, warnings and noise."""
    return [line for line in map(_line, (text[:_LINE] for text in untyped(tail).splitlines())) if line is not None]


def _line(text: str) -> Optional[Line]:
    """The line without its prefixes; None for noise. An empty one is kept, since it ends a message."""
    text = text.rstrip()
    rank: Optional[int] = None
    fatal = logged = False
    while True:
        entry = words.LOGRUS.match(text)
        if entry:
            text = re.sub(r"\\(.)", r"\1", entry.group("text"))
            if entry.group("severity") not in ("error", "fatal", "panic"):
                return None
            fatal = logged = True
        glog = words.GLOG.match(text)
        if glog:
            if glog.group("severity") in "IW":
                return None
            fatal, logged = fatal or glog.group("severity") == "F" or "atchdog" in text, True
            text = text[glog.end() :]
            continue
        found = words.PREFIX.match(text)
        if not found or not found.end():
            break
        kind = found.lastgroup
        if kind == "time":
            logged = True
        elif kind:
            rank = int(found.group(kind))
        text = text[found.end() :]
    if text and words.NOISE.search(text):
        return None
    return Line(text, rank, fatal, logged)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the lines of a rank's output, without the prefixes of loggers and launchers."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import strip_terminal_codes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import error_words as error_patterns

#: The maximum number of characters of a line that are read.
_MAX_LINE_LENGTH = 2000


class OutputLine(NamedTuple):
    """A line without its prefixes.

    ``rank``: the rank in the prefix, if any; ``fatal``: logged as a fatal error; ``logged``: written by a logger, so
    that it does not continue the line before.
    """

    text: str
    rank: Optional[int] = None
    fatal: bool = False
    logged: bool = False


def parse_lines(tail: str) -> List[OutputLine]:
    """Return the lines of the output, without colours, prefixes, warnings and noise."""
    return [
        line
        for line in map(_parse_line, (text[:_MAX_LINE_LENGTH] for text in strip_terminal_codes(tail).splitlines()))
        if line is not None
    ]


def _parse_line(line_text: str) -> Optional[OutputLine]:
    """Return the line without its prefixes; None for noise. An empty line is kept, since it ends a message."""
    line_text = line_text.rstrip()
    prefix_rank: Optional[int] = None
    fatal = logged = False
    while True:
        logrus_match = error_patterns.LOGRUS_LINE.match(line_text)
        if logrus_match:
            line_text = re.sub(r"\\(.)", r"\1", logrus_match.group("text"))
            if logrus_match.group("severity") not in ("error", "fatal", "panic"):
                return None
            fatal = logged = True
        glog_match = error_patterns.GLOG_PREFIX.match(line_text)
        if glog_match:
            if glog_match.group("severity") in "IW":
                return None
            fatal, logged = fatal or glog_match.group("severity") == "F" or "atchdog" in line_text, True
            line_text = line_text[glog_match.end() :]
            continue
        prefix_match = error_patterns.LINE_PREFIX.match(line_text)
        if not prefix_match or not prefix_match.end():
            break
        prefix_kind = prefix_match.lastgroup
        if prefix_kind == "time":
            logged = True
        elif prefix_kind:
            prefix_rank = int(prefix_match.group(prefix_kind))
        line_text = line_text[prefix_match.end() :]
    if line_text and error_patterns.NOISE_LINE.search(line_text):
        return None
    return OutputLine(line_text, prefix_rank, fatal, logged)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's entries in the known_hosts files, according to OpenSSH, including patterns, hashed names and markers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from typing import NamedTuple

_FOUND = re.compile(r"# Host .+ found: line (\d+)")


class Known(NamedTuple):
    """One line. ``key`` in base64; ``mark`` is empty, ``@cert-authority`` or ``@revoked``."""

    file: str
    line: int
    mark: str
    type: str
    key: str


def find(name: str, files: Iterable[str]) -> list[Known]:
    """The lines of the files that match a host."""
    found = []
    for file in files:
        if os.path.isfile(file):
            argv = ["ssh-keygen", "-F", name, "-f", file]
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5, check=False
            )
            found += parse(done.stdout, file)
    return found


def parse(text: str, file: str) -> list[Known]:
    """Parse the output of ``ssh-keygen -F``."""
    found = []
    line = 0
    for printed in text.splitlines():
        place = _FOUND.match(printed)
        words = printed.split()
        if place:
            line = int(place[1])
        elif len(words) >= 3:
            mark = words.pop(0) if words[0].startswith("@") else ""
            found.append(Known(file, line, mark, words[1], words[2]))
    return found


def judge(known: Iterable[Known], key_type: str, key: str) -> str:
    """How ssh judges the key that a host presents: ``known``, ``unknown``, ``changed`` or ``revoked``."""
    marks = {(one.mark, one.key == key) for one in known}
    if ("@revoked", True) in marks:
        return "revoked"
    # A certificate may be valid, and whether the host has one cannot be seen here.
    if ("", True) in marks or any(mark == "@cert-authority" for mark, _same in marks):
        return "known"
    return "changed" if any(one.type == key_type and not one.mark for one in known) else "unknown"

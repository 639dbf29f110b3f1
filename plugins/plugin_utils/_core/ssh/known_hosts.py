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

_FOUND_LINE = re.compile(r"# Host .+ found: line (\d+)")


class KnownHostEntry(NamedTuple):
    """One line. ``key`` is in base64; ``marker`` is empty, ``@cert-authority`` or ``@revoked``."""

    file: str
    line: int
    marker: str
    type: str
    key: str


def find_entries(name: str, files: Iterable[str]) -> list[KnownHostEntry]:
    """Return the lines of the files that match a host."""
    entries = []
    for file in files:
        if os.path.isfile(file):
            keygen_command = ["ssh-keygen", "-F", name, "-f", file]
            completed = subprocess.run(
                keygen_command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5, check=False
            )
            entries += parse_entries(completed.stdout, file)
    return entries


def parse_entries(keygen_output: str, file: str) -> list[KnownHostEntry]:
    """Parse the output of ``ssh-keygen -F``."""
    entries = []
    line_number = 0
    for output_line in keygen_output.splitlines():
        line_match = _FOUND_LINE.match(output_line)
        fields = output_line.split()
        if line_match:
            line_number = int(line_match[1])
        elif len(fields) >= 3:
            marker = fields.pop(0) if fields[0].startswith("@") else ""
            entries.append(KnownHostEntry(file, line_number, marker, fields[1], fields[2]))
    return entries


def judge_key(known_entries: Iterable[KnownHostEntry], key_type: str, presented_key: str) -> str:
    """Judge the key that a host presents as ssh does: ``known``, ``unknown``, ``changed`` or ``revoked``."""
    markers_with_match = {(entry.marker, entry.key == presented_key) for entry in known_entries}
    if ("@revoked", True) in markers_with_match:
        return "revoked"
    # The host may have a valid certificate, which cannot be verified here.
    if ("", True) in markers_with_match or any(marker == "@cert-authority" for marker, _matches in markers_with_match):
        return "known"
    return "changed" if any(entry.type == key_type and not entry.marker for entry in known_entries) else "unknown"

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's configuration language: ``Key=Value`` lines, and lines with several pairs for nodes, partitions and devices.

Source: slurm.conf(5). Keys are case insensitive, a line ends at 1024 characters, ``#`` starts a comment.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_INCLUDE = re.compile(r"^\s*include\s+(\S.*?)\s*$", re.IGNORECASE)
#: Slurm truncates longer lines.
_LONGEST_LINE = 1024
#: These start separate lines and may be repeated; they are not settings.
_LINES = ("nodename", "partitionname", "nodeset", "frontendname", "downnodes", "include")


def value_text(key: str, value: Any) -> str:
    """A value as Slurm reads it. Raises InputError for a value that cannot be written on one line."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, (list, tuple)):
        return ",".join(value_text(key, item) for item in value)
    if not isinstance(value, (str, int, float)):
        raise InputError(f"{key}: {value!r} is not a string, number, boolean or list.", f"Correct {key}.")
    text = str(value).strip()
    if "#" in text or not text.replace("\t", " ").isprintable():
        raise InputError(
            f"{key}: {text!r} contains a line break or a '#', which ends the value for Slurm.", f"Correct {key}."
        )
    return text


def check_key(key: str) -> str:
    """A parameter name. Raises InputError."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InputError(
            f"{key!r} is not a valid name of a Slurm parameter.", "Use letters and digits, as in SlurmctldPort."
        )
    return key


def merge(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Dict[str, Any]:
    """Merge both. ``theirs`` takes precedence, whatever the case of its keys; a value of None removes a setting."""
    spelled = {key.lower(): key for key in ours}
    merged = dict(ours)
    for key, value in theirs.items():
        name = spelled.get(check_key(key).lower(), key)
        if name != key:
            merged = {(key if known == name else known): old for known, old in merged.items()}
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def check_settings(source: str, given: Mapping[str, Any]) -> None:
    """Refuse keys that start a line of their own instead of a setting. ``source`` is the name of the variable."""
    for key in given:
        if check_key(key).lower() in _LINES:
            remedy = {
                "partitionname": "Set partitions in slurm_partitions.",
                "nodename": "Nodes register themselves; set a node's parameters in slurm_node_conf.",
                "nodeset": "Set node sets in slurm_nodesets.",
            }.get(key.lower(), "Remove it.")
            raise InputError(f"{source}: {key} starts a separate line and is not a setting.", remedy)


def pairs(settings: Mapping[str, Any]) -> str:
    """One line of pairs, with values quoted if they contain white space."""
    found = []
    for key, value in settings.items():
        text = value_text(check_key(key), value)
        found.append(f'{key}="{text}"' if re.search(r"\s", text) else f"{key}={text}")
    return _line(" ".join(found))


def render(settings: Mapping[str, Any]) -> List[str]:
    """One line for each setting, where white space does not have to be quoted."""
    return [_line(f"{check_key(key)}={value_text(key, value)}") for key, value in settings.items()]


def _line(text: str) -> str:
    if len(text) > _LONGEST_LINE:
        raise InputError(
            f"A line of {len(text)} characters starts with {text[:60]!r}; Slurm reads at most {_LONGEST_LINE}.",
            "Shorten it, for example with ranges such as n[1-9] or a set of nodes.",
        )
    return text


def text_of(lines: Sequence[str]) -> str:
    """The text of a managed file: its header and the lines."""
    return "\n".join(["# Written by the Ansible collection gpumesh.cluster; changes here are lost.", *lines]) + "\n"


def parse(text: str) -> Dict[str, str]:
    """The settings of a file by lower-case key, and each other line (nodes, partitions, includes) as its own key.

    Two files with equal results are equivalent to Slurm, except for the order of their lines.
    """
    found: Dict[str, str] = {}
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        key, separator, value = line.partition("=")
        name = key.strip().lower()
        if not separator or name in _LINES or _INCLUDE.match(line):
            found[" ".join(line.split())] = ""
        else:
            found[name] = value.strip().strip('"')
    return found


def changed_keys(old: str, new: str) -> List[str]:
    """The keys, in lower case, whose value has changed, or that were added or removed."""
    before, after = parse(old), parse(new)
    return sorted(key for key in set(before) | set(after) if before.get(key) != after.get(key))


def redirect_includes(text: str, moved: Mapping[str, str]) -> str:
    """Change ``Include PATH`` lines of paths in ``moved`` to their new paths."""
    lines = []
    for line in text.splitlines():
        match = _INCLUDE.match(line)
        lines.append(f"Include {moved[match.group(1)]}" if match and match.group(1) in moved else line)
    return "\n".join(lines) + "\n"


def parse_pairs(line: str) -> List[Tuple[str, str]]:
    """Parse ``NodeName=n1 CPUs=2 OS=Linux 6.1 #1 SMP`` into pairs: a value extends to the next ``Key=``.

    Source: the one-line output of scontrol(1), where values such as OS and Reason contain blanks.
    """
    marks = list(re.finditer(r"(?:^|\s)([A-Za-z][A-Za-z0-9:/_]*)=", line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    return [(mark.group(1), line[mark.end() : end].strip()) for mark, end in zip(marks, ends)]

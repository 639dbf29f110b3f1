# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's configuration language: ``Key=Value`` lines, and lines with several pairs for nodes, partitions and devices.

Source: slurm.conf(5). Keys are case insensitive, a line ends at 1024 characters, ``#`` starts a comment.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

_KEY_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_INCLUDE_LINE = re.compile(r"^\s*include\s+(\S.*?)\s*$", re.IGNORECASE)
#: Slurm truncates longer lines.
_MAX_LINE_LENGTH = 1024
#: Keys that start separate lines and may be repeated; they are not settings.
_LINE_KEYWORDS = ("nodename", "partitionname", "nodeset", "frontendname", "downnodes", "include")


def format_value(key: str, value: Any) -> str:
    """Format a value for Slurm. Raises InputError for a value that cannot be written on one line."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, (list, tuple)):
        return ",".join(format_value(key, element) for element in value)
    if not isinstance(value, (str, int, float)):
        raise InputError(f"{key}: {value!r} is not a string, number, boolean or list.", f"Correct {key}.")
    text = str(value).strip()
    if "#" in text or not text.replace("\t", " ").isprintable():
        raise InputError(
            f"{key}: {text!r} contains a line break or a '#', which ends the value for Slurm.", f"Correct {key}."
        )
    return text


def check_key(key: str) -> str:
    """Return the name of a parameter. Raises InputError if it is invalid."""
    if not isinstance(key, str) or not _KEY_PATTERN.fullmatch(key):
        raise InputError(
            f"{key!r} is not a valid name of a Slurm parameter.", "Use letters and digits, as in SlurmctldPort."
        )
    return key


def merge_settings(our_settings: Mapping[str, Any], user_settings: Mapping[str, Any]) -> Dict[str, Any]:
    """Merge settings. Those of the user take precedence, whatever their case; a value of None removes a setting."""
    spelling_by_key = {key.lower(): key for key in our_settings}
    merged_settings = dict(our_settings)
    for key, value in user_settings.items():
        our_spelling = spelling_by_key.get(check_key(key).lower(), key)
        if our_spelling != key:
            merged_settings = {
                (key if existing_key == our_spelling else existing_key): existing
                for existing_key, existing in merged_settings.items()
            }
        if value is None:
            merged_settings.pop(key, None)
        else:
            merged_settings[key] = value
    return merged_settings


def refuse_line_keywords(variable_name: str, settings: Mapping[str, Any]) -> None:
    """Refuse keys that start a separate line and are not settings. Raises InputError."""
    for key in settings:
        if check_key(key).lower() in _LINE_KEYWORDS:
            remedy = {
                "partitionname": "Set partitions in slurm_partitions.",
                "nodename": "Nodes register themselves; set a node's parameters in slurm_node_conf.",
                "nodeset": "Set node sets in slurm_nodesets.",
            }.get(key.lower(), "Remove it.")
            raise InputError(f"{variable_name}: {key} starts a separate line and is not a setting.", remedy)


def format_pairs(settings: Mapping[str, Any]) -> str:
    """Format one line of pairs, with values quoted if they contain white space."""
    formatted_pairs = []
    for key, value in settings.items():
        formatted = format_value(check_key(key), value)
        formatted_pairs.append(f'{key}="{formatted}"' if re.search(r"\s", formatted) else f"{key}={formatted}")
    return _check_line_length(" ".join(formatted_pairs))


def render_settings(settings: Mapping[str, Any]) -> List[str]:
    """Return one line for each setting, where white space does not have to be quoted."""
    return [_check_line_length(f"{check_key(key)}={format_value(key, value)}") for key, value in settings.items()]


def _check_line_length(text: str) -> str:
    if len(text) > _MAX_LINE_LENGTH:
        raise InputError(
            f"A line of {len(text)} characters starts with {text[:60]!r}; Slurm reads at most {_MAX_LINE_LENGTH}.",
            "Shorten it, for example with ranges such as n[1-9] or a set of nodes.",
        )
    return text


def render_file(lines: Sequence[str]) -> str:
    """Return the text of a managed file: its header and the lines."""
    return "\n".join(["# Written by the Ansible collection gpumesh.cluster; changes here are lost.", *lines]) + "\n"


def parse_settings(conf_text: str) -> Dict[str, str]:
    """Return the settings of a file by lower-case key, and each other line (nodes, includes, ...) as its own key.

    Two files with equal results are equivalent to Slurm, except for the order of their lines.
    """
    parsed_settings: Dict[str, str] = {}
    for raw_line in conf_text.splitlines():
        line = raw_line.split("#", 1)[0].strip()
        if not line:
            continue
        key, separator, value = line.partition("=")
        lower_key = key.strip().lower()
        if not separator or lower_key in _LINE_KEYWORDS or _INCLUDE_LINE.match(line):
            parsed_settings[" ".join(line.split())] = ""
        else:
            parsed_settings[lower_key] = value.strip().strip('"')
    return parsed_settings


def changed_keys(old_text: str, new_text: str) -> List[str]:
    """Return the keys, in lower case, whose value has changed, or that were added or removed."""
    old_settings, new_settings = parse_settings(old_text), parse_settings(new_text)
    return sorted(
        key for key in set(old_settings) | set(new_settings) if old_settings.get(key) != new_settings.get(key)
    )


def redirect_includes(conf_text: str, moved_paths: Mapping[str, str]) -> str:
    """Change ``Include PATH`` lines of paths in ``moved_paths`` to their new paths."""
    redirected_lines = []
    for line in conf_text.splitlines():
        match = _INCLUDE_LINE.match(line)
        redirected_lines.append(
            f"Include {moved_paths[match.group(1)]}" if match and match.group(1) in moved_paths else line
        )
    return "\n".join(redirected_lines) + "\n"


def parse_pairs(line: str) -> List[Tuple[str, str]]:
    """Parse ``NodeName=n1 CPUs=2 OS=Linux 6.1 #1 SMP`` into pairs: a value extends to the next ``Key=``.

    Source: the one-line output of scontrol(1), where values such as OS and Reason contain blanks.
    """
    key_matches = list(re.finditer(r"(?:^|\s)([A-Za-z][A-Za-z0-9:/_]*)=", line))
    end_positions = [key_match.start() for key_match in key_matches[1:]] + [len(line)]
    return [
        (key_match.group(1), line[key_match.end() : end_position].strip())
        for key_match, end_position in zip(key_matches, end_positions)
    ]

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of the agents to the supervisor, as lines of text: srun carries them together with other output.

srun may split lines of more than 1,024 bytes, and insert those of other nodes in between. So messages are split here.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

#: The prefix of each line that is meant for the supervisor.
_MARK = "@gpumesh "
#: The number of characters of a message per line; json.dumps makes them ASCII.
_LONGEST = 800
_MORE, _LAST = "+", "."


class Said(NamedTuple):
    """One message of an agent."""

    event: str
    node: str
    values: Mapping[str, Any]


def encode(said: Said) -> List[str]:
    """The lines of a message."""
    text = json.dumps({"event": said.event, **said.values})
    parts = [text[start : start + _LONGEST] for start in range(0, len(text), _LONGEST)]
    ends = [_MORE] * (len(parts) - 1) + [_LAST]
    return [f"{_MARK}{said.node} {end}{part}\n" for end, part in zip(ends, parts)]


class Decoder:
    """Reassembles the messages."""

    def __init__(self) -> None:
        self._begun: Dict[str, str] = {}

    def feed(self, line: str) -> Optional[Said]:
        """The message that this line completes; None for a part of one, and for lines that are not from an agent."""
        if not line.startswith(_MARK):
            return None
        node, _space, rest = line[len(_MARK) :].rstrip("\n").partition(" ")
        text = self._begun.pop(node, "") + rest[1:]
        if rest[:1] == _MORE:
            self._begun[node] = text
            return None
        try:
            values = from_json(text)
        except ValueError:
            return None
        if not isinstance(values, dict) or not isinstance(values.get("event"), str):
            return None
        return Said(values.pop("event"), node, values)


def is_message(line: str) -> bool:
    """Whether an agent wrote the line."""
    return line.startswith(_MARK)

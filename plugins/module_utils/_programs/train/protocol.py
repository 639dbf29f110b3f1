# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encode messages of the agents to the supervisor as lines of text, which srun carries together with other output.

srun may split lines of more than 1,024 bytes, and insert lines of other nodes in between. So messages are split here.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

#: The prefix of each line that is meant for the supervisor.
_MESSAGE_PREFIX = "@gpumesh "
#: The number of characters of a message per line; json.dumps makes them ASCII.
_MAX_CHUNK_LENGTH = 800
_MORE_MARK, _LAST_MARK = "+", "."


class AgentMessage(NamedTuple):
    """One message of an agent."""

    event: str
    node: str
    payload: Mapping[str, Any]


def encode(message: AgentMessage) -> List[str]:
    """Return the lines of a message."""
    message_text = json.dumps({"event": message.event, **message.payload})
    chunks = [
        message_text[start : start + _MAX_CHUNK_LENGTH] for start in range(0, len(message_text), _MAX_CHUNK_LENGTH)
    ]
    chunk_marks = [_MORE_MARK] * (len(chunks) - 1) + [_LAST_MARK]
    return [f"{_MESSAGE_PREFIX}{message.node} {chunk_mark}{chunk}\n" for chunk_mark, chunk in zip(chunk_marks, chunks)]


class MessageDecoder:
    """Reassemble the messages of all agents from their lines."""

    def __init__(self) -> None:
        self._partial_messages: Dict[str, str] = {}

    def feed(self, line: str) -> Optional[AgentMessage]:
        """Return the message that this line completes; None for a part of a message, and for a foreign line."""
        if not line.startswith(_MESSAGE_PREFIX):
            return None
        node, _space, marked_chunk = line[len(_MESSAGE_PREFIX) :].rstrip("\n").partition(" ")
        message_text = self._partial_messages.pop(node, "") + marked_chunk[1:]
        if marked_chunk[:1] == _MORE_MARK:
            self._partial_messages[node] = message_text
            return None
        try:
            payload = parse_json(message_text)
        except ValueError:
            return None
        if not isinstance(payload, dict) or not isinstance(payload.get("event"), str):
            return None
        return AgentMessage(payload.pop("event"), node, payload)


def is_message(line: str) -> bool:
    """Whether an agent wrote the line."""
    return line.startswith(_MESSAGE_PREFIX)

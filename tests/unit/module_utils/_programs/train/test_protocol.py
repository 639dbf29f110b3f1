# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of several nodes share one stream of lines with other output."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.protocol import (
    AgentMessage,
    MessageDecoder,
    encode,
    is_message,
)


def test_interleaved_messages_of_two_nodes_are_reassembled() -> None:
    one, two = AgentMessage("ended", "n1", {"tail": "é" * 3000}), AgentMessage("ended", "n2", {"tail": "b" * 3000})
    mixed = [line for pair in zip(encode(one), [*encode(two), *[""] * 99]) for line in pair]
    assert max(map(len, mixed)) < 1024
    decoder = MessageDecoder()
    found = [said for said in map(decoder.feed, mixed) if said]
    assert sorted(found) == [one, two]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "srun: error: n2: gone",
        "@gpumesh ",
        "@gpumesh n1 .[1]",
        "@gpumesh n1 .{",
        '@gpumesh n1 .{"event": 1}',
    ],
)
def test_other_lines_are_not_messages(line: str) -> None:
    assert MessageDecoder().feed(line) is None


def test_messages_are_distinguished_from_other_output() -> None:
    assert is_message(encode(AgentMessage("beat", "n1", {}))[0])
    assert not is_message("srun: error")

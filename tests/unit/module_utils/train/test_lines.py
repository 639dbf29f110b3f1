# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of several nodes share one stream of lines with other output."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.lines import Decoder, Said, encode, is_message


def test_long_messages_of_two_nodes_may_be_mixed() -> None:
    one, two = Said("ended", "n1", {"tail": "é" * 3000}), Said("ended", "n2", {"tail": "b" * 3000})
    mixed = [line for pair in zip(encode(one), [*encode(two), *[""] * 99]) for line in pair]
    assert max(map(len, mixed)) < 1024
    decoder = Decoder()
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
def test_what_is_not_an_agents_is_no_message(line: str) -> None:
    assert Decoder().feed(line) is None


def test_which_lines_are_shown_to_people() -> None:
    assert is_message(encode(Said("beat", "n1", {}))[0])
    assert not is_message("srun: error")

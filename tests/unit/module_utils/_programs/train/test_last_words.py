# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The error that ended a rank, where its output contains more than that."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import attribution, last_words
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RankEnd

OWN_ERROR = 'Traceback (most recent call last):\n  File "train.py", line 80, in load\nValueError: shard 7 is damaged\n'
PEER_ERROR = "RuntimeError: [pair.cc:534] Connection closed by peer [10.1.0.12]:41234\n"
STEP_LINES = "".join(f"step {step}: loss 2.{step}\n" for step in range(20))


def test_handled_error_is_not_chosen() -> None:
    told = last_words.choose_error(OWN_ERROR + STEP_LINES + PEER_ERROR)
    assert told is not None and told.is_consequence


def test_own_error_is_chosen_before_its_consequence() -> None:
    told = last_words.choose_error(OWN_ERROR + "2026-11-26 23:12:05,002 - INFO - closing the writers\n" + PEER_ERROR)
    assert told is not None and told.text == "ValueError: shard 7 is damaged"


def test_ignored_exception_is_not_chosen() -> None:
    ignored = 'Exception ignored in: <function Loader.__del__>\nTraceback (most recent call last):\n  File "l.py", line 3, in f\n'
    told = last_words.choose_error(OWN_ERROR + ignored + "AttributeError: 'NoneType' object has no attribute 'close'\n")
    assert told is not None and told.text == "ValueError: shard 7 is damaged"


def test_colours_and_control_characters_are_removed() -> None:
    tail = "\x1b[31mValueError: \x1b[1mbad\x1b[0m \x1b]0;title\x07value\u202e\x00\n"
    line = attribution.format_error(RankEnd(0, "n1", 1, 0.0, tail))
    assert line.isprintable() and line.startswith("exit status 1: ValueError: bad")


def test_long_message_is_shortened() -> None:
    assert len(last_words.shorten("x" * 9000)) == 300


@pytest.mark.parametrize(
    "tail", ["(" * 16384, "[" * 16384, "0: " * 5000, '  File "x' * 2000, "a.b" * 5000, "NVRM: Xid (" * 1500]
)
def test_no_output_is_slow_to_parse(tail: str) -> None:
    assert attribution.format_error(RankEnd(0, "n1", 1, 0.0, tail)).startswith("exit status 1")


def test_live_rank_has_failed_only_if_its_output_ends_with_an_error() -> None:
    assert last_words.find_final_error(OWN_ERROR) == "ValueError: shard 7 is damaged"
    assert last_words.find_final_error(OWN_ERROR + "skipped\n") == ""
    assert last_words.find_final_error(PEER_ERROR) == ""
    assert last_words.find_final_error("") == ""


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        ("RuntimeError: DataLoader worker (pid 192) is killed by signal: Killed.", True),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL", True),
        ("ValueError: shard 7 is damaged", False),
    ],
)
def test_killed_child_process_is_recognised(error: str, lost: bool) -> None:
    assert last_words.reports_killed_process(f"{error}\n") is lost


OUTPUT_PIECES = [
    "Traceback (most recent call last):",
    '  File "a.py", line 3, in f',
    "ValueError: bad",
    "ValueError:",
    "terminate called after throwing an instance of 'E'",
    "  what():  bad",
    "Root Cause (first observed failure):",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 13)",
    "  traceback : Traceback (most recent call last):",
    'time="1" level=error msg="bad \\"x\\""',
    "[rank3]: ",
    "F1126 23:59:03.032242   24163 client.h:77] gone",
    "Exception ignored in: <f>",
    "\x1b[31m",
    "\r",
    "",
]


@given(
    strategies.lists(strategies.sampled_from(OUTPUT_PIECES) | strategies.text(max_size=20), max_size=12),
    strategies.integers(-70, 300),
)
def test_any_output_is_described_in_one_line(pieces: list[str], status: int) -> None:
    found = attribution.attribute_crash(
        [RankEnd(0, "n1", status or 1, 0.0, "\n".join(pieces)), RankEnd(1, "n2", 1, 0.0, "".join(pieces))]
    )
    assert found is not None and found.detail == printable(found.detail) and len(found.detail.splitlines()) == 1

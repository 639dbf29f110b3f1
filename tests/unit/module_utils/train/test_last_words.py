# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The error that ended a rank, where its output contains more than that."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import cause, last_words
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import RankEnd

OWN = 'Traceback (most recent call last):\n  File "train.py", line 80, in load\nValueError: shard 7 is damaged\n'
PEER = "RuntimeError: [pair.cc:534] Connection closed by peer [10.1.0.12]:41234\n"
STEPS = "".join(f"step {step}: loss 2.{step}\n" for step in range(20))


def test_an_error_that_was_handled_is_not_the_end() -> None:
    told = last_words.chosen(OWN + STEPS + PEER)
    assert told is not None and told.follows


def test_an_error_of_its_own_comes_before_what_follows_from_it() -> None:
    told = last_words.chosen(OWN + "2026-11-26 23:12:05,002 - INFO - closing the writers\n" + PEER)
    assert told is not None and told.text == "ValueError: shard 7 is damaged"


def test_exceptions_that_python_ignores_are_not_the_end() -> None:
    ignored = 'Exception ignored in: <function Loader.__del__>\nTraceback (most recent call last):\n  File "l.py", line 3, in f\n'
    told = last_words.chosen(OWN + ignored + "AttributeError: 'NoneType' object has no attribute 'close'\n")
    assert told is not None and told.text == "ValueError: shard 7 is damaged"


def test_colours_and_control_characters_do_not_reach_the_reader() -> None:
    tail = "\x1b[31mValueError: \x1b[1mbad\x1b[0m \x1b]0;title\x07value\u202e\x00\n"
    line = cause.error_line(RankEnd(0, "n1", 1, 0.0, tail))
    assert line.isprintable() and line.startswith("exit status 1: ValueError: bad")


def test_a_long_message_is_cut() -> None:
    assert len(last_words.shortened("x" * 9000)) == 300


@pytest.mark.parametrize(
    "tail", ["(" * 16384, "[" * 16384, "0: " * 5000, '  File "x' * 2000, "a.b" * 5000, "NVRM: Xid (" * 1500]
)
def test_no_output_takes_long_to_read(tail: str) -> None:
    assert cause.error_line(RankEnd(0, "n1", 1, 0.0, tail)).startswith("exit status 1")


def test_a_rank_that_lives_has_failed_only_if_its_output_ends_so() -> None:
    assert last_words.failed(OWN) == "ValueError: shard 7 is damaged"
    assert last_words.failed(OWN + "skipped\n") == ""
    assert last_words.failed(PEER) == ""
    assert last_words.failed("") == ""


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        ("RuntimeError: DataLoader worker (pid 192) is killed by signal: Killed.", True),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL", True),
        ("ValueError: shard 7 is damaged", False),
    ],
)
def test_a_process_of_the_program_that_was_killed_is_known(error: str, lost: bool) -> None:
    assert last_words.lost_process(f"{error}\n") is lost


PIECES = [
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
    strategies.lists(strategies.sampled_from(PIECES) | strategies.text(max_size=20), max_size=12),
    strategies.integers(-70, 300),
)
def test_whatever_a_rank_prints_it_is_told_in_a_line(pieces: list[str], status: int) -> None:
    found = cause.crash(
        [RankEnd(0, "n1", status or 1, 0.0, "\n".join(pieces)), RankEnd(1, "n2", 1, 0.0, "".join(pieces))]
    )
    assert found is not None and found.detail == printable(found.detail) and len(found.detail.splitlines()) == 1

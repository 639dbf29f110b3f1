# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What others write is read up to a limit."""

from __future__ import annotations

import io

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited


def test_everything_up_to_the_limit_or_nothing() -> None:
    assert limited.read(io.BytesIO(b"12345"), 5) == b"12345"
    assert limited.read(io.BytesIO(b"123456"), 5) is None
    assert limited.read(io.StringIO("\u00e4" * 100_000), 100_000) == "\u00e4" * 100_000
    assert limited.read(io.StringIO(""), 5) == "" and limited.read(io.BytesIO(b""), 5) == b""


def test_what_has_no_end_is_not_read_to_it() -> None:
    with open("/dev/zero", "rb") as stream:
        assert limited.read(stream, 1 << 20) is None
        assert len(next(limited.lines(stream))) == limited.LONGEST_LINE


def test_lines() -> None:
    assert list(limited.lines(io.StringIO("a\nb"))) == ["a\n", "b"]

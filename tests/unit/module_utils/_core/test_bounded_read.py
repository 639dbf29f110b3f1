# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Streams of others, read up to a limit."""

from __future__ import annotations

import io

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read


def test_stream_is_read_completely_or_refused() -> None:
    assert bounded_read.read(io.BytesIO(b"12345"), 5) == b"12345"
    assert bounded_read.read(io.BytesIO(b"123456"), 5) is None
    assert bounded_read.read(io.StringIO("\u00e4" * 100_000), 100_000) == "\u00e4" * 100_000
    assert bounded_read.read(io.StringIO(""), 5) == "" and bounded_read.read(io.BytesIO(b""), 5) == b""


def test_endless_stream_is_read_only_up_to_the_limit() -> None:
    with open("/dev/zero", "rb") as stream:
        assert bounded_read.read(stream, 1 << 20) is None
        assert len(next(bounded_read.read_lines(stream))) == bounded_read.MAX_LINE_LENGTH


def test_lines_are_split() -> None:
    assert list(bounded_read.read_lines(io.StringIO("a\nb"))) == ["a\n", "b"]

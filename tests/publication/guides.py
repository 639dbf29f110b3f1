# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guides and other documents say can be typed, and the files that they say to write."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple


class Block(NamedTuple):
    """Code in a document; ``before`` is the line of text above it."""

    document: Path
    language: str
    text: str
    before: str

    @property
    def file(self) -> str | None:
        """The file that the line above says this is: "`my-lan/hosts.yml`:"."""
        written = re.fullmatch(r"`([\w.~/-]+)`:", self.before.strip())
        return written[1] if written else None


@lru_cache(maxsize=None)
def blocks(document: Path) -> tuple[Block, ...]:
    text = document.read_text(encoding="utf-8")
    # A block in a list is indented.
    fence = r"(?P<before>[^\n]*)\n+(?P<indent> *)```(?P<language>[\w{}]+)\n(?P<text>.*?)\n(?P=indent)```"
    found = re.finditer(fence, text, re.DOTALL)
    return tuple(Block(document, one["language"], dedent(one["text"]), one["before"]) for one in found)


def console_lines(document: Path) -> list[str]:
    """Each command of the console and shell blocks, once. Lines that go on after a backslash are one.

    A console block shows output too, so its commands have a prompt; a shell block can be pasted as it stands.
    """
    found: dict[str, None] = {}
    for block in blocks(document):
        if block.language not in ("console", "shell"):
            continue
        for line in map(str.strip, re.sub(r"\\\n *", "", block.text).splitlines()):
            if block.language == "shell" or line.startswith(("$ ", "# ")):
                found[line if block.language == "shell" else line[2:].strip()] = None
    return list(found)

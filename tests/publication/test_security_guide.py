# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each paragraph of the security model that claims something names the tests of it in a comment, and these exist."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT

GUIDE = (ROOT / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
_COMMENT = re.compile(r"<!-- (.*?) -->", re.DOTALL)
#: The parts in which everything is claimed; the others describe what the collection trusts and what it does not do.
CLAIMING = ("What an attacker can do", "Secrets", "What is fetched", "On the wire")


def parts() -> dict[str, str]:
    """The text of each part, by its title."""
    found = re.split(r"^## (.*)\n", GUIDE, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def claims() -> list[str]:
    """The paragraphs and the items of lists. A table is one with what follows it, which says what proves it."""
    blocks = [block.strip() for title in CLAIMING for block in re.split(r"\n\n+|\n(?=- )", parts()[title])]
    return [block for block in blocks if block and not block.startswith(("#", "|", "<!--"))]


def named() -> list[tuple[str, str]]:
    """The files and folders, each with a test in it, or with an empty name: "PATH: TEST, TEST, PATH"."""
    found = set()
    for comment in _COMMENT.findall(GUIDE):
        file = ""
        for word in [] if comment.startswith("untested: ") else re.split(r"[,:]?\s+", comment):
            if "/" in word:
                file = word
            found.add((file, "" if word == file else word))
    return sorted(found)


@lru_cache
def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")}


@pytest.mark.parametrize("claim", claims())
def test_a_claim_names_what_proves_it(claim: str) -> None:
    assert _COMMENT.search(claim), f"no <!-- PATH: TEST --> after: {claim}"


@pytest.mark.parametrize(("file", "function"), named())
def test_what_proves_a_claim_exists(file: str, function: str) -> None:
    path = ROOT / file
    assert path.exists(), file
    if function:
        assert function in functions_in(path), f"{file}: {function}"
    else:
        assert any(functions_in(one) for one in ([path] if path.is_file() else path.rglob("test_*.py"))), file

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names in a sentence, and that no other code joins them."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import text
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names

PLUGINS = Path(text.__file__).parents[2]


def test_names_are_joined_as_in_a_sentence() -> None:
    assert [join_names("abcdefgh"[:count]) for count in (0, 1, 2, 3, 6, 7)] == [
        "",
        "a",
        "a and b",
        "a, b and c",
        "a, b, c, d, e and f",
        "a, b, c, d, e and 2 more",
    ]
    assert join_names([1, 2, 3], "or") == "1, 2 or 3"
    assert join_names("abc", "") == "a, b, c"
    assert join_names("abc", "or", max_named=2) == "a or 2 more"
    assert join_names("abc", "", max_named=2) == "a and 2 more"
    assert join_names("abcdefgh", max_named=None) == "a, b, c, d, e, f, g and h"


def test_no_other_code_joins_names() -> None:
    pattern = re.compile(
        r"""[\"'] (and|or) [\"']\.join\(|[\"'] ?and \{len\(|[\"'] and (others|more)[\"']|\} and \{len\("""
    )
    found = {path.name for path in PLUGINS.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))}
    # A list of lines, and the worst of several links.
    assert found == {"discovery.py", "page.py"}

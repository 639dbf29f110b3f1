# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: table
short_description: Draw rows as a table for a terminal
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Draws rows as a table with a frame, fitted to the terminal.
  - Wide columns wrap between words. Numbers go to the right. V(none) and the empty text are shown as C(-), truth as
    C(yes) or C(no), lists joined by commas.
  - Control characters in the values are replaced, since they come from remote hosts.
positional: columns
options:
  _input:
    description: The rows. Mappings are read by column key, lists by position.
    type: list
    elements: raw
    required: true
  columns:
    description:
      - The columns. Each is a key, or a mapping with C(key) and, if you like, C(title) and C(align), which is one of
        C(auto), C(left), C(right) and C(center).
      - By default the keys of the rows in their order of appearance.
    type: list
    elements: raw
  style:
    description: The characters of the frame.
    type: str
    choices: [unicode, ascii]
    default: unicode
  width:
    description:
      - The room in terminal columns. V(0) means the width of the terminal, or of E(COLUMNS) where that is set; V(-1)
        means no limit.
    type: int
    default: 0
  group:
    description: The key of a column whose repeated values are shown once, with a rule between the groups.
    type: str
"""

EXAMPLES = r"""
- name: Show the members
  gpumesh.cluster.print_text:
    text: >-
      {{ cluster_record.members | gpumesh.cluster.table(['machine', 'address', {'key': 'gpus', 'title': 'GPUs'}]) }}

# ┌─────────┬────────────┬──────┐
# │ machine │ address    │ GPUs │
# ├─────────┼────────────┼──────┤
# │ n1      │ 10.77.0.11 │    2 │
# │ n2      │ 10.77.0.12 │    2 │
# └─────────┴────────────┴──────┘
"""

RETURN = r"""
_value:
  description: The table, without a final newline.
  type: str
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tables import render
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.terminal import room


@as_filter
def table(
    rows: Sequence[Any],
    columns: Sequence[Any] | None = None,
    style: str = "unicode",
    width: int = 0,
    group: str | None = None,
) -> str:
    """Draw rows; see DOCUMENTATION."""
    return render(rows, columns, style=style, width=room(width), group=group)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"table": table}

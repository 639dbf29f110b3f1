# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: table
short_description: Format rows as a table for a terminal
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Formats rows as a table with a frame that fits the terminal.
  - Wide columns are wrapped between words. Numbers are right-aligned. V(none) and empty strings are shown as C(-), booleans
    as C(yes) or C(no), and lists separated by commas.
  - Control characters in the values are replaced, since the values can come from remote hosts.
positional: columns
options:
  _input:
    description: The rows. Values are selected by column key from mappings, and by position from lists.
    type: list
    elements: raw
    required: true
  columns:
    description:
      - The columns. Each is a key, or a mapping with C(key) and, optionally, C(title) and C(align), which is one of
        C(auto), C(left), C(right) and C(center).
      - Defaults to the keys of the rows in order of appearance.
    type: list
    elements: raw
  width:
    description:
      - The maximum width in terminal columns. V(0) means the width of the terminal, or E(COLUMNS) if it is set; V(-1) means
        no limit.
    type: int
    default: 0
  group:
    description: The key of a column whose repeated values are shown only once, with a line between the groups.
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

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.filter_errors import convert_errors
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import available_width


@convert_errors
def table(
    rows: Sequence[Any],
    columns: Sequence[Any] | None = None,
    width: int = 0,
    group: str | None = None,
) -> str:
    """Draw rows; see DOCUMENTATION."""
    return render_table(rows, columns, width=available_width(width), group=group)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the name and the function of the filter."""
        return {"table": table}

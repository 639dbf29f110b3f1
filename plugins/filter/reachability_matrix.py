# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: reachability_matrix
short_description: Draw who reaches whom
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Draws the pairs as a matrix, one letter a pair, with the legend of the letters that occur. Below stands in words
    what is wrong, each fault once, with what to do about it.
options:
  _input:
    description: The C(pairs) of P(gpumesh.cluster.reachability_verdicts#filter).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show who reaches whom
  gpumesh.cluster.print_text:
    text: "{{ reachability_result.pairs | gpumesh.cluster.reachability_matrix }}"
  run_once: true

# from \ to 1 2 3
# 1 n1        · ·
# 2 n2      ·   F
# 3 n3      · ·
#
# · reaches   F filtered (no answer)
#
# n2 → n3: filtered (no answer). n3 does not answer n2 on TCP 33420, 46690; TCP 22 pass.
#     Open TCP and UDP on the whole ephemeral range from 10.77.0.12 in the firewall of n3 (`nft list ruleset`) and on
#     the way.
"""

RETURN = r"""
_value:
  description: The text, without a final newline.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reach_matrix import draw


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"reachability_matrix": as_filter(draw)}

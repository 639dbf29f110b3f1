# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: discover_page
short_description: Show what was detected as tables for a terminal
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Turns the document of P(gpumesh.cluster.discover_report#filter) into text with the interfaces by host, the shared
    subnets with their reasons, the other ones with theirs, the hosts that gave no answer, and what to look at.
positional: style, width
options:
  _input:
    description: The document.
    type: dict
    required: true
  style:
    description: The characters of the frames.
    type: str
    choices: [unicode, ascii]
    default: unicode
  width:
    description: The room in terminal columns. V(0) means the width of the terminal, V(-1) means no limit.
    type: int
    default: 0
  exclude:
    description: As given to P(gpumesh.cluster.discover_report#filter), for the notes beside the interfaces.
    type: list
    elements: str
    default: []
  include:
    description: As given to P(gpumesh.cluster.discover_report#filter), for the notes beside the interfaces.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show it
  gpumesh.cluster.print_text:
    text: "{{ results | gpumesh.cluster.discover_report | gpumesh.cluster.discover_page }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.discovery import page
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import options_from
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.terminal import room


@as_filter
def discover_page(found: Mapping[str, Any], style: str = "unicode", width: int = 0, **options: Any) -> str:
    """Draw the page; see DOCUMENTATION."""
    return page(found, options_from(**options), style=style, width=room(width))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"discover_page": discover_page}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_page
short_description: Clusters as tables for a terminal
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Draws what P(gpumesh.cluster.cluster_overview#filter) gives, with every problem in words below. The manager has a
    star.
positional: results, width
options:
  _input:
    description: The clusters.
    type: list
    elements: dict
    required: true
  results:
    description: The result of M(gpumesh.cluster.cluster_info) of each host, to name those that did not answer.
    type: dict
    default: {}
  width:
    description: The room in terminal columns. V(0) means the width of the terminal, V(-1) means no limit.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Show all clusters
  gpumesh.cluster.print_text:
    text: "{{ clusters | gpumesh.cluster.cluster_page }}"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.overview import page
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.terminal import room


@as_filter
def cluster_page(
    clusters: Sequence[Mapping[str, Any]], results: Mapping[str, Mapping[str, Any]] | None = None, width: int = 0
) -> str:
    """See DOCUMENTATION."""
    answers = read_answers(results or {})
    silent = {machine: answer.silence for machine, answer in answers.items() if answer.silence is not None}
    return page(clusters, silent, room(width))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"cluster_page": cluster_page}

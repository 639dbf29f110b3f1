# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: hostlist
short_description: Convert between lists of hosts and Slurm's hostlist expressions
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Converts a list of names to an expression such as C(n[1-3],head), without duplicates, and an expression to a list.
options:
  _input:
    description: A list of names, or an expression.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Show the members
  ansible.builtin.debug:
    msg: "{{ ['n1', 'n2', 'n3', 'head'] | gpumesh.cluster.hostlist }}"   # head,n[1-3]

- name: Expand an allocation
  ansible.builtin.debug:
    msg: "{{ 'n[08-10]' | gpumesh.cluster.hostlist }}"                   # n08, n09, n10
"""

RETURN = r"""
_value:
  description: The expression for a list, or the list for an expression.
  type: raw
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import (
    compress_hostlist,
    expand_hostlist,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.filter_errors import convert_errors


@convert_errors
def hostlist(hosts: str | Sequence[str]) -> str | list[str]:
    """Compress or expand a list of hosts; see DOCUMENTATION."""
    return expand_hostlist(hosts) if isinstance(hosts, str) else compress_hostlist(hosts)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the name and the function of the filter."""
        return {"hostlist": hostlist}

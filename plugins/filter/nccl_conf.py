# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: nccl_conf
short_description: The lines of /etc/nccl.conf of a node
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes the lines that hold outside jobs too, so only those that are true towards every member of the cluster.
  - NCCL splits a line at its first C(=); a second one belongs to the value and asks for the exact interface.
options:
  _input:
    description: What P(gpumesh.cluster.job_environment#filter) returned.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the lines
  ansible.builtin.debug:
    msg: "{{ cluster_record | gpumesh.cluster.job_environment('n1', [], port_range=[15000, 24999])
      | gpumesh.cluster.nccl_conf }}"

# NCCL_SOCKET_IFNAME==gpumesh0
"""

RETURN = r"""
_value:
  description: The lines, without a final newline.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.job_environment import nccl_conf


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"nccl_conf": as_filter(nccl_conf)}

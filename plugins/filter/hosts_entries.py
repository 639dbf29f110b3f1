# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: hosts_entries
short_description: The lines of /etc/hosts that name the members of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes one line a member from the cluster record. A member's cluster address stands before its inventory name and,
    where no other member has the same, before the name's first label.
  - A member whose inventory name is an address, or V(localhost), gets no line.
positional: machine, hostname
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  machine:
    description: The member that the lines are for.
    type: str
    default: ''
  hostname:
    description:
      - The name that O(machine) gives itself. Debian maps it to 127.0.1.1, so that a job which publishes what its own
        name resolves to cannot be reached; it is put on the machine's own line.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Name the members
  ansible.builtin.blockinfile:
    path: /etc/hosts
    marker: "# {mark} gpumesh cluster {{ cluster_record.name }}"
    block: "{{ cluster_record | gpumesh.cluster.hosts_entries(inventory_hostname, ansible_facts['hostname']) }}"

# 10.99.0.1 n1
# 10.99.0.2 n2
"""

RETURN = r"""
_value:
  description: The lines, without a final newline.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def hosts_entries(record: object, machine: str = "", hostname: str = "") -> str:
    """See DOCUMENTATION."""
    return names.hosts_entries(model.parse(record), machine, hostname)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"hosts_entries": hosts_entries}

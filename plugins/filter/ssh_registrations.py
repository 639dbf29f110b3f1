# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ssh_registrations
short_description: The SSH keys that the cluster record does not know yet
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives each member with a new signing key or new host keys the entry that M(gpumesh.cluster.cluster_member) takes.
positional: found
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  found:
    description: What M(gpumesh.cluster.ssh_trust_info) has returned, by inventory hostname.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Register the keys
  gpumesh.cluster.cluster_member:
    cluster: "{{ cluster_record.name }}"
    members: "{{ cluster_record | gpumesh.cluster.ssh_registrations({'n1': ssh_trust_host}) }}"

# [{"machine": "n1", "ssh_public_key": "…", "ssh_host_keys": ["…"]}]
"""

RETURN = r"""
_value:
  description: One entry a member whose keys differ from the record.
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import ssh_trust
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def ssh_registrations(record: object, found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """See DOCUMENTATION."""
    return ssh_trust.registrations(model.parse(record), found)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"ssh_registrations": ssh_registrations}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: mesh_with_keys
short_description: The cluster record with other public keys
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives a copy of the record in which the named members have the given public keys, as it will be once they are
    registered. The rotation of keys plans with it.
positional: public_keys
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  public_keys:
    description: Public keys by inventory hostname.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Plan with the key that n2 has just made
  ansible.builtin.debug:
    msg: "{{ cluster_record | gpumesh.cluster.mesh_with_keys({'n2': new_key}) | gpumesh.cluster.mesh_plan('n1') }}"
"""

RETURN = r"""
_value:
  description: The record; the given one is left as it is.
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.topology import with_keys
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def mesh_with_keys(record: Mapping[str, Any], public_keys: Mapping[str, str]) -> dict[str, Any]:
    """See DOCUMENTATION."""
    return with_keys(record, public_keys)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"mesh_with_keys": mesh_with_keys}

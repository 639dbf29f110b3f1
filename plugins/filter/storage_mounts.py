# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: storage_mounts
short_description: How one member mounts the volumes of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes the systemd units for every volume of the cluster record, as one member needs them.
  - The server of a volume gets a bind mount, so that its path is the same on all members.
positional: machine
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  machine:
    description: The member that mounts.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write the mount units
  ansible.builtin.copy:
    dest: "/etc/systemd/system/{{ item.unit }}.mount"
    content: "{{ item.mount }}"
    mode: "0644"
  loop: "{{ cluster_record | gpumesh.cluster.storage_mounts(inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: For each volume C(volume), C(mount_point), C(unit) (the units' name without suffix), and the units' text C(mount) and C(automount).
  type: list
  elements: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import storage
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def storage_mounts(record: object, machine: str) -> list[storage.Mount]:
    """See DOCUMENTATION."""
    return storage.mounts(model.parse(record), machine)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"storage_mounts": storage_mounts}

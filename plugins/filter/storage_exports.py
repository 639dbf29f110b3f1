# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: storage_exports
short_description: The exports of one server of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes the content of an C(exports) file, or of a part of C(ganesha.conf), from the cluster record, with the volumes that
    the machine serves.
  - Each volume is exported to the cluster addresses of the other members, and to nobody else.
positional: machine, server
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  machine:
    description: The member that serves.
    type: str
    required: true
  server:
    description: The program that serves.
    type: str
    choices: [kernel, ganesha]
    default: kernel
"""

EXAMPLES = r"""
- name: Export the volumes
  ansible.builtin.copy:
    dest: /etc/exports.d/gpumesh-lab.exports
    content: "{{ cluster_record | gpumesh.cluster.storage_exports(inventory_hostname) }}"
    mode: "0644"
"""

RETURN = r"""
_value:
  description: Lines of exports(5), or blocks for nfs-ganesha; empty where the machine serves no volume.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import storage
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def storage_exports(record: object, machine: str, server: str = "kernel") -> str:
    """See DOCUMENTATION."""
    return storage.exports(model.parse(record), machine, server)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"storage_exports": storage_exports}

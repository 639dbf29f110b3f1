# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: storage_external
short_description: The volumes of a cluster that others look after
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Lists the volumes of the cluster record that have no server. They are file systems that are there already, at the same
    path on all members.
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Look whether they are there
  gpumesh.cluster.volume_mounts:
    cluster: "{{ cluster_record.name }}"
    mounts: []
    external: "{{ cluster_record | gpumesh.cluster.storage_external }}"
"""

RETURN = r"""
_value:
  description: For each volume C(volume), C(mount_point), C(filesystem) (its type; null where any is right) and C(read_only).
  type: list
  elements: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import storage
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def storage_external(record: object) -> list[storage.External]:
    """See DOCUMENTATION."""
    return storage.external(model.parse(record))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"storage_external": storage_external}

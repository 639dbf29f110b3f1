# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: outdated_copies
short_description: The hosts that hold no copy of this very cluster record
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Goes by the digests that the hosts have told. So a record is not sent to those who have it.
positional: record
options:
  _input:
    description: The result of M(gpumesh.cluster.cluster_info) of each host, by inventory hostname.
    type: dict
    required: true
  record:
    description: The cluster record.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Keep a copy of the record
  gpumesh.cluster.cluster:
    name: "{{ cluster_record.name }}"
    state: replica
    record: "{{ cluster_record }}"
  when: inventory_hostname in (told | gpumesh.cluster.outdated_copies(cluster_record))
"""

RETURN = r"""
_value:
  description: Inventory hostnames.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import outdated
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def outdated_copies(results: Mapping[str, Mapping[str, Any]], record: object) -> list[str]:
    """See DOCUMENTATION."""
    return outdated(results, model.parse(record))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"outdated_copies": outdated_copies}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: checked_record
short_description: A cluster record that a host has returned, once it is proven to be one
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives the record as it is. What is invalid, or of another cluster or manager, ends the task.
  - Every later task believes the record that the manager returned after it has changed it, and delegates to whom it names.
positional: name, manager
options:
  _input:
    description: The record, as M(gpumesh.cluster.cluster) and M(gpumesh.cluster.cluster_member) return it.
    type: dict
    required: true
  name:
    description: The name of the cluster.
    type: str
    required: true
  manager:
    description: Who manages it.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Take the record
  ansible.builtin.set_fact:
    cluster_record: "{{ written.record | gpumesh.cluster.checked_record(name='lab', manager='gpu1') }}"
"""

RETURN = r"""
_value:
  description: The record.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def checked_record(document: object, name: str, manager: str) -> Record:
    """See DOCUMENTATION."""
    record = model.parse(document)
    if (record["name"], record["manager"]) != (name, manager):
        raise RecordError(
            f"The record that was returned is of cluster '{record['name']}' with the manager {record['manager']}, and "
            f"that of '{name}' with {manager} was expected.",
            "Look who else changes the record (playbook show), and run it again.",
        )
    return record


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"checked_record": checked_record}

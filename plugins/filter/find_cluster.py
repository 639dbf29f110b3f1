# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: find_cluster
short_description: Find the record of a cluster among the copies of several hosts
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives the manager's record, or the newest copy where the manager cannot be asked.
  - Says so where the copies contradict each other, as after two managers that did not know of each other.
positional: name
options:
  _input:
    description: The result of M(gpumesh.cluster.cluster_info) of each host, by inventory hostname.
    type: dict
    required: true
  name:
    description: The name of the cluster.
    type: str
    required: true
  force:
    description: Go by the manager's record although a copy contradicts it.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Take the record
  ansible.builtin.set_fact:
    cluster_record: "{{ (held | gpumesh.cluster.find_cluster('lab')).record }}"
"""

RETURN = r"""
_value:
  description:
    - C(refusal), a text that is empty where there is one record to go by, or none at all.
    - The C(record), null where no host has one, the C(source) that it is from, how each other copy stands to it in
      C(standing), with its C(kind) and C(reason), and C(remarks) in words.
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import find, read_answers


def find_cluster(results: Mapping[str, Mapping[str, Any]], name: str, force: bool = False) -> dict[str, Any]:
    """See DOCUMENTATION."""
    nothing: dict[str, Any] = {"refusal": "", "record": None, "source": None, "standing": {}, "remarks": []}
    try:
        found = find(read_answers(results), name, force)
    except GpumeshError as refused:
        return {**nothing, "refusal": printable(str(refused))}
    if found is None:
        return nothing
    standing = {machine: relation._asdict() for machine, relation in found.standing.items()}
    return {
        "refusal": "",
        "record": found.record,
        "source": found.source,
        "standing": standing,
        "remarks": [printable(remark) for remark in found.remarks],
    }


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"find_cluster": find_cluster}

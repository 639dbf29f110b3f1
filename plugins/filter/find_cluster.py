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
  - Gives the manager's record. Where the manager cannot be asked, the newest copy that two members have.
  - Says so where the copies contradict each other, where a new manager is not confirmed by the one before, and where the
    manager is not a machine of the inventory or is the one that runs Ansible.
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
  records:
    description:
      - The records that any host has sent whole, by digest, as P(gpumesh.cluster.sent_records#filter) gives them. Of the
        others a host tells the digest alone.
    type: dict
    default: {}
  machines:
    description: Every machine of the inventory.
    type: list
    elements: str
    required: true
  variables:
    description: The variables of each machine, as C(hostvars) has them.
    type: dict
    required: true
  manager:
    description: The manager by the inventory. Empty where that does not say.
    type: str
    default: ""
  trusted:
    description: The machine whose copy counts, whatever the others say. Empty where the copies are to tell.
    type: str
    default: ""
  generation:
    description: The generation of that copy, where others have a newer one. 0 where none was given.
    type: int
    default: 0
  successor:
    description: Who follows a manager that is permanently lost. Empty where none is.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Take the record
  ansible.builtin.set_fact:
    cluster_record: "{{ found.record }}"
  vars:
    found: "{{ held | gpumesh.cluster.find_cluster('lab', machines=groups['all'], variables=hostvars) }}"
"""

RETURN = r"""
_value:
  description:
    - C(refusal), a text that is empty where there is one record to go by, or none at all.
    - The C(record), null where no host has one, the C(source) that it is from, how each other copy stands to it in
      C(standing), with its C(kind) and C(reason), the members whose copies have to be C(replaced), and C(remarks) in
      words.
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import Known, Word, find


def find_cluster(
    results: Mapping[str, Mapping[str, Any]],
    name: str,
    *,
    machines: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    manager: str = "",
    trusted: str = "",
    generation: int = 0,
    successor: str = "",
    records: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    nothing: dict[str, Any] = {
        "refusal": "",
        "record": None,
        "source": None,
        "standing": {},
        "replaced": [],
        "remarks": [],
    }
    known = Known(machines, variables, manager or None)
    word = Word(trusted or None, generation or None, successor or None)
    try:
        found = find(read_answers(results, records), name, known, word)
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
        "replaced": list(found.replaced),
        "remarks": [printable(remark) for remark in found.remarks],
    }


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"find_cluster": find_cluster}

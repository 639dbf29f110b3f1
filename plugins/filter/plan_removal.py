# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_removal
short_description: Decide where the removal of a machine from a cluster is written
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives the host whose record is changed, which is the manager or, where that one is lost, its successor. What cannot
    work is refused in words, which the play shows before anything changes.
positional: name, leaving
options:
  _input:
    description: The result of M(gpumesh.cluster.cluster_info) of each host, by inventory hostname.
    type: dict
    required: true
  name:
    description: The name of the cluster.
    type: str
    required: true
  leaving:
    description: The machines that leave.
    type: list
    elements: str
    required: true
  known:
    description: Every machine of the inventory.
    type: list
    elements: str
    required: true
  record:
    description: The record of the cluster, as P(gpumesh.cluster.find_cluster#filter) gives it. Null where there is none.
    type: dict
    required: true
  records:
    description:
      - The records that any host has sent whole, by digest, as P(gpumesh.cluster.sent_records#filter) gives them. Of the
        others a host tells the digest alone.
    type: dict
    default: {}
  replaced:
    description: The members that have been given this record just now in place of what they held.
    type: list
    elements: str
    default: []
  new_manager:
    description: The manager from then on. Empty where it stays.
    type: str
  manager_lost:
    description: The manager is gone for ever.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Say where
  ansible.builtin.debug:
    msg: >-
      {{ (held | gpumesh.cluster.plan_removal('lab', ['gpu2'], known=groups['all'], record=cluster_record)).authority }}
"""

RETURN = r"""
_value:
  description: The C(refusal), empty where it can be done, and the C(authority).
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import Answer, read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.removal import decide_removal


def plan_removal(
    results: Mapping[str, Mapping[str, Any]],
    name: str,
    leaving: Sequence[str],
    *,
    known: Sequence[str],
    record: Mapping[str, Any] | None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    replaced: Sequence[str] = (),
    new_manager: str | None = None,
    manager_lost: bool = False,
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    answers = read_answers(results, records)
    try:
        drawn = model.parse(record) if record else None
        if drawn is not None:
            answers.update({machine: Answer([drawn], [], None) for machine in replaced})
        decision = decide_removal(drawn, name, leaving, known, answers, new_manager or None, manager_lost)
    except GpumeshError as refused:
        return {"refusal": printable(str(refused))}
    return {"refusal": "", **decision}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"plan_removal": plan_removal}

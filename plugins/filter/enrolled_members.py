# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: enrolled_members
short_description: The members of a decision, with the addresses that their tailnet gave them
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Completes the members that P(gpumesh.cluster.plan_registration#filter) decided on. Only those that share no network but
    a tailnet need it; all others are handed on as they are.
  - Of a member that is as the record has it there is the name alone.
  - A machine that is not in the tailnet yet, as in check mode, gets any free address.
positional: record, addresses
options:
  _input:
    description: The decision.
    type: dict
    required: true
  record:
    description: The record of the cluster. None where it is to be created.
    type: dict
  addresses:
    description: The addresses of each machine in the tailnet, by inventory hostname.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Register the members
  gpumesh.cluster.cluster:
    name: lab
    members: "{{ decision | gpumesh.cluster.enrolled_members(none, {'gpu1': ['100.64.0.1']}) }}"
"""

RETURN = r"""
_value:
  description: The members as M(gpumesh.cluster.cluster) takes them.
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.registration import enrolled


@as_filter
def enrolled_members(
    decision: Mapping[str, Any], record: Mapping[str, Any] | None, addresses: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """See DOCUMENTATION."""
    return enrolled(decision, model.parse(record) if record else None, addresses)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"enrolled_members": enrolled_members}

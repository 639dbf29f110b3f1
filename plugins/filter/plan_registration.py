# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_registration
short_description: Decide how the hosts of a play become members of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Chooses the subnet, each machine's address in it, and who joins. What cannot work is refused in words, which the
    play shows before anything changes.
positional: name
options:
  _input:
    description: The result of M(gpumesh.cluster.interface_info) of each host, by inventory hostname.
    type: dict
    required: true
  name:
    description: The name of the cluster.
    type: str
    required: true
  record:
    description: The record of the cluster. None where it is to be created.
    type: dict
  held:
    description: The result of M(gpumesh.cluster.cluster_info) of each host, by inventory hostname.
    type: dict
    default: {}
  records:
    description:
      - The records that any host has sent whole, by digest, as P(gpumesh.cluster.sent_records#filter) gives them. Of the
        others a host tells the digest alone.
    type: dict
    default: {}
  addresses:
    description: The address by which Ansible reaches each host, by inventory hostname.
    type: dict
    required: true
  sites:
    description: The site of each host, by inventory hostname. Empty where nothing is said.
    type: dict
    default: {}
  endpoints:
    description: Where the tunnels of other sites dial each host, by inventory hostname. Empty where nothing is said.
    type: dict
    default: {}
  subnet:
    description: The subnet that the user wants. None for the best one.
    type: str
  manager:
    description: The manager that the user wants. None for the present one, or for O(default_manager).
    type: str
  default_manager:
    description: The manager of a new cluster when the user names none.
    type: str
    required: true
  machines:
    description: Who shall be a member. None for all hosts.
    type: list
    elements: str
  mesh:
    description: The settings of the mesh of a new cluster, as M(gpumesh.cluster.cluster) takes them.
    type: dict
    default: {}
  join_only:
    description: Refuse to create a cluster.
    type: bool
    default: false
  interfaces:
    description: The C(prefer), C(exclude) and C(include) of P(gpumesh.cluster.shared_subnets#filter).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Decide
  ansible.builtin.set_fact:
    decision: >-
      {{ facts | gpumesh.cluster.plan_registration('lab', addresses=addresses, default_manager='gpu1') }}
"""

RETURN = r"""
_value:
  description:
    - C(refusal), a text that is empty where it can be done. It stands alone where it cannot.
    - Whether the cluster C(exists), its C(manager), C(subnet) and, for a new one, C(mesh), the C(members) as
      M(gpumesh.cluster.cluster) takes them, and the names of those C(joining).
    - The names of those C(left_out), since they were removed and not named to join.
    - The names of those C(enrolling), which have to be in the tailnet of C(enrol_settings) to get an address for the record.
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.registration import Host, Wish, decide


def plan_registration(
    facts: Mapping[str, Mapping[str, Any]],
    name: str,
    *,
    addresses: Mapping[str, str],
    default_manager: str,
    sites: Mapping[str, str] | None = None,
    endpoints: Mapping[str, str] | None = None,
    record: Mapping[str, Any] | None = None,
    held: Mapping[str, Mapping[str, Any]] | None = None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    subnet: str | None = None,
    manager: str | None = None,
    machines: Sequence[str] | None = None,
    mesh: Mapping[str, Any] | None = None,
    join_only: bool = False,
    interfaces: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    # What a play writes as an empty text was left out.
    wish = Wish(
        name,
        subnet or None,
        manager or None,
        default_manager,
        machines or None,
        mesh or {},
        join_only,
        interfaces or {},
    )
    site_of, endpoint_of = sites or {}, endpoints or {}
    known = {
        machine: Host(address or machine, site_of.get(machine) or None, endpoint_of.get(machine) or None)
        for machine, address in addresses.items()
    }
    try:
        decision = decide(
            wish, model.parse(record) if record else None, known, facts, read_answers(held or {}, records)
        )
    except GpumeshError as refused:
        return {"refusal": printable(str(refused))}
    return {"refusal": "", **decision}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"plan_registration": plan_registration}

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_copies
short_description: Find the record of a cluster among the copies of several hosts
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the manager's record or, if the manager does not answer, the newest copy on which two members agree.
  - Fails if the copies contradict each other, if a new manager is not confirmed by the former one, or if the manager is not
    a machine of the inventory or is the one that runs Ansible.
  - First returns the hosts to query next. These are hosts with a record that no host has sent yet, the manager if it is
    not in the play, up to two members, and O(candidate). So a run with C(--limit) also finds changes that its hosts
    have missed.
  - Runs only on the controller, once for all hosts of the play. Set C(run_once).
  - "Reads these options of roles: C(cluster_manager), C(cluster_manager_lost), C(cluster_name),
    C(cluster_new_manager), C(cluster_older_version), C(cluster_trusted_copy), C(cluster_trusted_generation)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  registered:
    description: The name of the variable in which a task has registered M(gpumesh.cluster.cluster_info) on the hosts.
    type: str
    required: true
  previous:
    description: The name of the variable in which this module is registered. Known records are not requested again.
    type: str
    required: true
  queried:
    description: The name of the variable in which the results of the queried hosts are registered, from a loop.
    type: str
  candidate:
    description: The machine to use if the copies do not determine one, such as the first host of the group.
    type: str
    required: true
  other_clusters:
    description: The hosts whose records of other clusters are also needed, those that may be V(joining), V(all) or V(none).
    type: str
    choices: [none, joining, all]
    default: none
  rounds:
    description: The maximum number of times that other hosts are queried.
    type: int
    default: 2
  required:
    description: Whether to fail if no host has a record of the cluster.
    type: bool
    default: false
  refuse:
    description: Whether to fail if the record cannot be determined, and print problems of the copies.
    type: bool
    default: true
  applies:
    description: Whether the record is about to be applied, which an older version of the collection refuses.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: List the records of the hosts
  gpumesh.cluster.cluster_info:
    complete: []
  register: cluster_info

- name: Decide which hosts to query next
  gpumesh.cluster.cluster_copies: &copies
    registered: cluster_info
    previous: copies
    candidate: gpu1
    rounds: 1
  register: copies
  run_once: true

- name: Query these hosts
  gpumesh.cluster.cluster_info:
    complete: "{{ item.complete }}"
    known_digests: "{{ item.known_digests }}"
  loop: "{{ copies.queries }}"
  delegate_to: "{{ item.machine }}"
  register: queried
  run_once: true

- name: Find the record
  gpumesh.cluster.cluster_copies:
    <<: *copies
    queried: queried
  register: copies
  run_once: true
"""

RETURN = r"""
queries:
  description: The hosts to query, each with C(machine), C(complete), C(digests) and C(known_digests). Empty once the record is
    determined.
  returned: success
  type: list
  elements: dict
record:
  description: The record. Null if no host has one.
  returned: RV(queries) is empty
  type: dict
source:
  description: The machine that has this copy.
  returned: RV(queries) is empty
  type: str
unreachable_members:
  description: The members that were asked, in the play or outside of it, and do not answer.
  returned: RV(queries) is empty
  type: list
  elements: str
manager_unreachable_reason:
  description: Why the manager does not answer. Empty if it does, or was not asked.
  returned: RV(queries) is empty
  type: str
replaced:
  description: The members whose copies must be replaced with the trusted one.
  returned: RV(queries) is empty
  type: list
  elements: str
remarks:
  description: Descriptions of the problems of other copies.
  returned: RV(queries) is empty
  type: list
  elements: str
upgrades:
  description: Whether the record is that of the manager, and does not name this version of the collection.
  returned: RV(queries) is empty
  type: bool
refusal:
  description: Why the record cannot be determined. Empty if it is determined, or if there is none at all.
  returned: RV(queries) is empty
  type: str
reachable:
  description: The hosts of the play that answered.
  returned: RV(queries) is empty
  type: list
  elements: str
authority:
  description: The machine to query for jobs. This is the manager, or RV(source) if the manager did not answer.
  returned: RV(queries) is empty
  type: str
machines:
  description: The members of the cluster. Empty without a record.
  returned: RV(queries) is empty
  type: list
  elements: str
comparable:
  description: The members that answered.
  returned: RV(queries) is empty
  type: list
  elements: str
out_of_reach:
  description: The members that did not answer, or are not in the play. Empty without a record.
  returned: RV(queries) is empty
  type: list
  elements: str
unreachable_machines:
  description: The members in the play that did not answer.
  returned: RV(queries) is empty
  type: list
  elements: str
records:
  description: The records that the hosts have sent, by digest.
  returned: success
  type: dict
outside:
  description: The answers of hosts outside the play, by machine.
  returned: success
  type: dict
"""

# The work is done by the action plugin of the same name.

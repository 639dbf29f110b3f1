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
  - Gives the manager's record. Where the manager cannot be asked, the newest copy that two members have.
  - Fails where the copies contradict each other, where a new manager is not confirmed by the one before, and where the
    manager is not a machine of the inventory or is the one that runs Ansible.
  - Says first whom to ask further. These are those who hold a record that nobody has sent, the manager where it is not in
    the play, up to two members, and O(candidate). So a run with C(--limit) learns of a change that its hosts slept through.
  - Runs on the controller alone, once for all hosts of the play. Give C(run_once).
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options:
  name:
    description: The name of the cluster.
    type: str
    required: true
  registered:
    description: The name of the variable in which a task has registered M(gpumesh.cluster.cluster_info) on the hosts.
    type: str
    required: true
  earlier:
    description: The name of the variable in which this module is registered. What was sent before is not asked for again.
    type: str
    required: true
  asked:
    description: The name of the variable in which the answers of those who were to be asked are registered, from a loop.
    type: str
  candidate:
    description: The machine to go by where no copy says more, such as the first host of the group.
    type: str
    required: true
  manager:
    description: The manager by the inventory. Empty where that does not say.
    type: str
    default: ""
  trusted_copy:
    description: The machine whose copy counts, whatever the others say. Empty where the copies are to tell.
    type: str
    default: ""
  trusted_generation:
    description: The generation of that copy, where others have a newer one. V(0) where none was given.
    type: int
    default: 0
  successor:
    description: Who follows a manager that is permanently lost. Empty where none is.
    type: str
    default: ""
  others:
    description: Whose records of other clusters are wanted too, those of machines that may be V(joining), V(all) or V(none).
    type: str
    choices: [none, joining, all]
    default: none
  rounds:
    description: How often others are asked at most.
    type: int
    default: 2
  required:
    description: Fail where no host has a record of the cluster.
    type: bool
    default: false
  refuse:
    description: Fail where there is no one record to go by, and print what is wrong with the copies. Else return it alone.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: List the records of the hosts
  gpumesh.cluster.cluster_info:
    whole: []
  register: held

- name: Decide which hosts to query next
  gpumesh.cluster.cluster_copies: &copies
    name: lab
    registered: held
    earlier: found
    candidate: gpu1
    rounds: 1
  register: found
  run_once: true

- name: Query these hosts
  gpumesh.cluster.cluster_info:
    whole: "{{ item.whole }}"
    known: "{{ item.known }}"
  loop: "{{ found.ask }}"
  delegate_to: "{{ item.machine }}"
  register: asked
  run_once: true

- name: Find the record
  gpumesh.cluster.cluster_copies:
    <<: *copies
    asked: asked
  register: found
  run_once: true
"""

RETURN = r"""
ask:
  description: Whom to ask, each as C(machine), C(whole), C(digests) and C(known). Empty when the record is decided on.
  returned: success
  type: list
  elements: dict
record:
  description: The record. Null where no host has one.
  returned: RV(ask) is empty
  type: dict
source:
  description: The machine whose copy it is.
  returned: RV(ask) is empty
  type: str
replaced:
  description: The members whose copies have to be replaced by the trusted one.
  returned: RV(ask) is empty
  type: list
  elements: str
remarks:
  description: What is wrong with other copies, in words.
  returned: RV(ask) is empty
  type: list
  elements: str
refusal:
  description: Why there is no one record to go by. Empty where there is one, or none at all.
  returned: RV(ask) is empty
  type: str
answering:
  description: The hosts of the play that have answered.
  returned: RV(ask) is empty
  type: list
  elements: str
records:
  description: The records that any host has sent, by digest.
  returned: success
  type: dict
outside:
  description: What hosts outside of the play have answered, by machine.
  returned: success
  type: dict
"""

# The work is done by the action plugin of the same name.

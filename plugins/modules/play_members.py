#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: play_members
short_description: List the hosts of a play that are members of a cluster, and outdated copies of its record
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Refuses an invalid record, or one of another cluster or manager, because later tasks trust it and delegate to the
    machines in it.
  - Runs only on the controller, once for all hosts of the play. Set C(run_once).
  - "Reads these options of roles: C(mesh_userspace), C(mesh_userspace_nodes)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  record:
    description: The cluster record, or the name of the variable that holds it.
    type: raw
    required: true
  name:
    description: The cluster to which the record must belong.
    type: str
  manager:
    description: The manager that the record must have.
    type: str
  registered:
    description: The name of the variable in which a task has registered M(gpumesh.cluster.cluster_info) on the hosts.
    type: str
    required: true
  announce:
    description: Whether to print which hosts are not among the members, and which members are userspace-only.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Find out which hosts are members
  gpumesh.cluster.play_members:
    record: "{{ written.record }}"
    name: lab
    registered: cluster_info
  register: play_members
  run_once: true
"""

RETURN = r"""
record:
  description: The record.
  returned: success
  type: dict
members:
  description: The hosts of the play that are members.
  returned: success
  type: list
  elements: str
nodes:
  description: The members in the play except those in RV(userspace_only).
  returned: success
  type: list
  elements: str
outdated:
  description: The members in the play that do not have a copy of exactly this record.
  returned: success
  type: list
  elements: str
unfinished:
  description: The members in the play on which an installation of packages was interrupted.
  returned: success
  type: list
  elements: str
userspace_only:
  description: The members in the play without an interface in their tailnet, which cannot connect to others.
  returned: success
  type: list
  elements: str
pods:
  description: The members in the play without an interface in their tailnet that are Slurm nodes nevertheless.
  returned: success
  type: list
  elements: str
"""

# The work is done by the action plugin of the same name.

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_module
short_description: Run a module without setting variables from its result
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs a module on the host, with its action if it has one, like a task of its own.
  - Ansible turns the facts in the result of any module into variables, and its statistics into artifacts of a job. The
    Python on a host, and so whoever is root there, decides what a result contains. Such variables take precedence over
    those of the inventory, and artifacts are extra variables of the next job of a workflow of AWX.
  - Facts are returned as RV(facts), and statistics are dropped. All modules of this collection do the same.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.internal
attributes:
  check_mode:
    support: full
    details: [As the module that is run.]
  diff_mode:
    support: full
    details: [As the module that is run.]
  idempotent:
    support: full
    details: [As the module that is run.]
options:
  name:
    description: The full name of the module.
    type: str
    required: true
  arguments:
    description: The options of the module in O(name).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Create a directory
  gpumesh.cluster.host_module:
    name: ansible.builtin.file
    arguments: {path: /srv/data, state: directory, mode: "0755"}
"""

RETURN = r"""
facts:
  description: The facts of the module. All other values are those that it returns.
  returned: if the module returns facts
  type: dict
  sample: {ansible_kernel: 6.12.48+deb13-amd64}
"""

# The work is done by the action plugin of the same name.

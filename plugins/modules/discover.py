#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: discover
short_description: Show the networks of all hosts and what they share
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Combines the results of M(gpumesh.cluster.interface_info) on all hosts of the play into one document, ranks the subnets
    that they share, and prints it. Run it once, not on every host.
  - Sets the artifacts C(discover_subnets) and C(discover_silent_hosts) for the next job of a workflow.
  - Runs only on the controller and makes no connection.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.subnets
  - gpumesh.cluster.internal
attributes:
  check_mode:
    details:
      - It only reads the results of the hosts, and writes O(facts_file) on the controller, except in check mode.
options:
  registered:
    description: The name of the variable in which the result of M(gpumesh.cluster.interface_info) was registered.
    type: str
    required: true
  output:
    description: The output format. V(table) is for people; V(json) is for programs, as one line that starts with a brace.
    type: str
    choices: [table, json]
    default: table
  facts_file:
    description: A file on the controller to which the whole document is written as JSON. Empty means none.
    type: path
    default: ""
  subnet:
    description: Only consider this subnet, in the form that C(ip addr) prints, with or without host bits. Empty means any.
    type: str
    default: ""
  table_style:
    description: The characters for the frames of the tables.
    type: str
    choices: [unicode, ascii]
    default: unicode
  table_width:
    description: The maximum width of the tables in columns. V(0) means the width of the terminal, V(-1) no limit.
    type: int
    default: 0
seealso:
  - module: gpumesh.cluster.interface_info
  - plugin: gpumesh.cluster.shared_subnets
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Examine every host
  gpumesh.cluster.interface_info:
  register: detected
  ignore_unreachable: true
  failed_when: false

- name: Show the networks
  gpumesh.cluster.discover:
    registered: detected
    facts_file: networks.json
  run_once: true
"""

RETURN = r"""
text:
  description:
    - The text that was printed. The document of V(json) and O(facts_file) contains C(schema_version), the C(candidates)
      and C(rejected) subnets as ranked by P(gpumesh.cluster.shared_subnets#filter), the facts of the C(hosts) that
      answered, and for each of the others why it is C(unreachable) or C(failed).
  returned: always
  type: str
"""

# The work is done by the action plugin of the same name.

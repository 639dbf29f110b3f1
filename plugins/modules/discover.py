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
  - Puts what M(gpumesh.cluster.interface_info) has returned on all hosts of the play into one document, ranks the subnets
    that they share, and prints it. Run it once, not on every host.
  - Sets the artifacts C(discover_subnets) and C(discover_silent_hosts) for the next job of a workflow.
  - Runs on the controller alone; no connection is made.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
attributes:
  check_mode:
    details:
      - It reads the hosts' answers, and writes O(facts_file) on the controller, except in check mode.
options:
  registered:
    description: The variable in which the task of M(gpumesh.cluster.interface_info) has registered its result.
    type: str
    required: true
  output:
    description: V(table) for people, V(json) for programs, as one line that begins with a brace.
    type: str
    choices: [table, json]
    default: table
  facts_file:
    description: A file on the controller that gets the whole document as JSON. Empty means none.
    type: path
    default: ""
  subnet:
    description: The only subnet to take, as C(ip addr) prints it, host bits and all. Empty means any.
    type: str
    default: ""
  prefer:
    description: Patterns of interface names. A subnet that stands on such interfaces everywhere comes first.
    type: list
    elements: str
    default: []
  exclude:
    description: Patterns of interface names that are out, besides those of container runtimes and hypervisors.
    type: list
    elements: str
    default: []
  include:
    description: Patterns of interface names that are in, although they look like those of a container runtime or
      are bridges without a physical port.
    type: list
    elements: str
    default: []
  table_style:
    description: The characters of the tables' frames.
    type: str
    choices: [unicode, ascii]
    default: unicode
  table_width:
    description: The room for the tables in columns. V(0) means the width of the terminal, V(-1) means no limit.
    type: int
    default: 0
seealso:
  - module: gpumesh.cluster.interface_info
  - plugin: gpumesh.cluster.shared_subnets
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Look at every host
  gpumesh.cluster.interface_info:
  register: detected
  ignore_unreachable: true
  failed_when: false

- name: Show what was found
  gpumesh.cluster.discover:
    registered: detected
    facts_file: networks.json
  run_once: true
"""

RETURN = r"""
text:
  description:
    - What was printed. The document of V(json) and of O(facts_file) has C(schema_version), the C(candidates) and the
      C(rejected) subnets as P(gpumesh.cluster.shared_subnets#filter) ranks them, the facts of the C(hosts) that answered,
      and by host why others are C(unreachable) or C(failed).
  returned: always
  type: str
"""

# The work is done by the action plugin of the same name.

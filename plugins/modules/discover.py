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
  - "Reads these options of roles: C(discover_exclude), C(discover_facts_file), C(discover_include),
    C(discover_output), C(discover_prefer), C(discover_subnet), C(discover_table_width)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.subnets
  - gpumesh.cluster.internal
attributes:
  check_mode:
    details:
      - It only reads the results of the hosts, and writes C(discover_facts_file) on the controller, except in check mode.
options:
  registered:
    description: The name of the variable in which the result of M(gpumesh.cluster.interface_info) was registered.
    type: str
    required: true
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
  run_once: true
"""

RETURN = r"""
text:
  description:
    - The text that was printed. The document of V(json) and C(discover_facts_file) contains C(schema_version), the C(candidates)
      and C(rejected) subnets as ranked by P(gpumesh.cluster.shared_subnets#filter), the facts of the C(hosts) that
      answered, and for each of the others why it is C(unreachable) or C(failed).
  returned: always
  type: str
"""

# The work is done by the action plugin of the same name.

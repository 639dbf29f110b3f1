#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: print_text
short_description: Print text to the terminal line by line
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Prints text with its line breaks, where M(ansible.builtin.debug) would print a single quoted line.
  - Replaces control characters, which could come from hosts and their users.
  - Runs only on the controller and makes no connection. With a callback whose output is read by programs
    (P(ansible.posix.json#callback), P(ansible.posix.jsonl#callback)), it prints nothing and only returns the text.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  text:
    description: The text to print.
    type: str
    required: true
seealso:
  - plugin: gpumesh.cluster.table
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show the members
  gpumesh.cluster.print_text:
    text: "{{ cluster_record.members | gpumesh.cluster.table(['machine', 'address']) }}"
  run_once: true
"""

RETURN = r"""
text:
  description: The text that was printed.
  returned: always
  type: str
  sample: |-
    ┌─────────┬────────────┐
    │ machine │ address    │
    └─────────┴────────────┘
"""

# The work is done by the action plugin of the same name.

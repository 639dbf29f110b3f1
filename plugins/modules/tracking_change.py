#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tracking_change
short_description: Refuse a change of the tracking server that does not work on all hosts
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Fails on every host of the play if the task that O(registered) names has failed on one of them. Unlike with
    C(any_errors_fatal), each host fails by itself, and can be rescued.
  - With O(record), it also fails if the server cannot move to the member in the changed record, or cannot be removed if that
    has none.
  - Runs only on the controller and makes no connection. Nothing is changed.
  - "Reads these options of roles: C(cluster_force)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.internal
options:
  registered:
    description: The name of the variable in which the task is registered. With O(record), it is
      M(gpumesh.cluster.tracking) with the changed record, in check mode.
    type: str
    required: true
  former_server:
    description: The member that runs the server until now. Empty for none.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Check that the new server can be started
  gpumesh.cluster.tracking_change:
    registered: installed
"""

RETURN = r"""
moved_from:
  description: The member whose database has to be saved for another one. Empty if the server does not move.
  type: str
  returned: with O(record)
"""

# The work is done by the action plugin of the same name.

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options that the modules of reachability share."""

    DOCUMENTATION = r"""
options:
  members:
    description:
      - The cluster record, or a list of mappings with C(machine), C(address) and C(interface). Options that it does not need
        are derived from it on the controller.
    type: raw
  layer:
    description:
      - With V(mesh), the members of a record are tested at their cluster addresses, that is over the mesh where there is one;
        with V(subnet), at their own addresses, and what their names resolve to is left out.
    type: str
    choices: [mesh, subnet]
    default: mesh
"""

    HOST = r"""
options:
  run:
    description: Name of the run, the same on all hosts and a new one each time.
    type: str
  token:
    description: The secret that all hosts of the run share.
    type: str
  machine:
    description: This host's name in the cluster. It follows from O(members).
    type: str
  address:
    description: This host's address in the cluster. It follows from O(members).
    type: str
  interface:
    description: The interface that has O(address). It follows from O(members).
    type: str
  ports:
    description:
      - TCP ports of services that the members must reach. One that is free is listened on; where a service listens
        already, the others only connect to it.
    type: list
    elements: int
    default: [22, 2049, 6817, 6818]
"""

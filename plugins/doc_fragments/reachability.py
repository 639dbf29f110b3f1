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
      - The cluster record, or a list of mappings with C(machine), C(address), C(interface) and possibly C(network). Options
        that it does not need are derived from it on the controller.
    type: raw
  layer:
    description:
      - With V(mesh), the members of a record are tested at their cluster addresses, which means over the mesh if there is
        one. With V(subnet), they are tested at their own addresses, and name resolution is not tested.
    type: str
    choices: [mesh, subnet]
    default: mesh
"""

    HOST = r"""
options:
  run:
    description: The name of the run, which must be the same on all hosts and new for each run.
    type: str
  token:
    description: The secret that all hosts of the run share.
    type: str
  machine:
    description: This host's name in the cluster. By default, it is derived from O(members).
    type: str
  address:
    description: This host's address in the cluster. By default, it is derived from O(members).
    type: str
  interface:
    description: The interface that has O(address). By default, it is derived from O(members).
    type: str
  ports:
    description:
      - TCP ports of services that the members must reach. The listener uses those that are free. If a service already
        listens on a port, the others only connect to it.
    type: list
    elements: int
    default: [22, 2049, 6817, 6818]
"""

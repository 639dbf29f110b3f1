# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options that the modules of the mesh share, as in module_utils/_layers/mesh/options.py."""

    TUNNEL = r"""
options:
  interface:
    description: Name of the interface, 1 to 15 characters. Required without O(record).
    type: str
  address:
    description:
      - Address of this host in CIDR form, with the prefix length of the whole mesh, such as V(10.99.0.1/16).
      - Required with O(peers).
    type: str
  listen_port:
    description: The UDP port.
    type: int
    default: 51820
  peers:
    description: All peers of the interface.
    type: list
    elements: dict
    suboptions:
      machine:
        description: The name of the peer, for messages.
        type: str
        required: true
      public_key:
        description: The public key of the peer.
        type: str
        required: true
      endpoint:
        description: The endpoint of the peer, C(host:port). If not set, the peer connects.
        type: str
      allowed_ips:
        description: The networks behind the peer. A default route is refused.
        type: list
        elements: str
        required: true
      persistent_keepalive:
        description: The interval in seconds of packets that keep a NAT open. V(0) sends none.
        type: int
        default: 0
"""

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options that the modules of the mesh share, as in module_utils/mesh/options.py."""

    DOCUMENTATION = r"""
options:
  relays:
    description:
      - With O(record), members that forward between two others which cannot dial each other, in the order of preference.
        With an empty list the manager does.
    type: list
    elements: str
    default: []
"""

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
    description: UDP port.
    type: int
    default: 51820
  peers:
    description: All peers of the interface.
    type: list
    elements: dict
    suboptions:
      machine:
        description: Name of the peer, for people.
        type: str
        required: true
      public_key:
        description: Its public key.
        type: str
        required: true
      endpoint:
        description: Where it is dialled, C(host:port). Without it, the peer dials.
        type: str
      allowed_ips:
        description: Networks behind the peer. A default route is refused.
        type: list
        elements: str
        required: true
      persistent_keepalive:
        description: Seconds between packets that keep a NAT open. V(0) sends none.
        type: int
        default: 0
"""

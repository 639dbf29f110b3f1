# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster with a mesh and sessions needs of the host's own firewall: an example for unit tests."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import HostRule

LAN = HostRule("eth0", "10.79.60.0/24")
TUNNEL = HostRule(port=51820, protocol="udp")
MESH = HostRule("gpumesh0", "10.99.0.0/16", mesh=True)
RELAY = HostRule("gpumesh0", out_interface="gpumesh0", forward=True, mesh=True)
SESSIONS = HostRule("gms+", "10.192.0.0/10", forward=True)
RULES = [LAN, TUNNEL, MESH, RELAY, SESSIONS]

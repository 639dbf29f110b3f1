# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kind of an interface, and which of its values are reliable."""

from __future__ import annotations

from typing import Optional

#: Our kind by the kernel's (linkinfo.info_kind). A team is a bond by another driver, Open vSwitch a bridge.
_KIND_BY_LINK_KIND = {
    "bond": "bond",
    "team": "bond",
    "vlan": "vlan",
    "bridge": "bridge",
    "openvswitch": "bridge",
    "veth": "veth",
    "tun": "tun",
    "wireguard": "wireguard",
    "vxlan": "vxlan",
    "ipoib": "infiniband",
}

#: ``ip -j`` writes operstate in upper case. Drivers without a link (tun, wireguard, loopback) stay UNKNOWN when up.
_KNOWN_STATES = ("up", "down", "lowerlayerdown", "dormant", "notpresent", "testing", "unknown")

#: Kinds that have the speed of the ports below them; for all other virtual ones, the value in sysfs is meaningless
#: (veth, bridges and tun report 10000).
_HONEST_VIRTUAL_SPEED = ("bond", "vlan")


def classify_interface(link_type: str, link_kind: Optional[str]) -> str:
    """Return one of the kinds of interface_info, from the hardware type and the driver's kind in ``ip -d``."""
    if link_type == "loopback":
        return "loopback"
    if link_kind is not None:
        return _KIND_BY_LINK_KIND.get(link_kind, "other")
    if link_type == "infiniband":
        return "infiniband"
    return "ethernet" if link_type == "ether" else "other"


def normalise_state(operstate: str, is_up: bool, has_carrier: bool) -> str:
    """Return one of the states in lower case. UNKNOWN is resolved by the administrative state and the carrier."""
    state = operstate.lower()
    if state == "unknown" and is_up:
        return "up" if has_carrier else "unknown"
    if state == "unknown":
        return "down"
    return state if state in _KNOWN_STATES else "unknown"


def parse_speed(speed_text: Optional[str], kind: str, is_physical: bool) -> Optional[int]:
    """Parse Mbit/s from sysfs; None if the value is meaningless: virtual devices, -1, or a link that is down."""
    if not is_physical and kind not in _HONEST_VIRTUAL_SPEED:
        return None
    try:
        speed_mbps = int(speed_text) if speed_text is not None else 0
    except ValueError:
        return None
    # A driver that does not know the speed reports -1, which older kernels show as the largest 32-bit number.
    return speed_mbps if 0 < speed_mbps < 0x7FFFFFFF else None

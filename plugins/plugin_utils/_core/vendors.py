# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vendor of a MAC address, as a hint about an unknown machine."""

from __future__ import annotations

import sys
from importlib import import_module

#: The bit of the first byte for locally administered addresses, which no vendor has assigned.
_LOCAL_BIT = 0x02
#: Prefixes that are used by convention.
_SOFTWARE_PREFIXES = {
    "02:42:": "a Docker container",
    "0a:58:": "a Kubernetes pod",
    "52:54:00:": "a virtual machine of QEMU or KVM",
    "fe:54:00:": "the host side of a libvirt virtual machine",
}


def mac_vendor(mac: str) -> str:
    """The vendor of an address, or the software that generates such addresses."""
    if int(mac[:2], 16) & _LOCAL_BIT:
        software_name = next(
            (software for prefix, software in _SOFTWARE_PREFIXES.items() if mac.lower().startswith(prefix)), None
        )
        return software_name or "locally administered: a virtual machine, a container or a random address"
    try:
        # The import is here, since loading netaddr takes longer than most of our tasks, and duplicates are rare.
        netaddr = import_module("netaddr")
    except ImportError:
        return f"for its maker: {sys.executable} -m pip install netaddr"
    try:
        return str(netaddr.EUI(mac).oui.registration().org)
    except netaddr.NotRegisteredError:
        return "of an unknown vendor"

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The firewall that the administrator of a host has set up with ufw or firewalld.

Both drop what they do not allow, in chains of their own, which no rule in another table lifts.
Source: ufw(8), which applies its rules at each boot if ufw.conf has ENABLED=yes; firewalld(1), which is a daemon.
"""

from __future__ import annotations

import re
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

UFW, FIREWALLD = "ufw", "firewalld"
_UFW_SETTINGS = "etc/ufw/ufw.conf"
_UFW_ENABLED = re.compile(r"^ENABLED=[\"']?yes\b", re.IGNORECASE | re.MULTILINE)


def find_active_firewalls(tree: Tree) -> List[str]:
    """Return the programs whose firewalls are active on this host: UFW, FIREWALLD or both, which packets have to pass.

    The settings of ufw stay when it is removed, and a process may belong to a container.
    """
    is_enabled = _UFW_ENABLED.search(tree.read(_UFW_SETTINGS) or "") and find_program("ufw")
    is_started = is_running(tree, FIREWALLD) and find_program("firewall-cmd")
    return [*([UFW] if is_enabled else []), *([FIREWALLD] if is_started else [])]


def is_running(tree: Tree, daemon: str) -> bool:
    """Whether a process of this name is running, even one of a container."""
    # A script has the name of its file there, not that of its interpreter.
    return any(tree.read("proc", entry, "comm") == daemon for entry in tree.list_names("proc") if entry.isdigit())

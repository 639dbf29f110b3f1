# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that the modules of the mesh share (see the doc fragment of the same name), and those of the actions."""

from __future__ import annotations

from typing import Any, Dict

RECORD: Dict[str, Any] = {"record": {"type": "raw"}}

#: Options of the actions. The record is not among them, since they do not copy it.
TUNNEL_OPTIONS: Dict[str, Any] = {
    "relays": {"type": "list", "elements": "str", "default": []},
    "preshared": {"type": "bool"},
    "preshared_results": {"type": "str"},
}

ROTATION_OPTIONS: Dict[str, Any] = {
    "step": {"type": "str", "choices": ["prepare", "arm", "switch"], "required": True},
    "prepared": {"type": "str"},
}

#: Options of an interface.
TUNNEL: Dict[str, Any] = {
    "interface": {"type": "str"},
    "address": {"type": "str"},
    "listen_port": {"type": "int", "default": 51820},
    "peers": {
        "type": "list",
        "elements": "dict",
        "options": {
            "machine": {"type": "str", "required": True},
            "public_key": {"type": "str", "required": True, "no_log": False},
            "endpoint": {"type": "str"},
            "allowed_ips": {"type": "list", "elements": "str", "required": True},
            "persistent_keepalive": {"type": "int", "default": 0},
        },
    },
}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clusters of any size in which nothing has to change: their record, and what the modules of the layers return."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan

_STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
#: The results of the modules on a host that has everything, without ``changed``.
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "firewall": {"tools": True},
    "job_environment": {"outdated": []},
    "layer_info": {"drift": {}, "munge_key": ""},
    "munge": {"missing": []},
    "names": {"outdated": []},
    "session": {"missing": [], "outdated": []},
    "slurm": {"missing": [], "outdated": []},
    "ssh_trust": {},
    "storage": {"missing": []},
    "tracking": {"missing": [], "outdated": []},
    "train": {"outdated": []},
    "wireguard": {
        "tools": True,
        "implementation": "kernel",
        "public_key": None,
        "interface_up": True,
        "boot": True,
    },
}


def build_record(member_count: int) -> model.Record:
    """Return the record of a cluster with a mesh, whose members n1, n2 and so on have all their keys."""
    machines = [
        {"machine": f"n{number}", "address": f"10.1.{number >> 8}.{number & 255}", "interface": "eth0"}
        for number in range(1, member_count + 1)
    ]
    mesh = {"backend": "wireguard", "subnet": "10.99.0.0/16"}
    record = plan.commit(plan.create("0" * 32, "lab", "10.1.0.0/16", "n1", mesh, machines, _STAMP), _STAMP)
    members = [
        {
            **member,
            "mesh": {
                "address": f"10.99.{number >> 8}.{number & 255}",
                "public_key": base64.b64encode(number.to_bytes(32, "big")).decode(),
            },
            "ssh_public_key": f"ssh-ed25519 {'A' * 64}{number:04}",
            "ssh_host_keys": [f"ssh-ed25519 {'B' * 64}{number:04}"],
        }
        for number, member in enumerate(record["members"], 1)
    ]
    return model.parse({**record, "members": members})

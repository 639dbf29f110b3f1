# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several names of the inventory that lead to one machine, such as by a copied ansible_host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record


def same_machines(facts: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The groups of hosts that are one machine. ``facts`` are the results of interface_info, by host.

    Clones may share their machine ID, host name, MAC and private addresses, but each has started its own kernel. The
    containers of one kernel differ in their interfaces, or in their names.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    for host, found in facts.items():
        about = found["host"]
        boot, name = about.get("boot_id"), (about.get("hostname") or {}).get("name")
        cards = [interface for interface in found["interfaces"] if interface.get("mac")]
        # The interfaces of containers come and go; the physical ones do not.
        cards = [interface for interface in cards if interface["physical"]] or cards
        if boot and name and cards:
            groups.setdefault((boot, name, frozenset(interface["mac"] for interface in cards)), []).append(host)
    return [hosts for hosts in groups.values() if len(hosts) > 1]


def member_at(copy: Record, facts: Mapping[str, Any]) -> tuple[str, str] | None:
    """The member in a machine's own copy of a record that has one of the machine's addresses, and this address.

    The mesh address first, since a private network may exist twice.
    """
    ends = [(member["machine"], member["mesh"]["address"]) for member in copy["members"] if member["mesh"]]
    ends += [(member["machine"], member["address"]) for member in copy["members"]]
    held = {entry["address"] for interface in facts["interfaces"] for entry in interface["addresses"]}
    return next(((machine, address) for machine, address in ends if address in held), None)

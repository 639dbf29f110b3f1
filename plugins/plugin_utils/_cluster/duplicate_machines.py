# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several names of the inventory that lead to one machine, such as by a copied ansible_host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record


def group_same_machines(facts: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The groups of hosts that are one machine. ``facts`` are the results of interface_info, by host.

    Clones may share their machine ID, host name, MAC and private addresses, but each has started its own kernel. The
    containers of one kernel differ in their interfaces, or in their names.
    """
    hosts_by_identity: dict[tuple[Any, ...], list[str]] = {}
    for host, host_facts in facts.items():
        host_description = host_facts["host"]
        boot_id, host_name = host_description.get("boot_id"), (host_description.get("hostname") or {}).get("name")
        network_cards = [interface for interface in host_facts["interfaces"] if interface.get("mac")]
        # The interfaces of containers come and go; the physical ones do not.
        network_cards = [interface for interface in network_cards if interface["physical"]] or network_cards
        if boot_id and host_name and network_cards:
            hosts_by_identity.setdefault(
                (boot_id, host_name, frozenset(interface["mac"] for interface in network_cards)), []
            ).append(host)
    return [hosts for hosts in hosts_by_identity.values() if len(hosts) > 1]


def find_member_by_address(record_copy: Record, facts: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the member in a machine's copy of a record that has one of the machine's addresses, and the address.

    The mesh address comes first, since a private network may exist twice.
    """
    member_addresses = [
        (member["machine"], member["mesh"]["address"]) for member in record_copy["members"] if member["mesh"]
    ]
    member_addresses += [(member["machine"], member["address"]) for member in record_copy["members"]]
    own_addresses = {
        address_entry["address"] for interface in facts["interfaces"] for address_entry in interface["addresses"]
    }
    return next(((machine, address) for machine, address in member_addresses if address in own_addresses), None)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of the members: which address each of them stands for, and the lines of /etc/hosts that say so."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model


class Named(NamedTuple):
    """A member under all its names.

    ``names``: the inventory name first, then its first label where no other member has it. Empty where the inventory
    name is an address or localhost, which must not be redefined. ``addresses``: the cluster address first.
    """

    machine: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]


def marker(record: model.Record) -> str:
    """Of the lines that our layers put into files which others write too; ``{mark}`` becomes BEGIN and END."""
    return f"# {{mark}} gpumesh cluster {record['name']}"


def named_members(record: model.Record) -> list[Named]:
    """All members in rank order."""
    labels = Counter(member["machine"].split(".", 1)[0] for member in record["members"])
    return [
        Named(
            member["machine"],
            _names(member["machine"], labels),
            tuple(dict.fromkeys((derive.cluster_address(record, member), member["address"]))),
        )
        for member in record["members"]
    ]


def hosts_entries(record: model.Record, machine: str = "", hostname: str = "") -> str:
    """Lines for /etc/hosts, one a member, without a final newline.

    ``hostname`` is the name that ``machine``, where the lines are for, gives itself: Debian maps it to 127.0.1.1, where
    no peer can follow, so it stands on the machine's own line too.
    """
    members = named_members(record)
    taken = {name for member in members for name in member.names} | {"localhost", ""}
    lines = []
    for member in members:
        own = (hostname,) if member.machine == machine and hostname not in taken else ()
        names = member.names + own
        if names:
            lines.append(f"{member.addresses[0]} {' '.join(names)}")
    return "\n".join(lines)


def _names(machine: str, labels: Mapping[str, int]) -> tuple[str, ...]:
    if machine == "localhost" or _is_address(machine):
        return ()
    label = machine.split(".", 1)[0]
    return (machine,) if label == machine or labels[label] > 1 else (machine, label)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

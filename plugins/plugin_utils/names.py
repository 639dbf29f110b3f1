# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of the members and their addresses."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model


class Named(NamedTuple):
    """A member with all its names.

    ``names``: the inventory name, and its first label unless another member has the same. Empty if the inventory name
    is an address or localhost, which must not be redefined. ``addresses``: the cluster address first.
    """

    machine: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]


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


def desired(record: model.Record, machine: str, state: str = "present") -> dict[str, Any]:
    """The parameters of the module names on one machine."""
    if state == "absent":
        return {"cluster": record["name"], "state": state}
    return {
        "cluster": record["name"],
        "state": state,
        "members": [{"address": named.addresses[0], "names": list(named.names)} for named in named_members(record)],
        "address": derive.cluster_address(record, derive.member_of(record, machine)),
    }


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

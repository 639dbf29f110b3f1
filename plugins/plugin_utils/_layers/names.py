# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of the members and their addresses."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import BASE, Layer, Options
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import (
    ProgramSources,
    bundle_program,
    source_digests,
)


class NamedMember(NamedTuple):
    """A member with all its names.

    ``host_names``: the inventory name, and its first label unless another member has the same. Empty if the inventory
    name is an address or localhost, which must not be redefined. ``addresses``: the cluster address first.
    """

    machine: str
    host_names: tuple[str, ...]
    addresses: tuple[str, ...]


@cache
def boot_program_sources() -> ProgramSources:
    """The sources of the program that restores the names when a container starts, without its settings."""
    return {names.PROGRAM_NAME: bundle_program(names.__name__)}


def named_members(record: model.Record) -> list[NamedMember]:
    """All members in rank order."""
    label_counts = Counter(member["machine"].split(".", 1)[0] for member in record["members"])
    return [
        NamedMember(
            member["machine"],
            _member_names(member["machine"], label_counts),
            tuple(dict.fromkeys((derive.cluster_address(record, member), member["address"]))),
        )
        for member in record["members"]
    ]


def desired_parameters(record: model.Record, machine: str, state: str = "present") -> dict[str, Any]:
    """The parameters of the module names on one machine."""
    if state == "absent":
        return {"cluster": record["name"], "state": state}
    return {
        "cluster": record["name"],
        "state": state,
        "members": [
            {"address": named_member.addresses[0], "names": list(named_member.host_names)}
            for named_member in named_members(record)
        ],
        "address": derive.cluster_address(record, derive.find_member(record, machine)),
        "digests": source_digests(boot_program_sources()),
    }


def _member_names(machine: str, label_counts: Mapping[str, int]) -> tuple[str, ...]:
    if machine == "localhost" or _is_address(machine):
        return ()
    label = machine.split(".", 1)[0]
    return (machine,) if label == machine or label_counts[label] > 1 else (machine, label)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _names_parameters(record: model.Record, machine: str, _options: Options) -> dict[str, Any]:
    return desired_parameters(record, machine)


LAYER = Layer("names", BASE, desired_parameters=_names_parameters, lists_members=True)

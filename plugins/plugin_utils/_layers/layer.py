# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a layer is for everything that goes through all layers: playbooks, drift, overview, firewall and report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record

#: The stages of `site`, in their order. A layer of the stage OPTIONAL may fail: the others are set up nevertheless.
NETWORK, BASE, OPTIONAL, SCHEDULER = "network", "base", "optional", "scheduler"
STAGES = (NETWORK, BASE, OPTIONAL, SCHEDULER)

Options = Mapping[str, Any]


class Ports(NamedTuple):
    """The ports that a layer needs between members, single ones or ranges such as 6817-6819.

    ``open_udp``: those that must be reachable from everywhere.
    """

    tcp: Sequence[str] = ()
    udp: Sequence[str] = ()
    open_udp: Sequence[str] = ()


class LayerState(NamedTuple):
    """Files and units of a layer that the module layer_info looks for; its options ``files`` and ``services``."""

    files: Sequence[Mapping[str, Any]] = ()
    services: Sequence[Mapping[str, Any]] = ()


def _is_always_used(_record: Record, _machine: str) -> bool:
    return True


def _is_always_repeated(_record: Record, _machines: Collection[str], _given_options: Sequence[Options]) -> bool:
    return True


def never_repeated(_record: Record, _machines: Collection[str], _given_options: Sequence[Options]) -> bool:
    """Return that all of a layer is compared, whatever the record contains."""
    return False


def _is_not_requested(_record: Record, _options: Options) -> bool:
    return False


def _describe_nothing(_record: Mapping[str, Any]) -> str:
    return ""


class Layer(NamedTuple):
    """A layer. Its role, its room and its tests have its name, and so have its drift and its checks.

    name, stage: of STAGES.
    options: the names of those of its role that the next two functions get.
    desired_parameters: from the record, a machine and the options to the parameters with which the module of the layer
    compares the host (``module_utils/_layers/drift.py`` has its reader); None if there is nothing to compare.
    given_parameters: instead, from the same to those of these parameters that do not follow from the record; the host
    derives the others from its copy (the function for that is there, too), so that nothing grows with the members.
    further_parameters: from the record, a machine and the options in further_options to the parameters of other modules of
    the layer, by their names.
    expected_state: from the same to what the module layer_info compares itself.
    compare_states: from the record, a machine and the states of all machines to a description of the drift.
    is_used: from the record and a machine to whether the machine has the layer. An option NAME_enabled decides, too.
    connects: whether its programs connect to other members, so that userspace-only members do not get it.
    claim: what a cluster must have claimed on a host for this layer to be its own; only one cluster can.
    leaves_before: a layer that would leave before this one in the reverse order of the setup, but needs it.
    lists_members: whether it must be updated on the remaining members when one has left.
    ports: from the record and the options named in port_options to what the firewall restricts to members.
    restricts_ports: whether given_parameters needs the ports of all layers, as the option layer_ports.
    find_pending: from the record, a machine and the states of all machines to what a run has to do there that is no drift.
    repeats: from the record, the machines of a run and the options in request_options on each of them to whether it does
    something of which none of them shows that it is missing. A run leaves the layer out only if not.
    requested: from the record and the options in request_options, as they were given, to whether a run asks for more than
    that nothing differs.
    title: the heading of its checks in the report; empty for a layer without checks.
    describe: one line for the report, from the record; empty if the cluster does not have the layer.
    """

    name: str
    stage: str
    options: tuple[str, ...] = ()
    desired_parameters: Callable[[Record, str, Options], dict[str, Any] | None] | None = None
    given_parameters: Callable[[Record, str, Options], dict[str, Any]] | None = None
    further_parameters: Callable[[Record, str, Options], dict[str, dict[str, Any]]] | None = None
    further_options: tuple[str, ...] = ()
    expected_state: Callable[[Record, str, Options], LayerState] | None = None
    compare_states: Callable[[Record, str, Mapping[str, Mapping[str, Any]]], str] | None = None
    is_used: Callable[[Record, str], bool] = _is_always_used
    connects: bool = False
    claim: str = ""
    leaves_before: str = ""
    lists_members: bool = False
    ports: Callable[[Record, Options], Ports] | None = None
    port_options: tuple[str, ...] = ()
    restricts_ports: bool = False
    find_pending: Callable[[Record, str, Mapping[str, Mapping[str, Any]]], str] | None = None
    repeats: Callable[[Record, Collection[str], Sequence[Options]], bool] = _is_always_repeated
    requested: Callable[[Record, Options], bool] = _is_not_requested
    request_options: tuple[str, ...] = ()
    title: str = ""
    describe: Callable[[Mapping[str, Any]], str] = _describe_nothing

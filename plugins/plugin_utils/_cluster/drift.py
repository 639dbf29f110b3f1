# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a record requires of each member, for comparison with the member. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import Options


class LayerQueries(NamedTuple):
    """What a host is asked about its layers.

    ``layers``: those that it should have. ``options``: those of the module layer_info that do not follow from the
    record. ``refusals``: why a layer cannot be compared, by layer.
    """

    layers: list[str]

    options: dict[str, Any]
    refusals: dict[str, str]


class LayerPlan(NamedTuple):
    """The layers that a run enters, and why, by layer. A layer that is entered in any case has no reason."""

    layers: list[str]
    reasons: dict[str, str]


def layer_queries(record: model.Record, machine: str, read_options: Callable[..., Mapping[str, Any]]) -> LayerQueries:
    """Return what one member is asked.

    ``read_options``: returns the options with these names on that host. It may raise InputError.
    """
    layers: list[str] = []
    parameters_by_module: dict[str, Any] = {}
    files: list[dict[str, Any]] = []
    services: list[dict[str, Any]] = []
    refusals: dict[str, str] = {}
    for layer in registry.LAYERS:
        try:
            options = read_options(*layer.options)
            if layer.is_used(record, machine) and options.get(f"{layer.name}_enabled", True):
                layers.append(layer.name)
            if layer.desired_parameters is not None:
                parameters = layer.desired_parameters(record, machine, options)
                parameters_by_module.update({} if parameters is None else {layer.name: parameters})
            if layer.given_parameters is not None:
                membership.find_member(record, machine)
                if layer.restricts_ports and options[f"{layer.name}_enabled"]:
                    options = {**options, "layer_ports": registry.layer_ports(record, read_options)}
                parameters_by_module[layer.name] = layer.given_parameters(record, machine, options)
            if layer.further_parameters is not None:
                further_options = read_options(*layer.further_options)
                parameters_by_module.update(layer.further_parameters(record, machine, further_options))
            if layer.expected_state is not None:
                expected = layer.expected_state(record, machine, options)
                files += [{"layer": layer.name, **expected_file} for expected_file in expected.files]
                services += [{"layer": layer.name, **service} for service in expected.services]
        except InputError as error:
            refusals[layer.name] = error.message.rstrip(".")
    return LayerQueries(layers, {"modules": parameters_by_module, "files": files, "services": services}, refusals)


def compare_member(
    record: model.Record, machine: str, states_by_machine: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Describe what `site` would change on a member, by layer.

    ``states_by_machine``: the state of each member's layers.
    """
    host_state = states_by_machine.get(machine, {}).get("host") or {}
    host_drift = host_state.get("drift", {})
    drift_by_layer = {}
    for layer in registry.LAYERS:
        if layer.connects and host_state.get("userspace_only"):
            continue
        difference = host_drift.get(layer.name) or (
            layer.compare_states(record, machine, states_by_machine) if layer.compare_states else ""
        )
        if difference:
            drift_by_layer[layer.name] = difference
    return drift_by_layer


def plan_layers(
    record: model.Record,
    states_by_machine: Mapping[str, Mapping[str, Any]],
    given_options: Sequence[Options],
) -> LayerPlan:
    """Return the layers that a run has to enter: those that differ or are requested, and all later ones.

    A layer may depend on an earlier one, so the order decides, and the same layers are entered on all hosts.
    ``states_by_machine``: the results of layer_info, of the hosts in the run. ``given_options``: the options of each of
    them as they were given.
    """
    drift_by_machine = {machine: compare_member(record, machine, states_by_machine) for machine in states_by_machine}
    planned_layers: list[str] = []
    reasons: dict[str, str] = {}
    first_reason = "; ".join(
        f"{machine} could not be compared"
        for machine, state in states_by_machine.items()
        if "drift" not in state["host"]
    )
    for layer in registry.setup_order():
        differences = [
            f"{machine}: {drift[layer.name]}" for machine, drift in drift_by_machine.items() if layer.name in drift
        ]
        for machine, state in states_by_machine.items():
            if layer.connects and state["host"].get("userspace_only"):
                continue
            pending = (state["host"].get("pending") or {}).get(layer.name) or (
                layer.find_pending(record, machine, states_by_machine) if layer.find_pending else ""
            )
            differences += [f"{machine}: {pending}"] if pending else []
        if any(layer.requested(record, options) for options in given_options):
            differences.append("its options ask for more than a comparison")
        first_reason = first_reason or "; ".join(differences)
        if first_reason or layer.repeats(record, states_by_machine, given_options):
            planned_layers.append(layer.name)
            reasons[layer.name] = "; ".join(differences) or ("it follows one that differs" if first_reason else "")
    return LayerPlan(planned_layers, reasons)


def format_drift(drift_by_layer: Mapping[str, str]) -> str:
    """Format the drift of a member as one text; layers with the same drift are listed together."""
    layers_by_drift: dict[str, list[str]] = {}
    for layer, difference in drift_by_layer.items():
        layers_by_drift.setdefault(difference, []).append(layer)
    return "; ".join(f"{', '.join(layers)}: {difference}" for difference, layers in layers_by_drift.items())

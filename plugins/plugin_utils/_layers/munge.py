# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""munge as a layer of the cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import (
    SCHEDULER,
    Layer,
    LayerState,
    Options,
    never_repeated,
)


def expected_state(_record: model.Record, _machine: str, _options: Options) -> LayerState:
    """Return the unit that must run, and the key that it must have read."""
    return LayerState(services=[{"unit": "munge.service", "reads": ["/etc/munge/munge.key"]}])


def desired_parameters(record: model.Record, _machine: str, _options: Options) -> dict[str, Any]:
    """Return the parameters with which the module munge compares the host: with the key that it has."""
    return {"cluster": record["name"], "cluster_id": record["id"]}


def _requests_key(_record: model.Record, options: Options) -> bool:
    """Whether another key may be requested than the one that the manager has."""
    return bool(options["munge_rotate_key"] or options["munge_key_file"])


def compare_keys(record: model.Record, machine: str, states_by_machine: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe how the key of a member differs from that of the manager, from their fingerprints."""
    host_state = states_by_machine.get(machine, {}).get("host") or {}
    if "drift" not in host_state or "munge" in host_state["drift"]:
        return ""
    manager_key = (states_by_machine.get(record["manager"], {}).get("host") or {}).get("munge_key")
    if not host_state["munge_key"]:
        return "there is no key"
    if manager_key and host_state["munge_key"] != manager_key:
        return f"its key is not the one of {record['manager']}"
    return ""


LAYER = Layer(
    "munge",
    SCHEDULER,
    desired_parameters=desired_parameters,
    expected_state=expected_state,
    compare_states=compare_keys,
    connects=True,
    claim="munge",
    # Where it was not recorded whose munge it is, the job environment shows it.
    leaves_before="job_environment",
    repeats=never_repeated,
    requested=_requests_key,
    request_options=("munge_key_file", "munge_rotate_key"),
)

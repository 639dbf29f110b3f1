# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of layers: the only one. Playbooks, drift, overview, firewall and report read it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import (
    firewall,
    job_environment,
    mesh_drift,
    munge,
    names,
    session,
    slurm_drift,
    ssh_trust,
    storage,
    tracking,
    train,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import STAGES, Layer, Options, Ports

#: In the order in which they are set up, each after those that it needs. The volumes come before ssh_trust, since they
#: may contain the users' home directories; the plugin of session before Slurm, which loads it.
LAYERS: tuple[Layer, ...] = (
    mesh_drift.LAYER,
    names.LAYER,
    firewall.LAYER,
    storage.LAYER,
    ssh_trust.LAYER,
    tracking.LAYER,
    munge.LAYER,
    job_environment.LAYER,
    session.LAYER,
    slurm_drift.LAYER,
    train.LAYER,
)


def setup_order(stages: Collection[str] = STAGES) -> list[Layer]:
    """Return the layers of these stages in the order in which they are set up."""
    return [layer for layer in LAYERS if layer.stage in stages]


def layer_ports(record: Record, read_options: Callable[..., Options]) -> list[Ports]:
    """Return the ports of each layer, which may follow from options of its role."""
    return [layer.ports(record, read_options(*layer.port_options)) for layer in LAYERS if layer.ports is not None]


def leave_order() -> list[Layer]:
    """Return all layers in the order in which they leave a machine: reversed, so that what uses the mesh precedes it."""
    layers = list(reversed(LAYERS))
    for layer in LAYERS:
        if layer.leaves_before:
            layers.remove(layer)
            layers.insert([following.name for following in layers].index(layer.leaves_before), layer)
    return layers

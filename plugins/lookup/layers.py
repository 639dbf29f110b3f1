# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: layers
short_description: The layers of a cluster, in the order in which they are set up or leave
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the layers, for a loop over their roles. Internal, and may change in any release.
  - The list is the same for all hosts. Ansible includes roles in the order in which the first host reports them, so a
    layer that a host does not get is skipped by a condition of its tasks, not by a shorter list.
options:
  _terms:
    description:
      - Which layers. V(network), V(base), V(optional) and V(scheduler) are the stages of C(site), in the order of their
        setup.
      - V(remaining) are those that name the members, and have to be updated when one has left.
      - V(leaving) are all, in the order in which they leave a machine.
    type: list
    elements: str
    choices: [network, base, optional, scheduler, remaining, leaving]
    required: true
  plan:
    description: The result of M(gpumesh.cluster.layer_plan). Only its layers are returned, unless the record has changed.
      All of them without a plan.
    type: dict
    default: {}
  generation:
    description: The generation of the cluster record. Required for O(plan).
    type: int
"""

EXAMPLES = r"""
- name: Set up the layers of the scheduler
  ansible.builtin.include_role:
    name: "gpumesh.cluster.{{ cluster_layer.name }}"
    apply:
      when: not cluster_layer.connects or inventory_hostname not in cluster_userspace_only
  loop: "{{ query('gpumesh.cluster.layers', 'scheduler') }}"
  loop_control:
    loop_var: cluster_layer
"""

RETURN = r"""
_raw:
  description: The layers.
  type: list
  elements: dict
  contains:
    name:
      description: The name of the layer and of its role.
      type: str
    claim:
      description: What the cluster must have claimed on a host for the layer to be its own. Empty if nothing.
      type: str
    connects:
      description: Whether its programs connect to other members, so that userspace-only members do not get it.
      type: bool
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import STAGES, Layer


class LookupModule(LookupBase):
    """Reads the list of layers."""

    def run(
        self, terms: Sequence[Any], variables: Mapping[str, Any] | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """Return the layers; see DOCUMENTATION."""
        self.set_options(var_options=variables, direct=options)
        selected_layers = [layer for term in terms for layer in select_layers(str(term))]
        layers = select_planned(selected_layers, self.get_option("plan"), self.get_option("generation"))
        return [{"name": layer.name, "claim": layer.claim, "connects": layer.connects} for layer in layers]


def select_planned(layers: Sequence[Layer], layer_plan: Mapping[str, Any], generation: int | None) -> Sequence[Layer]:
    """Return the layers of a plan. All without one, or for another generation of the record than that of the plan.

    A layer that has changed the record, such as a mesh with another address, is a change that the others follow.
    """
    if "layers" not in layer_plan or layer_plan["generation"] != generation:
        return layers
    return [layer for layer in layers if layer.name in layer_plan["layers"]]


def select_layers(selection: str) -> Sequence[Layer]:
    """Return the layers of a stage, or in another order; see DOCUMENTATION. Raises AnsibleLookupError."""
    if selection in STAGES:
        return registry.setup_order([selection])
    if selection == "leaving":
        return registry.leave_order()
    if selection == "remaining":
        return [layer for layer in registry.leave_order() if layer.lists_members]
    raise AnsibleLookupError(f"There are no layers '{selection}'. Use {', '.join(STAGES)}, remaining or leaving.")

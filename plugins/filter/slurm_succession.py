# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: slurm_succession
short_description: Decide whose queue the controller of a manager goes on with
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - A manager goes on with the queue and the accounting of its own time, or takes over those of the manager before. It is
    refused an empty queue while another machine may have one that counts.
  - By the history of the record, and by the markers that M(gpumesh.cluster.slurm_state) leaves beside the queue.
positional: own
options:
  _input:
    description: The record of the cluster.
    type: dict
    required: true
  own:
    description: What M(gpumesh.cluster.slurm_state) with V(state=inspected) has returned on the manager.
    type: dict
    required: true
  former:
    description: What it has returned on the machine that RV(_value) has named as C(former). Empty as long as nobody was asked.
    type: dict
    default: {}
  known:
    description: Every machine of the inventory. Only these can be asked.
    type: list
    elements: str
    required: true
  handing:
    description: The machine that has just ended its controller to hand it over. Empty for nobody.
    type: str
    default: ""
  lost:
    description: The machine that was the manager before is lost for good, and the queue with it.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Look whose queue the manager has
  gpumesh.cluster.slurm_state:
    state: inspected
  register: own
  delegate_to: "{{ cluster_record.manager }}"

- name: Show what it does
  ansible.builtin.debug:
    msg: "{{ (cluster_record | gpumesh.cluster.slurm_succession(own, known=groups['all'])).action }}"
"""

RETURN = r"""
_value:
  description:
    - The C(refusal), empty where the controller may start.
    - The C(former) machine to ask before anything is decided, empty where nobody has to be asked.
    - The C(action), V(go_on) with what is there, V(mark) it as of this time, or V(take) it over first.
    - C(retire), what becomes of an older queue of the manager, V(keep) or V(delete), empty where there is none.
    - The C(tenures) in which the queue has come about, for V(mark) and V(take).
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import succession
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def slurm_succession(
    record: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    known: Sequence[str],
    former: Mapping[str, Any] | None = None,
    handing: str = "",
    lost: bool = False,
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    parsed = model.parse(dict(record))
    there = succession.read_look(own)
    if there is None:
        raise HostStateError(f"{parsed['manager']} does not say what it has of a controller.", "Run it again.")
    decided = succession.decide(parsed, there, handing=handing, lost=lost)
    if decided.former and decided.former not in known:
        decided = succession.decide(parsed, there, handing=handing, lost=lost, silence="it is not in the inventory")
    elif decided.former and former:
        look = succession.read_look(former)
        said = printable(str(former.get("msg") or "it does not answer"))
        decided = succession.decide(parsed, there, look, handing, lost, "" if look else said)
    return decided._asdict()


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"slurm_succession": slurm_succession}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_witnesses
short_description: Whom to ask for the cluster record besides the hosts of the play
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives the manager where it is not in the play, up to two members, and the machine that the inventory names, so that a
    run with C(--limit) learns of a change that its hosts slept through, such as a new manager.
positional: name, candidate, records
options:
  _input:
    description: The result of M(gpumesh.cluster.cluster_info) of each host, by inventory hostname.
    type: dict
    required: true
  name:
    description: The name of the cluster.
    type: str
    required: true
  candidate:
    description: The machine to ask whatever the copies say.
    type: str
    required: true
  records:
    description:
      - The records that any host has sent whole, by digest, as P(gpumesh.cluster.sent_records#filter) gives them. Of the
        others a host tells the digest alone.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Ask the others
  gpumesh.cluster.cluster_info:
  loop: "{{ held | gpumesh.cluster.cluster_witnesses('lab', 'gpu1') }}"
  delegate_to: "{{ item }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: Inventory hostnames, without those of the play.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import witnesses
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def cluster_witnesses(
    results: Mapping[str, Mapping[str, Any]],
    name: str,
    candidate: str,
    records: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """See DOCUMENTATION."""
    return witnesses(read_answers(results, records), name, candidate)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"cluster_witnesses": cluster_witnesses}

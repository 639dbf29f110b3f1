# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_overview
short_description: Every cluster that the hosts of a play know of
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Brings the records that the hosts hold together, and says of each member whether its copy is current.
positional: at, states, verdict, records
options:
  _input:
    description: The result of M(gpumesh.cluster.cluster_info) of each host, by inventory hostname.
    type: dict
    required: true
  at:
    description: The time at which the hosts were asked, such as V(2026-11-20T20:31:00Z).
    type: str
    required: true
  states:
    description:
      - What each layer found on each machine when it compared it with the record, by inventory hostname and layer.
      - Known are C(mesh), with the result of M(gpumesh.cluster.wireguard) in check mode, C(host), with that of
        M(gpumesh.cluster.layer_info), and C(volumes), with what M(gpumesh.cluster.volume_probe) has looked at.
    type: dict
    default: {}
  verdict:
    description:
      - The verdict of the last check, as a mapping or as JSON text. What it measured is shown with the volumes of its
        cluster. One that is empty or damaged is none.
    type: raw
  records:
    description:
      - The records that any host has sent whole, by digest, as P(gpumesh.cluster.sent_records#filter) gives them. Of the
        others a host tells the digest alone.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show the names of all clusters
  ansible.builtin.debug:
    msg: "{{ held | gpumesh.cluster.cluster_overview(now_utc) | map(attribute='name') }}"
  vars:
    now_utc: "{{ now(utc=true, fmt='%Y-%m-%dT%H:%M:%SZ') }}"
"""

RETURN = r"""
_value:
  description:
    - Each cluster with C(name), C(id), C(subnet), C(generation), C(manager), C(manager_address), C(nodes), C(gpus),
      C(machines), C(mesh), C(volumes), C(changed_at), C(members) and C(problems).
    - Each volume as the record has it, with its C(state). That is C(filesystem), C(total_bytes), C(free_bytes), the
      members that it is C(mounted_on) and, of the last check, C(measured_at) and C(members) with their C(write_mbps),
      C(read_mbps) and C(files_per_second).
    - Each member with C(machine), C(rank), C(manager), C(address) in the cluster, C(own_address), C(interface),
      C(site), C(gpus), C(layers), the state of its C(copy), when it was C(last_seen), and its C(drift).
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.overview import overview
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.evidence import earlier


@as_filter
def cluster_overview(
    results: Mapping[str, Mapping[str, Any]],
    at: str,
    states: Mapping[str, Mapping[str, Any]] | None = None,
    verdict: Any = None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """See DOCUMENTATION."""
    return overview(results, at, states, earlier(verdict), records)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"cluster_overview": cluster_overview}

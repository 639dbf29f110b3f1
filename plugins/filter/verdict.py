# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: verdict
short_description: Judge a cluster by all that was found
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes the one verdict document from a cluster record and the results of the modules that looked at the cluster.
  - The document has the JSON schema C(plugins/plugin_utils/report/verdict.schema.json) and is what the reports are made
    of.
  - A member without results is named, never left out. What was not checked says so and why, and never passes.
positional: evidence, generated_at
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  evidence:
    description:
      - What was found, by key. Every key may be missing. Its checks are then reported as skipped.
    type: dict
    required: true
    suboptions:
      asked:
        description: The machines that are in this run. A member that is not is reported as skipped.
        type: list
        elements: str
      only_dialled:
        description: Members without an interface of their tailnet. What they cannot do is reported as skipped.
        type: list
        elements: str
      answered:
        description: The machines that answered over SSH until the end.
        type: list
        elements: str
      reachability:
        description: The result of the role P(gpumesh.cluster.reachability#role).
        type: dict
      health:
        description: The result of M(gpumesh.cluster.node_health) by machine.
        type: dict
      volumes:
        description: The results of M(gpumesh.cluster.volume_probe) by phase and machine.
        type: dict
      slurm:
        description: The result of C(sinfo -h -N -o '%N|%T|%o|%E') on the manager.
        type: dict
      job:
        description: The result of a command that prints the name of each node, run through C(srun) on all of them.
        type: dict
      collectives:
        description: Results of M(gpumesh.cluster.collective_test).
        type: list
        elements: dict
  level:
    description: How deep the run looked.
    type: str
    choices: [quick, full, burn]
    default: quick
  generated_at:
    description: The time of the run in UTC, as in C(2026-11-20T20:31:00Z).
    type: str
    required: true
  max_clock_offset:
    description: Seconds that two members' clocks may differ.
    type: float
    default: 5
  min_bandwidth_gbps:
    description:
      - What the link between two members has to carry, in 10^9 bits a second. With V(0) a link fails that carries less
        than a fifth of the median of those like it, where there are six or more.
    type: float
    default: 0
  volume_limits:
    description:
      - What every volume has to do on every member. C(write_mbps) and C(read_mbps) in 10^6 bytes a second, C(files_per_second)
        for small files, and C(max_used_percent). With V(0), or not given, there is no such limit; for C(max_used_percent)
        it is V(95).
    type: dict
    default: {}
  min_rdma_gbps:
    description:
      - What RDMA between two members has to carry, in 10^9 bits a second. With V(0) four fifths of the slower port's
        rate; what the kernel does without such a card is not judged.
    type: float
    default: 0
  max_rdma_latency_us:
    description:
      - How many microseconds RDMA may take from one member to another. With V(0) a link fails that takes more than five
        times the median, where there are six or more.
    type: float
    default: 0
  previous:
    description:
      - The verdict of the run before, to compare with, as a mapping or as JSON text.
      - One that is empty, damaged or of another cluster starts a new history.
    type: raw
"""

EXAMPLES = r"""
- name: Judge the cluster by what was found
  ansible.builtin.set_fact:
    check_verdict: >-
      {{ cluster_record | gpumesh.cluster.verdict(evidence, '2026-11-20T20:31:00Z', level='quick') }}
"""

RETURN = r"""
_value:
  description: The verdict document.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.evidence import (
    judge,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.rdma import Limits


@as_filter
def verdict(
    record: Record,
    evidence: dict[str, Any],
    generated_at: str,
    level: str = "quick",
    max_clock_offset: float = 5,
    min_bandwidth_gbps: float = 0,
    volume_limits: dict[str, Any] | None = None,
    min_rdma_gbps: float = 0,
    max_rdma_latency_us: float = 0,
    previous: Any = None,
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    return judge(
        record,
        evidence,
        generated_at=generated_at,
        level=level,
        max_clock_offset=float(max_clock_offset),
        min_bandwidth_gbps=float(min_bandwidth_gbps),
        volume_limits={name: float(limit) for name, limit in (volume_limits or {}).items()},
        rdma_limits=Limits(float(min_rdma_gbps), float(max_rdma_latency_us)),
        previous=previous,
    )


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"verdict": verdict}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: reachability_verdicts
short_description: Say for each pair of members whether they reach each other, and if not why
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Judges what M(gpumesh.cluster.reachability) found out on all members. Each ordered pair gets one verdict, the cause
    that explains the others, in words and with what to do about it.
  - A pair that could not be measured is C(not_checked), and its message says why.
positional: members, max_clock_offset
options:
  _input:
    description:
      - Under the keys C(listen), C(probe) and C(throughput) (the phase C(collect)), by machine what the task registered.
        A machine that is not in the run is left out.
    type: dict
    required: true
  members:
    description: The cluster record, or a list of mappings with C(machine), C(address) and C(interface).
    type: raw
    required: true
  max_clock_offset:
    description: Seconds by which the clocks of two members may differ.
    type: float
    default: 5.0
seealso:
  - module: gpumesh.cluster.reachability
  - plugin: gpumesh.cluster.reachability_matrix
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Name what is wrong
  ansible.builtin.debug:
    msg: >-
      {{ ({'listen': dict(machines | zip(machines | map('extract', hostvars, 'listening'))),
           'probe': dict(machines | zip(machines | map('extract', hostvars, 'probed')))}
          | gpumesh.cluster.reachability_verdicts(cluster_record)).summary }}
"""

RETURN = r"""
_value:
  description:
    - C(status), the worst of all, one of C(pass), C(fail), C(error) and C(skipped); C(summary) in words; C(counts), the
      number of pairs by verdict.
    - C(pairs), each with C(from), C(to), C(status), C(verdict), C(message), C(remedy), C(rtt_ms), C(path_mtu) (bytes),
      C(offset_s) (the clock of C(to) less that of C(from)), C(bandwidth_gbps) (10^9 bits a second), and by RDMA
      C(rdma_gbps) and C(rdma_latency_us) (microseconds one way); what was not measured is V(none). C(rdma_error) says
      why RDMA between two that have it was not.
    - C(verdict) is one of C(ok), C(refused), C(filtered), C(no_route), C(no_answer), C(wrong_interface), C(wrong_host),
      C(nat), C(mtu_black_hole), C(corrupted), C(asymmetric), C(name_is_loopback), C(clock_skew), C(duplicate_address)
      and C(not_checked).
    - C(hosts), what is wrong with single members, each with C(host), C(status), C(verdict), C(message) and C(remedy).
    - C(checks), the same in the form of all checks of this collection.
    - C(rdma), by machine the RDMA port by which it was measured, or the C(reason) why it has none.
    - C(lingering), the machines whose listener may still be there, so that it should be stopped.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reach_verdicts import judge


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"reachability_verdicts": as_filter(judge)}

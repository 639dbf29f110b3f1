#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reachability_verdicts
short_description: Determine for each pair of members whether they reach each other, and if not, why
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Evaluates the results of M(gpumesh.cluster.reachability) on all members. Each ordered pair gets one verdict, that of
    its root cause, with a message and a remedy. Run it once, not on every host.
  - A pair that could not be measured is C(not_checked), and its message says why.
  - Runs only on the controller and makes no connection.
  - "Reads these options of roles: C(check_max_clock_offset), C(firewall_host), C(reachability_layer), C(reachability_show)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.reachability
  - gpumesh.cluster.internal
options:
  members:
    description: The cluster record, or a list of mappings with C(machine), C(address) and C(interface).
    type: raw
    required: true
  run:
    description: The name of the run, for the result.
    type: str
    default: ""
  registered:
    description: The variables in which the tasks have registered their results on all members.
    type: dict
    required: true
    suboptions:
      listen:
        description: The result of M(gpumesh.cluster.reachability_listener) with C(state=started).
        type: str
        required: true
      probe:
        description: The result of M(gpumesh.cluster.reachability).
        type: str
        required: true
      throughput:
        description: The result of M(gpumesh.cluster.reachability_listener) with C(state=stopped), if the throughput was
          measured.
        type: str
"""

EXAMPLES = r"""
- name: Evaluate every pair
  gpumesh.cluster.reachability_verdicts:
    members: "{{ cluster_record }}"
    registered:
      listen: listening
      probe: probed
  run_once: true

# from \ to 1 2 3
# 1 n1        · ·
# 2 n2      ·   F
# 3 n3      · ·
#
# · reaches   F filtered (no answer)
#
# n2 → n3: filtered (no answer). n3 does not answer n2 on TCP 33420, 46690; TCP 22 pass.
#     Open TCP and UDP on the whole ephemeral range from 10.77.0.12 in the firewall of n3 (`nft list ruleset`) and on
#     the way.
"""

RETURN = r"""
verdicts:
  description:
    - C(status), the worst of all, one of C(pass), C(fail), C(error) and C(skipped); C(summary), a sentence; C(counts),
      the number of pairs by verdict.
    - C(pairs), each with C(from), C(to), C(status), C(verdict), C(message), C(remedy), C(rtt_ms), C(path_mtu) (bytes),
      C(offset_s) (the clock of C(to) minus that of C(from)), C(bandwidth_gbps) (10^9 bits per second) and, over RDMA,
      C(rdma_gbps) and C(rdma_latency_us) (microseconds, one way). Values that were not measured are V(none).
      C(rdma_error) says why RDMA was not measured between two members that have it.
    - C(verdict) is one of C(ok), C(refused), C(filtered), C(no_route), C(no_answer), C(wrong_interface), C(wrong_host),
      C(nat), C(mtu_black_hole), C(corrupted), C(asymmetric), C(name_is_loopback), C(clock_skew), C(duplicate_address)
      and C(not_checked).
    - C(hosts), the problems of single members, each with C(host), C(status), C(verdict), C(message) and C(remedy).
    - C(checks), the same in the format of all checks of this collection.
    - C(rdma), by machine the RDMA port that was measured, or the C(reason) why there is none.
    - C(lingering), the machines whose listener may still be running, so that it should be stopped.
    - C(layer) and C(run), as given.
  returned: success
  type: dict
text:
  description: The matrix, without a final newline.
  returned: success
  type: str
"""

# The work is done by the action plugin of the same name.

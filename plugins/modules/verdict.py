#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verdict
short_description: Judge a cluster by all that was found, and write the reports
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes the one verdict document from the cluster record and from what the tasks of a check have registered on all hosts of
    the play. Run it once, not on every host.
  - The document has the JSON schema C(plugins/plugin_utils/report/verdict.schema.json). All reports are made of it.
  - A member without results is named, never left out. What was not checked says so and why, and never passes.
  - Writes C(verdict.json), C(report.html), C(junit.xml) for CI servers and C(gpumesh.prom) for the textfile collector of the
    node exporter. The page is self-contained, and every text that came from a host is escaped in it.
  - Prints which members reach each other, and the result where all is well. It does not fail where something is wrong.
  - Sets the artifacts C(gpumesh_cluster), C(gpumesh_status), C(gpumesh_counts) and C(gpumesh_failing) for the next job of a
    workflow.
  - Runs on the controller alone; no connection is made.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
attributes:
  check_mode:
    details:
      - It reads what the hosts have answered, and writes the reports on the controller.
  idempotent:
    support: none
    details:
      - The time of the run is in the reports.
options:
  record:
    description: The cluster record, or the name of the variable that holds it.
    type: raw
    required: true
  registered:
    description: The variables in which the tasks have registered their results. What is left out is reported as skipped.
    type: dict
    default: {}
    suboptions:
      reachability:
        description: The verdicts on all pairs, the fact C(reachability_result) of the role P(gpumesh.cluster.reachability#role).
        type: str
      health:
        description: On each host, that of M(gpumesh.cluster.node_health).
        type: str
      volumes:
        description: On each host, those of M(gpumesh.cluster.volume_probe) by phase.
        type: dict
        suboptions:
          write: {description: That of the phase V(write)., type: str}
          compare: {description: That of the phase V(compare)., type: str}
          release: {description: That of the phase V(release)., type: str}
          take: {description: That of the phase V(take)., type: str}
      tracking:
        description: On each host, that of M(gpumesh.cluster.tracking_test).
        type: str
      slurm:
        description: That of C(sinfo -h -N -o '%N|%T|%o|%E') on the manager.
        type: str
      job:
        description: That of M(gpumesh.cluster.job_test).
        type: str
      collectives:
        description: That of M(gpumesh.cluster.collective_test), also in a loop.
        type: str
  report_dir:
    description:
      - The folder for the reports on the controller. Each cluster has a folder of its name in it.
      - The verdict that is there is compared with. A run of a part of the checks, by tags, or of the members, by a limit,
        leaves it as it is and writes to the folder C(part) beside it.
    type: path
    required: true
  level:
    description: How deep the run looked.
    type: str
    choices: [quick, full, burn]
    default: quick
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
  min_volume_write_mbps:
    description: What each member has to write to every volume, in 10^6 bytes a second. V(0) has no such threshold.
    type: float
    default: 0
  min_volume_read_mbps:
    description: The same for reading.
    type: float
    default: 0
  min_volume_files:
    description: How many small files each member has to make, look at and remove in a second.
    type: float
    default: 0
  max_used_percent:
    description: How full a volume may be.
    type: float
    default: 95
"""

EXAMPLES = r"""
- name: Check every node
  gpumesh.cluster.node_health:
    record: cluster_record
  register: health
  failed_when: false

- name: Judge the cluster by the health of its nodes
  gpumesh.cluster.verdict:
    record: cluster_record
    registered:
      health: health
    report_dir: /var/lib/reports
  run_once: true
"""

RETURN = r"""
verdict:
  description: The verdict document.
  returned: success
  type: dict
text:
  description: The sentence, every pair that does not reach each other, every finding with its remedy, and what was skipped.
  returned: success
  type: str
"""

# The work is done by the action plugin of the same name.

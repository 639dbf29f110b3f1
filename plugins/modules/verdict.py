#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verdict
short_description: Evaluate the results of a check and write the reports
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Creates the verdict document from the cluster record and from the results that the tasks of a check registered on
    all hosts of the play. Run it once, not on every host.
  - The document has the JSON schema C(plugins/plugin_utils/_checks/report/verdict.schema.json). All reports are generated from
    it.
  - A member without results is named, never omitted. Checks that were not performed are reported with the reason, and
    never pass.
  - Writes C(verdict.json), C(report.html), C(junit.xml) for CI servers and C(gpumesh.prom) for the textfile collector of the
    node exporter. The page is self-contained, and every text that came from a host is escaped in it.
  - Prints which members reach each other, and the result if all checks pass. Does not fail if a check fails.
  - Sets the artifacts C(gpumesh_cluster), C(gpumesh_status), C(gpumesh_counts) and C(gpumesh_failing) for the next job of a
    workflow.
  - Runs only on the controller and makes no connection.
  - "Reads these options of roles: C(check_level), C(check_max_clock_offset), C(check_max_disk_percent),
    C(check_max_rdma_latency_us), C(check_min_bandwidth_gbps), C(check_min_rdma_gbps), C(check_min_volume_files),
    C(check_min_volume_read_mbps), C(check_min_volume_write_mbps), C(check_report_dir)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
attributes:
  check_mode:
    details:
      - Only reports that nothing was verified, since the tasks of a check do not run in check mode.
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
    description: The variables in which the tasks have registered their results. Omitted ones are reported as skipped.
    type: dict
    default: {}
    suboptions:
      reachability:
        description: The verdicts on all pairs, the fact C(reachability_result) of the role P(gpumesh.cluster.reachability#role).
        type: str
      health:
        description: On each host, the result of M(gpumesh.cluster.node_health).
        type: str
      volumes:
        description: On each host, the results of M(gpumesh.cluster.volume_probe) by phase.
        type: dict
        suboptions:
          write: {description: The result of the phase V(write)., type: str}
          compare: {description: The result of the phase V(compare)., type: str}
      tracking:
        description: On each host, the result of M(gpumesh.cluster.tracking_test).
        type: str
      job:
        description: The result of M(gpumesh.cluster.job_test) on the manager.
        type: str
      collectives:
        description: The result of M(gpumesh.cluster.collective_test), also from a loop.
        type: str
"""

EXAMPLES = r"""
- name: Check every node
  gpumesh.cluster.node_health:
    record: cluster_record
  register: health
  failed_when: false

- name: Evaluate the health of the nodes
  gpumesh.cluster.verdict:
    record: cluster_record
    registered:
      health: health
  run_once: true
"""

RETURN = r"""
verdict:
  description: The verdict document.
  returned: success, unless in check mode
  type: dict
text:
  description: The summary, every pair that does not reach each other, every finding with its remedy, and what was
    skipped.
  returned: success
  type: str
"""

# The work is done by the action plugin of the same name.

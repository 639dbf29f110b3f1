#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the cluster records of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_info
short_description: Read the cluster records of a host
version_added: 1.0.0
description:
  - Returns the records that a host holds, as the manager or as a member.
  - A damaged record is reported, with the reason and the last good copy, and does not hide the others.
  - The record of a large cluster is long, and all members have the same one. So each member can be asked for its
    digest, and one of them for the whole record.
  - If it cannot run on a host, it reports the reason. This requires C(paramiko) on the controller, and takes time only
    then.
author:
  - The gpumesh authors (@gpumesh)
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record
options:
  cluster:
    description: Only return the record of this cluster.
    type: str
  generation:
    description:
      - The generation of the record of O(cluster) that the caller uses. If this host has a newer one, the module fails,
        since the caller is about to apply an outdated record. The records are not returned in this case.
    type: int
  complete:
    description:
      - The names of the clusters whose complete records are returned. If not set, all are.
      - Of the records of other clusters, only the C(name), the C(generation) and the C(digest) are returned.
    type: list
    elements: str
  known_digests:
    description: Digests of records that the caller already has. Of these records, only the C(name), the C(generation)
      and the C(digest) are returned.
    type: list
    elements: str
    default: []
  interfaces:
    description:
      - Whether to detect the network interfaces as well, like M(gpumesh.cluster.interface_info). If this fails, the
        records are still returned, with C(msg) and RV(error).
    type: bool
    default: false
seealso:
  - module: gpumesh.cluster.cluster
  - module: gpumesh.cluster.cluster_member
  - module: gpumesh.cluster.interface_info
"""

EXAMPLES = r"""
- name: Fail if the record is outdated
  gpumesh.cluster.cluster_info:
    cluster: lab
    generation: 7

- name: Read all records
  gpumesh.cluster.cluster_info:
  register: records

- name: List the records without their contents
  gpumesh.cluster.cluster_info:
    complete: []
  register: digests
"""

RETURN = r"""
clusters:
  description:
    - The records, by name. See M(gpumesh.cluster.cluster). A record that was not requested consists of its C(name),
      C(generation) and C(digest) (SHA-256).
  returned: success, and O(generation) is not given
  type: list
  elements: dict
  sample: []
damaged:
  description: The files that were refused.
  returned: success, and O(generation) is not given
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
    reason:
      description: Why it was refused.
      type: str
    last_good:
      description: The path of the last good copy. Null if there is none on the host.
      type: str
  sample:
    - path: /var/lib/gpumesh/clusters/lab.json
      reason: it is empty
      last_good: /var/lib/gpumesh/clusters/lab.json.good
tun:
  description: Whether the host has C(/dev/net/tun). Without it, Tailscale has no interface there.
  returned: success, and O(generation) is not given
  type: bool
  sample: true
unfinished:
  description: What an interrupted installation of packages has left unfinished.
  returned: if there is something, and O(generation) is not given
  type: list
  elements: str
  sample: ["dpkg was interrupted"]
interfaces:
  description: The network interfaces. See M(gpumesh.cluster.interface_info).
  returned: O(interfaces) is true, and they can be detected
  type: list
  elements: dict
  sample: []
host:
  description: Properties of the host as a whole. See M(gpumesh.cluster.interface_info).
  returned: O(interfaces) is true, and the interfaces can be detected
  type: dict
  sample: {}
error:
  description:
    - Why the module could not run on the host. The troubleshooting guide lists the causes.
    - With O(interfaces), why they could not be detected.
  returned: failure
  type: dict
  contains:
    cause:
      description: The name of the cause, if the host does not answer.
      type: str
      sample: key_refused
    message:
      description: What is wrong.
      type: str
      sample: 192.168.1.12 answers, but nothing listens on port 22.
    remedy:
      description: What to do.
      type: str
      sample: Start its SSH server (systemctl start ssh, or sshd), or set ansible_port to its port.
ansible_message:
  description: Ansible's own message about a host that does not answer.
  returned: when the host does not answer
  type: str
  sample: "Failed to connect to the host via ssh: Connection refused"
"""

import os
import socket
from typing import Any, Dict, Mapping, Optional, Sequence

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, interface
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import scan_directory
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.dpkg import find_leftovers
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import all_printable, printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.facts import gather_facts
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.hostname import resolve_hostname


def work(params: Dict[str, Any]) -> ModuleResult:
    """Read the records of the host."""
    scan_result = scan_directory(params["path"], params["cluster"])
    if params["generation"] is not None:
        derive.refuse_newer_generation([stored.record for stored in scan_result.records], params["generation"])
        return ModuleResult(changed=False, return_values={})
    unfinished_packages = find_leftovers(Tree())
    return ModuleResult(
        changed=False,
        return_values={
            "clusters": [
                _report_record(stored.record, params["complete"], params["known_digests"])
                for stored in scan_result.records
            ],
            "damaged": [damaged_file._asdict() for damaged_file in scan_result.damaged_records],
            "tun": os.path.exists("/dev/net/tun"),
            # The key is left out if it is empty, which saves a thousand hosts from returning it.
            **({"unfinished": unfinished_packages} if unfinished_packages else {}),
            **(_gather_interfaces() if params["interfaces"] else {}),
        },
    )


def _gather_interfaces() -> Mapping[str, Any]:
    try:
        return {**gather_facts(run, Tree(), socket.gethostname(), resolve_hostname)}
    except GpumeshError as error:
        return {"msg": printable(str(error)), "error": all_printable(error.to_result())}


def _report_record(
    record: Record, full_clusters: Optional[Sequence[str]], known_digests: Sequence[str]
) -> Mapping[str, Any]:
    if full_clusters is None and not known_digests:
        return record
    digest = derive.record_digest(record)
    if digest not in known_digests and (full_clusters is None or record["name"] in full_clusters):
        return record
    return {"name": record["name"], "generation": record["generation"], "digest": digest}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str"},
            "generation": {"type": "int"},
            "complete": {"type": "list", "elements": "str"},
            "known_digests": {"type": "list", "elements": "str", "default": []},
            "interfaces": {"type": "bool", "default": False},
            **interface.STORE_OPTIONS,
        },
        required_by={"generation": "cluster"},
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params), echo_arguments=False)


if __name__ == "__main__":
    main()

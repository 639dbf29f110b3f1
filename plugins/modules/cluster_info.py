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
  whole:
    description:
      - The names of the clusters whose complete records are returned. If not set, all are.
      - For other clusters, only the C(name), the C(generation) and the C(digest) of the record are returned.
    type: list
    elements: str
  known:
    description: Digests of records that the caller already has. These are not returned completely either.
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
- name: Refuse to go on with what is out of date
  gpumesh.cluster.cluster_info:
    cluster: lab
    generation: 7

- name: Read all records
  gpumesh.cluster.cluster_info:
  register: held

- name: Ask which records there are
  gpumesh.cluster.cluster_info:
    whole: []
  register: told
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
  description: What an installation of packages that was cut off has left behind.
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
said:
  description: Ansible's own message about a host that does not answer.
  returned: when the host is silent
  type: str
  sample: "Failed to connect to the host via ssh: Connection refused"
"""

import os
import socket
from typing import Any, Dict, Mapping, Optional, Sequence

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.dpkg import unfinished
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.facts import gather
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.hostname import resolve
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, interface
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import scan
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import all_printable, printable


def work(params: Dict[str, Any]) -> Outcome:
    """Read what there is."""
    found = scan(params["path"], params["cluster"])
    if params["generation"] is not None:
        derive.refuse_newer([stored.record for stored in found.records], params["generation"])
        return Outcome(changed=False, values={})
    left = unfinished(Tree())
    return Outcome(
        changed=False,
        values={
            "clusters": [_shown(stored.record, params["whole"], params["known"]) for stored in found.records],
            "damaged": [damage._asdict() for damage in found.damaged],
            "tun": os.path.exists("/dev/net/tun"),
            # Not for each of a thousand hosts: an empty list.
            **({"unfinished": left} if left else {}),
            **(_interfaces() if params["interfaces"] else {}),
        },
    )


def _interfaces() -> Mapping[str, Any]:
    try:
        return {**gather(run, Tree(), socket.gethostname(), resolve)}
    except GpumeshError as error:
        return {"msg": printable(str(error)), "error": all_printable(error.as_result())}


def _shown(record: Record, whole: Optional[Sequence[str]], known: Sequence[str]) -> Mapping[str, Any]:
    if whole is None and not known:
        return record
    digest = derive.digest(record)
    if digest not in known and (whole is None or record["name"] in whole):
        return record
    return {"name": record["name"], "generation": record["generation"], "digest": digest}


def main() -> None:
    """The module."""
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str"},
            "generation": {"type": "int"},
            "whole": {"type": "list", "elements": "str"},
            "known": {"type": "list", "elements": "str", "default": []},
            "interfaces": {"type": "bool", "default": False},
            **interface.STORE_OPTIONS,
        },
        required_by={"generation": "cluster"},
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params), echo=False)


if __name__ == "__main__":
    main()

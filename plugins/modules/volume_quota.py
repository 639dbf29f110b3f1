#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_quota
short_description: How much of a server's disk the volumes of a cluster may take
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Limits folders that this host serves by project quotas, which ext4 and XFS have. The members see the limit as the size of
    the volume, and who writes beyond it gets an error.
  - Files that are there already count too. The first quota of a volume goes through all of them; a change of it does not.
  - The projects stand in C(/etc/projid) and C(/etc/projects) as C(gpumesh.CLUSTER.VOLUME), so that C(repquota -P) and
    C(xfs_quota) show them by name. Other lines stay.
  - Takes away the quotas of volumes of the cluster that are not given. Their files stay.
  - Refuses a file system without project quotas, and a quota that is smaller than what is there.
  - Needs Linux 5.14 and root.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
options:
  cluster:
    description: Name of the cluster. Only its quotas are touched.
    type: str
    required: true
  volumes:
    description: The volumes that this host serves and that have a quota.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the volume.
        type: str
        required: true
      path:
        description: Its folder. In check mode it need not be there yet.
        type: path
        required: true
      quota:
        description: In binary units, such as V(500G) or V(2TiB).
        type: str
        required: true
"""

EXAMPLES = r"""
- name: Let the data take half a terabyte
  gpumesh.cluster.volume_quota:
    cluster: lab
    volumes:
      - name: data
        path: /srv/data
        quota: 500G

- name: Limit nothing any more
  gpumesh.cluster.volume_quota:
    cluster: lab
    volumes: []
"""

RETURN = r"""
quotas:
  description: For each of the volumes C(project), C(limit_bytes), and C(used_bytes) as they were before.
  type: dict
  returned: success
  sample:
    data:
      project: gpumesh.lab.data
      limit_bytes: 536870912000
      used_bytes: 1048576
removed:
  description: Volumes whose quota was taken away.
  type: list
  elements: str
  returned: success
  sample: [old]
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import quota


def work(params: Dict[str, Any], check_mode: bool) -> Outcome:
    """Look, plan, apply."""
    cluster = params["cluster"]
    wanted = [
        quota.Wanted(one["name"], one["path"], quota.size_of(one["name"], one["quota"])) for one in params["volumes"]
    ]
    files = quota.read_files()
    disks = {one.volume: quota.look(one.path, quota.number_for(cluster, one.volume, files)) for one in wanted}
    plan = quota.make_plan(cluster, wanted, disks, files)
    if plan.changed and not check_mode:
        quota.apply(plan)
    quotas = {
        one.volume: {
            "project": quota.name_of(cluster, one.volume),
            "limit_bytes": one.limit,
            "used_bytes": disks[one.volume].used,
        }
        for one in wanted
    }
    removed = sorted(set(quota.parse(files, cluster)) - set(quotas))
    return Outcome(
        plan.changed, {"quotas": quotas, "removed": removed}, *quota.as_diff(cluster, plan, files, disks.values())
    )


def main() -> None:
    """The module's entry point."""
    text = {"type": "str", "required": True}
    module = AnsibleModule(
        argument_spec={
            "cluster": text,
            "volumes": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {"name": text, "path": {"type": "path", "required": True}, "quota": text},
            },
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params, module.check_mode))


if __name__ == "__main__":
    main()

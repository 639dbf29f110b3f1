#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: storage
short_description: Manage the volumes of a cluster on a host
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Creates the directories that this host serves, sets their quotas, exports them to the other members only, and mounts all
    volumes of the cluster, in one call. It also removes volumes that the cluster no longer has, but keeps their directories
    and files.
  - Installs the required packages if they are missing.
  - Volumes are mounted on first use by systemd units. In a container without systemd, or whose systemd cannot mount on first
    use, the volumes are added to C(/etc/fstab) and mounted immediately. After a restart of the container, they are mounted by
    the next run, or by C(mount) and the mount point.
  - A volume that is in use is not unmounted; the error names the processes and their users. If C(storage_volumes) removes a
    volume, or moves it to another server or path, all members must be in the play, since its use elsewhere is unknown.
  - A volume with a stale file handle is unmounted, and mounted again on its next use.
  - Quotas use the project quotas of ext4 and XFS. Existing files count too. Setting the first quota visits all of them;
    changing it does not. The projects are stored in C(/etc/projid) and C(/etc/projects) as C(gpumesh.CLUSTER.VOLUME), so that
    C(repquota -P) and C(xfs_quota) show them by name.
  - The NFS server in the kernel accepts 20 times as many connections as it has threads, plus 60. If the members may
    have more, the number of threads is increased, at run time and in C(/etc/nfs.conf.d/zz-gpumesh.conf).
  - Everything is checked before the first change. The module refuses hosts whose kernel does not support NFS, containers that
    may not mount, hosts without a required external file system, mount points where something else is mounted, and quotas that
    the file system does not support or that are smaller than the current usage.
  - Set O(record). The options from O(cluster) on are derived from it on the controller.
  - "Reads these options of roles: C(cluster_force), C(storage_backend), C(storage_server), C(storage_volumes)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.internal
options:
  state:
    description: V(absent) unmounts the volumes and stops exporting them.
    type: str
    choices: [present, absent]
    default: present
  preview:
    description: Whether to use the volumes in the options instead of those of O(record). Set C(check_mode).
    type: bool
    default: false
  server:
    description:
      - The NFS server. V(ganesha) runs in user space and does not depend on the kernel. Both need systemd.
      - After a change, the other one is stopped and disabled, unless it has other exports.
    type: str
    choices: [kernel, ganesha]
    default: kernel
  force:
    description:
      - Whether to unmount volumes even if they are in use. Files that are open stay accessible until they are closed.
      - It also removes or moves volumes without all members in the play.
    type: bool
    default: false
  cluster:
    description: The name of the cluster. Nothing that belongs to other clusters is changed.
    type: str
  serves:
    description: Whether this host exports any volume.
    type: bool
    default: false
  folders:
    description: The directories that the host serves, as entries for C(module_utils/_core/managed_files.py).
    type: list
    elements: dict
    default: []
  files:
    description: The export files, as entries for C(module_utils/_core/managed_files.py).
    type: list
    elements: dict
    default: []
  exports:
    description: The export files that each NFS server reads.
    type: dict
    default: {}
  connections:
    description: The number of connections that the other members may have to the NFS server in the kernel of this host.
    type: int
    default: 0
  quotas:
    description: C(name), C(path) and C(quota) of each volume with a quota on this host.
    type: list
    elements: dict
    default: []
  mounts:
    description: C(volume), C(mount_point), C(unit) and the text of both units, C(mount) and C(automount), of each mount.
    type: list
    elements: dict
    default: []
  external:
    description: C(volume), C(mount_point), C(filesystem) and C(read_only) of each external file system.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Share the volumes
  gpumesh.cluster.storage:
    record: cluster_record

- name: Stop sharing volumes
  gpumesh.cluster.storage:
    record: cluster_record
    state: absent
"""

RETURN = r"""
missing:
  description: In check mode, what would have to be installed first, of V(kernel), V(ganesha), V(client) and V(quota).
  type: list
  elements: str
  returned: success
  sample: []
healed:
  description: Mount points with a stale file handle, which were unmounted.
  type: list
  elements: str
  returned: success
  sample: [/data]
removed:
  description: The units, without suffix, of volumes that were removed; in a container, their mount points.
  type: list
  elements: str
  returned: success
  sample: [mnt-old]
quotas:
  description: The previous C(project), C(limit_bytes) and C(used_bytes) of each volume with a quota.
  type: dict
  returned: success
  sample:
    data:
      project: gpumesh.lab.data
      limit_bytes: 536870912000
      used_bytes: 1048576
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import apply


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            # The action of the same name reads these two.
            "record": {"type": "raw"},
            "preview": {"type": "bool", "default": False},
            **DERIVED_OPTION,
            **apply.OPTIONS,
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: apply.work(module.params, module.check_mode), echo_arguments=False)


if __name__ == "__main__":
    main()

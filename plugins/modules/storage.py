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
  - A volume that is in use is not unmounted; the error names the processes and their users. If O(volumes) removes a volume,
    or moves it to another server or path, all members must be in the play, since its use elsewhere is unknown.
  - A volume with a stale file handle is unmounted, and mounted again on its next use.
  - Quotas use the project quotas of ext4 and XFS. Existing files count too. Setting the first quota visits all of them;
    changing it does not. The projects are stored in C(/etc/projid) and C(/etc/projects) as C(gpumesh.CLUSTER.VOLUME), so that
    C(repquota -P) and C(xfs_quota) show them by name.
  - The NFS server in the kernel accepts 20 connections for each of its threads and three more. If the members may
    have more, the number of threads is increased, at run time and in C(/etc/nfs.conf.d/zz-gpumesh.conf).
  - Everything is checked before the first change. The module refuses hosts whose kernel does not support NFS, containers that
    may not mount, hosts without a required external file system, mount points where something else is mounted, and quotas that
    the file system does not support or that are smaller than the current usage.
  - Set O(record). The options from O(cluster) on are derived from it on the controller.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.internal
options:
  volumes:
    description: Volumes to use instead of those of O(record), for example to preview changes in check mode.
    type: list
    elements: dict
  backend:
    description:
      - V(nfs) exports and mounts the volumes that have a server, V(external) refuses them, and V(none) removes everything.
    type: str
    choices: [nfs, external, none]
    default: nfs
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
      - Also whether to remove or move volumes without all members in the play.
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
    description: The directories that the host serves, as entries for C(module_utils/host_files.py).
    type: list
    elements: dict
    default: []
  files:
    description: The export files, as entries for C(module_utils/host_files.py).
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
    backend: none
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

import functools
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import command, guarded, holders, host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, Part, bring_about, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import options_by_point, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import detach
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import (
    foreign,
    fstab,
    mounts,
    ports,
    quota,
    serving,
    threads,
    volumes,
)


def read(name: str) -> str:
    """A file of /proc."""
    with open(os.path.join("/proc", name), encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _program(params: Mapping[str, Any]) -> Optional[str]:
    return params["server"] if params["serves"] else None


def refuse_unfit(params: Mapping[str, Any], fetched: bool) -> None:
    """Raises HostStateError where this host cannot have the volumes. A container has its host's kernel, and no module can
    be loaded from there."""
    volumes.refuse_missing(params["external"])
    own = [mount["volume"] for mount in params["mounts"] if foreign.wanted_of(mount).filesystem == foreign.BIND]
    serving.refuse_without_systemd(own if params["serves"] else [], runs_systemd())
    served = _program(params) == serving.KERNEL
    missing = mounts.missing_in_kernel(command.run, read("filesystems"), served, fetched)
    if missing:
        names = ", ".join(mount["volume"] for mount in params["mounts"])
        raise HostStateError(
            f"This kernel has no {' and no '.join(missing)}, which volume {names} needs (a container shares its host's "
            "kernel).",
            "Load the module on the machine itself, choose another server, or set storage_backend=none. A server "
            "with storage_server=ganesha does not need it.",
            missing=missing,
        )
    points = [mount["mount_point"] for mount in params["mounts"]]
    refuse_foreign(params)
    there = holders.mounted(read("self/mounts"), points)
    guarded.refuse_swappable(point for point in points if point not in there)
    if points and not mounts.automounts():
        fstab.refuse_without_right(read("self/status"))


def refuse_foreign(params: Mapping[str, Any]) -> None:
    """Raises HostStateError where others have mounted something else in the place of a volume."""
    if not params["mounts"]:
        return
    units = mounts.parse_ours(mounts.read_units(), params["cluster"])
    # In any encoding: its lines are the administrator's.
    text = host_files.read(fstab.PATH).text
    ours = {*fstab.parse(text, params["cluster"]), *(mounts.mount_point_of(unit) for unit in units.values())}
    wanted = [foreign.wanted_of(one) for one in params["mounts"]]
    foreign.refuse(parse_mountinfo(read("self/mountinfo")), wanted, ours)
    if not mounts.automounts():
        foreign.refuse_lines(fstab.lines_of_others(text, params["cluster"]), wanted, ours)


def close_ports(params: Mapping[str, Any]) -> Part:
    """The ports below 1024 are root's where a volume is mounted."""
    plan = ports.look(params["cluster"], bool(params["mounts"]))
    apply = functools.partial(ports.apply, plan, params["cluster"])
    return Part(plan.changed, *ports.as_diff(plan), apply)


def have_folders(params: Mapping[str, Any]) -> Part:
    """The volumes that this host serves."""
    steps = host_files.plan_all(params["folders"])
    return Part(bool(steps), *host_files.as_diff(steps), functools.partial(host_files.apply_all, steps))


def limit(params: Mapping[str, Any], present: quota.Files) -> Tuple[Part, Dict[str, Any]]:
    """The quotas, and what is returned of them."""
    cluster = params["cluster"]
    found = [
        quota.look(command.run, one["name"], one["path"], one["quota"], quota.number_for(cluster, one["name"], present))
        for one in params["quotas"]
    ]
    plan = quota.make_plan(cluster, found, present)
    told = {
        one.name: {"project": quota.name_of(cluster, one.name), "limit_bytes": one.quota, "used_bytes": one.used}
        for one in found
    }
    return Part(plan.changed, *quota.as_diff(plan), functools.partial(quota.apply, command.run, plan)), told


def have_threads(params: Mapping[str, Any]) -> Part:
    """The threads of the kernel's server, before it starts or gets more members."""
    host = threads.look(params["exports"].get(serving.KERNEL, ""))
    plan = threads.make_plan(params["cluster"], params["connections"], host)
    return Part(plan.changed, *threads.as_diff(plan), functools.partial(threads.apply, command.run, plan))


def serve(params: Mapping[str, Any]) -> Part:
    """The exports, and the program that reads them."""
    plan = serving.look(command.run, params["files"], params["exports"], _program(params))

    def apply() -> None:
        if plan.server:
            # It needs its port from the first moment on; an interrupted check may still be listening there.
            detach.replace_others("")
        serving.apply(command.run, plan)

    return Part(plan.changed, *serving.as_diff(plan), apply)


def mount_by_units(params: Mapping[str, Any]) -> Tuple[Part, List[str], List[str]]:
    """The mounts, which mount points are healed, and what is removed."""
    given = [
        mounts.Units(each["unit"], each["mount_point"], {".mount": each["mount"], ".automount": each["automount"]})
        for each in params["mounts"]
    ]
    ours = mounts.parse_ours(mounts.read_units(), params["cluster"])
    points = {mounts.mount_point_of(text) for text in ours.values()} | {units.mount_point for units in given}
    mounted = holders.mounted(read("self/mounts"), sorted(points))
    host = mounts.Host(
        ours,
        mounted,
        mounts.stale(command.run, mounted),
        mounts.idle_automounts(command.run, [one.name for one in given if one.name + ".automount" in ours]),
        (),
        options_by_point(read("self/mountinfo")),
    )
    plan = mounts.make_plan(given, host, params["force"])
    if plan.stop:
        # Only now: a server that is dead may delay this.
        host = host._replace(users=holders.volume_users("/proc", mounted))
        plan = mounts.make_plan(given, host, params["force"])
    part = Part(plan.changed, *mounts.as_diff(plan, host), functools.partial(mounts.apply, command.run, plan))
    return part, [units.mount_point for units in given if units.name in plan.heal], plan.delete


def mount_by_fstab(params: Mapping[str, Any]) -> Tuple[Part, List[str], List[str]]:
    """The same where systemd cannot mount at first use."""
    given = dict(fstab.line_of(each["mount"]) for each in params["mounts"])
    lines = fstab.parse(host_files.read(fstab.PATH).text, params["cluster"])
    mounted = holders.mounted(read("self/mounts"), sorted({*given, *lines}))
    stale = mounts.stale(command.run, mounted)
    host = fstab.Host(lines, mounted, stale, (), options_by_point(read("self/mountinfo")))
    plan = fstab.make_plan(given, host, params["force"])
    if plan.unmount:
        host = host._replace(users=holders.volume_users("/proc", mounted))
        plan = fstab.make_plan(given, host, params["force"])
    apply = functools.partial(fstab.apply, command.run, plan, given, params["cluster"])
    healed = [point for point in plan.unmount if point in stale and point in given]
    return Part(plan.changed, *fstab.as_diff(plan, given, host), apply), healed, sorted(set(lines) - set(given))


def work(params: Mapping[str, Any], check_mode: bool) -> Outcome:
    """Look at everything, then bring it about."""
    fetched = any("\nType=nfs4\n" in each["mount"] for each in params["mounts"])
    refuse_unfit(params, fetched)
    present = quota.read_files()
    limits, quotas = limit(params, present)
    mount = mount_by_units if mounts.automounts() else mount_by_fstab
    mounting, healed, removed = mount(params)
    # What is served comes before what is mounted at once, which may be of another server that waits for this one.
    parts = [close_ports(params), have_folders(params), limits, have_threads(params), serve(params), mounting]
    limited = bool(quotas or quota.parse(present, params["cluster"]))
    missing = mounts.missing_programs(_program(params), fetched, limited)
    values = {"missing": missing, "healed": healed, "removed": removed, "quotas": quotas}
    return bring_about(parts, values, look_only=check_mode or bool(missing))


def main() -> None:
    """The module's entry point."""
    entries = {"type": "list", "elements": "dict", "default": []}
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "volumes": {"type": "list", "elements": "dict"},
            "backend": {"type": "str", "choices": ["nfs", "external", "none"], "default": "nfs"},
            "server": {"type": "str", "choices": ["kernel", "ganesha"], "default": "kernel"},
            "force": {"type": "bool", "default": False},
            "cluster": {"type": "str"},
            "serves": {"type": "bool", "default": False},
            "exports": {"type": "dict", "default": {}},
            "connections": {"type": "int", "default": 0},
            **dict.fromkeys(("folders", "files", "quotas", "mounts", "external"), entries),
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params, module.check_mode), echo=False)


if __name__ == "__main__":
    main()

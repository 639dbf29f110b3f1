# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files from which the jobs on this host get their environment."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files, push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.program_archive import FILE_MODE, PROGRAM_MODE
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import folder
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment.host import (
    SETTINGS_PATH,
    JobHost,
    read_job_host,
    refuse_ephemeral_ports,
)

#: The programs of the role, with their paths and modes.
PROGRAM_FILES = {
    "job_environment.bash": ("/etc/gpumesh/job_environment.bash", FILE_MODE),
    "task_prolog.py": ("/etc/gpumesh/task_prolog", PROGRAM_MODE),
    "job_epilog.sh": ("/etc/gpumesh/job_epilog", PROGRAM_MODE),
    "gpumesh_job.sh": ("/etc/profile.d/gpumesh_job.sh", FILE_MODE),
}
_TMPFILES_PATH = "/etc/tmpfiles.d/gpumesh-jobs.conf"
_LIMITS_PATH = "/etc/security/limits.d/60-gpumesh.conf"
_NCCL_PATH = "/etc/nccl.conf"
_MANAGED_HEADER = "# Written by gpumesh.cluster.\n"
#: Why NCCL_IB_HCA is set, by the fabric of the network plugin.
_HCA_REASON = {
    "": "# The RDMA ports of the cluster's fabric: NCCL would also use those of other networks, and hang.",
    "efa": "# The ports of EFA, which its plugin uses: NCCL itself would use other ports, which reach no other member.",
}


def desired_entries(params: Mapping[str, Any], host: JobHost) -> List[Dict[str, Any]]:
    """Return the desired files, except the programs, for managed_files. ``params``: the module's parameters."""
    job_settings = add_rdma_devices(params["settings"], host, params["rdma"])
    removed_entries = [
        {"path": path, "state": "absent"}
        for name, (path, _mode) in PROGRAM_FILES.items()
        if name not in params["digests"]
    ]
    return [
        {"path": "/etc/gpumesh", "state": "directory"},
        {"path": SETTINGS_PATH, "content": json.dumps(job_settings, indent=1) + "\n"},
        *removed_entries,
        # The directory is like /tmp: each user's task writes its hostfile there, and only the owner may remove it.
        # It has no age, since jobs may run for weeks: the epilog removes a job's files, and a reboot all of the tmpfs.
        {
            "path": _TMPFILES_PATH,
            "content": f"{_MANAGED_HEADER}d /run/gpumesh 0755 root root -\n"
            f"d {folder.JOBS_DIRECTORY} 1777 root root -\n",
        },
        {"path": "/run/gpumesh", "state": "directory"},
        {"path": folder.JOBS_DIRECTORY, "state": "directory", "mode": "1777"},
        # RDMA registers memory that cannot be swapped, which fails with the usual limit of 8 MiB. Slurm's tasks inherit
        # slurmd's. A container may not be allowed to raise the limit; there, the file would only make each login log an
        # error.
        {
            "path": _LIMITS_PATH,
            "state": "file" if host.may_lock_memory else "absent",
            "content": _MANAGED_HEADER
            + "".join(
                f"{limit_domain} {kind} memlock unlimited\n"
                for limit_domain in ("*", "root")
                for kind in ("soft", "hard")
            ),
        },
        # NCCL uses the first line of a name, so lines of others, which precede ours, take precedence.
        {
            "path": _NCCL_PATH,
            "state": "block",
            "marker": managed_files.block_marker(params["cluster"]),
            "content": render_nccl_conf(job_settings),
        },
    ]


def program_changes(params: Mapping[str, Any]) -> Dict[str, LayerChange]:
    """Return the changes to the desired programs by path. ``params``: the module's parameters."""
    return {
        path: push.pushed_file_change(params, name, path, mode)
        for name, (path, mode) in PROGRAM_FILES.items()
        if name in params["digests"]
    }


def removal_entries(cluster: str) -> List[Dict[str, Any]]:
    """Return the entries that remove these files. /etc/gpumesh stays: it may have files of other layers."""
    paths = [
        SETTINGS_PATH,
        *(path for path, _mode in PROGRAM_FILES.values()),
        _TMPFILES_PATH,
        folder.JOBS_DIRECTORY,
        _LIMITS_PATH,
    ]
    lines = {"path": _NCCL_PATH, "state": "absent", "marker": managed_files.block_marker(cluster)}
    return [*({"path": path, "state": "absent"} for path in paths), lines]


def add_rdma_devices(settings: Mapping[str, Any], host: JobHost, rdma_enabled: bool) -> Dict[str, Any]:
    """Add the RDMA devices of this host to the settings. Without devices, or with RDMA disabled, no RDMA peers stay.

    NCCL is configured not to use devices without peers, which it would otherwise detect itself. That includes devices
    of other networks, where the host has none in the cluster's. A network plugin takes the place of these devices: then
    ``plugin`` is its fabric, and ``devices`` names its ports only if NCCL would use others itself.
    """
    rdma = settings["rdma"]
    if host.rdma_devices or not host.plugin_fabric:
        peers = rdma["peers"] if host.rdma_devices and rdma_enabled else []
        devices = list(host.rdma_devices or host.other_rdma_devices)
        family = {"address_family": "AF_INET6"} if host.rdma_by_ipv6 else {}
        return {**settings, "rdma": {"devices": devices, "peers": peers, **family}}
    devices = list(host.plugin_devices if host.other_rdma_devices else [])
    peers = rdma.get("plugin_peers", []) if rdma_enabled else []
    return {**settings, "rdma": {"devices": devices, "peers": peers, "plugin": host.plugin_fabric}}


def render_nccl_conf(settings: Mapping[str, Any]) -> str:
    """Return lines for /etc/nccl.conf, which also applies outside of jobs: only settings that suit every member.

    Each has a comment with its reason, without "=": older versions of NCCL know no comments, and take every line with one
    for a variable. In jobs, the task prolog overrides them. NCCL_NET has no value that would do so, so it is set only
    without RDMA peers.
    """
    conf_lines = [
        "# The interface with this machine's cluster address: NCCL might choose one that others cannot reach.",
        f"NCCL_SOCKET_IFNAME=={settings['interface']}",
    ]
    rdma = settings["rdma"]
    plugin_fabric = rdma.get("plugin", "")
    reaches_all = set(settings["members"]) <= set(rdma["peers"])
    if rdma["devices"] and (reaches_all or (plugin_fabric and rdma["peers"])):
        conf_lines += [_HCA_REASON[plugin_fabric], f"NCCL_IB_HCA=={','.join(rdma['devices'])}"]
        if "address_family" in rdma:
            conf_lines += [
                "# These ports have IPv6 addresses only: NCCL looks for IPv4, and would take a link-local address.",
                f"NCCL_IB_ADDR_FAMILY={rdma['address_family']}",
            ]
    elif rdma["devices"] and not plugin_fabric:
        conf_lines += [
            "# NCCL's own RDMA transport: not every member can be reached by RDMA, so NCCL would hang.",
            "NCCL_IB_DISABLE=1",
            "# The plugin of HPC-X, which ignores NCCL_IB_DISABLE, for the same reason.",
            "NCCL_IBEXT_DISABLE=1",
        ]
    if not rdma["peers"] and (rdma["devices"] or plugin_fabric):
        conf_lines += [
            "# No member can be reached by RDMA, and network plugins ignore the above: NCCL uses none of another name.",
            "NCCL_NET=Socket",
        ]
    return "\n".join(conf_lines)


def find_differences(run: Runner, params: Mapping[str, Any]) -> managed_files.LayerDifferences:
    """Describe how this host differs from the module's parameters."""
    host = read_job_host(run, Tree(), params["settings"])
    refuse_ephemeral_ports(params["settings"], host.local_ports)
    # The mount is not compared: only mounting would show whether a container may mount.
    messages, nothing_exists = managed_files.differences(desired_entries(params, host))
    changed_paths = [path for path, change in program_changes(params).items() if change.changed]
    return managed_files.LayerDifferences(
        [*messages, *map(managed_files.describe_difference, changed_paths)],
        nothing_exists and len(changed_paths) == len(params["digests"]),
    )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files from which the jobs on this host get their environment."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.job_environment import folder
from ansible_collections.gpumesh.cluster.plugins.module_utils.job_environment.host import Host, look, refuse_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

#: The programs of the role, with their paths and modes.
_PROGRAMS = {
    "job_environment.bash": ("/etc/gpumesh/job_environment.bash", None),
    "task_prolog.py": ("/etc/gpumesh/task_prolog", "0755"),
    "job_epilog.sh": ("/etc/gpumesh/job_epilog", "0755"),
    "gpumesh_job.sh": ("/etc/profile.d/gpumesh_job.sh", None),
}
#: Isolated and without site-packages: it runs before each task, and nothing of the user's may change what it does.
_INTERPRETERS = {"task_prolog.py": "#!/usr/bin/python3 -IS\n"}
_SETTINGS = "/etc/gpumesh/job_environment.json"
_TMPFILES = "/etc/tmpfiles.d/gpumesh-jobs.conf"
_LIMITS = "/etc/security/limits.d/60-gpumesh.conf"
_NCCL = "/etc/nccl.conf"
_WRITTEN = "# Written by gpumesh.cluster.\n"


def entries(params: Mapping[str, Any], host: Host) -> List[Dict[str, Any]]:
    """The wanted files, for host_files. ``params``: the module's parameters."""
    settings = complete(params["settings"], host.rdma_devices, params["rdma"])
    programs = [
        {"path": path, "content": _INTERPRETERS.get(name, "") + params["programs"][name], "mode": mode}
        for name, (path, mode) in _PROGRAMS.items()
        if name in params["programs"]
    ]
    gone = [
        {"path": path, "state": "absent"} for name, (path, _mode) in _PROGRAMS.items() if name not in params["programs"]
    ]
    return [
        {"path": "/etc/gpumesh", "state": "directory"},
        {"path": _SETTINGS, "content": json.dumps(settings, indent=1) + "\n"},
        *programs,
        *gone,
        # Like /tmp: each user's task writes its hostfile there, and only the owner may remove it. Without an age, since
        # jobs may run for weeks: the epilog removes a job's files, and a reboot the rest, as this is a tmpfs.
        {
            "path": _TMPFILES,
            "content": f"{_WRITTEN}d /run/gpumesh 0755 root root -\nd {folder.PATH} 1777 root root -\n",
        },
        {"path": "/run/gpumesh", "state": "directory"},
        {"path": folder.PATH, "state": "directory", "mode": "1777"},
        # RDMA registers memory that cannot be swapped, which fails with the usual limit of 8 MiB. Slurm's tasks inherit
        # slurmd's. A container may not be allowed to raise the limit; there, the file would only make each login log an
        # error.
        {
            "path": _LIMITS,
            "state": "file" if host.may_lock_memory else "absent",
            "content": _WRITTEN
            + "".join(f"{who} {kind} memlock unlimited\n" for who in ("*", "root") for kind in ("soft", "hard")),
        },
        # NCCL uses the first line of a name, so lines of others, which precede ours, take precedence.
        {
            "path": _NCCL,
            "state": "block",
            "marker": host_files.marker(params["cluster"]),
            "content": nccl_conf(settings),
        },
    ]


def entries_gone(cluster: str) -> List[Dict[str, Any]]:
    """The same after the layer is removed. The folder /etc/gpumesh may contain files of other layers and clusters."""
    paths = [_SETTINGS, *(path for path, _mode in _PROGRAMS.values()), _TMPFILES, folder.PATH, _LIMITS]
    lines = {"path": _NCCL, "state": "absent", "marker": host_files.marker(cluster)}
    return [*({"path": path, "state": "absent"} for path in paths), lines]


def complete(settings: Mapping[str, Any], devices: Sequence[str], wanted: bool) -> Dict[str, Any]:
    """The settings with the RDMA devices of this host; it has no RDMA peers without any, or if they are not ``wanted``.

    Devices without peers are what NCCL is told not to use: it would find them itself.
    """
    peers = settings["rdma"]["peers"] if devices and wanted else []
    return {**settings, "rdma": {"devices": list(devices), "peers": peers}}


def nccl_conf(settings: Mapping[str, Any]) -> str:
    """Lines for /etc/nccl.conf, which also applies outside of jobs: only what is true for every member."""
    lines = [f"NCCL_SOCKET_IFNAME=={settings['interface']}"]
    rdma = settings["rdma"]
    if rdma["devices"]:
        everywhere = set(settings["members"]) <= set(rdma["peers"])
        lines.append(f"NCCL_IB_HCA=={','.join(rdma['devices'])}" if everywhere else "NCCL_IB_DISABLE=1")
    return "\n".join(lines)


def differences(run: Runner, params: Mapping[str, Any]) -> host_files.Differences:
    """How this host differs from the module's parameters."""
    host = look(run, Tree())
    refuse_ports(params["settings"], host.local_ports)
    # Except the folder: whether a container can mount can only be found out by mounting.
    return host_files.differences(entries(params, host))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse runs that cannot work before anything is submitted."""

from __future__ import annotations

import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import find_mount, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import profile, scheduler
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.settings import VOLUME_REMEDY

#: File systems that are usually shared with other nodes.
_SHARED_FILESYSTEMS = (
    "nfs",
    "nfs4",
    "lustre",
    "ceph",
    "beegfs",
    "gpfs",
    "glusterfs",
    "cifs",
    "smb3",
    "9p",
    "virtiofs",
    "wekafs",
)
#: User-space file systems, such as MooseFS, which providers mount into containers, and sshfs, are usually shared too.
_FUSE_PREFIX = "fuse"
_LOCAL_FUSE_TYPES = ("fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse", "fuse.bindfs")
#: Nodes that are queried at the same time, and the timeout in seconds for each.
_PARALLEL_QUERIES = 32
_QUERY_TIMEOUT = 10.0
#: The exit status of the probe on a node that lacks something. 255 is that of ssh itself.
_MISSING_STATUS = 13


def is_shared(path: str, volumes: Sequence[str], mountinfo_text: str) -> bool:
    """Whether all nodes see the path: it is on a volume of the cluster, or on a network file system.

    ``mountinfo_text``: the text of /proc/self/mountinfo.
    """
    if any(path == volume or path.startswith(volume.rstrip("/") + "/") for volume in volumes):
        return True
    mount = find_mount(parse_mountinfo(mountinfo_text), path)
    filesystem_type = mount.filesystem if mount else ""
    # The type of a user-space file system ends with a dot and the name of its program, if that is known.
    return filesystem_type in _SHARED_FILESYSTEMS or (
        filesystem_type.partition(".")[0] == _FUSE_PREFIX and filesystem_type not in _LOCAL_FUSE_TYPES
    )


def require_shared(path: str, volumes: Sequence[str], option: str = "--run-dir") -> None:
    """Raise InputError for a directory that only this node sees."""
    if not is_shared(os.path.realpath(path), volumes, processes.read_process_file("/proc", "self", "mountinfo")):
        hint = (
            f"The cluster has {', '.join(volumes)}. Set"
            if volumes
            else f"The cluster has none. {VOLUME_REMEDY}, or set"
        )
        raise InputError(f"{path} is not on a shared volume.", f"{hint} {option} to a directory that all nodes share.")


def usable_nodes(run_command: Runner, request: RunRequest) -> List[str]:
    """Return the nodes on which the run may start. Raise GpumeshError if they are fewer than requested."""
    node_states = scheduler.node_states(run_command, request.partition)
    if not node_states:
        raise InputError(f"There is no partition '{request.partition}' with nodes.", "See 'sinfo'.")
    excluded_hostlists = [option.partition("=")[2] for option in request.sbatch if option.startswith("--exclude=")]
    excluded_nodes = [
        node for hostlist in excluded_hostlists for node in scheduler.expand_hostlist(run_command, hostlist)
    ]
    usable = [node for node, state in node_states.items() if scheduler.is_usable(state) and node not in excluded_nodes]
    require_node_count(request.nodes + request.spare, usable, node_states)
    return usable


def require_node_count(requested_count: int, usable: Sequence[str], node_states: Mapping[str, str]) -> None:
    """Raise HostStateError if fewer nodes can be used than requested."""
    if len(usable) < requested_count:
        unusable_reasons = [
            f"{node} is {state}" for node, state in sorted(node_states.items()) if not scheduler.is_usable(state)
        ]
        reason_suffix = f" ({', '.join(unusable_reasons)})" if unusable_reasons else ""
        remedy = "Reduce --nodes" + (
            ", or return the others to service: see 'sinfo --list-reasons'." if unusable_reasons else "."
        )
        raise HostStateError(
            f"The run requests {requested_count} nodes, but only {len(usable)} can be used{reason_suffix}.", remedy
        )


def missing_requirements(run_command: Runner, request: RunRequest, nodes: Sequence[str]) -> Dict[str, str]:
    """Return the missing command or directory of each node. Nodes that cannot be queried are omitted."""
    local_node = os.uname().nodename.partition(".")[0]
    # The content of the snapshot of the code is, or will be, on a shared volume.
    program, directory = request.command[0], request.directory
    if request.code:
        program, directory = ("true" if "/" in program and not program.startswith("/") else program), "/"
    directory = shlex.quote(directory)
    probe_script = (
        f"cd {directory} 2>/dev/null || {{ echo directory {directory}; exit {_MISSING_STATUS}; }}; "
        f"PATH={shlex.quote(os.environ.get('PATH', ''))}"
    )
    for quoted_command in map(shlex.quote, [program, *profile.required_commands(request.profile)]):
        probe_script += (
            f"; command -v {quoted_command} >/dev/null || {{ echo command {quoted_command}; exit {_MISSING_STATUS}; }}"
        )

    def query_node(node: str) -> Optional[str]:
        probe_command = [
            "ssh",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=5",
            node,
            f"exec /bin/sh -c {shlex.quote(probe_script)}",
        ]
        if node == local_node:
            probe_command = ["/bin/sh", "-c", probe_script]
        try:
            completed = run_command(probe_command, timeout=_QUERY_TIMEOUT, check=False)
        except CommandError:
            return None
        return completed.stdout.strip() if completed.rc == _MISSING_STATUS else None

    with ThreadPoolExecutor(_PARALLEL_QUERIES) as pool:
        missing_by_node = dict(zip(nodes, pool.map(query_node, nodes)))
    return {node: requirement for node, requirement in missing_by_node.items() if requirement}


def require_on_nodes(missing_by_node: Mapping[str, str]) -> None:
    """Raise HostStateError if a node lacks a requirement of the run."""
    if missing_by_node:
        description = ", ".join(f"{node} has no {requirement}" for node, requirement in sorted(missing_by_node.items()))
        profiler_missing = f"command {profile.NSYS_COMMAND}" in missing_by_node.values()
        raise HostStateError(
            f"{description}.",
            profile.NSYS_REMEDY
            if profiler_missing
            else "Put it on a shared volume, install it on every node, or exclude nodes with --sbatch --exclude=NODE.",
        )


def check(run_command: Runner, request: RunRequest, program_path: str, volumes: Sequence[str]) -> None:
    """Perform all checks. Raises GpumeshError."""
    require_shared(request.folder, volumes)
    if request.stage:
        require_shared(request.stage, volumes, "--stage")
    require_on_nodes(missing_requirements(run_command, request, usable_nodes(run_command, request)))
    scheduler.refuse_impossible(run_command, request, program_path)

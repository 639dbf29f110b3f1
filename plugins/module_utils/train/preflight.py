# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse runs that cannot work before anything is submitted."""

from __future__ import annotations

import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import holding, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import profile, scheduler
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request

#: File systems that are usually shared with other nodes.
_SHARED = ("nfs", "nfs4", "lustre", "ceph", "beegfs", "gpfs", "glusterfs", "cifs", "smb3", "9p", "virtiofs", "wekafs")
#: User-space file systems usually are as well, such as MooseFS, which providers mount into containers, and sshfs.
_USERSPACE = "fuse"
_LOCAL_USERSPACE = ("fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse", "fuse.bindfs")
#: Nodes that are queried at the same time, and the timeout in seconds for each.
_AT_ONCE = 32
_PATIENCE = 10.0
#: The exit status of a node that lacks something. ssh's own is 255.
_LACKS = 13


def is_shared(path: str, volumes: Sequence[str], mounts: str) -> bool:
    """Whether all nodes see the path: it is on a volume of the cluster, or on a network file system.

    ``mounts``: the text of /proc/self/mountinfo.
    """
    if any(path == volume or path.startswith(volume.rstrip("/") + "/") for volume in volumes):
        return True
    mount = holding(parse_mountinfo(mounts), path)
    kind = mount.filesystem if mount else ""
    # With the name of the program after a dot, if that is known.
    return kind in _SHARED or (kind.partition(".")[0] == _USERSPACE and kind not in _LOCAL_USERSPACE)


def refuse_local(path: str, volumes: Sequence[str], option: str = "--run-dir") -> None:
    """Raises InputError for a directory that only this node sees."""
    if not is_shared(os.path.realpath(path), volumes, processes.text("/proc", "self", "mountinfo")):
        known = f"The cluster has {', '.join(volumes)}." if volumes else "The cluster has none."
        raise InputError(
            f"{path} is not on a shared volume.", f"{known} Set {option} to a directory that all nodes share."
        )


def usable(run: Runner, request: Request) -> List[str]:
    """The nodes on which the run may be. Raises GpumeshError if they are fewer than requested."""
    states = scheduler.node_states(run, request.partition)
    if not states:
        raise InputError(f"There is no partition '{request.partition}' with nodes.", "See 'sinfo'.")
    words = [option.partition("=")[2] for option in request.sbatch if option.startswith("--exclude=")]
    left_out = [node for word in words for node in scheduler.hostnames(run, word)]
    able = [node for node, state in states.items() if scheduler.fit(state) and node not in left_out]
    refuse_few(request.nodes + request.spare, able, states)
    return able


def refuse_few(wanted: int, able: Sequence[str], states: Mapping[str, str]) -> None:
    """Raises HostStateError if fewer nodes can be used than requested."""
    if len(able) < wanted:
        out = [f"{node} is {state}" for node, state in sorted(states.items()) if not scheduler.fit(state)]
        why = f" ({', '.join(out)})" if out else ""
        remedy = "Reduce --nodes" + (", or return the others to service: see 'sinfo --list-reasons'." if out else ".")
        raise HostStateError(f"The run requests {wanted} nodes, but only {len(able)} can be used{why}.", remedy)


def lacking(run: Runner, request: Request, nodes: Sequence[str]) -> Dict[str, str]:
    """What nodes lack, by node: the command, or the directory. Nodes that cannot be queried are omitted."""
    here = os.uname().nodename.partition(".")[0]
    # The content of the snapshot of the code is, or will be, on a shared volume.
    program, directory = request.command[0], request.directory
    if request.code:
        program, directory = ("true" if "/" in program and not program.startswith("/") else program), "/"
    directory = shlex.quote(directory)
    look = (
        f"cd {directory} 2>/dev/null || {{ echo directory {directory}; exit {_LACKS}; }}; "
        f"PATH={shlex.quote(os.environ.get('PATH', ''))}"
    )
    for name in map(shlex.quote, [program, *profile.needed(request.profile)]):
        look += f"; command -v {name} >/dev/null || {{ echo command {name}; exit {_LACKS}; }}"

    def ask(node: str) -> Optional[str]:
        argv = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", node, f"exec /bin/sh -c {shlex.quote(look)}"]
        if node == here:
            argv = ["/bin/sh", "-c", look]
        try:
            done = run(argv, timeout=_PATIENCE, check=False)
        except CommandError:
            return None
        return done.stdout.strip() if done.rc == _LACKS else None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(nodes, pool.map(ask, nodes)))
    return {node: answer for node, answer in answers.items() if answer}


def refuse_lacking(found: Mapping[str, str]) -> None:
    """Raises HostStateError if a node lacks what the run needs."""
    if found:
        words = ", ".join(f"{node} has no {what}" for node, what in sorted(found.items()))
        profiler = f"command {profile.NSYS}" in found.values()
        raise HostStateError(
            f"{words}.",
            profile.INSTALL
            if profiler
            else "Put it on a shared volume, install it on every node, or exclude nodes with --sbatch --exclude=NODE.",
        )


def check(run: Runner, request: Request, program: str, volumes: Sequence[str]) -> None:
    """Perform all checks. Raises GpumeshError."""
    refuse_local(request.folder, volumes)
    if request.stage:
        refuse_local(request.stage, volumes, "--stage")
    refuse_lacking(lacking(run, request, usable(run, request)))
    scheduler.refuse_impossible(run, request, program)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The number of threads of the kernel's NFS server, which limits the number of connections.

If there are more, the server closes the oldest one for each new one, whose member then connects again: volumes are
slow, without any error.

One file sets the number for all clusters that this host serves. Nothing is written as long as the default suffices.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names, read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number

#: The files that are read in this order, each before its drop-ins; see nfs.conf(5). A later setting wins, so our file
#: has the last name.
_SETTINGS_PATHS = ("/usr/etc/nfs.conf", "/etc/nfs.conf")
THREADS_CONFIG_PATH = "/etc/nfs.conf.d/zz-gpumesh.conf"
_RUNNING_THREADS_PATH = "/proc/fs/nfsd/threads"

#: svc_check_conn_limits() in the kernel's net/sunrpc/svc_xprt.c: 20 connections for each of the threads and three more.
_CONNECTIONS_PER_THREAD, _EXTRA_THREADS = 20, 3
#: The defaults of nfs-utils, of earlier and of current versions.
_OLD_DEFAULT, _NEW_DEFAULT = 8, 16
#: Connections per member, for a cluster whose own run has not written them yet: the highest default on any network up
#: to 25 Gbit/s.
_CONNECTIONS_PER_MEMBER = 4

_CLUSTER_LINE = re.compile(r"(?m)^# cluster (\S+): (\d+) connections$")
_EXPORTS_FILE_NAME = re.compile(r"gpumesh-(.+)\.exports")
_SECTION_HEADER = re.compile(r"\[\s*(\w+)")


class NfsdState(NamedTuple):
    """The current state. ``own_text`` is the text of our file, None if it is missing.

    ``configured_threads``: the number that others have set, None for the default. ``running_threads``: 0 if the server
    does not run. ``other_connections``: those expected for the other clusters that this host serves.
    """

    own_text: Optional[str]
    configured_threads: Optional[int]
    running_threads: int
    other_connections: Mapping[str, int]


class ThreadsPlan(NamedTuple):
    """The changed files, the number to set at run time, None if it stays, and the current one."""

    file_changes: List[managed_files.FileChange]
    live_threads: Optional[int]
    running_threads: int

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.file_changes) or self.live_threads is not None


def required_threads(connections: int) -> int:
    """Return the smallest number of threads that allows so many connections."""
    return -(-connections // _CONNECTIONS_PER_THREAD) - _EXTRA_THREADS


def render_threads_config(cluster: str, connections: int, nfsd_state: NfsdState) -> Tuple[Optional[str], int]:
    """Return the text of our file, None if it is not needed, and the number of threads in it.

    ``connections``: how many this cluster may have, 0 if this host does not serve it.
    """
    written_counts = {name: int(number) for name, number in _CLUSTER_LINE.findall(nfsd_state.own_text or "")}
    connections_by_cluster: Dict[str, int] = {
        name: written_counts.get(name, number) for name, number in nfsd_state.other_connections.items()
    }
    # Others keep their lines, or two runs that expect different numbers of each other would write and remove the file.
    keep_file = bool(connections_by_cluster) and nfsd_state.own_text is not None
    if connections:
        connections_by_cluster[cluster] = connections
    elif not keep_file:
        # The runs of other clusters know what these need.
        return None, 0
    minimum_threads = required_threads(sum(connections_by_cluster.values()))
    available_threads = _OLD_DEFAULT if nfsd_state.configured_threads is None else nfsd_state.configured_threads
    if minimum_threads <= available_threads and not keep_file:
        return None, 0
    thread_count = max(
        minimum_threads, _NEW_DEFAULT if nfsd_state.configured_threads is None else nfsd_state.configured_threads
    )
    cluster_lines = "".join(
        f"# cluster {name}: {number} connections\n" for name, number in sorted(connections_by_cluster.items())
    )
    return (
        (
            f"# Written by gpumesh.cluster for the connections of the members.\n"
            f"{cluster_lines}[nfsd]\nthreads={thread_count}\n"
        ),
        thread_count,
    )


def plan_threads(
    cluster: str, connections: int, nfsd_state: NfsdState, config_path: str = THREADS_CONFIG_PATH
) -> ThreadsPlan:
    """Decide what to do. The number is never lowered at run time."""
    config_text, thread_count = render_threads_config(cluster, connections, nfsd_state)
    file_entries: List[Dict[str, Any]] = [{"path": config_path, "state": "absent"}]
    if config_text is not None:
        directory_entry = {"path": os.path.dirname(config_path), "state": "directory"}
        file_entries = [directory_entry, {"path": config_path, "content": config_text, "mode": "0644"}]
    live_threads = thread_count if 0 < nfsd_state.running_threads < thread_count else None
    return ThreadsPlan(managed_files.plan_changes(file_entries), live_threads, nfsd_state.running_threads)


def apply_threads_plan(run: Runner, plan: ThreadsPlan) -> None:
    """Apply the plan. The running server keeps its connections."""
    managed_files.apply_file_changes(plan.file_changes)
    if plan.live_threads is not None:
        run(["rpc.nfsd", str(plan.live_threads)])


def format_threads_diff(plan: ThreadsPlan) -> Tuple[str, str]:
    """Format the file and the running number, before and after."""
    before, after = managed_files.format_diff(plan.file_changes)
    if plan.live_threads is not None:
        before, after = f"{before}nfsd: {plan.running_threads} threads\n", f"{after}nfsd: {plan.live_threads} threads\n"
    return before, after


def parse_threads(settings_texts: Iterable[str]) -> Optional[int]:
    """Parse the number of threads in settings of nfs.conf(5); the last one wins. None if there is none."""
    thread_count = None
    for text in settings_texts:
        section = ""
        for line in text.splitlines():
            stripped_line = re.split("[#;]", line)[0].strip()
            if stripped_line.startswith("["):
                match = _SECTION_HEADER.match(stripped_line)
                section = match.group(1).lower() if match else ""
            key, _sign, value = stripped_line.partition("=")
            if section == "nfsd" and key.strip().lower() == "threads":
                number = parse_whole_number(value.strip().strip('"'))
                thread_count = thread_count if number is None else number
    return thread_count


def count_members(exports: str) -> int:
    """Count the members in exports that this collection has written."""
    return len(set(re.findall(r"(\S+)\(", re.sub(r'(?m)^"[^"]*"', "", exports))))


def read_nfsd_state(
    own_exports_path: str,
    settings_paths: Sequence[str] = _SETTINGS_PATHS,
    config_path: str = THREADS_CONFIG_PATH,
    running_path: str = _RUNNING_THREADS_PATH,
) -> NfsdState:
    """Read the current state. ``own_exports_path``: the file of this cluster, beside those of the others."""
    # The administrator's files may have any encoding.
    settings_texts = [
        managed_files.read_current(name).text
        for main in settings_paths
        for name in [main, *_list_drop_ins(f"{main}.d", config_path)]
    ]
    exports_directory = os.path.dirname(own_exports_path)
    other_connections = {}
    for name in list_names(exports_directory):
        match = _EXPORTS_FILE_NAME.fullmatch(name)
        if match and name != os.path.basename(own_exports_path):
            other_connections[match.group(1)] = (
                count_members(read_text(os.path.join(exports_directory, name)) or "") * _CONNECTIONS_PER_MEMBER
            )
    return NfsdState(
        read_text(config_path),
        parse_threads(settings_texts),
        parse_whole_number((read_text(running_path) or "").strip()) or 0,
        other_connections,
    )


def _list_drop_ins(drop_in_directory: str, ours: str) -> List[str]:
    paths = [os.path.join(drop_in_directory, name) for name in list_names(drop_in_directory) if name.endswith(".conf")]
    return [path for path in paths if path != ours]

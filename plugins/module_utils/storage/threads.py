# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The number of threads of the kernel's NFS server, which limits the number of connections.

If there are more, it closes the oldest one for each new one, whose member then connects again: volumes are slow, without
any error.

One file has the number for all clusters that this host serves. Nothing is written as long as the default suffices.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in, read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import whole_number

#: Read in this order, each before those of its folder; nfs.conf(5). A later setting wins, so the name of ours is the last.
_SETTINGS = ("/usr/etc/nfs.conf", "/etc/nfs.conf")
PATH = "/etc/nfs.conf.d/zz-gpumesh.conf"
_RUNNING = "/proc/fs/nfsd/threads"

#: svc_check_conn_limits() in the kernel's net/sunrpc/svc_xprt.c: 20 connections for each of the threads and three more.
_CONNECTIONS, _MORE = 20, 3
#: The defaults of nfs-utils, of earlier and of current versions.
_DEFAULT, _NEW_DEFAULT = 8, 16
#: Connections per member, for a cluster whose own run has not written them yet: the most that is a default on any network
#: up to 25 Gbit/s.
_PER_MEMBER = 4

_LINE = re.compile(r"(?m)^# cluster (\S+): (\d+) connections$")
_EXPORTS = re.compile(r"gpumesh-(.+)\.exports")
_SECTION = re.compile(r"\[\s*(\w+)")


class Host(NamedTuple):
    """The current state. ``ours`` is the text of our file, None if it is missing.

    ``configured``: the number that others have set, None for the default. ``running``: that of the running server, 0 if
    it is not running. ``others``: the expected connections of the other clusters that this host serves.
    """

    ours: Optional[str]
    configured: Optional[int]
    running: int
    others: Mapping[str, int]


class Plan(NamedTuple):
    """The changed files, and the number to set at run time, None if it stays. ``running`` is the current one."""

    files: List[host_files.Step]
    live: Optional[int]
    running: int

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.files) or self.live is not None


def needed(connections: int) -> int:
    """The smallest number of threads that allows so many connections."""
    return -(-connections // _CONNECTIONS) - _MORE


def text_for(cluster: str, connections: int, host: Host) -> Tuple[Optional[str], int]:
    """What our file should have, None if it is not needed, and the number of threads in it.

    ``connections``: those that this cluster may have, 0 if this host does not serve it.
    """
    written = {name: int(number) for name, number in _LINE.findall(host.ours or "")}
    counts: Dict[str, int] = {name: written.get(name, number) for name, number in host.others.items()}
    # Others keep their lines, or two runs that expect different numbers of each other would write and remove the file.
    kept = bool(counts) and host.ours is not None
    if connections:
        counts[cluster] = connections
    elif not kept:
        # What other clusters need is for their own runs, which know it.
        return None, 0
    least = needed(sum(counts.values()))
    enough = _DEFAULT if host.configured is None else host.configured
    if least <= enough and not kept:
        return None, 0
    threads = max(least, _NEW_DEFAULT if host.configured is None else host.configured)
    lines = "".join(f"# cluster {name}: {number} connections\n" for name, number in sorted(counts.items()))
    return (
        f"# Written by gpumesh.cluster for the connections of the members.\n{lines}[nfsd]\nthreads={threads}\n",
        threads,
    )


def make_plan(cluster: str, connections: int, host: Host, path: str = PATH) -> Plan:
    """Decide what to do. The number is never lowered at run time."""
    text, threads = text_for(cluster, connections, host)
    entries: List[Dict[str, Any]] = [{"path": path, "state": "absent"}]
    if text is not None:
        folder = {"path": os.path.dirname(path), "state": "directory"}
        entries = [folder, {"path": path, "content": text, "mode": "0644"}]
    live = threads if 0 < host.running < threads else None
    return Plan(host_files.plan_all(entries), live, host.running)


def apply(run: Runner, plan: Plan) -> None:
    """Carry out the plan. The running server keeps its connections."""
    host_files.apply_all(plan.files)
    if plan.live is not None:
        run(["rpc.nfsd", str(plan.live)])


def as_diff(plan: Plan) -> Tuple[str, str]:
    """The file and the running number, before and after."""
    before, after = host_files.as_diff(plan.files)
    if plan.live is not None:
        before, after = f"{before}nfsd: {plan.running} threads\n", f"{after}nfsd: {plan.live} threads\n"
    return before, after


def threads_in(texts: Iterable[str]) -> Optional[int]:
    """The number that settings of nfs.conf(5) have; the last one wins. None if they have none."""
    found = None
    for text in texts:
        section = ""
        for line in text.splitlines():
            words = re.split("[#;]", line)[0].strip()
            if words.startswith("["):
                match = _SECTION.match(words)
                section = match.group(1).lower() if match else ""
            key, _sign, value = words.partition("=")
            if section == "nfsd" and key.strip().lower() == "threads":
                number = whole_number(value.strip().strip('"'))
                found = found if number is None else number
    return found


def members_in(exports: str) -> int:
    """How many members there are in exports that this collection has written."""
    return len(set(re.findall(r"(\S+)\(", re.sub(r'(?m)^"[^"]*"', "", exports))))


def look(own_exports: str, settings: Sequence[str] = _SETTINGS, path: str = PATH, running: str = _RUNNING) -> Host:
    """The current state. ``own_exports``: the file of this cluster, beside those of the others."""
    # In any encoding: they are the administrator's.
    texts = [host_files.read(name).text for main in settings for name in [main, *_listed(f"{main}.d", path)]]
    folder = os.path.dirname(own_exports)
    others = {}
    for name in names_in(folder):
        match = _EXPORTS.fullmatch(name)
        if match and name != os.path.basename(own_exports):
            others[match.group(1)] = members_in(read_text(os.path.join(folder, name)) or "") * _PER_MEMBER
    return Host(read_text(path), threads_in(texts), whole_number((read_text(running) or "").strip()) or 0, others)


def _listed(folder: str, ours: str) -> List[str]:
    paths = [os.path.join(folder, name) for name in names_in(folder) if name.endswith(".conf")]
    return [path for path in paths if path != ours]

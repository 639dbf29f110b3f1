# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start and inspect sessions, for the program and for the module."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import own_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in
from ansible_collections.gpumesh.cluster.plugins.module_utils.owned_folder import owned
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import forward, job, runtime
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import NAME, Settings, Spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

_LOG = re.compile(rf"{NAME}-(?P<name>.+)-(?P<job>[0-9]{{1,10}})\.log")
_LAST_LINE = re.compile(rf"^{NAME}: ({job.END}|{job.FAILED}: .*)$", re.MULTILINE)
#: Ended sessions that are shown, and the bytes at the end of a log with the last line.
_MOST, _TAIL = 10, 1 << 16
_UNTOLD = "ended; its log does not say why: it was stopped, or Slurm has ended its job"


class Started(NamedTuple):
    """A submitted session. ``log``: the file with the output of its containers."""

    job: int
    log: str


def refuse(run: Runner, program: str, spec: Spec, settings: Settings) -> job.Fit:
    """Refuse requests that cannot work, before they are submitted; how the session fits the cluster. Raises GpumeshError."""
    if os.geteuid() == 0:
        raise InputError("root cannot own a session.", "Start it as another user; in the playbook, set session_user.")
    forward.refuse(spec, settings)
    specs.refuse_mounts(spec, [*settings.volumes, *settings.mounts_allowed])
    for role in spec.roles:
        if role.image.startswith(runtime.FILES):
            path = role.image.split(":")[1]
            if not path.startswith("/") or not os.path.exists(path):
                raise InputError(
                    f"session_roles: {role.name}: there is no image {path}.",
                    "Give the absolute path of an image that all nodes can read.",
                )
    if job.own(run, spec.name) is not None:
        raise _taken(spec.name)
    return job.fit(run, program, spec)


def _taken(name: str) -> InputError:
    return InputError(f"There is already a session '{name}'.", f"Choose another name, or: gpumesh-session stop {name}")


def start(run: Runner, program: str, spec: Spec, settings: Settings) -> Started:
    """Submit a session. Raises GpumeshError."""
    fit = refuse(run, program, spec, settings)
    logs = _logs(settings)
    number = job.submit(run, program, spec, fit, settings, logs)
    first = job.own(run, spec.name)
    if first is not None and first.job < number:
        # Two sessions were started at the same time.
        job.cancel(run, number)
        raise _taken(spec.name)
    if spec.ports:
        forward.begin(program, number, spec.ports)
    return Started(number, job.log_of(logs, spec.name, number))


def _logs(settings: Settings) -> str:
    """On the first shared volume on which the user has a folder, else on the first node, beside the user's images.
    Nobody else may create files there."""
    for volume in settings.volumes:
        folder = f"{volume}/{own_name()}"
        if os.access(folder, os.W_OK):
            with contextlib.suppress(HostStateError):
                os.close(owned(folder, "session_storage_dir", 0o022))
                return folder
    return os.path.normpath(settings.storage.replace("{user}", own_name()))


class Ended(NamedTuple):
    """A session that has ended. ``at``: when something was last written to its log. ``said``: how it ended."""

    name: str
    job: int
    at: float
    said: str
    log: str


def ended(run: Runner, settings: Settings, name: str = "") -> List[Ended]:
    """The user's sessions that have ended last, by their logs, the newest first. Raises CommandError.

    ``name``: only those of this name.
    """
    folder, queued = _logs(settings), {one.job for one in job.queue(run, "--me")}
    found = []
    for entry in names_in(folder):
        match = _LOG.fullmatch(entry)
        if match and name in ("", match["name"]) and int(match["job"]) not in queued:
            with contextlib.suppress(OSError):
                at = os.stat(f"{folder}/{entry}").st_mtime
                found.append(Ended(match["name"], int(match["job"]), at, "", f"{folder}/{entry}"))
    newest = sorted(found, key=lambda one: one.at, reverse=True)[:_MOST]
    return [one._replace(said=_last_line(one.log)) for one in newest]


def _last_line(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            lines = _LAST_LINE.findall(stream.read(_TAIL).decode("utf-8", "replace"))
    except OSError as failure:
        return f"ended; its log cannot be read: {failure.strerror}"
    return printable(lines[-1]) if lines else _UNTOLD


def ended_lines(session: Ended) -> List[str]:
    """An ended session for people."""
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(session.at))
    return [f"{session.name}: job {session.job} · {at} · {session.said}", f"log {session.log}"]


def failure(session: Optional[job.Session]) -> str:
    """Why a session failed; empty if it is running, or if its first container has ended."""
    if session is None:
        return "it has ended."
    if session.stage == job.FAILED:
        return session.said
    if session.over and session.state != "completed":
        return f"its job is {session.state}."
    return ""


def where_to_look(log: str, host: str) -> str:
    """What to do about a session that has failed. One that had no nodes has no ``host``, and no log."""
    return f"See {log} on {host}." if log and host else ""


def line(session: Optional[job.Session], name: str) -> str:
    """A session in one line."""
    if session is None:
        return f"{name}: ended"
    if session.over:
        return f"{name}: job {session.job} · {session.state}"
    roles = ", ".join(f"{role}:{count}" for role, count in session.token.replicas())
    if session.stage == job.FAILED:
        return f"{name}: job {session.job}, {roles} · failed: {session.said}"
    if session.state in ("pending", "running") and session.stage == job.WAITING:
        waits = session.state == "pending" and session.reason not in ("", "None")
        return f"{name}: job {session.job}, {roles} · {job.WAITING}{f' ({session.reason})' if waits else ''}"
    if session.state != "running":
        return f"{name}: job {session.job}, {roles} · {session.state}"
    return f"{name}: job {session.job}, {roles} · {session.stage} on {', '.join(session.nodes)}"

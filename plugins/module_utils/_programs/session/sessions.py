# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start and inspect sessions, for the program and the module."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Dict, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import current_user_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.private_dir import open_private_dir
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import forward, job, runtime
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    PROGRAM_NAME,
    SessionSettings,
    SessionSpec,
)

_LOG_NAME = re.compile(rf"{PROGRAM_NAME}-(?P<name>.+)-(?P<job>[0-9]{{1,10}})\.log")
_LAST_LINE_PATTERN = re.compile(rf"^{PROGRAM_NAME}: ({job.END_MESSAGE}|{job.FAILED}: .*)$", re.MULTILINE)
#: The maximum number of ended sessions that are shown, and the bytes at the end of a log that contain its last line.
_MAX_SHOWN, _TAIL_BYTES = 10, 1 << 16
_UNKNOWN_OUTCOME = "ended; its log does not say why: it was stopped, or Slurm has ended its job"


class StartedSession(NamedTuple):
    """A submitted session. ``log_path``: the file with the output of its containers."""

    job_id: int
    log_path: str


def refuse_session(run: Runner, program_path: str, spec: SessionSpec, settings: SessionSettings) -> job.SessionFit:
    """Refuse sessions that cannot work before they are submitted. Returns how the session fits. Raises GpumeshError."""
    if os.geteuid() == 0:
        raise InputError("root cannot own a session.", "Start it as another user; in the playbook, set session_user.")
    forward.refuse_ports(spec, settings)
    specs.refuse_mounts(spec, [*settings.volumes, *settings.mounts_allowed])
    for role in spec.roles:
        if role.image.startswith(runtime.FILE_TRANSPORTS):
            image_path = role.image.split(":")[1]
            if not image_path.startswith("/") or not os.path.exists(image_path):
                raise InputError(
                    f"session_roles: {role.name}: there is no image {image_path}.",
                    "Give the absolute path of an image that all nodes can read.",
                )
    if job.find_own_session(run, spec.name) is not None:
        raise _duplicate_name(spec.name)
    return job.fit_session(run, program_path, spec)


def _duplicate_name(session_name: str) -> InputError:
    return InputError(
        f"There is already a session '{session_name}'.", f"Choose another name, or: gpumesh-session stop {session_name}"
    )


def start_session(run: Runner, program_path: str, spec: SessionSpec, settings: SessionSettings) -> StartedSession:
    """Submit a session. Raises GpumeshError."""
    session_fit = refuse_session(run, program_path, spec, settings)
    log_directory = _find_log_directory(settings)
    job_id = job.submit(run, program_path, spec, session_fit, settings, log_directory)
    active_session = job.find_own_session(run, spec.name)
    if active_session is not None and active_session.job_id < job_id:
        # Two sessions were started at the same time.
        job.cancel(run, job_id)
        raise _duplicate_name(spec.name)
    if spec.ports:
        forward.start_forward(program_path, job_id, spec.ports)
    return StartedSession(job_id, job.log_path(log_directory, spec.name, job_id))


def _find_log_directory(settings: SessionSettings) -> str:
    """Return the directory for logs, in which nobody else may create files.

    The directory is on the first shared volume where the user has one, otherwise on the first node, beside the images.
    """
    for volume in settings.volumes:
        user_directory = f"{volume}/{current_user_name()}"
        if os.access(user_directory, os.W_OK):
            with contextlib.suppress(HostStateError):
                os.close(open_private_dir(user_directory, "session_storage_dir", 0o022))
                return user_directory
    return os.path.normpath(settings.storage.replace("{user}", current_user_name()))


class EndedSession(NamedTuple):
    """A session that has ended. ``ended_at``: the time of the last output in its log. ``outcome``: how it ended."""

    name: str
    job_id: int
    ended_at: float
    outcome: str
    log_path: str


def list_ended(run: Runner, settings: SessionSettings, session_name: str = "") -> List[EndedSession]:
    """Return the user's sessions that have ended last, according to their logs, the newest first. Raises CommandError.

    ``session_name``: only sessions of this name.
    """
    log_directory, queued_jobs = (
        _find_log_directory(settings),
        {session.job_id for session in job.list_sessions(run, "--me")},
    )
    ended_sessions = []
    for file_name in list_names(log_directory):
        log_match = _LOG_NAME.fullmatch(file_name)
        if log_match and session_name in ("", log_match["name"]) and int(log_match["job"]) not in queued_jobs:
            with contextlib.suppress(OSError):
                ended_at = os.stat(f"{log_directory}/{file_name}").st_mtime
                ended_sessions.append(
                    EndedSession(log_match["name"], int(log_match["job"]), ended_at, "", f"{log_directory}/{file_name}")
                )
    newest_sessions = sorted(ended_sessions, key=lambda session: session.ended_at, reverse=True)[:_MAX_SHOWN]
    return [session._replace(outcome=_read_last_line(session.log_path)) for session in newest_sessions]


def _read_last_line(log_path: str) -> str:
    try:
        with open(log_path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            last_lines = _LAST_LINE_PATTERN.findall(stream.read(_TAIL_BYTES).decode("utf-8", "replace"))
    except OSError as failure:
        return f"ended; its log cannot be read: {failure.strerror}"
    return printable(last_lines[-1]) if last_lines else _UNKNOWN_OUTCOME


def format_ended(session: EndedSession) -> List[str]:
    """Return the lines about an ended session for users."""
    end_time = time.strftime("%Y-%m-%d %H:%M", time.localtime(session.ended_at))
    return [f"{session.name}: job {session.job_id} · {end_time} · {session.outcome}", f"log {session.log_path}"]


def failure_reason(session: Optional[job.QueuedSession]) -> str:
    """Return why a session failed; empty if it is running, or if its first container has ended successfully."""
    if session is None:
        return "it has ended."
    if session.stage == job.FAILED:
        return session.failure_reason
    if session.has_ended and session.job_state != "completed":
        return f"its job is {session.job_state}."
    return ""


def log_remedy(log_path: str, node_name: str) -> str:
    """Return the remedy for a session that has failed. A session without nodes has no log, and no ``node_name``."""
    return f"See {log_path} on {node_name}." if log_path and node_name else ""


def format_session(session: Optional[job.QueuedSession], session_name: str) -> str:
    """Describe a session in one line."""
    if session is None:
        return f"{session_name}: ended"
    if session.has_ended:
        return f"{session_name}: job {session.job_id} · {session.job_state}"
    role_counts = ", ".join(f"{role}:{count}" for role, count in session.token.replica_counts())
    if session.stage == job.FAILED:
        return f"{session_name}: job {session.job_id}, {role_counts} · failed: {session.failure_reason}"
    if session.job_state in ("pending", "running") and session.stage == job.WAITING:
        shows_reason = session.job_state == "pending" and session.waiting_reason not in ("", "None")
        return f"{session_name}: job {session.job_id}, {role_counts} · {job.WAITING}{f' ({session.waiting_reason})' if shows_reason else ''}"
    if session.job_state != "running":
        return f"{session_name}: job {session.job_id}, {role_counts} · {session.job_state}"
    return f"{session_name}: job {session.job_id}, {role_counts} · {session.stage} on {', '.join(session.node_names)}"


def session_values(session: Optional[job.QueuedSession], session_name: str, job_id: int) -> Dict[str, Any]:
    """A session as the results of modules. ``job_id``: that of the session's job, 0 for none."""
    reason = failure_reason(session) if job_id else ""
    return {
        "job": job_id,
        "summary": format_session(session, session_name),
        "session_state": "failed" if reason else "ended" if session is None or session.has_ended else session.stage,
        "reason": reason,
        "host": session.log_node if session else "",
    }

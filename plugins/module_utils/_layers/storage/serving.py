# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The exports of this host, and the program that serves them."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage.mounts import is_running_and_enabled

KERNEL_SERVER, GANESHA_SERVER = "kernel", "ganesha"
_SERVER_UNITS = {KERNEL_SERVER: "nfs-server.service", GANESHA_SERVER: "nfs-ganesha.service"}
_OTHER_SERVER = {KERNEL_SERVER: GANESHA_SERVER, GANESHA_SERVER: KERNEL_SERVER}
_SYSTEMCTL_TIMEOUT = 100
#: The path of an export of ganesha, and another file with exports.
_GANESHA_PATH = re.compile(r"(?i)\bPath\s*=\s*\"?([^\s;\"]+)")
_GANESHA_FILE = re.compile(r"(?im)^\s*%(?:include|url)\b")
#: The export in the ganesha.conf that comes with it, an example.
_GANESHA_EXAMPLE = ("/nonexistant", "/nonexistent")


class ServerPlan(NamedTuple):
    """``server``: the program that serves, None if nothing is served. ``start_server``: it is inactive or not enabled.

    ``changed_exports``: the programs whose exports file changes, which may not be the one that serves now.
    ``replaced_server``: the program that served before, and would keep the port.
    """

    file_changes: List[managed_files.FileChange]
    server: Optional[str]
    start_server: bool
    changed_exports: List[str]
    replaced_server: Optional[str] = None

    @property
    def changed(self) -> bool:
        """Whether anything other than a re-export has to be done."""
        return bool(self.file_changes or self.start_server or self.replaced_server)


def refuse_without_systemd(volume_names: Sequence[str], systemd_runs: bool) -> None:
    """Raise HostStateError for volumes that this host would serve if nothing here can run the server."""
    if volume_names and not systemd_runs:
        raise HostStateError(
            f"systemd does not run on this host, so it cannot run an NFS server for volume {', '.join(volume_names)}.",
            "Choose a member with systemd as the server, or use a file system that the provider mounts, "
            "as a volume without server and path.",
            volumes=list(volume_names),
        )


def plan_server(
    run: Runner,
    file_entries: Sequence[Mapping[str, Any]],
    path_by_program: Mapping[str, str],
    server: Optional[str],
    etc_directory: str = "/etc",
) -> ServerPlan:
    """Decide what to do. ``file_entries`` are for managed_files; ``path_by_program``: the exports of each program."""
    file_changes = managed_files.plan_changes(file_entries)
    changing_paths = {step.path for step in file_changes}
    start_server = server is not None and not is_running_and_enabled(run, _SERVER_UNITS[server])
    changed_exports = [program for program, path in path_by_program.items() if path in changing_paths]
    replaced_server = _OTHER_SERVER.get(server or "")
    if replaced_server and not (
        (start_server or replaced_server in changed_exports)
        and _is_active_or_enabled(run, _SERVER_UNITS[replaced_server])
        # A server that others use as well keeps running, and the error of the new one says that the port is in use.
        and not has_exports(
            replaced_server, dict(_planned_texts(replaced_server, path_by_program, file_changes, etc_directory))
        )
    ):
        replaced_server = None
    return ServerPlan(file_changes, server, start_server, changed_exports, replaced_server)


def has_exports(program: str, text_by_path: Mapping[str, str]) -> bool:
    """Whether the settings of a program, by path, have any exports."""
    if program == GANESHA_SERVER:
        text = re.sub("#.*", "", "\n".join(text_by_path.values()))
        export_paths = set(_GANESHA_PATH.findall(text)) - set(_GANESHA_EXAMPLE)
        return bool(export_paths or _GANESHA_FILE.search(text))
    lines = (line.strip() for text in text_by_path.values() for line in text.splitlines())
    return any(line and not line.startswith("#") for line in lines)


def _planned_texts(
    program: str,
    path_by_program: Mapping[str, str],
    file_changes: Sequence[managed_files.FileChange],
    etc_directory: str,
) -> Iterator[Tuple[str, str]]:
    """Yield the files in which a program has its exports, as they will be."""
    if program == GANESHA_SERVER:
        settings_paths = [os.path.join(etc_directory, "ganesha", "ganesha.conf")]
    else:
        exports_directory = os.path.dirname(path_by_program.get(program, ""))
        file_names = [name for name in list_names(exports_directory) if _is_exports_file(name)]
        settings_paths = [
            os.path.join(etc_directory, "exports"),
            *(os.path.join(exports_directory, name) for name in file_names),
        ]
    change_by_path: Dict[str, managed_files.FileChange] = {
        file_change.path: file_change for file_change in file_changes
    }
    for path in settings_paths:
        file_change = change_by_path.get(path)
        if file_change is None:
            yield path, managed_files.read_current(path).text
        elif file_change.kind != managed_files.ABSENT:
            yield path, file_change.previous.text if file_change.text is None else file_change.text


def _is_exports_file(name: str) -> bool:
    """Whether exportfs(8) reads a file of exports.d."""
    return name.endswith(".exports") and not name.startswith(".")


def _is_active_or_enabled(run: Runner, unit: str) -> bool:
    """Whether a unit is running, or would be after a boot."""
    queries = (["systemctl", query, "--quiet", unit] for query in ("is-active", "is-enabled"))
    return any(run(argv, check=False).rc == 0 for argv in queries)


def apply_server_plan(run: Runner, plan: ServerPlan) -> None:
    """Apply the plan. It takes effect immediately: machines that have left the cluster are refused from now on."""
    managed_files.apply_file_changes(plan.file_changes)
    # Exports are read again even if nothing was written: an earlier run may have been interrupted before this.
    if plan.server == KERNEL_SERVER or KERNEL_SERVER in plan.changed_exports:
        run(["exportfs", "-ra"], timeout=_SYSTEMCTL_TIMEOUT)
    if plan.replaced_server:
        # Both servers use the same port.
        run(["systemctl", "disable", "--now", _SERVER_UNITS[plan.replaced_server]], timeout=_SYSTEMCTL_TIMEOUT)
    elif GANESHA_SERVER in plan.changed_exports and plan.server != GANESHA_SERVER:
        # Only a restart makes ganesha drop the last export.
        run(["systemctl", "restart", _SERVER_UNITS[GANESHA_SERVER]], timeout=_SYSTEMCTL_TIMEOUT)
    if plan.start_server and plan.server:
        run(["systemctl", "enable", "--now", _SERVER_UNITS[plan.server]], timeout=_SYSTEMCTL_TIMEOUT)
    elif GANESHA_SERVER in plan.changed_exports and plan.server == GANESHA_SERVER:
        # A reload takes effect immediately, and does not affect the remaining members.
        run(["systemctl", "reload", _SERVER_UNITS[GANESHA_SERVER]], timeout=_SYSTEMCTL_TIMEOUT)


def format_server_diff(plan: ServerPlan) -> Tuple[str, str]:
    """Format the files and the service, before and after."""
    before, after = managed_files.format_diff(plan.file_changes)
    if plan.replaced_server:
        before, after = (
            f"{before}{_SERVER_UNITS[plan.replaced_server]}: running\n",
            f"{after}{_SERVER_UNITS[plan.replaced_server]}: stopped\n",
        )
    if plan.start_server and plan.server:
        before, after = (
            f"{before}{_SERVER_UNITS[plan.server]}: stopped\n",
            f"{after}{_SERVER_UNITS[plan.server]}: running at boot\n",
        )
    return before, after

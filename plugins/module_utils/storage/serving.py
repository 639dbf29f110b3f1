# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The exports of this host, and the program that serves them."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.mounts import runs

KERNEL, GANESHA = "kernel", "ganesha"
_UNITS = {KERNEL: "nfs-server.service", GANESHA: "nfs-ganesha.service"}
_OTHER = {KERNEL: GANESHA, GANESHA: KERNEL}
_SECONDS = 100
#: The path of an export of ganesha, and another file with exports.
_GANESHA_PATH = re.compile(r"(?i)\bPath\s*=\s*\"?([^\s;\"]+)")
_GANESHA_FILE = re.compile(r"(?im)^\s*%(?:include|url)\b")
#: The export in the ganesha.conf that comes with it, an example.
_GANESHA_EXAMPLE = ("/nonexistant", "/nonexistent")


class Plan(NamedTuple):
    """``server`` is the program that serves, None if nothing is served. ``start``: it is not running, or not at boot.

    ``forgotten``: the programs whose exports file changes, which may not be the one that serves now. ``stop``: the
    program that served before, and would keep the port.
    """

    files: List[host_files.Step]
    server: Optional[str]
    start: bool
    forgotten: List[str]
    stop: Optional[str] = None

    @property
    def changed(self) -> bool:
        """Whether anything other than a re-export has to be done."""
        return bool(self.files or self.start or self.stop)


def refuse_without_systemd(volumes: Sequence[str], systemd: bool) -> None:
    """Raises HostStateError for volumes that this host would serve, if nothing here can run the server."""
    if volumes and not systemd:
        raise HostStateError(
            f"systemd does not run on this host, so it cannot run an NFS server for volume {', '.join(volumes)}.",
            "Choose a member with systemd as the server, or use a file system that the provider mounts, as a volume without "
            "server and path.",
            volumes=list(volumes),
        )


def look(
    run: Runner,
    entries: Sequence[Mapping[str, Any]],
    exports: Mapping[str, str],
    server: Optional[str],
    etc: str = "/etc",
) -> Plan:
    """Decide what to do. ``entries`` are those of host_files, ``exports`` the file of each program."""
    files = host_files.plan_all(entries)
    changing = {step.path for step in files}
    start = server is not None and not runs(run, _UNITS[server])
    forgotten = [program for program, path in exports.items() if path in changing]
    stop = _OTHER.get(server or "")
    if stop and not (
        (start or stop in forgotten)
        and _is_wanted(run, _UNITS[stop])
        # In use by others as well, it is left to them, and the error of the new one says that the port is taken.
        and not has_exports(stop, dict(_texts(stop, exports, files, etc)))
    ):
        stop = None
    return Plan(files, server, start, forgotten, stop)


def has_exports(program: str, texts: Mapping[str, str]) -> bool:
    """Whether the settings of a program, by path, have any exports."""
    if program == GANESHA:
        text = re.sub("#.*", "", "\n".join(texts.values()))
        paths = set(_GANESHA_PATH.findall(text)) - set(_GANESHA_EXAMPLE)
        return bool(paths or _GANESHA_FILE.search(text))
    lines = (line.strip() for text in texts.values() for line in text.splitlines())
    return any(line and not line.startswith("#") for line in lines)


def _texts(
    program: str, exports: Mapping[str, str], files: Sequence[host_files.Step], etc: str
) -> Iterator[Tuple[str, str]]:
    """The files in which a program has its exports, as they will be."""
    if program == GANESHA:
        paths = [os.path.join(etc, "ganesha", "ganesha.conf")]
    else:
        folder = os.path.dirname(exports.get(program, ""))
        names = [name for name in names_in(folder) if _is_read(name)]
        paths = [os.path.join(etc, "exports"), *(os.path.join(folder, name) for name in names)]
    planned: Dict[str, host_files.Step] = {step.path: step for step in files}
    for path in paths:
        step = planned.get(path)
        if step is None:
            yield path, host_files.read(path).text
        elif step.kind != host_files.ABSENT:
            yield path, step.before.text if step.text is None else step.text


def _is_read(name: str) -> bool:
    """Whether exportfs(8) reads a file of exports.d."""
    return name.endswith(".exports") and not name.startswith(".")


def _is_wanted(run: Runner, unit: str) -> bool:
    """Whether a unit is running, or would be after a boot."""
    asked = (["systemctl", word, "--quiet", unit] for word in ("is-active", "is-enabled"))
    return any(run(argv, check=False).rc == 0 for argv in asked)


def apply(run: Runner, plan: Plan) -> None:
    """Carry out the plan. It takes effect immediately: machines that have left the cluster are refused from here on."""
    host_files.apply_all(plan.files)
    # Even if nothing was written: an earlier run may have been interrupted before this.
    if plan.server == KERNEL or KERNEL in plan.forgotten:
        run(["exportfs", "-ra"], timeout=_SECONDS)
    if plan.stop:
        # The port is the same.
        run(["systemctl", "disable", "--now", _UNITS[plan.stop]], timeout=_SECONDS)
    elif GANESHA in plan.forgotten and plan.server != GANESHA:
        # Only a restart makes it drop the last export.
        run(["systemctl", "restart", _UNITS[GANESHA]], timeout=_SECONDS)
    if plan.start and plan.server:
        run(["systemctl", "enable", "--now", _UNITS[plan.server]], timeout=_SECONDS)
    elif GANESHA in plan.forgotten and plan.server == GANESHA:
        # It reloads its exports immediately, which does not affect the remaining members.
        run(["systemctl", "reload", _UNITS[GANESHA]], timeout=_SECONDS)


def as_diff(plan: Plan) -> Tuple[str, str]:
    """The files and the service, before and after."""
    before, after = host_files.as_diff(plan.files)
    if plan.stop:
        before, after = f"{before}{_UNITS[plan.stop]}: running\n", f"{after}{_UNITS[plan.stop]}: stopped\n"
    if plan.start and plan.server:
        before, after = f"{before}{_UNITS[plan.server]}: stopped\n", f"{after}{_UNITS[plan.server]}: running at boot\n"
    return before, after

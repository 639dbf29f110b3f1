# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports below 1024, by which an NFS server distinguishes a member's kernel from a user's program.

Such a program could claim to be any user. In containers, all users can often use these ports.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, remove_file, write_atomic

SYSCTL_NAME = "net.ipv4.ip_unprivileged_port_start"
_SYSCTL_PATH = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_SYSCTL_DIRECTORY = "/etc/sysctl.d"
_FIRST_UNPRIVILEGED = 1024


class PortsPlan(NamedTuple):
    """``first_port``: the current first unprivileged port.

    ``set_now``: change it now. ``write_settings``: set it at boot. ``obsolete_paths``: files to remove.
    """

    first_port: int
    set_now: bool
    write_settings: bool
    obsolete_paths: List[str]

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return self.set_now or self.write_settings or bool(self.obsolete_paths)


def settings_path(cluster: str, sysctl_directory: str = _SYSCTL_DIRECTORY) -> str:
    """Return the path of the file that sets the first unprivileged port at boot.

    If the ports are open, a setting of the administrator has opened them. The last name wins, and theirs often is
    99-sysctl.conf.
    """
    return os.path.join(sysctl_directory, f"zz-gpumesh-{cluster}-storage.conf")


def _former_settings_path(cluster: str, sysctl_directory: str) -> str:
    """Return the path that earlier versions used."""
    return os.path.join(sysctl_directory, f"60-gpumesh-{cluster}-storage.conf")


def plan_ports(
    cluster: str, needed: bool, sysctl_path: str = _SYSCTL_PATH, sysctl_directory: str = _SYSCTL_DIRECTORY
) -> PortsPlan:
    """Decide what to do. Raises HostStateError if the ports are open, and cannot be closed from here."""
    first_port = int((read_text(sysctl_path) or str(_FIRST_UNPRIVILEGED)).strip())
    set_now = needed and first_port < _FIRST_UNPRIVILEGED
    if set_now and not os.access(sysctl_path, os.W_OK):
        raise HostStateError(
            f"Every user of this host can use ports below 1024 ({SYSCTL_NAME} is {first_port}) "
            "and could impersonate any user to the servers of the volumes. It cannot be set from here.",
            f"Start the container with --sysctl {SYSCTL_NAME}={_FIRST_UNPRIVILEGED}, "
            "or exclude the host with storage_backend=none.",
        )
    former_path = _former_settings_path(cluster, sysctl_directory)
    unwanted_paths = [former_path] if needed else [former_path, settings_path(cluster, sysctl_directory)]
    obsolete_paths = [path for path in unwanted_paths if os.path.exists(path)]
    return PortsPlan(first_port, set_now, set_now or (needed and former_path in obsolete_paths), obsolete_paths)


def apply_ports_plan(
    plan: PortsPlan, cluster: str, sysctl_path: str = _SYSCTL_PATH, sysctl_directory: str = _SYSCTL_DIRECTORY
) -> None:
    """Apply the plan. A removed setting stays in effect until the next boot."""
    if plan.write_settings:
        os.makedirs(sysctl_directory, exist_ok=True)
        settings_text = (
            f"# Written by gpumesh.cluster for the servers of volumes.\n{SYSCTL_NAME} = {_FIRST_UNPRIVILEGED}\n"
        )
        write_atomic(settings_path(cluster, sysctl_directory), settings_text, 0o644)
    for path in plan.obsolete_paths:
        remove_file(path)
    if plan.set_now:
        with open(sysctl_path, "w", encoding="ascii") as stream:
            stream.write(str(_FIRST_UNPRIVILEGED))


def format_ports_diff(plan: PortsPlan) -> Tuple[str, str]:
    """Format the setting before and after."""
    if not plan.set_now:
        return "", ""
    return f"{SYSCTL_NAME} = {plan.first_port}\n", f"{SYSCTL_NAME} = {_FIRST_UNPRIVILEGED}\n"

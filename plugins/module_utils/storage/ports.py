# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports below 1024, by which an NFS server distinguishes a member's kernel from a user's program.

Such a program could claim to be any user. In containers, all users can often use these ports.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic

SETTING = "net.ipv4.ip_unprivileged_port_start"
_VALUE = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_FOLDER = "/etc/sysctl.d"
_FIRST = 1024


class Plan(NamedTuple):
    """``value`` is the first unprivileged port.

    ``close``: set it now. ``write``: set it at boot. ``forget``: files that no longer set it at boot.
    """

    value: int
    close: bool
    write: bool
    forget: List[str]

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return self.close or self.write or bool(self.forget)


def file_of(cluster: str, folder: str = _FOLDER) -> str:
    """The file that sets it at boot.

    Where the ports are open, a setting of the administrator's has opened them. The last name wins, and theirs often is
    99-sysctl.conf.
    """
    return os.path.join(folder, f"zz-gpumesh-{cluster}-storage.conf")


def _former_file(cluster: str, folder: str) -> str:
    """The name that earlier versions gave it."""
    return os.path.join(folder, f"60-gpumesh-{cluster}-storage.conf")


def look(cluster: str, needed: bool, value: str = _VALUE, folder: str = _FOLDER) -> Plan:
    """Decide what to do. Raises HostStateError if the ports are open, and cannot be closed from here."""
    first = int((read_text(value) or str(_FIRST)).strip())
    close = needed and first < _FIRST
    if close and not os.access(value, os.W_OK):
        raise HostStateError(
            f"Every user of this host can use ports below 1024 ({SETTING} is {first}) and could impersonate any user "
            "to the servers of the volumes. It cannot be set from here.",
            f"Start the container with --sysctl {SETTING}={_FIRST}, or exclude the host with storage_backend=none.",
        )
    former = _former_file(cluster, folder)
    unwanted = [former] if needed else [former, file_of(cluster, folder)]
    forget = [path for path in unwanted if os.path.exists(path)]
    return Plan(first, close, close or (needed and former in forget), forget)


def apply(plan: Plan, cluster: str, value: str = _VALUE, folder: str = _FOLDER) -> None:
    """Carry out the plan. The current setting stays until the next boot."""
    if plan.write:
        os.makedirs(folder, exist_ok=True)
        text = f"# Written by gpumesh.cluster for the servers of volumes.\n{SETTING} = {_FIRST}\n"
        write_atomic(file_of(cluster, folder), text, 0o644)
    for path in plan.forget:
        remove_file(path)
    if plan.close:
        with open(value, "w", encoding="ascii") as stream:
            stream.write(str(_FIRST))


def as_diff(plan: Plan) -> Tuple[str, str]:
    """The setting before and after."""
    if not plan.close:
        return "", ""
    return f"{SETTING} = {plan.value}\n", f"{SETTING} = {_FIRST}\n"

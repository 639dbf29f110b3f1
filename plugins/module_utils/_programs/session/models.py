# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The models of a session: roles and their containers, and what its job passes to its nodes."""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.compiler import LIBRARY_DIRECTORY

#: The name of the program, with which its messages start.
PROGRAM_NAME = "gpumesh-session"
PROGRAM_PATH = f"/usr/local/bin/{PROGRAM_NAME}"
#: The module with the program's main function.
ENTRY_MODULE = f"{__name__.rpartition('.')[0]}.program"
#: The plugin for Slurm.
PLUGIN_PATH = f"{LIBRARY_DIRECTORY}/gpumesh_session.so"
PLUGIN_SOURCE_NAME = "gpumesh_session.c"
#: The directory for large data, with directories of jobs and, by default, of users. Only root can create them.
STORAGE_ROOT = "/var/lib/gpumesh/session"
DEFAULT_STORAGE_DIR = f"{STORAGE_ROOT}/users/{{user}}"
PRIVATE_NETWORK, HOST_NETWORK = "private", "host"
#: The slot of a session without its own network.
NO_SLOT = -1


#: Slurm's states of jobs that have ended, in lower case.
ENDED_STATES = (
    "completed",
    "cancelled",
    "failed",
    "timeout",
    "node_fail",
    "preempted",
    "out_of_memory",
    "boot_fail",
    "deadline",
)


class Role(NamedTuple):
    """Containers that are alike. ``memory``: in MiB, 0 for Slurm's default. ``per_node``: 0 lets the layout choose."""

    name: str
    replicas: int
    image: str
    command: Tuple[str, ...] = ()
    cpus: int = 1
    memory: int = 0
    gpus: int = 0
    per_node: int = 0
    mounts: Tuple[str, ...] = ()
    env: Tuple[Tuple[str, str], ...] = ()


class SessionSpec(NamedTuple):
    """A requested session. ``time``: in minutes, 0 for no limit. ``ports``: such as 9000:8888, the port of the manager
    and that of main1."""

    name: str
    roles: Tuple[Role, ...]
    time: int = 0
    network: str = PRIVATE_NETWORK
    partition: str = ""
    retry: bool = True
    ports: Tuple[str, ...] = ()

    def role(self, role_name: str) -> Role:
        """Return the role of this name."""
        return next(role for role in self.roles if role.name == role_name)


class SessionToken(NamedTuple):
    """The part of a session that its job passes to each node: whether it has its own network, its name, its roles, of
    which the first is main, and the number of containers of each role on each node."""

    has_private_network: bool
    name: str
    role_names: Tuple[str, ...]
    node_rows: Tuple[Tuple[int, ...], ...]

    def replica_counts(self) -> List[Tuple[str, int]]:
        """Return each role with the number of its containers."""
        return [(name, sum(row[index] for row in self.node_rows)) for index, name in enumerate(self.role_names)]


class Container(NamedTuple):
    """A container on its node. ``number`` counts from 1 within its role, ``rank`` from 0 within the session. ``local``
    is unique on its node, and the same number on other nodes belongs to a container of the same role. Without a private
    network, ``address`` is the node's, and ``vni`` is 0."""

    name: str
    role: str
    number: int
    rank: int
    node: str
    local: int
    address: str
    vni: int


class SessionSettings(NamedTuple):
    """The settings with which gpumesh-session is installed. ``members``: the cluster's addresses by name. ``pools``:
    networks from which each session gets a /24. ``closed``: networks that sessions must not reach. ``mesh``: the
    interface of the mesh, if the cluster has one."""

    machine: str
    manager: str
    interface: str
    members: Mapping[str, str]
    pools: Sequence[str]
    closed: Sequence[str]
    nat: bool
    allow: Sequence[str]
    volumes: Sequence[str]
    mounts_allowed: Sequence[str]
    storage: str
    mesh: str = ""

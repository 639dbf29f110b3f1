# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data of a session: roles and their containers, and what its job passes to its nodes."""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.compiler import FOLDER

#: The program; its messages start with this name.
NAME = "gpumesh-session"
PATH = f"/usr/local/bin/{NAME}"
#: Its first module.
ENTRY = f"{__name__.rpartition('.')[0]}.program"
#: Of Slurm.
PLUGIN = f"{FOLDER}/gpumesh_session.so"
#: For large data: below it are directories of jobs, and by default one for each user. Only root can create any.
STORAGE = "/var/lib/gpumesh/session"
STORAGE_DIR = f"{STORAGE}/users/{{user}}"
PRIVATE, HOST = "private", "host"
#: The slot of a session without its own network.
NO_SLOT = -1


#: Slurm's states of jobs that have ended, in lower case.
ENDED = (
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
    """Containers that are alike. ``memory`` in MiB, 0 for Slurm's default. ``per_node``: 0 lets it be chosen."""

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


class Spec(NamedTuple):
    """A requested session. ``time`` in minutes, 0 for no limit. ``ports``: as 9000:8888, the
    manager's and that of main1."""

    name: str
    roles: Tuple[Role, ...]
    time: int = 0
    network: str = PRIVATE
    partition: str = ""
    retry: bool = True
    ports: Tuple[str, ...] = ()

    def role(self, name: str) -> Role:
        """The role of this name."""
        return next(role for role in self.roles if role.name == name)


class Token(NamedTuple):
    """What the job of a session tells each of its nodes: whether it has a network of its own, its name, its roles, the
    first of which is main, and how many containers of each role are on each node."""

    private: bool
    name: str
    roles: Tuple[str, ...]
    nodes: Tuple[Tuple[int, ...], ...]

    def replicas(self) -> List[Tuple[str, int]]:
        """Each role with the number of its containers."""
        return [(name, sum(row[place] for row in self.nodes)) for place, name in enumerate(self.roles)]


class Container(NamedTuple):
    """A container in its place. ``number`` from 1 within its role, ``rank`` from 0 over the session. ``local`` is that of
    no other container on its node, and on other nodes of containers of the same role alone. Without a network of its own,
    ``address`` is the node's, and ``vni`` 0."""

    name: str
    role: str
    number: int
    rank: int
    node: str
    local: int
    address: str
    vni: int


class Settings(NamedTuple):
    """What gpumesh-session is installed with. ``members``: the cluster's addresses by name. ``pools``: networks whose
    /24 are the sessions'. ``closed``: networks that sessions must not reach. ``mesh``: the interface of the mesh, if the
    cluster has one."""

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

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of a container: that of jobs, with the containers of the session as nodes."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.network import INTERFACE
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container

#: The model, as the role job_environment has it on each node, and what it is told of this one.
MODEL = "/etc/gpumesh/task_prolog"
SETTINGS = "/etc/gpumesh/job_environment.json"
#: The dialects of all sessions, regardless of other jobs. If two set the same variable, the last one takes effect.
DIALECTS = ("dstack", "skypilot", "runpod", "backendai")
#: The port of rank 0 if the session has its own network, as in Backend.AI.
PORT = 12345


def load(path: str = MODEL) -> Any:
    """The model. Raises HostStateError without one."""
    loader = SourceFileLoader("gpumesh_job_environment", path)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(loader.name, loader, origin=path))
    try:
        loader.exec_module(module)
    except OSError as failure:
        raise HostStateError(
            f"{path} cannot be read: {failure.strerror}.", "Run the role job_environment."
        ) from failure
    return module


def variables(
    model: Any,
    job: int,
    session: Sequence[Container],
    own: Container,
    gpus: Mapping[str, int],
    settings: str,
    hostfile: str,
) -> Dict[str, str]:
    """The environment of a container. ``gpus``: of each container by its role. ``settings``: the text of SETTINGS."""
    document = json.loads(settings)
    document["dialects"] = [*(name for name in document["dialects"] if name not in DIALECTS), *DIALECTS]
    given: Dict[str, str] = {"MASTER_ADDR": session[0].name}
    if own.vni:
        document.update(interface=INTERFACE, rdma={"devices": [], "peers": []})
        given["MASTER_PORT"] = str(PORT)
    known = model.Settings(json.dumps(document))
    found: Dict[str, str] = model.all_variables(_world(model, job, session, own, gpus), known, hostfile, given)
    # TF_CONFIG has names instead of addresses.
    named = _world(model, job, [one._replace(address=one.name) for one in session], own, gpus)
    found["TF_CONFIG"] = model.tf_config(named, int(found["MASTER_PORT"]))
    if "DSTACK_MASTER_NODE_IP" in found:
        found["DSTACK_MASTER_NODE_IP"] = session[0].address
    return found


def _world(model: Any, job: int, session: Sequence[Container], own: Container, gpus: Mapping[str, int]) -> Any:
    nodes = [model.Node(one.name, one.address, 0, 1, gpus.get(one.role, 0)) for one in session]
    roles = [one.role for one in session]
    return model.World(job, 0, nodes, own.rank, len(nodes), own.rank, 0, nodes[0].address, False, roles)


def hostfile(session: Sequence[Container], gpus: Mapping[str, int]) -> str:
    """For mpirun: one slot per GPU, or one."""
    return "".join(f"{one.name} slots={gpus.get(one.role, 0) or 1}\n" for one in session)


def read_settings(path: str = SETTINGS) -> str:
    """The text of the settings. Raises HostStateError without them."""
    text = read_text(path)
    if text is None:
        raise HostStateError(f"{path} is missing.", "Run the role job_environment on this node.")
    return text


def hosts(session: Sequence[Container]) -> str:
    """/etc/hosts of each container."""
    lines: List[str] = ["127.0.0.1 localhost"]
    lines += [f"{one.address} {one.name}" for one in session]
    return "".join(f"{line}\n" for line in lines)


def resolvers(text: Optional[str]) -> str:
    """/etc/resolv.conf of a container: without the host's own resolver, which no container can reach."""
    kept = [line for line in (text or "").splitlines() if not line.startswith(("nameserver 127.", "nameserver ::1"))]
    return "".join(f"{line}\n" for line in kept)

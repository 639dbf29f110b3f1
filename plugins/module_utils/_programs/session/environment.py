# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of a container: the same as in jobs, with the containers of the session as the nodes."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import Container
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.network import CONTAINER_INTERFACE

#: The program that computes the environment of jobs, and its settings, as the role job_environment installs them.
MODEL_PATH = "/etc/gpumesh/task_prolog"
SETTINGS_PATH = "/etc/gpumesh/job_environment.json"
#: The dialects of all sessions, regardless of other jobs. If two set the same variable, the last one takes effect.
DIALECTS = ("dstack", "skypilot", "runpod", "backendai")
#: The port of rank 0 if the session has its own network, as in Backend.AI.
MASTER_PORT = 12345


def load_model(path: str = MODEL_PATH) -> Any:
    """Load the module that computes the environment of jobs. Raises HostStateError if it is not installed."""
    loader = SourceFileLoader("gpumesh_job_environment", path)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(loader.name, loader, origin=path))
    try:
        loader.exec_module(module)
    except OSError as failure:
        raise HostStateError(
            f"{path} cannot be read: {failure.strerror}.", "Run the role job_environment."
        ) from failure
    return module


def build_variables(
    model: Any,
    job: int,
    containers: Sequence[Container],
    container: Container,
    gpus_by_role: Mapping[str, int],
    settings_text: str,
    hostfile_path: str,
) -> Dict[str, str]:
    """Return the environment of a container.

    ``gpus_by_role``: the number of GPUs of each container of a role. ``settings_text``: the text of SETTINGS_PATH.
    """
    settings_document = json.loads(settings_text)
    settings_document["dialects"] = [
        *(dialect for dialect in settings_document["dialects"] if dialect not in DIALECTS),
        *DIALECTS,
    ]
    preset_variables: Dict[str, str] = {"MASTER_ADDR": containers[0].name}
    if container.vni:
        settings_document.update(interface=CONTAINER_INTERFACE, rdma={"devices": [], "peers": []})
        preset_variables["MASTER_PORT"] = str(MASTER_PORT)
    model_settings = model.Settings(json.dumps(settings_document))
    variables: Dict[str, str] = model.all_variables(
        _build_world(model, job, containers, container, gpus_by_role), model_settings, hostfile_path, preset_variables
    )
    # In a session, TF_CONFIG has names instead of addresses.
    named_world = _build_world(
        model, job, [entry._replace(address=entry.name) for entry in containers], container, gpus_by_role
    )
    variables["TF_CONFIG"] = model.tf_config(named_world, int(variables["MASTER_PORT"]))
    if "DSTACK_MASTER_NODE_IP" in variables:
        variables["DSTACK_MASTER_NODE_IP"] = containers[0].address
    return variables


def _build_world(
    model: Any, job: int, containers: Sequence[Container], container: Container, gpus_by_role: Mapping[str, int]
) -> Any:
    world_nodes = [model.Node(entry.name, entry.address, 0, 1, gpus_by_role.get(entry.role, 0)) for entry in containers]
    role_names = [entry.role for entry in containers]
    return model.World(
        job,
        0,
        world_nodes,
        container.rank,
        len(world_nodes),
        container.rank,
        0,
        world_nodes[0].address,
        False,
        role_names,
    )


def format_hostfile(containers: Sequence[Container], gpus_by_role: Mapping[str, int]) -> str:
    """Return the hostfile for mpirun, with a slot for each GPU, or one slot for a container without GPUs."""
    return "".join(f"{container.name} slots={gpus_by_role.get(container.role, 0) or 1}\n" for container in containers)


def read_settings(path: str = SETTINGS_PATH) -> str:
    """Return the text of the settings. Raises HostStateError if they are not installed."""
    text = read_text(path)
    if text is None:
        raise HostStateError(f"{path} is missing.", "Run the role job_environment on this node.")
    return text


def format_hosts(containers: Sequence[Container]) -> str:
    """Return the content of /etc/hosts in each container."""
    host_lines: List[str] = ["127.0.0.1 localhost"]
    host_lines += [f"{container.address} {container.name}" for container in containers]
    return "".join(f"{line}\n" for line in host_lines)


def filter_resolvers(resolver_config: Optional[str]) -> str:
    """Return the content of /etc/resolv.conf in a container: without the host's own resolver, which it cannot reach."""
    usable_lines = [
        line
        for line in (resolver_config or "").splitlines()
        if not line.startswith(("nameserver 127.", "nameserver ::1"))
    ]
    return "".join(f"{line}\n" for line in usable_lines)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment that a distributed program finds in its Slurm job, in every dialect, from one model.

Slurm runs this before each task (TaskProlog) and reads its output: ``export NAME=value`` and ``unset NAME``. With
``--login`` it prints the same for a shell, for a login into a job.

The way of the data: the variables that Slurm has set -> World (nodes in rank order, tasks, GPUs, this task's place)
-> variables. What is true of this node comes from job_environment.json beside this file.

It runs once a task, so it imports little, and it never fails a job: where something cannot be known, the variable is
left alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from zlib import crc32

TYPE_CHECKING = False  # The typing module costs milliseconds that every task would pay.
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Mapping, Optional, Tuple

SETTINGS = "/etc/gpumesh/job_environment.json"
#: What a bash script in a job reads first; sets the variables that have several lines.
BASH_ENV_FILE = "/etc/gpumesh/job_environment.bash"
#: Set for the tasks of sessions.
SESSION = "GPUMESH_SESSION_PLACE"
#: Made by the role, like /tmp: everyone may write, only the owner may delete.
RUNTIME = "/run/gpumesh/jobs"
#: What we have set, as NAME=CHECKSUM words. A variable that still has our value may be replaced in a nested step or
#: job; one that differs is the user's, or torchrun's.
MARKER = "GPUMESH_JOB_ENVIRONMENT"
#: Slurm's numbers for the batch, extern and interactive steps start here.
FIRST_SPECIAL_STEP = 0xFFFFFFF0
DIALECTS = ("backendai", "dstack", "skypilot", "runpod", "torchrun")
#: As many hosts as Slurm itself allows in one range.
LONGEST_RANGE = 65536
#: Steps of one job that run at the same time on the same first node must not share a port; a prime spreads them.
STEP_STRIDE = 997


class Node:
    """One node of the world, in rank order. ``group`` is its component in a heterogeneous job, else 0."""

    __slots__ = ("address", "gpus", "group", "name", "tasks")

    def __init__(self, name: str, address: str, group: int, tasks: int, gpus: int) -> None:
        self.name = name
        self.address = address
        self.group = group
        self.tasks = tasks
        self.gpus = gpus


class World:
    """The processes that start together: a job step, or a whole job as its batch script sees it.

    ``rank`` and ``local_rank`` are None where the reader is no task: in a batch script of several tasks or a login.
    ``master`` is None where the node of rank 0 cannot be told. ``mixed``: the job has several components, of which
    this world may be one. ``roles``: of each node, where they are other than main and sub.
    """

    __slots__ = ("job", "local_rank", "master", "mixed", "node_rank", "nodes", "rank", "roles", "size", "step")

    def __init__(
        self,
        job: int,
        step: int,
        nodes: List[Node],
        node_rank: int,
        size: int,
        rank: Optional[int],
        local_rank: Optional[int],
        master: Optional[str],
        mixed: bool,
        roles: Optional[List[str]] = None,
    ) -> None:
        self.job = job
        self.step = step
        self.nodes = nodes
        self.node_rank = node_rank
        self.size = size
        self.rank = rank
        self.local_rank = local_rank
        self.master = master
        self.mixed = mixed
        self.roles = roles

    @property
    def node(self) -> Node:
        """The node that this runs on."""
        return self.nodes[self.node_rank]


# --- Slurm's notations -------------------------------------------------------------------------------------------


def expand_hostlist(text: str) -> List[str]:
    """``n[1-3,7],gpu[01-02]-ib`` to its names. Raises ValueError for what is no host list."""
    names: List[str] = []
    for item in _split_outside_brackets(text):
        names.extend(_expand_item(item))
    return names


def expand_counts(text: str) -> List[int]:
    """``2(x3),1`` to [2, 2, 2, 1]."""
    counts: List[int] = []
    for item in text.split(","):
        count, _times, repeat = item.partition("(x")
        counts.extend([int(count)] * (int(repeat.rstrip(")")) if repeat else 1))
    return counts


def _split_outside_brackets(text: str) -> List[str]:
    items, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
    items.append(text[start:])
    if depth or not all(items):
        raise ValueError(f"not a host list: {text!r}")
    return items


def _expand_item(item: str) -> List[str]:
    prefix, bracket, rest = item.partition("[")
    if not bracket:
        return [item]
    ranges, bracket, suffix = rest.partition("]")
    if not bracket:
        raise ValueError(f"not a host list: {item!r}")
    tails = _expand_item(suffix) if suffix else [""]
    names: List[str] = []
    for part in ranges.split(","):
        first, _dash, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= high - low < LONGEST_RANGE:
            raise ValueError(f"not a host list: {item!r}")
        for number in range(low, high + 1):
            # Leading zeros belong to the name: 08-11 is 08, 09, 10, 11.
            names.extend(prefix + str(number).zfill(len(first)) + tail for tail in tails)
    return names


def gpus_in_gres(gres: str) -> int:
    """``gpu:h100:2(IDX:0-1),gpu:a100:1`` to 3. Commas inside the index list are not separators."""
    total, depth, item = 0, 0, ""
    for letter in gres + ",":
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            words = item.partition("(")[0].split(":")
            if words[0] == "gpu" and words[-1].isdigit():
                total += int(words[-1])
            item = ""
        else:
            item += letter
    return total


def parse_nodes(text: str) -> List[str]:
    """The names in the output of ``scontrol -o show nodes``, which has a line a node."""
    words = [line.split(None, 1)[0].partition("=") for line in text.splitlines() if line.strip()]
    return [name for key, _equals, name in words if key == "NodeName"]


def in_rank_order(names: List[str], show: Callable[..., str]) -> List[str]:
    """The nodes of a job as Slurm numbers them: in the order of its table, which is that of their registration.

    The host list of a job goes by name. Raises ValueError where the table cannot be had.
    """
    if len(names) < 2:
        return names
    place = {name: number for number, name in enumerate(parse_nodes(show("nodes")))}
    unknown = [name for name in names if name not in place]
    if unknown:
        raise ValueError("scontrol does not show the nodes " + ", ".join(unknown))
    return sorted(names, key=place.__getitem__)


def parse_job(text: str) -> List[Dict[str, str]]:
    """The output of ``scontrol -d -o show job ID``, a line a component, as the keys that are of use here.

    ``gpus`` of a node is in its ``GRES``: NODE=COUNT words under the key ``gpus``.
    """
    components = []
    for line in text.splitlines():
        component: Dict[str, str] = {}
        nodes, gpus = "", []
        for word in line.split():
            key, _equals, value = word.partition("=")
            if key == "Nodes":
                nodes = value
            elif key == "GRES" and nodes:
                gpus += [f"{name}={gpus_in_gres(value)}" for name in expand_hostlist(nodes)]
            elif key not in component:
                component[key] = value
        if "JobId" in component:
            component["gpus"] = " ".join(gpus)
            components.append(component)
    return components


# --- From Slurm's variables to the world --------------------------------------------------------------------------


def read_world(
    env: Mapping[str, str],
    members: Mapping[str, str],
    batch: bool,
    show: Callable[..., str],
) -> World:
    """The world that ``env``, the environment of a task, describes.

    ``members`` are the cluster addresses by node name. ``batch``: this is the batch script and not a step's task.
    ``show`` asks the controller for the job, or for its nodes; used only where the environment does not tell: where the
    components of a job differ, where its nodes may have unequal numbers of GPUs, and in batch scripts of several nodes.
    Raises KeyError or ValueError where the environment is not a job's.
    """
    step = 0 if batch else _step(env)
    if step is None:
        batch, step = True, 0
    groups = [in_rank_order(group, show) for group in _groups(env)]
    if batch:
        counts = _job_counts(env, groups, show)
    else:
        counts = dict(zip(expand_hostlist(env["SLURM_STEP_NODELIST"]), expand_counts(env["SLURM_STEP_TASKS_PER_NODE"])))
    # Slurm writes a mixed step's nodes sorted by name, yet numbers them component by component.
    names = [name for group in groups for name in group if name in counts] if groups else list(counts)
    here = env.get("SLURMD_NODENAME") or names[int(env.get("SLURM_NODEID", "0"))]
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    component = [name for name in names if group_of.get(name, 0) == group_of.get(here, 0)]
    gpus = _gpus(env, {name: counts[name] for name in names}, component, here, show)
    nodes = [
        Node(name, members.get(name, name), group_of.get(name, 0), counts[name], gpus.get(name, 0)) for name in names
    ]
    size = sum(node.tasks for node in nodes)
    is_task = not batch or size == 1
    # With an arbitrary distribution rank 0 is wherever the user put it, and no variable tells where.
    known = batch or env.get("SLURM_DISTRIBUTION") != "arbitrary"
    return World(
        job=int(_job_id(env, 0)),
        step=step,
        nodes=nodes,
        node_rank=names.index(here),
        size=size,
        rank=int(env.get("SLURM_PROCID", "0")) if is_task else None,
        local_rank=int(env.get("SLURM_LOCALID", "0")) if is_task else None,
        master=nodes[0].address if known else None,
        mixed=len(groups) > 1,
    )


def world_of_login(job_id: str, here: str, members: Mapping[str, str], show: Callable[..., str]) -> World:
    """The world of a job as a login on the node ``here`` sees it. Raises like read_world."""
    components = parse_job(show("job", job_id))
    gpus = _gpus_by_components(components)
    nodes = []
    for number, component in enumerate(components):
        names = in_rank_order(expand_hostlist(component["NodeList"]), show)
        # scontrol does not say how the tasks lie on the nodes; Slurm fills the first ones up.
        share, more = divmod(int(component.get("NumTasks", len(names))), len(names))
        nodes += [
            Node(name, members.get(name, name), number, share + (position < more), gpus.get(name, 0))
            for position, name in enumerate(names)
        ]
    names = [node.name for node in nodes]
    return World(
        job=int(components[0]["JobId"]),
        step=0,
        nodes=nodes,
        node_rank=names.index(here),
        size=sum(node.tasks for node in nodes),
        rank=None,
        local_rank=None,
        master=nodes[0].address,
        mixed=len(components) > 1,
    )


def _step(env: Mapping[str, str]) -> Optional[int]:
    """The number of the step, or None where this is none.

    A job submitted from inside another job's step inherits that step's variables; they do not fit the job's own.
    """
    step = int(env.get("SLURM_STEP_ID") or FIRST_SPECIAL_STEP)
    if step >= FIRST_SPECIAL_STEP or "SLURM_STEP_NODELIST" not in env:
        return None
    pairs = (("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"))
    if any(env.get(mine) != env.get(steps) for mine, steps in pairs):
        return None
    return step


def _groups(env: Mapping[str, str]) -> List[List[str]]:
    """The nodes of each component of a heterogeneous job in order; empty in any other job.

    srun says PACK where sbatch says HET too. Variables inherited from another job name other job ids.
    """
    groups: List[List[str]] = []
    ids = []
    while True:
        for word in ("HET", "PACK"):
            suffix = f"_{word}_GROUP_{len(groups)}"
            if "SLURM_JOB_NODELIST" + suffix in env:
                groups.append(expand_hostlist(env["SLURM_JOB_NODELIST" + suffix]))
                ids.append(env.get("SLURM_JOB_ID" + suffix))
                break
        else:
            return groups if env.get("SLURM_JOB_ID") in ids else []


def _job_counts(env: Mapping[str, str], groups: List[List[str]], show: Callable[..., str]) -> Dict[str, int]:
    """Tasks by node of a whole job."""
    if not groups:
        names = in_rank_order(expand_hostlist(env["SLURM_JOB_NODELIST"]), show)
        counts = expand_counts(env.get("SLURM_TASKS_PER_NODE") or f"1(x{len(names)})")
        # Fewer tasks than nodes: the last nodes run none.
        return dict(zip(names, counts + [0] * (len(names) - len(counts))))
    tasks: Dict[str, int] = {}
    for number, names in enumerate(groups):
        for word in ("HET", "PACK"):
            text = env.get(f"SLURM_TASKS_PER_NODE_{word}_GROUP_{number}")
            if text:
                counts = expand_counts(text)
                tasks.update(zip(names, counts + [0] * (len(names) - len(counts))))
                break
        else:
            tasks.update((name, 1) for name in names)
    return tasks


def _job_id(env: Mapping[str, str], component: int) -> str:
    """The id of a component of a heterogeneous job, of which the first one's stands for the whole; else the job's."""
    for word in ("HET", "PACK"):
        number = env.get(f"SLURM_JOB_ID_{word}_GROUP_{component}")
        if number and _groups(env):
            return number
    return env["SLURM_JOB_ID"]


def _gpus(
    env: Mapping[str, str], tasks: Mapping[str, int], component: List[str], here: str, show: Callable[..., str]
) -> Dict[str, int]:
    """GPUs by node. Slurm tells only those of this node; usually the others of its ``component`` have as many.

    ``tasks``: those of each node. Raises ValueError where the controller cannot be asked for other components.
    """
    own = int(env.get("SLURM_GPUS_ON_NODE") or 0)
    alike = dict.fromkeys(component, own)
    mixed = len(alike) < len(tasks)
    if not mixed and not _gpus_may_differ(env, own, tasks):
        return alike
    try:
        shown = _gpus_by_components(parse_job(show("job", env["SLURM_JOB_ID"])))
    except ValueError:
        if mixed:
            raise
        return alike
    # A step may have fewer GPUs here than the job; then those of the job elsewhere are not the step's.
    return {**alike, **shown} if shown.get(here, 0) == own else {**shown, **alike}


def _gpus_may_differ(env: Mapping[str, str], own: int, tasks: Mapping[str, int]) -> bool:
    """Whether the nodes of a job may have unequal numbers of GPUs: for a total or a number a task, Slurm spreads them.

    Every task that gets a yes asks the controller, so an ordinary job must get a no.
    """
    if len(tasks) < 2 or "SLURM_GPUS_PER_NODE" in env:
        return False
    # Of one type or several: 3, h100:3 or h100:2,a100:1.
    numbers = [item.rpartition(":")[2] for item in env.get("SLURM_GPUS", "").split(",")]
    total = sum(int(number) for number in numbers if number.isdigit())
    if total and total != own * int(env.get("SLURM_JOB_NUM_NODES") or len(tasks)):
        return True
    return own > 0 and len(set(tasks.values())) > 1


def _gpus_by_components(components: Iterable[Mapping[str, str]]) -> Dict[str, int]:
    words = [word for component in components for word in component["gpus"].split()]
    return {name: int(count) for name, _equals, count in (word.partition("=") for word in words)}


# --- From the world to variables ----------------------------------------------------------------------------------


def master_port(job: int, step: int, low: int, high: int, reserved: Iterable[int] = ()) -> int:
    """The port of rank 0: the same on all nodes without a word between them.

    It comes from the job and step, in a range below the kernel's ephemeral ports, so that no outgoing connection
    can be sitting on it.
    """
    taken = set(reserved)
    span = high - low + 1
    start = job + STEP_STRIDE * step
    for offset in range(span):
        port = low + (start + offset) % span
        if port not in taken:
            return port
    raise ValueError(f"every port from {low} to {high} is reserved")


def core_variables(world: World, port: int, hostfile: str) -> Dict[str, str]:
    """What programs for torch.distributed, TensorFlow and MPI read."""
    variables = {
        "WORLD_SIZE": str(world.size),
        "NODE_RANK": str(world.node_rank),
        "NNODES": str(len(world.nodes)),
        "GPUS_PER_NODE": str(world.node.gpus),
        "GPUMESH_NODE_ADDR": world.node.address,
        "GPUMESH_NODE_IPS": ",".join(node.address for node in world.nodes),
    }
    if hostfile:
        variables["GPUMESH_HOSTFILE"] = hostfile
    if world.master is not None:
        variables["MASTER_ADDR"] = world.master
        variables["MASTER_PORT"] = str(port)
    if world.rank is not None and world.local_rank is not None:
        variables["RANK"] = str(world.rank)
        variables["LOCAL_RANK"] = str(world.local_rank)
        variables["LOCAL_WORLD_SIZE"] = str(world.node.tasks)
        variables["TF_CONFIG"] = tf_config(world, port)
    return variables


def tf_config(world: World, port: int) -> str:
    """One worker a task, node by node; the tasks of one node listen on consecutive ports."""
    workers = [f"{_bracketed(node.address)}:{port + local}" for node in world.nodes for local in range(node.tasks)]
    before = sum(node.tasks for node in world.nodes[: world.node_rank])
    task = {"type": "worker", "index": before + (world.local_rank or 0)}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def network_variables(world: World, interface: str, rdma: Mapping[str, List[str]]) -> Dict[str, str]:
    """Which interface the communication libraries use. ``rdma``: ``devices`` of this node and the ``peers`` on them."""
    devices = rdma.get("devices", [])
    variables = {
        # The leading = asks for this very name; without it bond0 would also take bond0.2093.
        "NCCL_SOCKET_IFNAME": "=" + interface,
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        "UCX_NET_DEVICES": interface,
        "OMPI_MCA_btl_tcp_if_include": interface,
        "OMPI_MCA_oob_tcp_if_include": interface,
    }
    if devices and {node.name for node in world.nodes} <= set(rdma.get("peers", [])):
        variables["NCCL_IB_HCA"] = "=" + ",".join(devices)
        variables["UCX_NET_DEVICES"] = ",".join([*devices, interface])
    elif devices:
        # NCCL would choose the devices and hang: they end at the edge of the site.
        variables["NCCL_IB_DISABLE"] = "1"
    return variables


def backendai_variables(world: World) -> Dict[str, str]:
    """A node is what Backend.AI calls a container. main is the first one, or all of a mixed job's first component."""
    roles = world.roles or [
        "main" if (node.group == 0 if world.mixed else position == 0) else "sub"
        for position, node in enumerate(world.nodes)
    ]
    numbers = [roles[: position + 1].count(role) for position, role in enumerate(roles)]
    names = [f"{role}{number}" for role, number in zip(roles, numbers)]
    here = world.node_rank
    variables = {
        "BACKENDAI_CLUSTER_SIZE": str(len(names)),
        "BACKENDAI_CLUSTER_HOSTS": ",".join(names),
        "BACKENDAI_CLUSTER_REPLICAS": ",".join(f"{role}:{roles.count(role)}" for role in dict.fromkeys(roles)),
        "BACKENDAI_CLUSTER_HOST": names[here],
        "BACKENDAI_CLUSTER_IDX": str(numbers[here]),
        "BACKENDAI_CLUSTER_ROLE": roles[here],
        "BACKENDAI_CLUSTER_LOCAL_RANK": str(here),
    }
    if world.rank is not None:
        variables["WORLD_RANK"] = str(world.rank)
    return variables


def dstack_variables(world: World, hostfile: str) -> Dict[str, str]:
    """The variables of a dstack task."""
    variables = {
        "DSTACK_NODES_IPS": "\n".join(node.address for node in world.nodes),
        "DSTACK_MASTER_NODE_IP": world.master or world.nodes[0].address,
        "DSTACK_NODE_RANK": str(world.node_rank),
        "DSTACK_NODES_NUM": str(len(world.nodes)),
        "DSTACK_GPUS_PER_NODE": str(world.node.gpus),
        "DSTACK_GPUS_NUM": str(sum(node.gpus for node in world.nodes)),
    }
    if hostfile:
        variables["DSTACK_MPI_HOSTFILE"] = hostfile
    return variables


def skypilot_variables(world: World) -> Dict[str, str]:
    """The variables of a SkyPilot task."""
    return {
        "SKYPILOT_NODE_IPS": "\n".join(node.address for node in world.nodes),
        "SKYPILOT_NODE_RANK": str(world.node_rank),
        "SKYPILOT_NUM_NODES": str(len(world.nodes)),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(world.node.gpus),
    }


def runpod_variables(world: World, port: int) -> Dict[str, str]:
    """The variables of a Runpod cluster. NODE_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are core ones."""
    return {
        "PRIMARY_ADDR": world.master or world.nodes[0].address,
        "PRIMARY_PORT": str(port),
        "NODE_ADDR": world.node.address,
        "NUM_NODES": str(len(world.nodes)),
        "NUM_TRAINERS": str(world.node.gpus),
    }


def torchrun_variables(world: World, port: int) -> Dict[str, str]:
    """The defaults of torchrun's options, so that ``srun torchrun train.py`` needs none of them."""
    variables = {
        "PET_NNODES": str(len(world.nodes)),
        "PET_NODE_RANK": str(world.node_rank),
        "PET_NPROC_PER_NODE": str(max(world.node.gpus, 1)),
        "PET_LOCAL_ADDR": world.node.address,
    }
    if world.master is not None:
        variables["PET_MASTER_ADDR"] = world.master
        variables["PET_MASTER_PORT"] = str(port)
    return variables


def all_variables(world: World, settings: Settings, hostfile: str, given: Mapping[str, str]) -> Dict[str, str]:
    """Everything that the settings ask for, for one task or login. The site's own variables win over ours.

    ``given`` is what the user has set: a MASTER_ADDR or MASTER_PORT of the user's is the one in every dialect.
    """
    port = master_port(world.job, world.step, settings.low, settings.high, settings.reserved_ports)
    if given.get("MASTER_PORT", "").isdigit():
        port = int(given["MASTER_PORT"])
    world.master = given.get("MASTER_ADDR") or world.master
    variables = core_variables(world, port, hostfile)
    variables.update(network_variables(world, settings.interface, settings.rdma))
    dialects = {
        "backendai": lambda: backendai_variables(world),
        "dstack": lambda: dstack_variables(world, hostfile),
        "skypilot": lambda: skypilot_variables(world),
        "runpod": lambda: runpod_variables(world, port),
        "torchrun": lambda: torchrun_variables(world, port),
    }
    for dialect in settings.dialects:
        variables.update(dialects[dialect]())
    if settings.tracking:
        variables.update(settings.tracking)
        variables.update(tracking_variables(world, settings.cluster, settings.tracking["GPUMESH_GENERATION"], given))
    variables.update(settings.variables)
    return variables


def tracking_variables(world: World, cluster: str, generation: str, given: Mapping[str, str]) -> Dict[str, str]:
    """For MLflow: an experiment for each user, who may not write to that of another, and what every run is tagged with."""
    tags = {
        "mlflow.runName": given.get("SLURM_JOB_NAME") or str(world.job),
        "gpumesh.cluster": cluster,
        "gpumesh.generation": generation,
        "gpumesh.job": str(world.job),
        "gpumesh.nodes": ",".join(node.name for node in world.nodes),
    }
    user = given.get("SLURM_JOB_USER") or given.get("USER")
    return {"MLFLOW_RUN_CONTEXT": json.dumps(tags), **({"MLFLOW_EXPERIMENT_NAME": user} if user else {})}


def hostfile_text(nodes: Iterable[Node]) -> str:
    """``ADDRESS slots=N`` lines for mpirun and deepspeed: a slot a GPU, or a task where the job has no GPUs."""
    return "".join(f"{node.address} slots={node.gpus or node.tasks or 1}\n" for node in nodes)


# --- From variables to what Slurm or a shell reads ----------------------------------------------------------------


def changes(env: Mapping[str, str], wanted: Mapping[str, str]) -> Tuple[Dict[str, str], List[str]]:
    """What to set and what to unset, so that what the user or torchrun has set stays.

    A nested step or job inherits what we set for the outer one. Those values are recognised by MARKER and replaced.
    """
    ours = set(env) - set(users_own(env))
    values = {name: value for name, value in wanted.items() if name not in env or name in ours}
    gone = sorted(ours - set(values))
    values[MARKER] = " ".join(f"{name}={_checksum(value)}" for name, value in sorted(values.items()))
    return values, gone


def users_own(env: Mapping[str, str]) -> Dict[str, str]:
    """The variables that do not hold what we have set."""
    marked = dict(word.split("=", 1) for word in env.get(MARKER, "").split() if "=" in word)
    return {name: value for name, value in env.items() if name not in marked or _checksum(value) != marked[name]}


def _checksum(value: str) -> str:
    return "{:08x}".format(crc32(value.encode("utf-8", "surrogateescape")))


def prolog_lines(env: Mapping[str, str], values: Mapping[str, str], gone: Iterable[str]) -> str:
    """For slurmstepd, which reads a value up to the end of its line.

    A value of several lines cannot be said to it: bash sets it by BASH_ENV_FILE, and the programs that bash starts
    inherit it. Here only a wrong one of ours, inherited from an outer job, is taken away.
    """
    lines = ["unset " + name for name in gone]
    for name, value in values.items():
        if "\n" not in value:
            lines.append(f"export {name}={value}")
        elif env.get(name, value) != value:
            lines.append("unset " + name)
    return "".join(line + "\n" for line in lines)


def shell_lines(values: Mapping[str, str], gone: Iterable[str]) -> str:
    """For ``eval`` in a POSIX shell."""
    lines = ["unset " + name for name in gone]
    lines += ["export {}='{}'".format(name, value.replace("'", "'\\''")) for name, value in values.items()]
    return "".join(line + "\n" for line in lines)


# --- This host ----------------------------------------------------------------------------------------------------


class Settings:
    """job_environment.json: what the role has written down about this node. Raises KeyError or ValueError."""

    __slots__ = (
        "cluster",
        "dialects",
        "high",
        "interface",
        "low",
        "members",
        "rdma",
        "reserved_ports",
        "tracking",
        "variables",
    )

    def __init__(self, text: str) -> None:
        document = json.loads(text)
        self.members: Dict[str, str] = document["members"]
        self.interface: str = document["interface"]
        self.low, self.high = document["port_range"]
        self.reserved_ports: List[int] = document["reserved_ports"]
        self.dialects: List[str] = document["dialects"]
        self.rdma: Dict[str, List[str]] = document["rdma"]
        self.variables: Dict[str, str] = document["variables"]
        self.cluster: str = document.get("cluster", "")
        self.tracking: Dict[str, str] = document.get("tracking", {})


def write_hostfile(folder: str, name: str, text: str) -> str:
    """The path of a file with this text that belongs to us, or the empty text where none can be made.

    Everyone may write in the folder, so a file of that name may be a trap: it is never followed and never trusted.
    """
    path = os.path.join(folder, name)
    temporary = f"{path}.{os.getpid()}"
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as stream:
            if os.fstat(stream.fileno()).st_uid == os.getuid() and stream.read() == text:
                return path
    except OSError:
        pass
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        os.rename(temporary, path)
    except OSError:
        return ""
    return path


def show(*what: str) -> str:
    """What the controller knows of a job or of all nodes. Raises ValueError where it cannot be asked."""
    path = os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin:/bin"
    try:
        return subprocess.run(
            ["scontrol", "--all", "-d", "-o", "show", *what],
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=5,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as failure:
        raise ValueError(f"scontrol cannot show {' '.join(what)}: {failure}") from failure


def job_of_login() -> str:
    """The job whose control group this process is in (pam_slurm_adopt puts a login there), or the empty text."""
    given = os.environ.get("SLURM_JOB_ID", "")
    if given.isdigit():
        return given
    with open("/proc/self/cgroup") as stream:
        for line in stream:
            for part in line.strip().split("/"):
                if part.startswith("job_") and part[4:].isdigit():
                    return part[4:]
    return ""


def _in_batch_step() -> bool:
    """Whether Slurm started us for the batch script: slurmstepd names its step in its command line."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline") as stream:
            return ".batch]" in stream.read()
    except OSError:
        return False


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def run(login: bool, settings_path: str = SETTINGS, runtime: str = RUNTIME) -> str:
    """The lines for Slurm, or for a shell."""
    with open(settings_path) as stream:
        settings = Settings(stream.read())
    env = os.environ
    if login:
        job_id = job_of_login()
        if not job_id:
            return ""
        world = world_of_login(job_id, _node_name(), settings.members, show)
    else:
        world = read_world(env, settings.members, _in_batch_step(), show)
    # By the id that Slurm's epilog is told on this node.
    job = world.job if login else _job_id(env, world.node.group)
    name = f"{job}.{world.step}.hosts" if world.rank is not None else f"{job}.hosts"
    text = hostfile_text(world.nodes)
    hostfile = write_hostfile(runtime, name, text)
    wanted = all_variables(world, settings, hostfile, users_own(env))
    multiline = sorted(name for name, value in wanted.items() if "\n" in value)
    if multiline:
        wanted["GPUMESH_MULTILINE"] = ",".join(multiline)
        wanted["BASH_ENV"] = BASH_ENV_FILE
    values, gone = changes(env, wanted)
    return shell_lines(values, gone) if login else prolog_lines(env, values, gone)


def main(arguments: List[str]) -> int:
    """Print the lines. Exits 0 whatever happens, since Slurm ends a task whose prolog fails."""
    if SESSION in os.environ:
        # The containers of a session have an environment of their own.
        return 0
    try:
        sys.stdout.write(run(login="--login" in arguments))
    except (OSError, ValueError, KeyError, IndexError) as failure:
        # At a login the job may be another node's; that is nothing to bother people with.
        if "--login" not in arguments:
            sys.stderr.write(f"gpumesh: the job environment is not set: {type(failure).__name__}: {failure}\n")
    return 0


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set the environment of a distributed program in its Slurm job, in every dialect, from one model.

Our plugin for Slurm runs this once for each step on a node (``--step``), reads the environment of the step from stdin, and
prints that of each task. Where there is no plugin, Slurm runs it before each task (TaskProlog) and reads its output: ``export
NAME=value`` and ``unset NAME``. With ``--login`` it prints the same for a shell, for a login into a job.

The data flow: the variables that Slurm has set -> World (nodes in rank order, tasks, GPUs, this task's position)
-> variables. The settings of this node come from job_environment.json beside this file.

A job waits for the program, so it imports little. It never fails a job: if something is unknown, its variables are
not changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pwd import getpwuid
from stat import S_ISREG
from zlib import crc32

TYPE_CHECKING = False  # The typing module costs milliseconds that every task would pay.
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

SETTINGS_PATH = "/etc/gpumesh/job_environment.json"
#: The file that a bash script in a job reads first, which sets the variables with several lines.
BASH_ENV_FILE = "/etc/gpumesh/job_environment.bash"
#: The variable that is set for the tasks of sessions.
SESSION = "GPUMESH_SESSION_PLACE"
#: The directory of hostfiles, which the role creates like /tmp: everyone may write, only the owner may delete.
RUNTIME_DIRECTORY = "/run/gpumesh/jobs"
#: The variable that lists what we have set, as NAME=CHECKSUM words. A variable that still has our value may be replaced
#: in a nested step or job; one that differs belongs to the user, or to torchrun.
MARKER_VARIABLE = "GPUMESH_JOB_ENVIRONMENT"
#: Slurm's numbers for the batch, extern and interactive steps start here.
FIRST_SPECIAL_STEP = 0xFFFFFFF0
BATCH_STEP = 0xFFFFFFFB
#: The kernel starts no program with a longer variable, including its name and the byte that ends it.
MAX_VARIABLE_SIZE = 128 * 1024
DIALECTS = ("backendai", "dstack", "skypilot", "runpod", "torchrun")
#: The maximum number of hosts in one range, as in Slurm itself.
MAX_RANGE_SIZE = 65536
#: The distance between the ports of two steps of a job, which may start on the same node at once. A prime spreads them.
STEP_STRIDE = 997
#: The last record for the plugin, without which it uses none.
END_RECORD = "@end"


class Node:
    """One node of the world, in rank order. ``group``: its component in a heterogeneous job, otherwise 0."""

    __slots__ = ("address", "gpus", "group", "name", "tasks")

    def __init__(self, name: str, address: str, group: int, tasks: int, gpus: int) -> None:
        self.name = name
        self.address = address
        self.group = group
        self.tasks = tasks
        self.gpus = gpus


class World:
    """The processes that start together: a job step, or a whole job as its batch script sees it.

    ``rank`` and ``local_rank`` are None in a batch script of several tasks and in a login, which are not tasks.
    ``master`` is None if the node of rank 0 is unknown. ``mixed``: the job has several components, of which this world
    may be one. ``roles``: the role of each node, if they are not main and sub.
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
        """Return the node that this program runs on."""
        return self.nodes[self.node_rank]


# --- Slurm's notations -------------------------------------------------------------------------------------------


def expand_hostlist(hostlist: str) -> List[str]:
    """Expand a host list such as ``n[1-3,7],gpu[01-02]-ib`` to its names. Raises ValueError for an invalid one."""
    node_names: List[str] = []
    for host_item in _split_outside_brackets(hostlist):
        node_names.extend(_expand_item(host_item))
    return node_names


def expand_counts(text: str) -> List[int]:
    """Expand counts such as ``2(x3),1`` to [2, 2, 2, 1]."""
    task_counts: List[int] = []
    for count_item in text.split(","):
        task_count, _times, repeat_count = count_item.partition("(x")
        task_counts.extend([int(task_count)] * (int(repeat_count.rstrip(")")) if repeat_count else 1))
    return task_counts


def _split_outside_brackets(text: str) -> List[str]:
    items, depth, start = [], 0, 0
    for letter_index, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            items.append(text[start:letter_index])
            start = letter_index + 1
    items.append(text[start:])
    if depth or not all(items):
        raise ValueError(f"not a host list: {text!r}")
    return items


def _expand_item(item: str) -> List[str]:
    name_prefix, bracket, after_bracket = item.partition("[")
    if not bracket:
        return [item]
    range_text, bracket, name_suffix = after_bracket.partition("]")
    if not bracket:
        raise ValueError(f"not a host list: {item!r}")
    suffix_names = _expand_item(name_suffix) if name_suffix else [""]
    node_names: List[str] = []
    for range_part in range_text.split(","):
        first_text, _dash, last_text = range_part.partition("-")
        first_number, last_number = int(first_text), int(last_text or first_text)
        if not 0 <= last_number - first_number < MAX_RANGE_SIZE:
            raise ValueError(f"not a host list: {item!r}")
        for number in range(first_number, last_number + 1):
            # Leading zeros belong to the name: 08-11 is 08, 09, 10, 11.
            node_names.extend(name_prefix + str(number).zfill(len(first_text)) + tail for tail in suffix_names)
    return node_names


def gpus_in_gres(gres: str) -> int:
    """Count the GPUs in a gres, such as 3 in ``gpu:h100:2(IDX:0-1),gpu:a100:1``.

    Commas inside the index list are not separators.
    """
    gpu_total, bracket_depth, gres_item = 0, 0, ""
    for letter in gres + ",":
        bracket_depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and bracket_depth == 0:
            gres_fields = gres_item.partition("(")[0].split(":")
            if gres_fields[0] == "gpu" and gres_fields[-1].isdigit():
                gpu_total += int(gres_fields[-1])
            gres_item = ""
        else:
            gres_item += letter
    return gpu_total


def parse_nodes(scontrol_output: str) -> List[str]:
    """Parse the names in the output of ``scontrol -o show nodes``, which has one line per node."""
    name_fields = [line.split(None, 1)[0].partition("=") for line in scontrol_output.splitlines() if line.strip()]
    return [name for key, _equals, name in name_fields if key == "NodeName"]


def sort_by_rank(node_names: List[str], show: Callable[..., str]) -> List[str]:
    """Sort the nodes of a job as Slurm numbers them: in the order of its table, which is that of their registration.

    The host list of a job is sorted by name. Raises ValueError if the table is unavailable.
    """
    if len(node_names) < 2:
        return node_names
    table_index = {name: number for number, name in enumerate(parse_nodes(show("nodes")))}
    unknown_nodes = [name for name in node_names if name not in table_index]
    if unknown_nodes:
        raise ValueError("scontrol does not show the nodes " + ", ".join(unknown_nodes))
    return sorted(node_names, key=table_index.__getitem__)


def parse_job(scontrol_output: str) -> List[Dict[str, str]]:
    """Parse the output of ``scontrol -d -o show job ID``, which has one line per component, into the fields of each.

    The numbers of GPUs, from ``GRES`` of each node, are NODE=COUNT words in the field ``gpus``.
    """
    components = []
    for line in scontrol_output.splitlines():
        component: Dict[str, str] = {}
        hostlist, gpu_counts = "", []
        for field in line.split():
            field_name, _equals, field_content = field.partition("=")
            if field_name == "Nodes":
                hostlist = field_content
            elif field_name == "GRES" and hostlist:
                gpu_counts += [f"{name}={gpus_in_gres(field_content)}" for name in expand_hostlist(hostlist)]
            elif field_name not in component:
                component[field_name] = field_content
        if "JobId" in component:
            component["gpus"] = " ".join(gpu_counts)
            components.append(component)
    return components


# --- From Slurm's variables to the world --------------------------------------------------------------------------


def read_world(
    env: Mapping[str, str],
    addresses_by_member: Mapping[str, str],
    is_batch: bool,
    show: Callable[..., str],
) -> World:
    """Return the world that ``env``, the environment of a task, describes.

    ``addresses_by_member``: the cluster addresses by node name. ``is_batch``: this is the batch script and not a task
    of a step. ``show`` asks the controller for the job, or for its nodes. It is used only if the environment is not
    sufficient: if the components of a job differ, if its nodes may have unequal numbers of GPUs, and in batch scripts
    of several nodes. Raises KeyError or ValueError if the environment is not that of a job.
    """
    step = 0 if is_batch else _step_number(env)
    if step is None:
        is_batch, step = True, 0
    component_nodes = [sort_by_rank(group, show) for group in _component_nodes(env)]
    if is_batch:
        tasks_by_node = _job_counts(env, component_nodes, show)
    else:
        tasks_by_node = dict(
            zip(expand_hostlist(env["SLURM_STEP_NODELIST"]), expand_counts(env["SLURM_STEP_TASKS_PER_NODE"]))
        )
    # Slurm lists the nodes of a heterogeneous step by name, but numbers them component by component.
    node_names = (
        [name for group in component_nodes for name in group if name in tasks_by_node]
        if component_nodes
        else list(tasks_by_node)
    )
    own_node = env.get("SLURMD_NODENAME") or node_names[int(env.get("SLURM_NODEID", "0"))]
    component_by_node = {name: index for index, group in enumerate(component_nodes) for name in group}
    own_component = [
        name for name in node_names if component_by_node.get(name, 0) == component_by_node.get(own_node, 0)
    ]
    gpus_by_node = _gpus_by_node(env, {name: tasks_by_node[name] for name in node_names}, own_component, own_node, show)
    world_nodes = [
        Node(
            name,
            addresses_by_member.get(name, name),
            component_by_node.get(name, 0),
            tasks_by_node[name],
            gpus_by_node.get(name, 0),
        )
        for name in node_names
    ]
    world_size = sum(node.tasks for node in world_nodes)
    is_task = not is_batch or world_size == 1
    # An arbitrary distribution lets the user place rank 0, and no variable tells where it is.
    is_order_known = is_batch or env.get("SLURM_DISTRIBUTION") != "arbitrary"
    return World(
        job=int(_job_id(env, 0)),
        step=step,
        nodes=world_nodes,
        node_rank=node_names.index(own_node),
        size=world_size,
        rank=int(env.get("SLURM_PROCID", "0")) if is_task else None,
        local_rank=int(env.get("SLURM_LOCALID", "0")) if is_task else None,
        master=world_nodes[0].address if is_order_known else None,
        mixed=len(component_nodes) > 1,
    )


def world_of_login(
    job_id: str, own_node: str, addresses_by_member: Mapping[str, str], show: Callable[..., str]
) -> World:
    """Return the world of a job as a login on ``own_node`` sees it. Raises the errors of read_world."""
    components = parse_job(show("job", job_id))
    gpus_by_node = _gpus_by_components(components)
    world_nodes = []
    for index, component in enumerate(components):
        node_names = sort_by_rank(expand_hostlist(component["NodeList"]), show)
        # scontrol does not show how many tasks each node has; Slurm gives the first nodes more.
        tasks_per_node, extra_tasks = divmod(int(component.get("NumTasks", len(node_names))), len(node_names))
        world_nodes += [
            Node(
                name,
                addresses_by_member.get(name, name),
                index,
                tasks_per_node + (position < extra_tasks),
                gpus_by_node.get(name, 0),
            )
            for position, name in enumerate(node_names)
        ]
    node_names = [node.name for node in world_nodes]
    return World(
        job=int(components[0]["JobId"]),
        step=0,
        nodes=world_nodes,
        node_rank=node_names.index(own_node),
        size=sum(node.tasks for node in world_nodes),
        rank=None,
        local_rank=None,
        master=world_nodes[0].address,
        mixed=len(components) > 1,
    )


def _step_number(env: Mapping[str, str]) -> Optional[int]:
    """Return the number of the step; None outside a step.

    A job submitted from inside another job's step inherits that step's variables; they do not fit the job's own.
    """
    step = int(env.get("SLURM_STEP_ID") or FIRST_SPECIAL_STEP)
    if step >= FIRST_SPECIAL_STEP or "SLURM_STEP_NODELIST" not in env:
        return None
    variable_pairs = (("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"))
    if any(env.get(job_variable) != env.get(step_variable) for job_variable, step_variable in variable_pairs):
        return None
    return step


def _component_nodes(env: Mapping[str, str]) -> List[List[str]]:
    """Return the nodes of each component of a heterogeneous job in order; empty for any other job.

    The variables of srun contain PACK, those of sbatch also HET. Those inherited from another job have other job IDs.
    """
    component_nodes: List[List[str]] = []
    job_ids = []
    while True:
        for kind in ("HET", "PACK"):
            variable_suffix = f"_{kind}_GROUP_{len(component_nodes)}"
            if "SLURM_JOB_NODELIST" + variable_suffix in env:
                component_nodes.append(expand_hostlist(env["SLURM_JOB_NODELIST" + variable_suffix]))
                job_ids.append(env.get("SLURM_JOB_ID" + variable_suffix))
                break
        else:
            return component_nodes if env.get("SLURM_JOB_ID") in job_ids else []


def _job_counts(env: Mapping[str, str], component_nodes: List[List[str]], show: Callable[..., str]) -> Dict[str, int]:
    """Return the number of tasks by node for a whole job."""
    if not component_nodes:
        node_names = sort_by_rank(expand_hostlist(env["SLURM_JOB_NODELIST"]), show)
        task_counts = expand_counts(env.get("SLURM_TASKS_PER_NODE") or f"1(x{len(node_names)})")
        # If there are fewer tasks than nodes, the last nodes run none.
        return dict(zip(node_names, task_counts + [0] * (len(node_names) - len(task_counts))))
    tasks_by_node: Dict[str, int] = {}
    for component_index, node_names in enumerate(component_nodes):
        for kind in ("HET", "PACK"):
            counts_text = env.get(f"SLURM_TASKS_PER_NODE_{kind}_GROUP_{component_index}")
            if counts_text:
                task_counts = expand_counts(counts_text)
                tasks_by_node.update(zip(node_names, task_counts + [0] * (len(node_names) - len(task_counts))))
                break
        else:
            tasks_by_node.update((name, 1) for name in node_names)
    return tasks_by_node


def _job_id(env: Mapping[str, str], component_index: int) -> str:
    """Return the ID of a component of a heterogeneous job (the first stands for the whole), or that of any other job."""
    for kind in ("HET", "PACK"):
        job_id = env.get(f"SLURM_JOB_ID_{kind}_GROUP_{component_index}")
        if job_id and _component_nodes(env):
            return job_id
    return env["SLURM_JOB_ID"]


def _gpus_by_node(
    env: Mapping[str, str],
    tasks_by_node: Mapping[str, int],
    component_names: List[str],
    own_node: str,
    show: Callable[..., str],
) -> Dict[str, int]:
    """Return the number of GPUs by node. Slurm sets only that of this node; usually its component has as many on each.

    ``tasks_by_node``: the number of tasks. Raises ValueError if the controller cannot be asked for other components.
    """
    own_gpus = int(env.get("SLURM_GPUS_ON_NODE") or 0)
    uniform = dict.fromkeys(component_names, own_gpus)
    is_mixed = len(uniform) < len(tasks_by_node)
    if not is_mixed and not _gpus_may_differ(env, own_gpus, tasks_by_node):
        return uniform
    try:
        reported_gpus = _gpus_by_components(parse_job(show("job", env["SLURM_JOB_ID"])))
    except ValueError:
        if is_mixed:
            raise
        return uniform
    # A step may have fewer GPUs on this node than the job. Then the job's numbers on other nodes are not the step's.
    return {**uniform, **reported_gpus} if reported_gpus.get(own_node, 0) == own_gpus else {**reported_gpus, **uniform}


def _gpus_may_differ(env: Mapping[str, str], own_gpus: int, tasks_by_node: Mapping[str, int]) -> bool:
    """Return whether the nodes of a job may have unequal numbers of GPUs: Slurm spreads a total or a number per task.

    If the result is True, every task asks the controller, so it must be False for an ordinary job.
    """
    if len(tasks_by_node) < 2 or "SLURM_GPUS_PER_NODE" in env:
        return False
    # The total is of one type or several: 3, h100:3 or h100:2,a100:1.
    gpu_numbers = [item.rpartition(":")[2] for item in env.get("SLURM_GPUS", "").split(",")]
    gpu_total = sum(int(number) for number in gpu_numbers if number.isdigit())
    if gpu_total and gpu_total != own_gpus * int(env.get("SLURM_JOB_NUM_NODES") or len(tasks_by_node)):
        return True
    return own_gpus > 0 and len(set(tasks_by_node.values())) > 1


def _gpus_by_components(components: Iterable[Mapping[str, str]]) -> Dict[str, int]:
    gpu_words = [entry for component in components for entry in component["gpus"].split()]
    return {name: int(count) for name, _equals, count in (entry.partition("=") for entry in gpu_words)}


# --- From the world to variables ----------------------------------------------------------------------------------


def master_port(job: int, step: int, lowest_port: int, highest_port: int, reserved_ports: Iterable[int] = ()) -> int:
    """Return the port of rank 0, which is the same on all nodes without any communication.

    The port follows from the job and step, in a range below the kernel's ephemeral ports, so that no outgoing
    connection can use it.
    """
    excluded_ports = set(reserved_ports)
    range_size = highest_port - lowest_port + 1
    start_offset = job + STEP_STRIDE * step
    for offset in range(range_size):
        port = lowest_port + (start_offset + offset) % range_size
        if port not in excluded_ports:
            return port
    raise ValueError(f"every port from {lowest_port} to {highest_port} is reserved")


def core_variables(world: World, port: int, hostfile: str) -> Dict[str, str]:
    """Return the variables that programs for torch.distributed, TensorFlow and MPI read."""
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
    """Return TF_CONFIG with one worker per task, node by node; the tasks of one node listen on consecutive ports."""
    worker_addresses = [
        f"{_bracket_address(node.address)}:{port + local}" for node in world.nodes for local in range(node.tasks)
    ]
    earlier_tasks = sum(node.tasks for node in world.nodes[: world.node_rank])
    task_entry = {"type": "worker", "index": earlier_tasks + (world.local_rank or 0)}
    return json.dumps({"cluster": {"worker": worker_addresses}, "task": task_entry})


def network_variables(world: World, interface: str, rdma: Mapping[str, Any]) -> Dict[str, str]:
    """Return the variables with the interface and ports for communication libraries, each with its reason.

    ``rdma``: ``devices`` of this node, the ``peers`` that they reach, and ``plugin`` if only a plugin of NCCL uses them.
    """
    rdma_devices: List[str] = rdma.get("devices", [])
    plugin_fabric: str = rdma.get("plugin", "")
    variables = {
        # The cluster's interface, where each library would choose one by its own rules. The leading = requests exactly
        # this name; without it, bond0 would also match bond0.2093.
        "NCCL_SOCKET_IFNAME": "=" + interface,
        # Gloo would take the address of the host's name, which may be that of another network.
        "GLOO_SOCKET_IFNAME": interface,
        # TensorPipe, of torch.distributed.rpc, would do the same.
        "TP_SOCKET_IFNAME": interface,
        # UCX would use all devices, those of other networks too.
        "UCX_NET_DEVICES": interface,
        # Open MPI would connect by all interfaces, those of container bridges too: data,
        "OMPI_MCA_btl_tcp_if_include": interface,
        # and its daemons.
        "OMPI_MCA_oob_tcp_if_include": interface,
    }
    reaches_all = {node.name for node in world.nodes} <= set(rdma.get("peers", []))
    if plugin_fabric and reaches_all:
        if rdma_devices:
            # Names the ports of the plugin, so that NCCL itself uses none: others lead to no other node.
            variables["NCCL_IB_HCA"] = "=" + ",".join(rdma_devices)
    elif rdma_devices and reaches_all:
        # Only the ports of the cluster's fabric: NCCL would also use those of other networks, and hang.
        variables["NCCL_IB_HCA"] = "=" + ",".join(rdma_devices)
        if "address_family" in rdma:
            # These ports have IPv6 addresses only: NCCL looks for IPv4, and would take a link-local address.
            variables["NCCL_IB_ADDR_FAMILY"] = rdma["address_family"]
        # /etc/nccl.conf disables both where not every member of the cluster can be reached by RDMA.
        variables["NCCL_IB_DISABLE"] = "0"
        variables["NCCL_IBEXT_DISABLE"] = "0"
        # The same ports for UCX, and the interface for what it sends by TCP.
        variables["UCX_NET_DEVICES"] = ",".join([*rdma_devices, interface])
    elif rdma_devices or plugin_fabric:
        # NCCL would choose the devices and hang, since they do not reach other sites.
        variables["NCCL_IB_DISABLE"] = "1"
        # The plugin of HPC-X ignores NCCL_IB_DISABLE, and obeys this.
        variables["NCCL_IBEXT_DISABLE"] = "1"
        # All plugins, such as those for EFA and GPUDirect-TCPX, ignore both. NCCL skips each of another name.
        variables["NCCL_NET"] = "Socket"
    return variables


def backendai_variables(world: World) -> Dict[str, str]:
    """Return the variables of Backend.AI, for which a node is a container.

    The role main belongs to the first node, or to all nodes of the first component of a heterogeneous job.
    """
    role_names = world.roles or [
        "main" if (node.group == 0 if world.mixed else position == 0) else "sub"
        for position, node in enumerate(world.nodes)
    ]
    role_numbers = [role_names[: position + 1].count(role) for position, role in enumerate(role_names)]
    container_names = [f"{role}{number}" for role, number in zip(role_names, role_numbers)]
    own_index = world.node_rank
    variables = {
        "BACKENDAI_CLUSTER_SIZE": str(len(container_names)),
        "BACKENDAI_CLUSTER_HOSTS": ",".join(container_names),
        "BACKENDAI_CLUSTER_REPLICAS": ",".join(
            f"{role}:{role_names.count(role)}" for role in dict.fromkeys(role_names)
        ),
        "BACKENDAI_CLUSTER_HOST": container_names[own_index],
        "BACKENDAI_CLUSTER_IDX": str(role_numbers[own_index]),
        "BACKENDAI_CLUSTER_ROLE": role_names[own_index],
        "BACKENDAI_CLUSTER_LOCAL_RANK": str(own_index),
    }
    if world.rank is not None:
        variables["WORLD_RANK"] = str(world.rank)
    return variables


def dstack_variables(world: World, hostfile: str) -> Dict[str, str]:
    """Return the variables of a dstack task."""
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
    """Return the variables of a SkyPilot task."""
    return {
        "SKYPILOT_NODE_IPS": "\n".join(node.address for node in world.nodes),
        "SKYPILOT_NODE_RANK": str(world.node_rank),
        "SKYPILOT_NUM_NODES": str(len(world.nodes)),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(world.node.gpus),
    }


def runpod_variables(world: World, port: int) -> Dict[str, str]:
    """Return the variables of a Runpod cluster. NODE_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are core variables."""
    return {
        "PRIMARY_ADDR": world.master or world.nodes[0].address,
        "PRIMARY_PORT": str(port),
        "NODE_ADDR": world.node.address,
        "NUM_NODES": str(len(world.nodes)),
        "NUM_TRAINERS": str(world.node.gpus),
    }


def torchrun_variables(world: World, port: int) -> Dict[str, str]:
    """Return the defaults of torchrun's options, so that ``srun torchrun train.py`` needs none of them."""
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


def all_variables(
    world: World, settings: Settings, hostfile: str, user_environment: Mapping[str, str]
) -> Dict[str, str]:
    """Return all variables of the settings for one task or login. The site's own variables override ours.

    ``user_environment``: what the user has set; a MASTER_ADDR or MASTER_PORT in it is used in every dialect.
    """
    rank_port = master_port(world.job, world.step, settings.low, settings.high, settings.reserved_ports)
    if user_environment.get("MASTER_PORT", "").isdigit():
        rank_port = int(user_environment["MASTER_PORT"])
    world.master = user_environment.get("MASTER_ADDR") or world.master
    variables = core_variables(world, rank_port, hostfile)
    variables.update(network_variables(world, settings.interface, settings.rdma))
    builders_by_dialect = {
        "backendai": lambda: backendai_variables(world),
        "dstack": lambda: dstack_variables(world, hostfile),
        "skypilot": lambda: skypilot_variables(world),
        "runpod": lambda: runpod_variables(world, rank_port),
        "torchrun": lambda: torchrun_variables(world, rank_port),
    }
    for dialect in settings.dialects:
        variables.update(builders_by_dialect[dialect]())
    if settings.tracking:
        variables.update(settings.tracking)
        variables.update(
            tracking_variables(world, settings.cluster, settings.tracking["GPUMESH_GENERATION"], user_environment)
        )
    variables.update(settings.variables)
    return variables


def tracking_variables(
    world: World, cluster: str, generation: str, user_environment: Mapping[str, str]
) -> Dict[str, str]:
    """Return the variables of MLflow: the tags of each run, and the experiment of the user, who may not write to others."""
    run_tags = {
        "mlflow.runName": user_environment.get("SLURM_JOB_NAME") or str(world.job),
        "gpumesh.cluster": cluster,
        "gpumesh.generation": generation,
        "gpumesh.job": str(world.job),
        "gpumesh.nodes": ",".join(node.name for node in world.nodes),
    }
    user_name = user_environment.get("SLURM_JOB_USER") or user_environment.get("USER")
    return {"MLFLOW_RUN_CONTEXT": json.dumps(run_tags), **({"MLFLOW_EXPERIMENT_NAME": user_name} if user_name else {})}


def hostfile_text(nodes: Iterable[Node]) -> str:
    """Return ``ADDRESS slots=N`` lines for mpirun and deepspeed: a slot per GPU, or per task in a job without GPUs."""
    return "".join(f"{node.address} slots={node.gpus or node.tasks or 1}\n" for node in nodes)


# --- From variables to what Slurm or a shell reads ----------------------------------------------------------------


def changes(env: Mapping[str, str], desired_variables: Mapping[str, str]) -> Tuple[Dict[str, str], List[str]]:
    """Return what to set and what to unset, so that what the user or torchrun has set stays.

    A nested step or job inherits what we set for the outer one. MARKER_VARIABLE identifies these values, which are
    replaced.
    """
    own_names = set(env) - set(users_own(env))
    set_variables = {name: value for name, value in desired_variables.items() if name not in env or name in own_names}
    unset_names = sorted(own_names - set(set_variables))
    set_variables[MARKER_VARIABLE] = " ".join(
        f"{name}={_checksum(value)}" for name, value in sorted(set_variables.items())
    )
    return set_variables, unset_names


def users_own(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables whose values we have not set."""
    checksums_by_name = dict(entry.split("=", 1) for entry in env.get(MARKER_VARIABLE, "").split() if "=" in entry)
    return {
        name: value
        for name, value in env.items()
        if name not in checksums_by_name or _checksum(value) != checksums_by_name[name]
    }


def _checksum(value: str) -> str:
    return "{:08x}".format(crc32(value.encode("utf-8", "surrogateescape")))


def prolog_lines(env: Mapping[str, str], set_variables: Mapping[str, str], unset_names: Iterable[str]) -> str:
    """Return the lines for slurmstepd, which reads a value up to the end of its line.

    A value of several lines cannot be passed to it: bash sets it from BASH_ENV_FILE, and the programs that bash starts
    inherit it. Here, only a stale value of ours, inherited from an outer job, is unset.
    """
    lines = ["unset " + name for name in unset_names]
    for name, value in set_variables.items():
        if "\n" not in value:
            lines.append(f"export {name}={value}")
        elif env.get(name, value) != value:
            lines.append("unset " + name)
    return "".join(line + "\n" for line in lines)


def step_records(changes_by_rank: Mapping[int, Tuple[Mapping[str, str], Iterable[str]]]) -> bytes:
    """Return the records for the plugin, each with a zero byte at its end, which no variable has.

    ``changes_by_rank``: what to set and to unset for each task on this node. What all of them have is not repeated.
    """
    records_by_rank = {
        rank: [*unset_names, *(f"{name}={value}" for name, value in set_variables.items())]
        for rank, (set_variables, unset_names) in changes_by_rank.items()
    }
    shared = set.intersection(*map(set, records_by_rank.values()))
    records = ["@all", *sorted(shared)]
    for rank, task_records in records_by_rank.items():
        records += [f"@{rank}", *(record for record in task_records if record not in shared)]
    encoded_records = [record.encode("utf-8", "surrogateescape") + b"\0" for record in (*records, END_RECORD)]
    return b"".join(record for record in encoded_records if len(record) <= MAX_VARIABLE_SIZE)


def shell_lines(set_variables: Mapping[str, str], unset_names: Iterable[str]) -> str:
    """Return the lines for ``eval`` in a POSIX shell."""
    lines = ["unset " + name for name in unset_names]
    lines += ["export {}='{}'".format(name, value.replace("'", "'\\''")) for name, value in set_variables.items()]
    return "".join(line + "\n" for line in lines)


# --- This host ----------------------------------------------------------------------------------------------------


class Settings:
    """The settings of this node in job_environment.json, from the role. Raises KeyError or ValueError."""

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

    def __init__(self, settings_text: str) -> None:
        settings_document = json.loads(settings_text)
        self.members: Dict[str, str] = settings_document["members"]
        self.interface: str = settings_document["interface"]
        self.low, self.high = settings_document["port_range"]
        self.reserved_ports: List[int] = settings_document["reserved_ports"]
        self.dialects: List[str] = settings_document["dialects"]
        self.rdma: Dict[str, Any] = settings_document["rdma"]
        self.variables: Dict[str, str] = settings_document["variables"]
        self.cluster: str = settings_document.get("cluster", "")
        self.tracking: Dict[str, str] = settings_document.get("tracking", {})


def write_hostfile(directory: str, file_name: str, content: str) -> str:
    """Write a file with this content, and return its path; empty if that is impossible.

    Everyone may write in the directory, so a file of that name may be a trap: links are never followed, and a file is
    kept only if it belongs to this user. One of another size, which may be huge, is not read.
    """
    path = os.path.join(directory, file_name)
    temporary_path = f"{path}.{os.getpid()}"
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as stream:
            status = os.fstat(stream.fileno())
            is_own_file = S_ISREG(status.st_mode) and status.st_uid == os.getuid()
            if is_own_file and status.st_size == len(content.encode()) and stream.read() == content:
                return path
    except OSError:
        pass
    try:
        file_descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(file_descriptor, "w") as stream:
            stream.write(content)
        os.rename(temporary_path, path)
    except OSError:
        return ""
    return path


def show(*show_arguments: str) -> str:
    """Return what the controller shows of a job or of all nodes. Raises ValueError if it cannot be asked."""
    search_path = os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin:/bin"
    try:
        return subprocess.run(
            ["scontrol", "--all", "-d", "-o", "show", *show_arguments],
            env={**os.environ, "PATH": search_path},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=5,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as failure:
        raise ValueError(f"scontrol cannot show {' '.join(show_arguments)}: {failure}") from failure


def find_login_job() -> str:
    """Return the job whose control group this process is in, as with pam_slurm_adopt; empty if there is none."""
    job_variable = os.environ.get("SLURM_JOB_ID", "")
    if job_variable.isdigit():
        return job_variable
    with open("/proc/self/cgroup") as stream:
        for line in stream:
            for cgroup_part in line.strip().split("/"):
                if cgroup_part.startswith("job_") and cgroup_part[4:].isdigit():
                    return cgroup_part[4:]
    return ""


def _in_batch_step() -> bool:
    """Return whether Slurm started us for the batch script: slurmstepd names its step in its command line."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline") as stream:
            return ".batch]" in stream.read()
    except OSError:
        return False


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def _user_name() -> str:
    try:
        return getpwuid(os.getuid()).pw_name
    except KeyError:
        # Slurm may know users that the node does not.
        return ""


def read_step(stream: BinaryIO) -> Dict[str, str]:
    """Read the environment of a step, as the plugin writes it: each variable with a zero byte at its end."""
    texts = (record.decode("utf-8", "surrogateescape") for record in stream.read().split(b"\0"))
    return {name: value for name, equals, value in (text.partition("=") for text in texts) if equals}


def run_step(
    env: Dict[str, str],
    step_id: int,
    component_ranks: List[int],
    settings_path: str = SETTINGS_PATH,
    runtime: str = RUNTIME_DIRECTORY,
    show: Callable[..., str] = show,
) -> bytes:
    """Return the records for the tasks of a step on this node.

    ``env``: the environment of the step, to which Slurm has not yet added what differs between nodes and tasks.
    ``component_ranks``: the ranks of the tasks in the component of the job.
    """
    if SESSION in env:
        # The containers of a session have their own environment.
        return END_RECORD.encode() + b"\0"
    with open(settings_path) as stream:
        settings = Settings(stream.read())
    env.update(SLURMD_NODENAME=_node_name(), SLURM_JOB_USER=_user_name())
    env.update(SLURM_PROCID=str(component_ranks[0]), SLURM_LOCALID="0")
    world = read_world(env, settings.members, step_id == BATCH_STEP, _ask_once(show))
    first_rank = sum(node.tasks for node in world.nodes if node.group < world.node.group)
    is_task = world.rank is not None
    hostfile_path = _write_world(env, world, runtime)
    changes_by_rank = {}
    for local_rank, component_rank in enumerate(component_ranks):
        rank = component_rank if step_id >= FIRST_SPECIAL_STEP else first_rank + component_rank
        if is_task:
            world.rank, world.local_rank = rank, local_rank
        changes_by_rank[rank] = changes(env, all_variables(world, settings, hostfile_path, users_own(env)))
    return step_records(changes_by_rank)


def _ask_once(show: Callable[..., str]) -> Callable[..., str]:
    """Return ``show`` with a memory: each component of a job asks for the same nodes."""
    answers: Dict[Tuple[str, ...], str] = {}

    def show_once(*show_arguments: str) -> str:
        if show_arguments not in answers:
            answers[show_arguments] = show(*show_arguments)
        return answers[show_arguments]

    return show_once


def _write_world(env: Mapping[str, str], world: World, runtime: str, is_login: bool = False) -> str:
    """Write the hostfile, and return its path. Its name has the job ID that Slurm's epilog gets on this node."""
    job = str(world.job) if is_login else _job_id(env, world.node.group)
    file_name = f"{job}.{world.step}.hosts" if world.rank is not None else f"{job}.hosts"
    return write_hostfile(runtime, file_name, hostfile_text(world.nodes))


def run(login: bool, settings_path: str = SETTINGS_PATH, runtime: str = RUNTIME_DIRECTORY) -> str:
    """Return the lines for Slurm, or for a shell."""
    with open(settings_path) as stream:
        settings = Settings(stream.read())
    env = os.environ
    if login:
        job_id = find_login_job()
        if not job_id:
            return ""
        world = world_of_login(job_id, _node_name(), settings.members, show)
    else:
        world = read_world(env, settings.members, _in_batch_step(), show)
    hostfile_path = _write_world(env, world, runtime, login)
    desired_variables = all_variables(world, settings, hostfile_path, users_own(env))
    multiline_names = sorted(variable_name for variable_name, value in desired_variables.items() if "\n" in value)
    if multiline_names:
        desired_variables["GPUMESH_MULTILINE"] = ",".join(multiline_names)
        desired_variables["BASH_ENV"] = BASH_ENV_FILE
    set_variables, unset_names = changes(env, desired_variables)
    return shell_lines(set_variables, unset_names) if login else prolog_lines(env, set_variables, unset_names)


def main(arguments: List[str]) -> int:
    """Print the lines or records. Returns 0 whatever happens, since Slurm ends a task whose prolog fails."""
    is_login, is_step = "--login" in arguments, "--step" in arguments
    if SESSION in os.environ:
        # The containers of a session have their own environment.
        return 0
    try:
        if is_step:
            step_text, ranks_text = arguments[1:3]
            env = read_step(sys.stdin.buffer)
            sys.stdout.buffer.write(run_step(env, int(step_text), list(map(int, ranks_text.split(",")))))
        else:
            sys.stdout.write(run(is_login))
    except (OSError, ValueError, KeyError, IndexError) as failure:
        message = f"{type(failure).__name__}: {failure}"
        if is_step:
            sys.stdout.buffer.write(f"!{message}\0{END_RECORD}\0".encode("utf-8", "replace"))
        elif not is_login:
            # A login may belong to a job of another node, so it is not worth a message.
            sys.stderr.write(f"gpumesh: the job environment is not set: {message}\n")
    return 0


def _bracket_address(address: str) -> str:
    return f"[{address}]" if ":" in address else address


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

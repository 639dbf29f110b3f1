# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of a configless Slurm cluster whose nodes register themselves: the content of each file.

The controller serves slurm.conf, cgroup.conf and gres.conf to all nodes. They do not contain node names: a node joins
by starting slurmd with ``-Z``, so that joining or leaving changes no file and restarts no daemon. The settings of a
host (its devices, its control groups) are in files of their own, which the served ones include by path, and which each
host reads locally.

Source: slurm.conf(5), gres.conf(5), cgroup.conf(5), slurmd(8), and Slurm's pages on dynamic nodes and configless
operation; tested with 22.05 and 24.11.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import conf
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.host import SlurmHost
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.hostlist import expand

#: oci.conf is only removed. An earlier one of ours put paths that users had chosen into commands that root runs: Slurm
#: runs all commands of that file but RunTimeRun as root.
SERVED = ("slurm.conf", "cgroup.conf", "gres.conf", "plugstack.conf", "oci.conf")
#: Below the configuration folder: the settings of this host only.
NODE = ("node/slurm.conf", "node/cgroup.conf", "node/gres.conf", "plugstack.conf.d/gpumesh.conf")
OPTIONS = "node/slurmd.env"

#: Settings that a running slurmctld 22.05 does not apply on `scontrol reconfigure`, in lower case.
RESTART_KEYS = frozenset(
    (
        "accountingstorageenforce",
        "accountingstoragetype",
        "authaltparameters",
        "authalttypes",
        "authinfo",
        "authtype",
        "clustername",
        "communicationparameters",
        "grestypes",
        "jobacctgathertype",
        "maxnodecount",
        "plugindir",
        "preemptmode",
        "prioritytype",
        "proctracktype",
        "schedulertype",
        "selecttype",
        "selecttypeparameters",
        "slurmctldhost",
        "slurmctldport",
        "slurmdport",
        "slurmuser",
        "statesavelocation",
        "switchtype",
        "taskplugin",
        "topologyplugin",
        "treewidth",
    )
)
#: From this version on, a host without control groups can declare that; in earlier ones, the plugin for version 1 does
#: no harm there. EnableControllers is also rejected by 22.05.
_CGROUP_KEYS_SINCE = (23, 11, 0)
#: Lists whose words are switches of their own. The user's words do not replace the ones that we need.
_SWITCHES = frozenset(("debugflags", "schedulerparameters", "slurmctldparameters"))
#: Without it, the controller refuses to send any node its configuration.
_CONFIGLESS = "enable_configless"
#: Slurm accepts one of these.
_DEFAULT_MEMORY = frozenset(("defmempercpu", "defmempergpu", "defmempernode"))
_MEMORY_STEP = 64
_UNSAFE = re.compile(r"[\"'`$\\\n;&|<>]")


class Request(NamedTuple):
    """The desired cluster and host. ``serve``: this host runs the controller. Mappings come from the user.

    ``plugins``: paths of those that each slurmd and srun load, the same on all hosts. ``gpus``: the number of GPUs that
    this host is known to have. With fewer, it is defective, rather than a smaller machine. ``gres_types``: the names of
    GRES that other members may have.
    """

    cluster: str
    controller: str
    machine: str
    address: str
    serve: bool
    accounting: bool
    max_nodes: int
    task_prolog: str
    health_check: str
    health_check_interval: int
    prolog: str
    epilog: str
    state_folder: str
    spool_folder: str
    log_folder: str
    settings: Mapping[str, Any]
    partitions: Mapping[str, Mapping[str, Any]]
    nodesets: Mapping[str, Mapping[str, Any]]
    cgroup: Mapping[str, Any]
    gres: Mapping[str, Any]
    node: Mapping[str, Any]
    gpus: int = 0
    plugins: Sequence[str] = ()
    gres_types: Sequence[str] = ()


class Gres(NamedTuple):
    """The lines of gres.conf, and the declaration of the node: ``gpu:fake:2``."""

    lines: List[str]
    declared: str


class Documents(NamedTuple):
    """The texts by their path below the configuration folder, and the arguments of slurmd."""

    served: Dict[str, str]
    node: Dict[str, str]
    definition: str
    arguments: Tuple[str, ...]


def documents(request: Request, host: SlurmHost, folder: str, former: str = "") -> Documents:
    """Create all files. ``former``: the node's current definition. Raises InputError, naming the variable."""
    conf.check_settings("slurm_conf", request.settings)
    conf.check_settings("slurm_cgroup", request.cgroup)
    gres = gres_lines(request, host)
    definition = node_definition(request, host, gres, former)
    plugins = [f"optional {path}" for path in request.plugins]
    # Debian's default. A host that does not have our file yet continues without it.
    included = [f"include {os.path.join(folder, 'plugstack.conf.d')}/*.conf"]
    return Documents(
        {
            "slurm.conf": conf.text_of(_slurm_conf(request, host, folder)),
            "cgroup.conf": conf.text_of([f"Include {os.path.join(folder, 'node/cgroup.conf')}"]),
            "gres.conf": conf.text_of([f"Include {os.path.join(folder, 'node/gres.conf')}"]),
            **({"plugstack.conf": conf.text_of(included)} if plugins else {}),
        },
        {
            "node/slurm.conf": conf.text_of(conf.render(_without(node_settings(host), request.settings))),
            "node/cgroup.conf": conf.text_of(conf.render(conf.merge(cgroup_settings(host), request.cgroup))),
            "node/gres.conf": conf.text_of(gres.lines),
            **({"plugstack.conf.d/gpumesh.conf": conf.text_of(plugins)} if plugins else {}),
        },
        definition,
        slurmd_arguments(request, definition),
    )


def _slurm_conf(request: Request, host: SlurmHost, folder: str) -> List[str]:
    ours = cluster_settings(request, host)
    settings = conf.merge(ours, with_switches(ours, request.settings))
    lines = conf.render(settings)
    lines.append(f"Include {os.path.join(folder, 'node/slurm.conf')}")
    lines += [
        conf.pairs({"NodeSet": _name("slurm_nodesets", name), **options}) for name, options in request.nodesets.items()
    ]
    if not request.partitions:
        raise InputError("slurm_partitions is empty.", "Give at least one partition, such as {cluster: {Nodes: ALL}}.")
    lines += [
        conf.pairs({"PartitionName": _name("slurm_partitions", name), **options})
        for name, options in request.partitions.items()
    ]
    return lines


def cluster_settings(request: Request, host: SlurmHost) -> Dict[str, Any]:
    """The settings of the whole cluster, before the user's own."""
    settings: Dict[str, Any] = {
        "ClusterName": request.cluster,
        # slurmctld refuses to start on a host with another name, and the inventory's name may differ.
        "SlurmctldHost": f"{host.hostname}({request.controller})",
        "SlurmUser": "slurm",
        "AuthType": "auth/munge",
        "SlurmctldParameters": [_CONFIGLESS],
        "StateSaveLocation": request.state_folder,
        "SlurmdSpoolDir": request.spool_folder,
        "SlurmctldLogFile": os.path.join(request.log_folder, "slurmctld.log"),
        "SlurmdLogFile": os.path.join(request.log_folder, "slurmd.log"),
        # Nodes register themselves, up to this number.
        "MaxNodeCount": request.max_nodes,
        # slurmd does not know the other nodes' addresses, so it must not forward messages to them.
        "TreeWidth": 65533,
        "SelectType": "select/cons_tres",
        # Unless memory is a resource, --mem does not set a limit.
        "SelectTypeParameters": "CR_Core_Memory",
        "GresTypes": sorted({"gpu", *(name.lower() for name in (*request.gres, *request.gres_types))}),
        # A node that was rebooted or lost returns to service by itself; a drained one does not.
        "ReturnToService": 2,
        # After a network outage, the end of a step is reported to the controller a minute later. By then, a node with
        # Slurm's default limit of a minute would be drained for "Kill task failed".
        "UnkillableStepTimeout": 180,
        "PrologFlags": "Contain",
        "TaskProlog": request.task_prolog,
        # RDMA needs locked memory, and the limit of the submitting shell is low.
        "PropagateResourceLimitsExcept": "MEMLOCK",
        # The included files intentionally differ between hosts.
        "DebugFlags": ["NO_CONF_HASH"],
        # A job that was requeued, or that waits for the end of another one, starts when Slurm next looks at its queue. By
        # default, that is after up to 30 s.
        "SchedulerParameters": ["bf_interval=10"],
    }
    if host.memory and not _DEFAULT_MEMORY.intersection(key.lower() for key in request.settings):
        settings["DefMemPerCPU"] = default_memory(host)
    if not request.task_prolog:
        del settings["TaskProlog"]
    if request.health_check:
        settings["HealthCheckProgram"] = request.health_check
        settings["HealthCheckInterval"] = request.health_check_interval
        # Busy and drained nodes as well: faults occur while jobs run, and drained nodes have to be resumed.
        settings["HealthCheckNodeState"] = "ANY"
    if request.prolog:
        settings["Prolog"] = request.prolog
        # A job that encounters an unfit node waits for another one, not for an administrator.
        settings["SchedulerParameters"].append("nohold_on_prolog_fail")
    if request.epilog:
        settings["Epilog"] = request.epilog
    if request.accounting:
        settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
        settings["AccountingStorageHost"] = request.controller
        settings["AccountingStorageTRES"] = "gres/gpu"
        settings["JobAcctGatherFrequency"] = 30
    return settings


def with_switches(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Dict[str, Any]:
    """The user's settings, with our words added to lists of switches.

    null removes our words like any other setting of ours, except the one without which there is no cluster.
    """
    switches = {key.lower(): words for key, words in ours.items() if key.lower() in _SWITCHES}
    found = dict(theirs)
    for key, value in theirs.items():
        wanted = switches.get(key.lower(), ())
        if value is None:
            found[key] = [word for word in wanted if word == _CONFIGLESS] or None
            continue
        text = conf.value_text(key, value)
        given = [_switch(word) for word in text.split(",")]
        missing = [word for word in wanted if _switch(word) not in given]
        if missing:
            found[key] = ",".join([*([text] if text else []), *missing])
    return found


def _switch(word: str) -> str:
    """The name of a switch, without its value."""
    return word.partition("=")[0].strip().lower()


def gres_types_in(text: Optional[str]) -> List[str]:
    """The names of GRES in a slurm.conf."""
    return [name for name in conf.parse(text or "").get("grestypes", "").split(",") if name]


def default_memory(host: SlurmHost) -> int:
    """The memory in MB per CPU for jobs without --mem: the ratio of this host, the controller's.

    With no default, each would get a whole node's memory, and a second job on the same node would wait. With the ratio,
    CPUs and memory are used up together, and a job with all CPUs has nearly all memory. It is rounded down, so that a
    few MB less with another kernel make no difference.
    """
    share = real_memory(host) // host.cpus
    # A container may see many CPUs, and have little memory.
    return max(share // _MEMORY_STEP * _MEMORY_STEP or share, 1)


def real_memory(host: SlurmHost) -> int:
    """Slightly less than the actual memory, in steps: a few MB less with another kernel would otherwise drain the node."""
    return host.memory * 98 // 100 // _MEMORY_STEP * _MEMORY_STEP or host.memory


def node_settings(host: SlurmHost) -> Dict[str, Any]:
    """How this host tracks, binds and measures the processes of jobs."""
    if host.cgroups.version == "none":
        return {
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/affinity" if host.binds else "task/none",
            "JobAcctGatherType": "jobacct_gather/linux",
            # Without control groups to enforce --mem, slurmd ends jobs that it finds above it.
            "JobAcctGatherParams": "OverMemoryKill",
        }
    return {
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": ["task/cgroup", "task/affinity"],
        "JobAcctGatherType": "jobacct_gather/cgroup"
        if "memory" in host.cgroups.controllers
        else "jobacct_gather/linux",
    }


def cgroup_settings(host: SlurmHost) -> Dict[str, Any]:
    """Limits through control groups, as far as this host has them."""
    version, controllers = host.cgroups.version, host.cgroups.controllers
    recent = host.version is None or host.version >= _CGROUP_KEYS_SINCE
    if version == "none":
        return {"CgroupPlugin": "disabled" if recent else "cgroup/v1"}
    settings: Dict[str, Any] = {"CgroupPlugin": f"cgroup/{version}"}
    if version == "v2" and recent:
        # systemd delegates cpuset only on request.
        settings["EnableControllers"] = True
    return {
        **settings,
        "ConstrainCores": "cpuset" in controllers,
        "ConstrainRAMSpace": "memory" in controllers,
        # Version 2 has no controller for devices: the kernel uses a BPF program instead.
        "ConstrainDevices": version == "v2" or "devices" in controllers,
    }


def gres_lines(request: Request, host: SlurmHost) -> Gres:
    """The devices to schedule: given by the user, or found on this host."""
    lines: List[str] = []
    declared: List[str] = []
    given = {name.lower(): value for name, value in request.gres.items()}
    if "gpu" not in given and host.gpu is not None:
        count = len(host.gpu.files)
        if host.gpu.autodetect:
            lines.append(f"AutoDetect={host.gpu.autodetect}")
            declared.append(f"gpu:{count}")
        else:
            kind = {"Type": host.gpu.type} if host.gpu.type else {}
            lines += [conf.pairs({"Name": "gpu", **kind, "File": path}) for path in host.gpu.files]
            declared.append(":".join(["gpu", *kind.values(), str(count)]))
    for name, value in given.items():
        for entry in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(entry, Mapping):
                raise InputError(
                    f"slurm_gres: {name} is {entry!r}.",
                    "Give a mapping such as {Type: h100, File: '/dev/nvidia[0-7]'}, or a list of them.",
                )
            lines.append(conf.pairs({"Name": name, **entry}))
            declared.append(_declared(name, entry))
    return Gres(lines, ",".join(declared))


def _declared(name: str, entry: Mapping[str, Any]) -> str:
    keys = {key.lower(): value for key, value in entry.items()}
    if "count" in keys:
        count = str(keys["count"])
    elif keys.get("file"):
        count = str(len(expand(conf.value_text("File", keys["file"]))))
    elif keys.get("multiplefiles"):
        # The devices of a single resource, such as a MIG instance of a GPU.
        count = "1"
    else:
        raise InputError(f"slurm_gres: {name} has neither File, MultipleFiles nor Count.", "Give one of them.")
    return ":".join(part for part in (name, str(keys.get("type") or ""), count) if part)


def node_definition(request: Request, host: SlurmHost, gres: Gres, former: str = "") -> str:
    """The definition of the node in addition to what slurmd detects."""
    ours: Dict[str, Any] = {"NodeAddr": request.address}
    known = dict(conf.parse_pairs(former))
    if host.memory:
        ours["RealMemory"] = _kept_memory(host, known.get("RealMemory", ""))
    declared = _kept_gres(request, host, gres.declared, known.get("Gres", ""))
    if declared:
        ours["Gres"] = declared
    for key in request.node:
        if conf.check_key(key).lower() in ("nodename", "port", "nodeaddr"):
            raise InputError(f"slurm_node_conf: {key} is set from the cluster record.", "Remove it.")
    definition = " ".join(
        f"{key}={conf.value_text(key, value)}" for key, value in conf.merge(ours, request.node).items()
    )
    if _UNSAFE.search(definition):
        raise InputError(f"slurm_node_conf: {definition!r} contains quotes or shell characters.", "Remove them.")
    return definition


def _kept_memory(host: SlurmHost, former: str) -> int:
    """The declared memory, as long as the host has it and it is about right.

    For a change, the controller has to delete the node first, and another kernel has a few MB more or less.
    """
    wanted = real_memory(host)
    declared = int(former) if former.isdigit() else 0
    return declared if declared <= host.memory and abs(declared - wanted) <= wanted * 3 // 100 else wanted


def _kept_gres(request: Request, host: SlurmHost, declared: str, former: str) -> str:
    """If GPUs are lost, keep the declaration: the controller then takes the node out of service, with a reason."""
    given = {name.lower() for name in request.gres}
    found = len(host.gpu.files) if host.gpu else 0
    if "gpu" in given or found >= request.gpus:
        return declared
    others = [item for item in declared.split(",") if item and not item.startswith("gpu:")]
    before = [item for item in former.split(",") if item.startswith("gpu:") and item.endswith(f":{request.gpus}")]
    return ",".join([*(before[:1] or [f"gpu:{request.gpus}"]), *others])


def slurmd_arguments(request: Request, definition: str) -> Tuple[str, ...]:
    """The arguments of slurmd, in addition to ``-D`` or those of the packaged unit."""
    port = first_port("slurm_conf", request.settings, "SlurmctldPort", "")
    server = f"{request.controller}:{port}" if port else request.controller
    return ("-Z", "-N", request.machine, "--conf-server", server, "--conf", definition)


def first_port(variable: str, settings: Mapping[str, Any], name: str, standard: str) -> str:
    """A port in the user's settings, whose keys are case insensitive.

    For a range, the first port, which is used as well.
    """
    given = {key.lower(): value for key, value in settings.items()}.get(name.lower())
    if given is None:
        return standard
    port = str(given).partition("-")[0].strip()
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"{variable}: {name} {given!r} is not a port.", "Give a number such as 6817, or a range.")
    return port


def options_text(arguments: Sequence[str]) -> str:
    """A file that both systemd and a shell can read: one variable, whose words are quoted a second time."""
    words = " ".join(f"'{word}'" if re.search(r"\s", word) else word for word in arguments)
    return conf.text_of([f'SLURMD_OPTIONS="{words}"'])


def definition_in(options: Optional[str]) -> Optional[str]:
    """The node's definition in such a file, or None."""
    match = re.search(r"--conf '([^']*)'", options or "") or re.search(r"--conf (\S+)\"", options or "")
    return match.group(1) if match else None


def reload_needed(old: Optional[str], new: str) -> str:
    """What a running controller needs to apply the new slurm.conf: none, reconfigure or restart."""
    if old is None:
        return "restart"
    changed = conf.changed_keys(old, new)
    if not changed:
        return "none"
    return "restart" if RESTART_KEYS.intersection(changed) else "reconfigure"


def _without(settings: Mapping[str, Any], taken: Mapping[str, Any]) -> Dict[str, Any]:
    names = {key.lower() for key in taken}
    return {key: value for key, value in settings.items() if key.lower() not in names}


def _name(variable: str, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", str(name)):
        raise InputError(f"{variable}: {name!r} is not a valid name.", "Use letters, digits, '.', '_' and '-'.")
    return str(name)

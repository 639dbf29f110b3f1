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
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import conf
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import SlurmHost
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import expand_hostlist

#: oci.conf is only removed. An earlier version of this collection put paths that users had chosen into commands that
#: root runs: Slurm runs all commands of that file except RunTimeRun as root.
SERVED_FILES = ("slurm.conf", "cgroup.conf", "gres.conf", "plugstack.conf", "oci.conf")
#: The settings of this host only, below the configuration directory.
PLUGINS_FILE = "plugstack.conf.d/gpumesh.conf"
NODE_FILES = ("node/slurm.conf", "node/cgroup.conf", "node/gres.conf", PLUGINS_FILE)
OPTIONS_FILE = "node/slurmd.env"

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
#: The first version in which a host can declare that it has no control groups. In earlier ones, the plugin for version
#: 1 does no harm there. 22.05 also rejects EnableControllers.
_CGROUP_KEYS_SINCE = (23, 11, 0)
#: Settings that are lists of switches. The user's switches do not replace the ones that we need.
_SWITCH_SETTINGS = frozenset(("debugflags", "schedulerparameters", "slurmctldparameters"))
#: The switch without which the controller refuses to send any node its configuration.
_CONFIGLESS_SWITCH = "enable_configless"
#: The settings of default memory, of which Slurm accepts one.
_DEFAULT_MEMORY_KEYS = frozenset(("defmempercpu", "defmempergpu", "defmempernode"))
_MEMORY_STEP = 64
_UNSAFE_CHARACTERS = re.compile(r"[\"'`$\\\n;&|<>]")


class SlurmRequest(NamedTuple):
    """The desired cluster and host. ``serve``: this host runs the controller. Mappings come from the user.

    ``plugins``: paths of those that each slurmd and srun load, the same on all hosts. ``gpus``: the number of GPUs that
    this host is known to have. With fewer, it is defective, rather than a smaller machine. ``gres_types``: the names of
    GRES that other members may have. ``slurm_node``: this host runs jobs. ``controller_name``: the machine of the
    controller, if that is another one.
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
    slurm_node: bool = True
    controller_name: str = ""


class GresConfig(NamedTuple):
    """The lines of gres.conf, and the declaration of the node: ``gpu:fake:2``."""

    lines: List[str]
    declaration: str


class SlurmConfigFiles(NamedTuple):
    """The texts by their path below the configuration directory, and the arguments of slurmd, if it runs here."""

    served_files: Dict[str, str]
    node_files: Dict[str, str]
    definition: str
    arguments: Tuple[str, ...]
    slurm_node: bool = True


def build_config_files(
    request: SlurmRequest,
    host: SlurmHost,
    config_directory: str,
    former_definition: str = "",
    job_plugin: str = "",
    include_plugins: bool = False,
) -> SlurmConfigFiles:
    """Build the texts of all files. Raises InputError, naming the variable.

    ``former_definition``: the node's current definition. ``job_plugin``: the path of the plugin that replaces our task
    prolog on this host, if there is one. ``include_plugins``: whether to write the file that includes the plugins of each
    host, even if the user has chosen none.
    """
    conf.refuse_line_keywords("slurm_conf", request.settings)
    conf.refuse_line_keywords("slurm_cgroup", request.cgroup)
    gres = build_gres_config(request, host)
    definition = build_node_definition(request, host, gres, former_definition)
    # Where the user has chosen another task prolog, ours is not replaced either.
    replaces_prolog = bool(job_plugin and request.task_prolog) and not has_own_prolog(request.settings)
    plugin_lines = [f"optional {path}" for path in ([job_plugin] if replaces_prolog else []) + list(request.plugins)]
    host_settings = node_settings(host)
    if replaces_prolog:
        # All others keep the setting that the controller serves, so a node changes over by itself: between its file and
        # the restart of slurmd, a job gets its environment twice.
        host_settings["TaskProlog"] = '""'
    # Debian's default. A host that does not have our file yet continues without it.
    include_lines = [f"include {os.path.join(config_directory, 'plugstack.conf.d')}/*.conf"]
    return SlurmConfigFiles(
        {
            "slurm.conf": conf.render_file(_build_slurm_conf(request, host, config_directory)),
            "cgroup.conf": conf.render_file([f"Include {os.path.join(config_directory, 'node/cgroup.conf')}"]),
            "gres.conf": conf.render_file([f"Include {os.path.join(config_directory, 'node/gres.conf')}"]),
            **({"plugstack.conf": conf.render_file(include_lines)} if request.plugins or include_plugins else {}),
        },
        {
            "node/slurm.conf": conf.render_file(conf.render_settings(_without_keys(host_settings, request.settings))),
            "node/cgroup.conf": conf.render_file(
                conf.render_settings(conf.merge_settings(cgroup_settings(host), request.cgroup))
            ),
            "node/gres.conf": conf.render_file(gres.lines),
            **({PLUGINS_FILE: conf.render_file(plugin_lines)} if plugin_lines else {}),
        },
        definition,
        build_slurmd_arguments(request, definition),
        request.slurm_node,
    )


def _build_slurm_conf(request: SlurmRequest, host: SlurmHost, config_directory: str) -> List[str]:
    our_settings = cluster_settings(request, host)
    merged_settings = conf.merge_settings(our_settings, merge_switches(our_settings, request.settings))
    if not request.serve:
        # By this setting, the entry point leave of the role knows the file of a controller.
        merged_settings = _without_keys(merged_settings, ["StateSaveLocation"])
    conf_lines = conf.render_settings(merged_settings)
    conf_lines.append(f"Include {os.path.join(config_directory, 'node/slurm.conf')}")
    conf_lines += [
        conf.format_pairs({"NodeSet": _check_name("slurm_nodesets", name), **options})
        for name, options in request.nodesets.items()
    ]
    if not request.partitions:
        raise InputError("slurm_partitions is empty.", "Give at least one partition, such as {cluster: {Nodes: ALL}}.")
    conf_lines += [
        conf.format_pairs({"PartitionName": _check_name("slurm_partitions", name), **options})
        for name, options in request.partitions.items()
    ]
    return conf_lines


def cluster_settings(request: SlurmRequest, host: SlurmHost) -> Dict[str, Any]:
    """The settings of the whole cluster, before the user's own."""
    settings: Dict[str, Any] = {
        "ClusterName": request.cluster,
        # slurmctld refuses to start on a host with another name, and the inventory's name may differ. Elsewhere, only
        # the address counts.
        "SlurmctldHost": f"{host.hostname if request.serve else request.controller_name or host.hostname}({request.controller})",
        "SlurmUser": "slurm",
        "AuthType": "auth/munge",
        "SlurmctldParameters": [_CONFIGLESS_SWITCH],
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
        # The end of a step is reported to the controller a minute after a network outage. By then, a node with Slurm's
        # default limit of a minute would be drained for "Kill task failed".
        "UnkillableStepTimeout": 180,
        "PrologFlags": "Contain",
        "TaskProlog": request.task_prolog,
        # RDMA needs locked memory, and the limit of the submitting shell is low.
        "PropagateResourceLimitsExcept": "MEMLOCK",
        # The included files intentionally differ between hosts.
        "DebugFlags": ["NO_CONF_HASH"],
        # A job that was requeued, or that waits for the end of another one, starts when Slurm next checks its queue, by
        # default up to 30 s later.
        "SchedulerParameters": ["bf_interval=10"],
    }
    # What a controller without jobs has says nothing about the nodes, and may be far too little for them.
    if (
        host.memory_mb
        and request.slurm_node
        and not _DEFAULT_MEMORY_KEYS.intersection(key.lower() for key in request.settings)
    ):
        settings["DefMemPerCPU"] = default_memory_per_cpu(host)
    if not request.task_prolog:
        del settings["TaskProlog"]
    if request.health_check:
        settings["HealthCheckProgram"] = request.health_check
        settings["HealthCheckInterval"] = request.health_check_interval
        # The check runs on busy and drained nodes too: faults occur during jobs, and drained nodes have to be resumed.
        # Ten nodes a second, rather than all of a large cluster at once.
        settings["HealthCheckNodeState"] = ["ANY", "CYCLE"]
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


def merge_switches(our_settings: Mapping[str, Any], user_settings: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the user's settings, with our switches added to lists of switches.

    null removes our switches like any other setting of ours, except the one without which there is no cluster.
    """
    switches_by_key = {
        key.lower(): switch_names for key, switch_names in our_settings.items() if key.lower() in _SWITCH_SETTINGS
    }
    merged_settings = dict(user_settings)
    for key, value in user_settings.items():
        required_switches = switches_by_key.get(key.lower(), ())
        if value is None:
            merged_settings[key] = [switch for switch in required_switches if switch == _CONFIGLESS_SWITCH] or None
            continue
        listed_switches = conf.format_value(key, value)
        present_names = [_switch_name(switch) for switch in listed_switches.split(",")]
        missing_switches = [switch for switch in required_switches if _switch_name(switch) not in present_names]
        if missing_switches:
            merged_settings[key] = ",".join([*([listed_switches] if listed_switches else []), *missing_switches])
    return merged_settings


def _switch_name(switch: str) -> str:
    """Return the name of a switch, without its value."""
    return switch.partition("=")[0].strip().lower()


def parse_gres_types(text: Optional[str]) -> List[str]:
    """Return the names of GRES in a slurm.conf."""
    return [name for name in conf.parse_settings(text or "").get("grestypes", "").split(",") if name]


def default_memory_per_cpu(host: SlurmHost) -> int:
    """Return the memory in MB per CPU for jobs without --mem: the ratio of this host, the controller.

    Without a default, each job would get a whole node's memory, and a second job on the same node would wait. With the
    ratio, CPUs and memory are used up together, and a job with all CPUs has nearly all memory. It is rounded down, so
    that a few MB less with another kernel make no difference.
    """
    share = real_memory(host) // host.cpu_count
    # A container may see many CPUs, and have little memory.
    return max(share // _MEMORY_STEP * _MEMORY_STEP or share, 1)


def real_memory(host: SlurmHost) -> int:
    """Return slightly less than the actual memory, in steps.

    A few MB less with another kernel would otherwise drain the node.
    """
    return host.memory_mb * 98 // 100 // _MEMORY_STEP * _MEMORY_STEP or host.memory_mb


def node_settings(host: SlurmHost) -> Dict[str, Any]:
    """Return how this host tracks, binds and measures the processes of jobs."""
    if host.cgroups.version == "none":
        return {
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/affinity" if host.may_bind_tasks else "task/none",
            "JobAcctGatherType": "jobacct_gather/linux",
            # No control group enforces --mem, so slurmd kills jobs that exceed it.
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
    """Return the limits that the control groups of this host can enforce."""
    cgroup_version, controllers = host.cgroups.version, host.cgroups.controllers
    supports_new_keys = host.version is None or host.version >= _CGROUP_KEYS_SINCE
    if cgroup_version == "none":
        return {"CgroupPlugin": "disabled" if supports_new_keys else "cgroup/v1"}
    settings: Dict[str, Any] = {"CgroupPlugin": f"cgroup/{cgroup_version}"}
    if cgroup_version == "v2" and supports_new_keys:
        # systemd delegates cpuset only on request.
        settings["EnableControllers"] = True
    return {
        **settings,
        "ConstrainCores": "cpuset" in controllers,
        "ConstrainRAMSpace": "memory" in controllers,
        # Version 2 has no controller for devices: the kernel uses a BPF program instead.
        "ConstrainDevices": cgroup_version == "v2" or "devices" in controllers,
    }


def build_gres_config(request: SlurmRequest, host: SlurmHost) -> GresConfig:
    """Return the devices to schedule: those that the user declares, or those detected on this host."""
    conf_lines: List[str] = []
    declarations: List[str] = []
    requested_gres = {name.lower(): value for name, value in request.gres.items()}
    if "gpu" not in requested_gres and host.gpu is not None:
        device_count = len(host.gpu.files)
        if host.gpu.autodetect:
            conf_lines.append(f"AutoDetect={host.gpu.autodetect}")
            declarations.append(f"gpu:{device_count}")
        else:
            type_option = {"Type": host.gpu.type} if host.gpu.type else {}
            conf_lines += [conf.format_pairs({"Name": "gpu", **type_option, "File": path}) for path in host.gpu.files]
            declarations.append(":".join(["gpu", *type_option.values(), str(device_count)]))
    for name, value in requested_gres.items():
        for entry in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(entry, Mapping):
                raise InputError(
                    f"slurm_gres: {name} is {entry!r}.",
                    "Give a mapping such as {Type: h100, File: '/dev/nvidia[0-7]'}, or a list of them.",
                )
            conf_lines.append(conf.format_pairs({"Name": name, **entry}))
            declarations.append(_declare_gres(name, entry))
    return GresConfig(conf_lines, ",".join(declarations))


def _declare_gres(name: str, entry: Mapping[str, Any]) -> str:
    option_by_key = {key.lower(): value for key, value in entry.items()}
    if "count" in option_by_key:
        device_count = str(option_by_key["count"])
    elif option_by_key.get("file"):
        device_count = str(len(expand_hostlist(conf.format_value("File", option_by_key["file"]))))
    elif option_by_key.get("multiplefiles"):
        # The devices of a single resource, such as a MIG instance of a GPU.
        device_count = "1"
    else:
        raise InputError(f"slurm_gres: {name} has neither File, MultipleFiles nor Count.", "Give one of them.")
    return ":".join(part for part in (name, str(option_by_key.get("type") or ""), device_count) if part)


def build_node_definition(request: SlurmRequest, host: SlurmHost, gres: GresConfig, former_definition: str = "") -> str:
    """Return the definition of the node, in addition to what slurmd detects."""
    our_settings: Dict[str, Any] = {"NodeAddr": request.address}
    former_settings = dict(conf.parse_pairs(former_definition))
    if host.memory_mb:
        our_settings["RealMemory"] = _stable_memory(host, former_settings.get("RealMemory", ""))
    gres_declaration = _stable_gres(request, host, gres.declaration, former_settings.get("Gres", ""))
    if gres_declaration:
        our_settings["Gres"] = gres_declaration
    for key in request.node:
        if conf.check_key(key).lower() in ("nodename", "port", "nodeaddr"):
            raise InputError(f"slurm_node_conf: {key} is set from the cluster record.", "Remove it.")
    definition = " ".join(
        f"{key}={conf.format_value(key, value)}"
        for key, value in conf.merge_settings(our_settings, request.node).items()
    )
    if _UNSAFE_CHARACTERS.search(definition):
        raise InputError(f"slurm_node_conf: {definition!r} contains quotes or shell characters.", "Remove them.")
    return definition


def _stable_memory(host: SlurmHost, former_memory: str) -> int:
    """Return the declared memory as long as the host has it and it is about right.

    To change it, the controller has to delete the node first, and another kernel has a few MB more or less.
    """
    measured_memory = real_memory(host)
    declared_memory = int(former_memory) if former_memory.isdigit() else 0
    return (
        declared_memory
        if declared_memory <= host.memory_mb and abs(declared_memory - measured_memory) <= measured_memory * 3 // 100
        else measured_memory
    )


def _stable_gres(request: SlurmRequest, host: SlurmHost, declaration: str, former_gres: str) -> str:
    """Keep the declaration if GPUs are lost: the controller then takes the node out of service, with a reason."""
    requested_names = {name.lower() for name in request.gres}
    gpu_count = len(host.gpu.files) if host.gpu else 0
    if "gpu" in requested_names or gpu_count >= request.gpus:
        return declaration
    other_gres = [
        gres_entry for gres_entry in declaration.split(",") if gres_entry and not gres_entry.startswith("gpu:")
    ]
    former_gpus = [
        gres_entry
        for gres_entry in former_gres.split(",")
        if gres_entry.startswith("gpu:") and gres_entry.endswith(f":{request.gpus}")
    ]
    return ",".join([*(former_gpus[:1] or [f"gpu:{request.gpus}"]), *other_gres])


def build_slurmd_arguments(request: SlurmRequest, definition: str) -> Tuple[str, ...]:
    """Return the arguments of slurmd, in addition to ``-D`` or those of the packaged unit."""
    port = parse_first_port("slurm_conf", request.settings, "SlurmctldPort", "")
    server = f"{request.controller}:{port}" if port else request.controller
    return ("-Z", "-N", request.machine, "--conf-server", server, "--conf", definition)


def parse_first_port(variable_name: str, settings: Mapping[str, Any], setting_name: str, default_port: str) -> str:
    """Return a port in the user's settings, whose keys are case insensitive; of a range, the first port."""
    configured_port = {key.lower(): value for key, value in settings.items()}.get(setting_name.lower())
    if configured_port is None:
        return default_port
    port = str(configured_port).partition("-")[0].strip()
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(
            f"{variable_name}: {setting_name} {configured_port!r} is not a port.",
            "Give a number such as 6817, or a range.",
        )
    return port


def render_options(arguments: Sequence[str]) -> str:
    """Return a file that both systemd and a shell can read: one variable, whose arguments are quoted a second time."""
    quoted_arguments = " ".join(f"'{argument}'" if re.search(r"\s", argument) else argument for argument in arguments)
    return conf.render_file([f'SLURMD_OPTIONS="{quoted_arguments}"'])


def parse_definition(options: Optional[str]) -> Optional[str]:
    """Return the node's definition in such a file, or None."""
    match = re.search(r"--conf '([^']*)'", options or "") or re.search(r"--conf (\S+)\"", options or "")
    return match.group(1) if match else None


def required_reload(old_text: Optional[str], new_text: str) -> str:
    """Return what a running controller needs to apply the new slurm.conf: none, reconfigure or restart."""
    if old_text is None:
        return "restart"
    changed_settings = conf.changed_keys(old_text, new_text)
    if not changed_settings:
        return "none"
    return "restart" if RESTART_KEYS.intersection(changed_settings) else "reconfigure"


def _without_keys(settings: Mapping[str, Any], excluded_keys: Iterable[str]) -> Dict[str, Any]:
    names = {key.lower() for key in excluded_keys}
    return {key: value for key, value in settings.items() if key.lower() not in names}


def has_own_prolog(settings: Mapping[str, Any]) -> bool:
    """Whether the user's settings for slurm.conf contain a TaskProlog, or remove it."""
    return "taskprolog" in (key.lower() for key in settings)


def _check_name(variable: str, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", str(name)):
        raise InputError(f"{variable}: {name!r} is not a valid name.", "Use letters, digits, '.', '_' and '-'.")
    return str(name)

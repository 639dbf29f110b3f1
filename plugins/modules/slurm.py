#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm
short_description: Run Slurm on a member of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Writes the configuration of a configless Slurm cluster with dynamic nodes, and runs the daemons. Slurm's own parser must
    accept the files first. A daemon is restarted only if it has not read its current settings.
  - The controller serves C(slurm.conf), C(cgroup.conf) and C(gres.conf), which do not contain nodes. So a node can join or
    leave without a changed file or a restart on other hosts. Host-specific settings are in O(directory) below C(node).
  - Detects the cgroup version, the GPUs, the memory and the version of Slurm on the host.
  - On a host with gcc and the headers of its Slurm, from 24.11 on, compiles the Slurm plugin that sets the environment of jobs instead of
    O(task_prolog). It works in containers, too, where Slurm would look for that program inside. C(slurm_conf) with a
    C(TaskProlog) of its own disables both.
  - Set O(record). The other options are derived from it and from the options of the role P(gpumesh.cluster.slurm#role) in
    the variables of the host. This happens on the controller, which also installs missing packages.
  - "Reads these options of roles: C(session_enabled), C(slurm_accounting), C(slurm_accounts), C(slurm_cgroup),
    C(slurm_conf), C(slurm_dbd_conf), C(slurm_gres), C(slurm_health_check), C(slurm_health_check_interval),
    C(slurm_health_max_drained_percent), C(slurm_health_mount_timeout), C(slurm_health_prolog),
    C(slurm_health_rdma_rate_gbps), C(slurm_max_nodes), C(slurm_node_conf), C(slurm_nodesets), C(slurm_partitions),
    C(slurm_qos), C(slurm_rest), C(slurm_rest_address), C(slurm_rest_port)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.daemon
  - gpumesh.cluster.push
  - gpumesh.cluster.internal
attributes:
  idempotent:
    support: partial
    details:
      - With O(restart=true), every run restarts the controller.
options:
  state:
    description:
      - V(present) sets up the host as a node, with its health check, slurmd, and the daemon C(gpumesh-health), which
        runs the check when the kernel log reports a fault. The daemon is left out where the log cannot be read. If the
        node has to be deleted from the controller first, it stops before slurmd and returns RV(redefined).
      - V(configured) writes the configuration of the controller, V(stored) runs MariaDB, and V(served) runs slurmdbd,
        slurmctld and slurmrestd. These three are for the manager, in this order. With O(record), V(served) includes
        M(gpumesh.cluster.slurm_accounting), and M(gpumesh.cluster.slurm_accounts) with the options of the role.
      - V(absent) removes the configuration.
    type: str
    choices: [present, configured, stored, served, absent]
    default: present
  restart:
    description: Whether the controller has to be restarted, according to RV(reload).
    type: bool
    default: false
  registered:
    description: The names under which results with the version of Slurm on the manager have been registered. The first
      one that has it counts. The same for RV(rest_certificates) and RV(plugins_included).
    type: list
    elements: str
    default: []
  plugins_included:
    description: Whether the controller serves a C(plugstack.conf) that includes the file with plugins of each host. Only
      then is the plugin used that sets the environment of jobs instead of O(task_prolog). Null keeps the plugin on a host
      that has it in use.
    type: bool
  reregister:
    description: Whether the node was deleted from the controller, so that slurmd can register it again.
    type: bool
    default: false
  programs:
    description: The programs that the host needs.
    type: list
    elements: str
    default: []
  health_mount_timeout:
    description: The timeout in seconds for a volume to respond to the health check of the node.
    type: float
    default: 10
  health_rdma_rate_gbps:
    description: The rate in Gbit/s that RDMA ports of the fastest kind must have. V(0) only compares ports of the same
      kind.
    type: float
    default: 0
  health_max_drained_percent:
    description: The percentage of nodes that may be drained for the same fault.
    type: float
    default: 25
  keep_checks:
    description: Whether to keep the health check program if O(health_check) is empty.
    type: bool
    default: true
  controller_name:
    description: The machine of the controller, for messages.
    type: str
    default: ""
  controller_version:
    description: The version of Slurm on the machine of the controller. A node whose installed slurmd, or the one that
      would be installed, does not work with it is refused before anything changes. Empty means that it is not known.
    type: str
    default: ""
  controller_port:
    description: The port of the controller.
    type: int
    default: 6817
  token_key:
    description: The file with the key that signs the tokens of slurmrestd, which is created if missing. Empty for none.
    type: str
    default: ""
  files:
    description: Files to write, as entries for C(module_utils/_core/managed_files.py).
    type: list
    elements: dict
    default: []
  withdrawn:
    description: Files and directories of services that are no longer wanted.
    type: list
    elements: str
    default: []
  system_accounts:
    description: The system accounts that O(daemons) need, which are created if missing.
    type: list
    elements: str
    default: []
  certificate:
    description: The certificate that the proxy of slurmrestd makes for itself, and renews. Null for none.
    type: dict
    suboptions:
      folder:
        description: The directory of the certificate and its private key.
        type: path
        required: true
      cluster:
        description: The name of the cluster.
        type: str
        required: true
      service:
        description: The name of the service.
        type: str
        required: true
      machine:
        description: The name of the host.
        type: str
        required: true
      addresses:
        description: The addresses at which clients reach it.
        type: list
        elements: str
        required: true
  rest_certificates:
    description: The certificates that clients of the REST API have to trust, which are written to
      C(/etc/gpumesh/slurm-rest-ca.crt). An empty list removes that file, and null keeps it.
    type: list
    elements: str
  daemons:
    description: The daemons to run, in this order, with options of M(gpumesh.cluster.daemon).
    type: list
    elements: dict
    default: []
  cluster:
    description: The name of the cluster. Required for V(present) and V(configured).
    type: str
  controller:
    description: The address of the controller in the cluster. Required for V(present) and V(configured).
    type: str
  machine:
    description: The node name of this host. Required for V(present) and V(configured).
    type: str
  address:
    description: The address of this host in the cluster. Required for V(present) and V(configured).
    type: str
  serve:
    description: Whether this host runs the controller.
    type: bool
    default: false
  accounting:
    description: Whether the controller uses slurmdbd.
    type: bool
    default: true
  max_nodes:
    description: The maximum number of nodes.
    type: int
    default: 1024
  task_prolog:
    description:
      - A program that runs before each task of a job and can set its environment. Empty means none.
      - Slurm fails a task whose prolog is missing, so an empty program is installed if there is none.
    type: str
    default: ""
  health_check:
    description: A program that slurmd runs every O(health_check_interval) seconds, in any state of the node. Empty
      means none.
    type: str
    default: ""
  health_check_interval:
    description: The interval between two runs of O(health_check) in seconds.
    type: int
    default: 300
  prolog:
    description: A program that runs on each node before a job starts there. If it fails, the job is requeued.
    type: str
    default: ""
  epilog:
    description:
      - A program that runs on each node after a job has ended there. Empty means none.
      - Slurm drains a node whose epilog is missing, so an empty program is installed if there is none.
    type: str
    default: ""
  state_folder:
    description: The directory of the controller's state.
    type: path
    default: /var/lib/slurm/slurmctld
  spool_folder:
    description: The directory of slurmd's state.
    type: path
    default: /var/lib/slurm/slurmd
  log_folder:
    description: The directory of the log files.
    type: path
    default: /var/log/slurm
  settings:
    description:
      - Settings for C(slurm.conf). They take precedence over those of this module; null removes one.
      - C(SlurmctldParameters), C(DebugFlags) and C(SchedulerParameters) keep the words that this module needs, in
        addition to yours. null removes them as well, except C(enable_configless).
    type: dict
    default: {}
  partitions:
    description: The partitions by name, with their parameters.
    type: dict
    default: {cluster: {Nodes: ALL, Default: true, State: UP, MaxTime: INFINITE}}
  nodesets:
    description: Node sets by name, with their parameters, for C(Nodes) of a partition.
    type: dict
    default: {}
  cgroup:
    description: Settings for C(cgroup.conf). They take precedence over those of this module.
    type: dict
    default: {}
  gres:
    description:
      - The GRES of this host by name, such as C(gpu), each a mapping with parameters of C(gres.conf) or a list of
        mappings. C(gpu) replaces the detected GPUs; an empty list means that there are none.
    type: dict
    default: {}
  gres_types:
    description: The names of GRES of other members, which the controller has to know.
    type: list
    elements: str
    default: []
  keep_gres_types:
    description: Whether the controller keeps the names of GRES that it knows, since O(gres_types) may be incomplete.
    type: bool
    default: false
  plugins:
    description: The paths of SPANK plugins that slurmd and srun load, the same on all hosts. Missing ones are skipped.
    type: list
    elements: str
    default: []
  gpus:
    description:
      - The number of GPUs that this host should have. If fewer are found and O(gres) does not list them, the node still
        declares this number, and Slurm takes it out of service with a reason.
    type: int
    default: 0
  node:
    description: Node parameters of this host, such as C(Feature) and C(Weight). They take precedence over those of this
      module.
    type: dict
    default: {}
  directory:
    description: The directory of Slurm's configuration.
    type: path
    default: /etc/slurm
"""

EXAMPLES = r"""
- name: Run the node
  gpumesh.cluster.slurm:
    record: cluster_record
"""

RETURN = r"""
sessions:
  description: Whether the host has the plugin for sessions.
  type: bool
  returned: unless O(state=absent)
missing:
  description: The programs that have to be installed first, such as in check mode.
  type: list
  elements: str
  returned: unless O(state=absent)
reload:
  description: What a running controller needs to apply the changes, V(none), V(reconfigure) or V(restart).
  type: str
  returned: O(state=present) or O(state=configured)
node_changed:
  description: Whether slurmd has to be restarted.
  type: bool
  returned: O(state=present) or O(state=configured)
redefined:
  description: Whether the definition of the node has changed, so that it has to be deleted from the controller first.
  type: bool
  returned: O(state=present) or O(state=configured)
changed_files:
  description: The files that were written or removed.
  type: list
  elements: str
  returned: unless O(state=stored) or O(state=served)
leftover:
  description: Whether this host has the state of a controller although it does not run one, as a former manager.
  type: bool
  returned: O(state=present) or O(state=configured)
definition:
  description: The definition of the node.
  type: str
  returned: O(state=present) or O(state=configured)
  sample: NodeAddr=10.99.0.1 RealMemory=23622 Gres=gpu:2
cgroup:
  description: The cgroup version that Slurm uses on this host, C(v1), C(v2) or C(none), and why.
  type: dict
  returned: O(state=present) or O(state=configured)
  sample: {version: none, why: systemd does not run as PID 1}
slurm_version:
  description: The version of the installed Slurm. Null if it is not installed.
  type: str
  returned: O(state=present) or O(state=configured)
  sample: 24.11.5
validated:
  description: Whether the files were checked by Slurm's parser. They are not if Slurm is not installed, as in check mode.
  type: bool
  returned: O(state=present) or O(state=configured)
socket:
  description: The socket on which MariaDB listens.
  type: str
  returned: O(state=stored)
database:
  description: Whether the database has to be created, or an accounting has to be loaded into it, and MariaDB is
    available for this.
  type: bool
  returned: O(state=stored)
plugins_included:
  description: Whether the C(plugstack.conf) of the controller includes the file with plugins of each host.
  type: bool
  returned: O(state=present) and O(state=configured)
withdrawn:
  description: The existing files of services that are no longer wanted.
  type: list
  elements: str
  returned: O(state=served)
rest_certificates:
  description: The certificates that clients of the REST API have to trust, the current one and possibly the next one. Null
    if there is none yet.
  type: list
  elements: str
  returned: O(state=served)
outdated:
  description: The contents that the host needs. The action sends them.
  type: list
  elements: str
  returned: unless O(state=absent)
  sample: [gpumesh-node-health]
restarted:
  description: The daemons that were restarted, or would have been.
  type: list
  elements: str
  returned: unless O(state=absent)
"""

import os
import pwd
import secrets
import shlex
import shutil
import string
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import settings as health_settings
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import (
    managed_files,
    program_archive,
    push,
    server_certificate,
    service,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    remove_empty_directory,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import ensure_account
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange, ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kernel_log import can_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import (
    config,
    configure,
    job_plugin,
    release,
    rest,
    spank,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import (
    read_slurm_host,
    running_slurmd_options,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.term import ACCOUNTING_FILE, state_exists
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import PLUGIN_PATH

_DEFAULT_PATHS = service.ServicePaths()
_PROGRAM_DIRECTORIES = ("/usr/sbin", "/usr/bin")
_DATABASE_DIRECTORY = "/var/lib/mysql/slurm_acct_db"
#: Seconds until the controller must answer, and until a daemon must be ready.
_CONTROLLER_TIMEOUT = 30.0
_READY_TIMEOUT = 120.0
_KEY_LENGTH = 64
_KEY_CHARACTERS = string.ascii_letters + string.digits


def work(module: AnsibleModule) -> ModuleResult:
    """Apply the desired state of Slurm on this host."""
    params = module.params
    if params["state"] == "absent":
        config_plan = configure.plan_config(
            configure.read_managed_files(params["directory"]), None, False, params["directory"]
        )
        leftover_paths = _existing_paths(
            [rest.TRUST_PATH, rest.PROXY_DIRECTORY, rest.SOCKET_DIRECTORY, job_plugin.LIBRARY_PATH]
        )
        source_removal = spank.plan_removal(job_plugin.SOURCE_PATH)
        if not module.check_mode:
            configure.apply_config(params["directory"], config_plan)
            _remove_paths(leftover_paths)
            source_removal.apply()
            remove_empty_directory(os.path.dirname(rest.TRUST_PATH))
        values: Dict[str, Any] = {"changed_files": sorted(config_plan.changed_files)}
        return ModuleResult(
            bool(config_plan.changed_files or leftover_paths or source_removal.changed),
            values,
            config_plan.before,
            config_plan.after,
            params["directory"],
        )
    service_manager = service.service_manager(Tree())
    missing_programs = [
        name
        for name in params["programs"]
        if not any(os.path.lexists(f"{directory}/{name}") for directory in _PROGRAM_DIRECTORIES)
    ]
    if params["state"] != "configured" and service.supervisord_missing(service_manager):
        missing_programs.append("supervisor")
    if params["state"] == "present" and "slurmd" in missing_programs:
        _refuse_release(params, "would be", release.available_version(run))
    values = {"missing": missing_programs, "restarted": [], "outdated": [], "sessions": os.path.lexists(PLUGIN_PATH)}
    if missing_programs and not module.check_mode:
        return ModuleResult(False, values)
    if params["state"] in ("present", "configured"):
        planned_plugin = spank.plan_job_plugin(run, params, release.installed_version(run, "slurmd"))
        values["outdated"] = push.missing_contents([_plan_health_program(params), planned_plugin.change])
    if values["outdated"] and not module.check_mode:
        return ModuleResult(False, values)
    state_functions = {
        "present": _apply_node,
        "configured": _configure_controller,
        "stored": _apply_database,
        "served": _apply_services,
    }
    state_result = state_functions[params["state"]](module, service_manager, values)
    if not missing_programs:
        return state_result
    program_lines = "".join(f"{name}\n" for name in missing_programs)
    return ModuleResult(
        True,
        state_result.return_values,
        state_result.before,
        state_result.after + "## programs to install\n" + program_lines,
    )


# --- The configuration


def _configure_controller(module: AnsibleModule, _manager: str, values: Dict[str, Any]) -> ModuleResult:
    """Write the files of the controller, without the options of its own node, which follow with slurmd."""
    return _write_configuration(module, values, kept_files=[config.OPTIONS_FILE])


def _write_configuration(module: AnsibleModule, values: Dict[str, Any], kept_files: Sequence[str] = ()) -> ModuleResult:
    params, check_mode = module.params, module.check_mode
    directory = params["directory"]
    configure.refuse_foreign_config(directory, Tree())
    current_files = configure.read_managed_files(directory)
    slurm_host = read_slurm_host(run, Tree())
    if params["state"] == "present":
        _refuse_release(params, "is", slurm_host.version)
    config_request = config.SlurmRequest(
        **{field_name: params[field_name] for field_name in config.SlurmRequest._fields}
    )
    if params["keep_gres_types"]:
        known_types = config.parse_gres_types(current_files["slurm.conf"])
        config_request = config_request._replace(gres_types=[*config_request.gres_types, *known_types])
    running_arguments = running_slurmd_options(Tree(), params["machine"])
    planned_plugin = spank.plan_job_plugin(run, params, slurm_host.version)
    # A plugstack.conf of others without such a line is refused only if the user has chosen something that needs it.
    plugins_included = (
        not configure.has_foreign_plugins(current_files["plugstack.conf"], directory)
        if params["serve"]
        else _are_plugins_included(params, current_files)
    )
    desired_config = config.build_config_files(
        config_request,
        slurm_host,
        directory,
        config.parse_definition(current_files[config.OPTIONS_FILE]) or "",
        job_plugin.LIBRARY_PATH if planned_plugin.is_usable and plugins_included else "",
        include_plugins=plugins_included,
    )
    config_plan = configure.plan_config(
        current_files, desired_config, params["serve"], directory, running_arguments, kept_files
    )
    missing_directories = configure.find_missing_directories(required_directories(params))
    missing_hooks = configure.find_missing_programs([params["task_prolog"], params["epilog"]])
    health_change = _plan_health_program(params)
    values.update(
        definition=desired_config.definition,
        arguments=list(desired_config.arguments),
        cgroup={"version": slurm_host.cgroups.version, "why": slurm_host.cgroups.missing_reason},
        slurm_version=release.format_version(slurm_host.version) if slurm_host.version else None,
        validated=bool(config_plan.changed_files) and configure.validate_config(run, desired_config, directory),
        reload=config_plan.reload,
        node_changed=config_plan.node_changed,
        redefined=config_plan.node_redefined,
        leftover=not params["serve"] and state_exists(params["state_folder"]),
        changed_files=sorted(config_plan.changed_files),
        plugins_included=plugins_included,
    )
    if not check_mode:
        health_change.apply()
        planned_plugin.change.apply()
        configure.create_directories(missing_directories)
        configure.create_programs(missing_hooks)
        configure.apply_config(directory, config_plan)
    changed = bool(config_plan.changed_files or missing_directories or missing_hooks or health_change.changed)
    return ModuleResult(
        changed or planned_plugin.change.changed,
        values,
        health_change.before + planned_plugin.change.before + config_plan.before,
        health_change.after + planned_plugin.change.after + config_plan.after,
        directory,
    )


def _are_plugins_included(params: Mapping[str, Any], current_files: Mapping[str, Optional[str]]) -> bool:
    if params["plugins_included"] is None:
        return job_plugin.LIBRARY_PATH in (current_files[config.PLUGINS_FILE] or "")
    return bool(params["plugins_included"])


def _refuse_release(params: Mapping[str, Any], verb: str, slurmd_version: Optional[release.Version]) -> None:
    """Refuse a slurmd whose version does not work with the controller. Raises HostStateError."""
    release.refuse_incompatible(
        params["machine"], verb, slurmd_version, params["controller_name"], params["controller_version"]
    )


def _plan_health_program(params: Mapping[str, Any]) -> LayerChange:
    """Plan the program that checks the health of the node."""
    program_path = params["health_check"]
    if program_path:
        program_settings = health_settings.HealthSettings(
            params["cluster"],
            params["machine"],
            rdma_rate_gbps=params["health_rdma_rate_gbps"] or None,
            mount_timeout=params["health_mount_timeout"],
            max_drained_percent=params["health_max_drained_percent"],
        )
        return push.program_change(
            params,
            health_settings.PROGRAM_NAME,
            program_path,
            health_settings.ENTRY_MODULE,
            program_settings._asdict(),
        )
    if params["keep_checks"]:
        return LayerChange(False, "", "", lambda: None)
    return program_archive.zipapp_change(health_settings.PROGRAM_PATH, None)


def required_directories(params: Mapping[str, Any]) -> Dict[str, str]:
    """Return the directories that the daemons need, but do not create, with their owners."""
    owners_by_directory = {params["spool_folder"]: "root", params["log_folder"]: "slurm"}
    if params["serve"]:
        owners_by_directory[params["state_folder"]] = "slurm"
    return owners_by_directory


# --- The REST API


def _apply_node(module: AnsibleModule, service_manager: str, values: Dict[str, Any]) -> ModuleResult:
    """Write the certificates that clients of the REST API trust, and set up the node."""
    params = module.params
    certificates = params["rest_certificates"]
    file_steps = managed_files.ensure_files(
        [] if certificates is None else rest.trust_file_entries(certificates), module.check_mode
    )
    # A former manager does not keep the key of the REST API.
    leftover_paths = [] if params["serve"] else _existing_paths([rest.PROXY_DIRECTORY, rest.SOCKET_DIRECTORY])
    if not module.check_mode:
        _remove_paths(leftover_paths)
    diff_before, diff_after = managed_files.format_diff(file_steps)
    node_result = _run_node(module, service_manager, values)
    changed = node_result.changed or bool(file_steps or leftover_paths)
    return node_result._replace(
        changed=changed, before=diff_before + node_result.before, after=diff_after + node_result.after
    )


def _existing_paths(paths: Sequence[str]) -> List[str]:
    return [path for path in paths if os.path.lexists(path)]


def _remove_paths(paths: Sequence[str]) -> None:
    for path in paths:
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            remove_file(path)


# --- The daemons


def _run_node(module: AnsibleModule, service_manager: str, values: Dict[str, Any]) -> ModuleResult:
    """Write the configuration of the node, then run slurmd, and what watches the kernel log for its health check."""
    params = module.params
    config_result = _write_configuration(module, values)
    if values["missing"] or (values["redefined"] and not params["reregister"]):
        return config_result
    if values["node_changed"] and not module.check_mode:
        _refuse_unreachable_controller(params)
    # An earlier task of this run may have written the files.
    slurmd, *other_daemons = params["daemons"]
    slurmd_arguments = " ".join(map(shlex.quote, values["arguments"]))
    needs_restart = values["node_changed"] or params["reregister"]
    slurmd_state = "restarted" if needs_restart else "started"
    daemon_plans = _run_daemons(
        module,
        service_manager,
        [
            {**slurmd, "command": f"{slurmd['command']} {slurmd_arguments}", "state": slurmd_state},
            *map(_stop_blind_watcher, other_daemons),
        ],
        values,
    )
    diff_before, diff_after = _format_plans(daemon_plans)
    return ModuleResult(
        config_result.changed or any(daemon_plan.changed for daemon_plan in daemon_plans),
        values,
        config_result.before + diff_before,
        config_result.after + diff_after,
    )


def _stop_blind_watcher(daemon: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the desired watcher of the kernel log; none where the host cannot read that, as in most containers."""
    is_blind = daemon["name"] == health_settings.WATCH_DAEMON and not can_read(health_settings.WATCHED_LOG)
    return {"name": daemon["name"], "state": "absent"} if is_blind else daemon


def _refuse_unreachable_controller(params: Mapping[str, Any]) -> None:
    """Refuse to start slurmd if the controller does not answer. Raises HostStateError."""
    address, port, controller_name = params["controller"], params["controller_port"], params["controller_name"]
    try:
        service.wait_until_ready("slurmctld", service.ReadyCondition(address=address, port=port), _CONTROLLER_TIMEOUT)
    except HostStateError as failure:
        raise HostStateError(
            f"The controller on {controller_name} does not answer at {address}:{port} (TCP).",
            f"See the firewalls between them, and 'systemctl status slurmctld' on {controller_name}.",
        ) from failure


def _apply_database(module: AnsibleModule, service_manager: str, values: Dict[str, Any]) -> ModuleResult:
    """Run MariaDB, and report whether the database has to be created or loaded."""
    is_debian = os.path.exists("/etc/debian_version")
    socket_path = "/run/mysqld/mysqld.sock" if is_debian else "/var/lib/mysql/mysql.sock"
    database_exists = os.path.exists(_DATABASE_DIRECTORY)
    accounting_loaded = not os.path.lexists(os.path.join(module.params["state_folder"], ACCOUNTING_FILE))
    # MariaDB may not run yet in check mode, and cannot be queried then.
    values.update(
        socket=socket_path,
        database=not (database_exists and accounting_loaded) and (database_exists or not module.check_mode),
    )
    mariadb_daemon = {
        "name": "mariadb",
        "command": "/usr/sbin/mariadbd --user=mysql",
        "user": "mysql",
        "directories": ["/run/mysqld"],
        "ready_path": socket_path,
    }
    daemon_plans = [] if values["missing"] else _run_daemons(module, service_manager, [mariadb_daemon], values)
    changed = any(daemon_plan.changed for daemon_plan in daemon_plans) or (module.check_mode and not database_exists)
    return ModuleResult(changed, values, *_format_plans(daemon_plans))


def _apply_services(module: AnsibleModule, service_manager: str, values: Dict[str, Any]) -> ModuleResult:
    """Write the token key and the configuration of slurmdbd, and run the daemons that read them."""
    params, check_mode = module.params, module.check_mode
    values.update(withdrawn=_existing_paths(params["withdrawn"]), rest_certificates=None)
    if values["missing"]:
        return ModuleResult(True, values)
    lacks_key = bool(params["token_key"]) and not os.path.lexists(params["token_key"])
    if lacks_key and not check_mode:
        slurm_account = pwd.getpwnam("slurm")
        token_key = "".join(secrets.choice(_KEY_CHARACTERS) for _number in range(_KEY_LENGTH))
        write_atomic(params["token_key"], token_key, mode=0o400, owner=(slurm_account.pw_uid, slurm_account.pw_gid))
    certificate_changed = _renew_certificate(params["certificate"], values, check_mode)
    missing_accounts = [account_name for account_name in params["system_accounts"] if not _account_exists(account_name)]
    for account_name in () if check_mode else missing_accounts:
        ensure_account(run, account_name)
    file_steps = managed_files.ensure_files(params["files"], check_mode)
    diff_before, diff_after = managed_files.format_diff(file_steps)
    daemon_plans = _run_daemons(module, service_manager, params["daemons"], values)
    daemons_diff = _format_plans(daemon_plans)
    changed = (
        lacks_key
        or certificate_changed
        or bool(missing_accounts or file_steps)
        or any(daemon_plan.changed for daemon_plan in daemon_plans)
    )
    return ModuleResult(changed, values, diff_before + daemons_diff[0], diff_after + daemons_diff[1])


def _renew_certificate(identity_options: Optional[Mapping[str, Any]], values: Dict[str, Any], check_mode: bool) -> bool:
    """Create or renew the certificate of the REST API. Returns whether anything changed."""
    if identity_options is None:
        values["rest_certificates"] = []
        return False
    identity = server_certificate.CertificateIdentity(**identity_options)
    certificates_before = server_certificate.usable_certificates(run, identity)
    certificates_after = certificates_before if check_mode else server_certificate.ensure_certificate(run, identity)
    values["rest_certificates"] = certificates_after or None
    return certificates_after != certificates_before or not certificates_after


def _account_exists(account_name: str) -> bool:
    try:
        pwd.getpwnam(account_name)
    except KeyError:
        return False
    return True


def _run_daemons(
    module: AnsibleModule, service_manager: str, daemon_options: Sequence[Mapping[str, Any]], values: Dict[str, Any]
) -> List[service.DaemonPlan]:
    """Start the daemons one after the other, and wait until each is ready."""
    params = module.params
    service_paths = service.ServicePaths.from_params(params)
    daemon_plans = []
    for daemon_option in daemon_options:
        desired_daemon = service.Daemon(
            **{
                field_name: daemon_option[field_name]
                for field_name in service.Daemon._fields
                if field_name in daemon_option
            }
        )
        readiness = service.ReadyCondition(
            daemon_option.get("ready_path"), daemon_option.get("ready_address"), daemon_option.get("ready_port")
        )
        daemon_plan = service.ensure_daemon(
            run, service_manager, desired_daemon, service_paths, readiness, _READY_TIMEOUT, module.check_mode
        )
        values["restarted"] += [desired_daemon.name] if daemon_plan.restarts_daemon else []
        daemon_plans.append(daemon_plan)
    return daemon_plans


def _format_plans(daemon_plans: Sequence[service.DaemonPlan]) -> Tuple[str, str]:
    changed_plans = [plan for plan in daemon_plans if plan.before != plan.after]
    return (
        "".join(f"## {plan.settings_path}\n{plan.before}" for plan in changed_plans),
        "".join(f"## {plan.settings_path}\n{plan.after}" for plan in changed_plans),
    )


def main() -> None:
    """The module's entry point."""
    default_partitions = {"cluster": {"Nodes": "ALL", "Default": True, "State": "UP", "MaxTime": "INFINITE"}}
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "state": {
                "type": "str",
                "choices": ["present", "configured", "stored", "served", "absent"],
                "default": "present",
            },
            "restart": {"type": "bool", "default": False},
            "registered": {"type": "list", "elements": "str", "default": []},
            "plugins_included": {"type": "bool"},
            "reregister": {"type": "bool", "default": False},
            "programs": {"type": "list", "elements": "str", "default": []},
            "health_mount_timeout": {"type": "float", "default": 10},
            "health_rdma_rate_gbps": {"type": "float", "default": 0},
            "health_max_drained_percent": {"type": "float", "default": 25},
            "keep_checks": {"type": "bool", "default": True},
            "controller_name": {"type": "str", "default": ""},
            "controller_version": {"type": "str", "default": ""},
            "controller_port": {"type": "int", "default": 6817},
            "token_key": {"type": "str", "default": "", "no_log": False},
            "files": {"type": "list", "elements": "dict", "default": []},
            "withdrawn": {"type": "list", "elements": "str", "default": []},
            "system_accounts": {"type": "list", "elements": "str", "default": []},
            "certificate": {
                "type": "dict",
                "options": {
                    "folder": {"type": "path", "required": True},
                    "cluster": {"type": "str", "required": True},
                    "service": {"type": "str", "required": True},
                    "machine": {"type": "str", "required": True},
                    "addresses": {"type": "list", "elements": "str", "required": True},
                },
            },
            "rest_certificates": {"type": "list", "elements": "str"},
            "daemons": {"type": "list", "elements": "dict", "default": []},
            "supervisor_config": {"type": "path", "default": _DEFAULT_PATHS.supervisor_config},
            "supervisor_programs": {"type": "path", "default": _DEFAULT_PATHS.supervisor_programs},
            "cluster": {"type": "str"},
            "controller": {"type": "str"},
            "machine": {"type": "str"},
            "address": {"type": "str"},
            "serve": {"type": "bool", "default": False},
            "accounting": {"type": "bool", "default": True},
            "max_nodes": {"type": "int", "default": 1024},
            "task_prolog": {"type": "str", "default": ""},
            "health_check": {"type": "str", "default": ""},
            **push.PUSH_OPTIONS,
            "health_check_interval": {"type": "int", "default": 300},
            "prolog": {"type": "str", "default": ""},
            "epilog": {"type": "str", "default": ""},
            "state_folder": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
            "spool_folder": {"type": "path", "default": "/var/lib/slurm/slurmd"},
            "log_folder": {"type": "path", "default": "/var/log/slurm"},
            "settings": {"type": "dict", "default": {}},
            "partitions": {"type": "dict", "default": default_partitions},
            "nodesets": {"type": "dict", "default": {}},
            "cgroup": {"type": "dict", "default": {}},
            "gres": {"type": "dict", "default": {}},
            "gres_types": {"type": "list", "elements": "str", "default": []},
            "keep_gres_types": {"type": "bool", "default": False},
            "plugins": {"type": "list", "elements": "str", "default": []},
            "gpus": {"type": "int", "default": 0},
            "node": {"type": "dict", "default": {}},
            "directory": {"type": "path", "default": configure.CONFIG_DIRECTORY},
        },
        required_if=[
            ("state", "present", ("cluster", "controller", "machine", "address")),
            ("state", "configured", ("cluster", "controller", "machine", "address")),
        ],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), host_name=module.params["machine"])


if __name__ == "__main__":
    main()

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module slurm does on a host: the configuration, the controller's services and the node."""

from __future__ import annotations

import os
import pwd
import secrets
import shlex
import shutil
import string
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import settings as health_settings
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
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange, ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kernel_log import can_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import (
    config,
    configure,
    database,
    job_plugin,
    release,
    rest,
    spank,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import (
    read_slurm_host,
    running_slurmd_options,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.state import STATE_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.term import ACCOUNTING_FILE, state_exists
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import PLUGIN_PATH

_DEFAULT_PATHS = service.ServicePaths()
_PROGRAM_DIRECTORIES = ("/usr/sbin", "/usr/bin")
#: Seconds until the controller must answer, and until a daemon must be ready.
_CONTROLLER_TIMEOUT = 30.0
_READY_TIMEOUT = 120.0
_KEY_LENGTH = 64
_KEY_CHARACTERS = string.ascii_letters + string.digits
_DEFAULT_PARTITIONS = {"cluster": {"Nodes": "ALL", "Default": True, "State": "UP", "MaxTime": "INFINITE"}}

#: The options of the module, without those that its action reads.
OPTIONS: Mapping[str, Any] = {
    "state": {
        "type": "str",
        "choices": ["present", "configured", "stored", "served", "absent"],
        "default": "present",
    },
    "restart": {"type": "bool", "default": False},
    "slurm_node": {"type": "bool", "default": True},
    "plugins_included": {"type": "bool"},
    "job_plugin": {"type": "bool", "default": True},
    "install_compiler": {"type": "bool", "default": True},
    "manager_plugin": {
        "type": "dict",
        "options": {"stamp": {"type": "str", "required": True}, "source_digest": {"type": "str", "required": True}},
    },
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
    "state_folder": {"type": "path", "default": STATE_DIRECTORY},
    "spool_folder": {"type": "path", "default": "/var/lib/slurm/slurmd"},
    "log_folder": {"type": "path", "default": "/var/log/slurm"},
    "settings": {"type": "dict", "default": {}},
    "partitions": {"type": "dict", "default": _DEFAULT_PARTITIONS},
    "nodesets": {"type": "dict", "default": {}},
    "cgroup": {"type": "dict", "default": {}},
    "gres": {"type": "dict", "default": {}},
    "gres_types": {"type": "list", "elements": "str", "default": []},
    "keep_gres_types": {"type": "bool", "default": False},
    "plugins": {"type": "list", "elements": "str", "default": []},
    "gpus": {"type": "int", "default": 0},
    "node": {"type": "dict", "default": {}},
    "directory": {"type": "path", "default": configure.CONFIG_DIRECTORY},
}


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Apply the desired state of Slurm on this host."""
    if params["state"] == "absent":
        config_plan = configure.plan_config(
            configure.read_managed_files(params["directory"]), None, False, params["directory"]
        )
        leftover_paths = _existing_paths(
            [rest.TRUST_PATH, rest.PROXY_DIRECTORY, rest.SOCKET_DIRECTORY, job_plugin.LIBRARY_PATH]
        )
        source_removal = spank.plan_removal(job_plugin.SOURCE_PATH)
        if not check_mode:
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
    planned_plugin = spank.JobPlugin()
    writes_config = params["state"] in ("present", "configured")
    if writes_config:
        planned_plugin = _plan_job_plugin(params)
        missing_programs += planned_plugin.missing_requirements
        if params["state"] == "present" and "slurmd" in missing_programs:
            _refuse_release(params, "would be", release.available_version(run))
    values = {"missing": missing_programs, "restarted": [], "outdated": [], "sessions": os.path.lexists(PLUGIN_PATH)}
    if missing_programs and not check_mode:
        return ModuleResult(False, values)
    if writes_config:
        values["outdated"] = push.missing_contents([_plan_health_program(params), *planned_plugin.changes])
    if values["outdated"] and not check_mode:
        return ModuleResult(False, values)
    state_functions: Dict[str, Callable[..., ModuleResult]] = {
        "present": partial(_apply_node, planned_plugin),
        "configured": partial(_configure_controller, planned_plugin),
        "stored": _apply_database,
        "served": _apply_services,
    }
    state_result = state_functions[params["state"]](params, check_mode, service_manager, values)
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


def _configure_controller(
    planned_plugin: spank.JobPlugin,
    params: Mapping[str, Any],
    check_mode: bool,
    _manager: str,
    values: Dict[str, Any],
) -> ModuleResult:
    """Write the files of the controller, without the options of its own node, which follow with slurmd."""
    config_result = _write_configuration(planned_plugin, params, check_mode, values, [config.OPTIONS_FILE])
    values["job_plugin"] = spank.predict_built(planned_plugin, params) if check_mode else spank.read_built()
    return config_result


def _write_configuration(
    planned_plugin: spank.JobPlugin,
    params: Mapping[str, Any],
    check_mode: bool,
    values: Dict[str, Any],
    kept_files: Sequence[str] = (),
) -> ModuleResult:
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
    # A plugstack.conf of others without such a line is refused only if the user has chosen something that needs it.
    has_foreign_plugins = configure.has_foreign_plugins(current_files["plugstack.conf"], directory)
    plugins_included = _are_plugins_included(params, current_files)
    desired_config = config.build_config_files(
        config_request,
        slurm_host,
        directory,
        config.parse_definition(current_files[config.OPTIONS_FILE]) or "",
        job_plugin.LIBRARY_PATH if planned_plugin.fits(slurm_host.version) else "",
        include_plugins=plugins_included and not has_foreign_plugins,
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
        slurm_node=params["slurm_node"],
        leftover=not params["serve"] and state_exists(params["state_folder"]),
        changed_files=sorted(config_plan.changed_files),
        plugins_included=plugins_included,
    )
    plugin_before, plugin_after = (
        "".join(texts) for texts in zip(("", ""), *((change.before, change.after) for change in planned_plugin.changes))
    )
    if not check_mode:
        health_change.apply()
        for plugin_change in planned_plugin.changes:
            plugin_change.apply()
        configure.create_directories(missing_directories)
        configure.create_programs(missing_hooks)
        configure.apply_config(directory, config_plan)
    is_redefined = params["state"] == "present" and config_plan.node_redefined
    changed = is_redefined or bool(
        config_plan.changed_files
        or missing_directories
        or missing_hooks
        or health_change.changed
        or any(plugin_change.changed for plugin_change in planned_plugin.changes)
    )
    missing_lines = "".join(f"{path}\n" for path in (*(path for path, _owner in missing_directories), *missing_hooks))
    return ModuleResult(
        changed,
        values,
        health_change.before + plugin_before + config_plan.before,
        missing_lines + health_change.after + plugin_after + config_plan.after,
        directory,
        [_describe_foreign_plugins(directory)]
        if params["serve"] and params["job_plugin"] and has_foreign_plugins
        else [],
    )


def _describe_foreign_plugins(directory: str) -> str:
    return (
        f"{directory}/plugstack.conf was not written by this collection, and does not include "
        f"{directory}/{config.PLUGINS_FILE} of each node, so a TaskProlog sets the environment of jobs, and steps in "
        f"containers fail. Add the line 'include {directory}/plugstack.conf.d/*.conf', or set slurm_job_plugin: false."
    )


def _are_plugins_included(params: Mapping[str, Any], current_files: Mapping[str, Optional[str]]) -> bool:
    """Whether the controller lets each host have plugins of its own. A host keeps what it has if that is not known."""
    directory, plugstack_text = params["directory"], current_files["plugstack.conf"]
    if params["serve"]:
        return not configure.has_foreign_plugins(plugstack_text, directory)
    if params["plugins_included"] is not None:
        return bool(params["plugins_included"])
    if not params["slurm_node"]:
        return configure.includes_plugins(plugstack_text, directory)
    return job_plugin.LIBRARY_PATH in (current_files[config.PLUGINS_FILE] or "")


def _plan_job_plugin(params: Mapping[str, Any]) -> spank.JobPlugin:
    """Plan the plugin that sets the environment of jobs, unless nothing would load it."""
    current_files = configure.read_managed_files(params["directory"])
    if config.has_own_prolog(params["settings"]) or not _are_plugins_included(params, current_files):
        return spank.JobPlugin()
    installed_version = release.installed_version(run, "slurmctld" if params["serve"] else "slurmd")
    return spank.plan_job_plugin(run, params, installed_version)


def _refuse_release(params: Mapping[str, Any], verb: str, slurmd_version: Optional[release.Version]) -> None:
    """Refuse a slurmd whose version does not work with the controller. Raises HostStateError."""
    release.refuse_incompatible(
        params["machine"], verb, slurmd_version, params["controller_name"], params["controller_version"]
    )


def _plan_health_program(params: Mapping[str, Any]) -> LayerChange:
    """Plan the program that checks the health of the node."""
    program_path = params["health_check"]
    if not params["slurm_node"]:
        # As long as slurmd runs, it needs the program.
        return LayerChange(False, "", "", lambda: None)
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


def find_pending(params: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Describe what a run has to do besides what the module does, or an empty string. ``values``: those of its result."""
    if values.get("leftover"):
        return "the queue of a former manager is here"
    if values.get("withdrawn"):
        return f"services are here that are no longer wanted: {', '.join(values['withdrawn'])}"
    if params["state"] == "present" and values.get("sessions") and not params["plugins"]:
        return "the plugin of sessions is here"
    return ""


def required_directories(params: Mapping[str, Any]) -> Dict[str, str]:
    """Return the directories that the daemons need, but do not create, with their owners."""
    owners_by_directory = {params["log_folder"]: "slurm"}
    if params["slurm_node"]:
        owners_by_directory[params["spool_folder"]] = "root"
    if params["serve"]:
        owners_by_directory[params["state_folder"]] = "slurm"
    return owners_by_directory


# --- The REST API


def _apply_node(
    planned_plugin: spank.JobPlugin,
    params: Mapping[str, Any],
    check_mode: bool,
    service_manager: str,
    values: Dict[str, Any],
) -> ModuleResult:
    """Write the certificates that clients of the REST API trust, and set up the node."""
    certificates = params["rest_certificates"]
    file_steps = managed_files.ensure_files(
        [] if certificates is None else rest.trust_file_entries(certificates), check_mode
    )
    # A former manager does not keep the key of the REST API.
    leftover_paths = [] if params["serve"] else _existing_paths([rest.PROXY_DIRECTORY, rest.SOCKET_DIRECTORY])
    if not check_mode:
        _remove_paths(leftover_paths)
    diff_before, diff_after = managed_files.format_diff(file_steps)
    node_result = _run_node(planned_plugin, params, check_mode, service_manager, values)
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


def _run_node(
    planned_plugin: spank.JobPlugin,
    params: Mapping[str, Any],
    check_mode: bool,
    service_manager: str,
    values: Dict[str, Any],
) -> ModuleResult:
    """Write the configuration of the node, then run slurmd, and what watches the kernel log for its health check."""
    config_result = _write_configuration(
        planned_plugin, params, check_mode, values, [] if params["slurm_node"] else [config.OPTIONS_FILE]
    )
    if values["missing"] or (values["redefined"] and not params["reregister"]):
        return config_result
    if not params["slurm_node"]:
        return _withdraw_node(params, check_mode, service_manager, values, config_result)
    if values["node_changed"] and not check_mode:
        _refuse_unreachable_controller(params)
    # An earlier task of this run may have written the files.
    slurmd, *other_daemons = params["daemons"]
    slurmd_arguments = " ".join(map(shlex.quote, values["arguments"]))
    needs_restart = values["node_changed"] or params["reregister"]
    slurmd_state = "restarted" if needs_restart else "started"
    daemon_plans = _run_daemons(
        params,
        check_mode,
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


def _withdraw_node(
    params: Mapping[str, Any],
    check_mode: bool,
    service_manager: str,
    values: Dict[str, Any],
    config_result: ModuleResult,
) -> ModuleResult:
    """Stop slurmd and what belongs to it, and remove their files: this host runs no jobs.

    The options of slurmd are removed last, since they show that there was a node.
    """
    daemon_plans = _run_daemons(params, check_mode, service_manager, params["daemons"], values)
    program_removal = program_archive.zipapp_change(params["health_check"] or health_settings.PROGRAM_PATH, None)
    options_path = os.path.join(params["directory"], config.OPTIONS_FILE)
    spool_entries = os.listdir(params["spool_folder"]) if os.path.isdir(params["spool_folder"]) else []
    # The directory itself belongs to a package.
    leftover_paths = _existing_paths(
        [*(os.path.join(params["spool_folder"], name) for name in sorted(spool_entries)), options_path]
    )
    if not check_mode:
        program_removal.apply()
        _remove_paths(leftover_paths)
    diff_before, diff_after = _format_plans(daemon_plans)
    changed = config_result.changed or program_removal.changed or bool(leftover_paths)
    return config_result._replace(
        changed=changed or any(daemon_plan.changed for daemon_plan in daemon_plans),
        before=config_result.before + diff_before + program_removal.before,
        after=config_result.after + diff_after + program_removal.after,
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


def _apply_database(
    params: Mapping[str, Any], check_mode: bool, service_manager: str, values: Dict[str, Any]
) -> ModuleResult:
    """Run MariaDB, and report whether the database has to be created or loaded."""
    is_debian = os.path.exists("/etc/debian_version")
    socket_path = "/run/mysqld/mysqld.sock" if is_debian else "/var/lib/mysql/mysql.sock"
    database_exists = os.path.exists(database.DATABASE_DIRECTORY)
    accounting_loaded = not os.path.lexists(os.path.join(params["state_folder"], ACCOUNTING_FILE))
    mariadb_daemon = {
        "name": "mariadb",
        "command": "/usr/sbin/mariadbd --user=mysql",
        "user": "mysql",
        "directories": ["/run/mysqld"],
        "ready_path": socket_path,
    }
    daemon_plans = (
        [] if values["missing"] else _run_daemons(params, check_mode, service_manager, [mariadb_daemon], values)
    )
    slurmdbd_database = database.AccountingDatabase(database.DATABASE_NAME, socket_path, "slurm")
    lacks_rights = database_exists and not values["missing"] and database.account_lacks_rights(run, slurmdbd_database)
    is_complete = database_exists and accounting_loaded and not lacks_rights
    # MariaDB may not run yet in check mode, and cannot be queried then.
    values.update(socket=socket_path, database=not is_complete and (database_exists or not check_mode))
    changed = any(daemon_plan.changed for daemon_plan in daemon_plans) or (check_mode and not is_complete)
    return ModuleResult(changed, values, *_format_plans(daemon_plans))


def _apply_services(
    params: Mapping[str, Any], check_mode: bool, service_manager: str, values: Dict[str, Any]
) -> ModuleResult:
    """Write the token key and the configuration of slurmdbd, and run the daemons that read them."""
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
    daemon_plans = _run_daemons(params, check_mode, service_manager, params["daemons"], values)
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
    params: Mapping[str, Any],
    check_mode: bool,
    service_manager: str,
    daemon_options: Sequence[Mapping[str, Any]],
    values: Dict[str, Any],
) -> List[service.DaemonPlan]:
    """Start the daemons one after the other, and wait until each is ready."""
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
            run, service_manager, desired_daemon, service_paths, readiness, _READY_TIMEOUT, check_mode
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

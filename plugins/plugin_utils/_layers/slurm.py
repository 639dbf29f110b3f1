# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired Slurm setup of a member, from the record and the options of the role. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import settings as health_settings
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import decode_content
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.server_certificate import (
    CertificateIdentity,
    current_pair,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import quote_unit_argument
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import (
    conf,
    config,
    job_plugin,
    rest,
    spank,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.database import DATABASE_NAME
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.state import STATE_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import PLUGIN_PATH
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import (
    ProgramSources,
    bundle_program,
    read_role_file,
    source_digests,
)

#: The options of the role that a host needs.
HOST_OPTIONS = (
    "session_enabled",
    "slurm_accounting",
    "slurm_rest",
    "slurm_rest_address",
    "slurm_rest_port",
    "slurm_max_nodes",
    "slurm_job_plugin",
    "slurm_conf",
    "slurm_cgroup",
    "slurm_dbd_conf",
    "slurm_gres",
    "slurm_node_conf",
    "slurm_partitions",
    "slurm_nodesets",
    "slurm_health_check",
    "slurm_health_check_interval",
    "slurm_health_mount_timeout",
    "slurm_health_rdma_rate_gbps",
    "slurm_health_max_drained_percent",
    "slurm_health_prolog",
)
DATABASE_PROGRAMS = ("mariadbd",)
#: The programs of each part, and below, their packages by package manager. Only the Debian packages have been tested.
_PROGRAMS_BY_PART = {
    "node": ["slurmd"],
    "controller": ["slurmctld"],
    "accounting": ["slurmdbd", *DATABASE_PROGRAMS],
    "rest": ["slurmrestd"],
    "rest_proxy": ["stunnel", "openssl"],
    "job_plugin": ["gcc", *spank.REQUIRED_HEADERS],
}
_DEBIAN_PACKAGES = {
    "node": ["slurmd", "slurm-client"],
    "controller": ["slurmctld"],
    "accounting": ["slurmdbd", "mariadb-server", "python3-pymysql"],
    "rest": ["slurmrestd", "slurm-wlm-jwt-plugin"],
    "rest_proxy": ["stunnel4", "openssl"],
    "job_plugin": ["gcc", "libc6-dev", "libslurm-dev"],
}
#: The services that the manager runs only if an option is set.
_OPTION_BY_PART = {"accounting": "slurm_accounting", "rest": "slurm_rest"}
_RPM_PACKAGES = {
    "node": ["slurm-slurmd", "slurm"],
    "controller": ["slurm-slurmctld"],
    "accounting": ["slurm-slurmdbd", "mariadb-server", "python3-PyMySQL"],
    "rest": ["slurm-slurmrestd"],
    "rest_proxy": ["stunnel", "openssl"],
    "job_plugin": ["gcc", "glibc-devel", "slurm-devel"],
}
#: Programs of the layer job_environment. Settings in slurm_conf take precedence.
_TASK_PROLOG, _EPILOG = "/etc/gpumesh/task_prolog", "/etc/gpumesh/job_epilog"
#: The key that signs the tokens. The file is beside the queue, so that tokens remain valid when the manager changes.
TOKEN_KEY = f"{STATE_DIRECTORY}/jwt_hs256.key"
DBD_CONFIG_PATH = "/etc/slurm/slurmdbd.conf"
_NODE_FILES = [f"/etc/slurm/{name}" for name in (config.OPTIONS_FILE, *config.NODE_FILES)]
#: A unit that waits for the mesh, the controller or the database after a boot must keep trying.
_RESTART_SETTINGS = ["Restart=on-failure", "RestartSec=5"]
#: The sandbox of a daemon to which strangers can connect.
_SANDBOX_SETTINGS = ["NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes"]
#: What a daemon cannot do that sees the same files as slurmd.
_CONFINED_SETTINGS = [
    "NoNewPrivileges=yes",
    "LimitCORE=0",
    "LockPersonality=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "UMask=0077",
]
#: Running programs have loaded the libraries listed there, and keep them.
_PRELOAD_PATH = "/etc/ld.so.preload"


def packages_for_programs(programs: Sequence[str], package_manager: str) -> list[str]:
    """Return the packages for programs that are missing on a host.

    ``package_manager``: the module that installs them.
    """
    packages_by_part = _DEBIAN_PACKAGES if package_manager == "apt" else _RPM_PACKAGES
    needed_parts = [part for part, part_programs in _PROGRAMS_BY_PART.items() if set(part_programs) & set(programs)]
    other_programs = [
        program
        for program in programs
        if not any(program in part_programs for part_programs in _PROGRAMS_BY_PART.values())
    ]
    return [*(name for part in needed_parts for name in packages_by_part[part]), *other_programs]


def refuse_too_many_nodes(record: model.Record, userspace_only: Collection[str], options: Mapping[str, Any]) -> None:
    """Refuse more nodes than the controller accepts: it would ignore the last ones. Raises InputError."""
    node_names = [machine for machine in membership.slurm_nodes(record) if machine not in userspace_only]
    if "maxnodecount" in (key.lower() for key in options["slurm_conf"]):
        # The user's own setting takes precedence.
        return
    if len(node_names) > options["slurm_max_nodes"]:
        raise InputError(
            f"Cluster '{record['name']}' has {len(node_names)} nodes, and slurm_max_nodes is {options['slurm_max_nodes']}.",
            "Increase slurm_max_nodes.",
        )


@cache
def health_program_sources() -> ProgramSources:
    """The sources of the program that checks the health of a node, without its settings."""
    return {health_settings.PROGRAM_NAME: bundle_program(health_settings.ENTRY_MODULE)}


@cache
def job_plugin_sources() -> ProgramSources:
    """The source of the plugin that sets the environment of jobs."""
    return {job_plugin.SOURCE_NAME: read_role_file("job_environment", job_plugin.SOURCE_NAME)}


def pushed_sources(manager_library: str = "") -> ProgramSources:
    """All contents for which the module slurm may ask. ``manager_library``: that of the manager's plugin, encoded."""
    libraries = {job_plugin.LIBRARY_NAME: decode_content(manager_library)} if manager_library else {}
    return {**health_program_sources(), **job_plugin_sources(), **libraries}


def configuration_parameters(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the module that writes the configuration.

    Raises InputError for a machine that is not a member.
    """
    membership.find_member(record, machine)
    member_views = derive.member_views(record)
    is_controller = machine == record["manager"]
    health_check = options["slurm_health_check"]
    slurm_node = member_views[machine]["slurm_node"]
    return {
        "cluster": record["name"],
        "controller": member_views[record["manager"]]["address"],
        "machine": machine,
        "address": member_views[machine]["address"],
        "serve": is_controller,
        "slurm_node": slurm_node,
        "programs": required_programs(options, is_controller),
        "accounting": options["slurm_accounting"],
        "max_nodes": options["slurm_max_nodes"],
        "task_prolog": _TASK_PROLOG,
        "health_check": health_check,
        "digests": source_digests(
            {**(health_program_sources() if health_check and slurm_node else {}), **job_plugin_sources()}
        ),
        "job_plugin": options["slurm_job_plugin"],
        "health_check_interval": options["slurm_health_check_interval"],
        "health_mount_timeout": options["slurm_health_mount_timeout"],
        "health_rdma_rate_gbps": options["slurm_health_rdma_rate_gbps"],
        "health_max_drained_percent": options["slurm_health_max_drained_percent"],
        "prolog": health_check if options["slurm_health_prolog"] else "",
        "epilog": _EPILOG,
        "settings": {**_token_settings(options), **options["slurm_conf"]},
        "partitions": options["slurm_partitions"],
        "nodesets": options["slurm_nodesets"],
        "cgroup": options["slurm_cgroup"],
        "gres": options["slurm_gres"],
        "gpus": member_views[machine]["gpus"],
        "plugins": [PLUGIN_PATH] if options["session_enabled"] else [],
        "node": options["slurm_node_conf"],
    }


def gres_types(record: model.Record, gres_by_machine: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters with the GRES names that the controller needs, in addition to those of its own host.

    ``gres_by_machine``: slurm_gres. A controller keeps the names that it has if a member is missing there, such as in
    a slice of the inventory.
    """
    members = [member["machine"] for member in record["members"]]
    type_names = {str(name).lower() for machine in members for name in gres_by_machine.get(machine, {})}
    return {
        "gres_types": sorted(type_names),
        "keep_gres_types": any(machine not in gres_by_machine for machine in members),
    }


def node_parameters(
    record: model.Record,
    machine: str,
    options: Mapping[str, Any],
    reregister: bool,
    keep_checks: bool,
    controller_version: str = "",
    rest_certificates: Sequence[str] | None = None,
    plugins_included: bool | None = None,
    manager_plugin: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The parameters for a node, or for a member that runs no jobs.

    ``reregister``: the controller no longer has the node. ``keep_checks``: the controller may still run the health
    program on nodes. ``controller_version``: empty if it is not known. ``rest_certificates``: None if it is not known.
    ``plugins_included``: whether the controller lets each host have plugins of its own. ``manager_plugin``: the manager's
    plugin for jobs, if it has one. Both are None if that is not known.
    """
    manager = record["manager"]
    parameters = configuration_parameters(record, machine, options)
    return {
        **parameters,
        "reregister": reregister,
        "keep_checks": keep_checks,
        "controller_name": manager,
        "controller_version": controller_version,
        "rest_certificates": rest_certificates,
        "plugins_included": plugins_included,
        "manager_plugin": {name: manager_plugin[name] for name in ("stamp", "source_digest")}
        if manager_plugin
        else None,
        "controller_port": _first_port("slurm_conf", options["slurm_conf"], "SlurmctldPort", "6817"),
        "daemons": _node_daemons(record, machine, options["slurm_health_check"])
        if parameters["slurm_node"]
        # The watcher of the kernel log comes first: it must not drain a node that is deleted.
        else [{"name": name, "state": "absent"} for name in (health_settings.WATCH_DAEMON, "slurmd")],
    }


def _node_daemons(record: model.Record, machine: str, health_check: str) -> list[dict[str, Any]]:
    return [
        {
            "name": "slurmd",
            "command": "/usr/sbin/slurmd -D",
            "reads": [*_NODE_FILES, *([_PRELOAD_PATH] if derive.is_pod(record, machine) else [])],
            "drop_in": _render_drop_in(
                ["ConditionPathExists=", "StartLimitIntervalSec=0", *_order_after_mesh(record)],
                ["EnvironmentFile=", "EnvironmentFile=/etc/slurm/node/slurmd.env"],
            ),
        },
        _health_daemon(health_check),
    ]


def _health_daemon(program_path: str) -> dict[str, Any]:
    """The daemon that watches the kernel log, and runs the health program when that tells of a fault.

    The node's checks need what they need when slurmd runs them: the volumes, all file systems, and programs of the
    drivers. So the daemon keeps its rights to files.
    """
    if not program_path:
        return {"name": health_settings.WATCH_DAEMON, "state": "absent"}
    unit_lines = [
        "[Unit]",
        "Description=Watch the kernel log of this node of a gpumesh cluster for faults",
        "After=slurmd.service",
        "StartLimitIntervalSec=0",
        "[Service]",
        f"ExecStart={quote_unit_argument(program_path)} {health_settings.WATCH_OPTION}",
        *_RESTART_SETTINGS,
        *_CONFINED_SETTINGS,
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return {
        "name": health_settings.WATCH_DAEMON,
        "command": f"{shlex.quote(program_path)} {health_settings.WATCH_OPTION}",
        "reads": [program_path],
        "unit": "\n".join(unit_lines) + "\n",
    }


def controller_parameters(record: model.Record, options: Mapping[str, Any], restart: bool) -> dict[str, Any]:
    """Return the parameters for the controller and its daemons. ``restart``: it cannot apply its settings otherwise."""
    controller_address = derive.member_views(record)[record["manager"]]["address"]
    mesh_ordering = _order_after_mesh(record)
    daemons: list[dict[str, Any]] = []
    if options["slurm_accounting"]:
        daemons.append(
            {
                "name": "slurmdbd",
                "command": "prlimit --core=0 /usr/sbin/slurmdbd -D",
                "user": "slurm",
                "directories": ["/run/slurmdbd"],
                "reads": [DBD_CONFIG_PATH],
                "ready_address": controller_address,
                "ready_port": _first_port("slurm_dbd_conf", options["slurm_dbd_conf"], "DbdPort", "6819"),
                "drop_in": _render_drop_in(mesh_ordering, ["LimitCORE=0"]),
            }
        )
    # The controller's memory contains the key of the tokens and the scripts of jobs, which must not be written to disk
    # in a core dump.
    daemons.append(
        {
            "name": "slurmctld",
            "state": "restarted" if restart else "started",
            "command": "prlimit --core=0 /usr/sbin/slurmctld -D",
            "user": "slurm",
            "directories": ["/run/slurmctld"],
            "reads": [f"/etc/slurm/{name}" for name in (*config.SERVED_FILES, config.NODE_FILES[0])],
            # The command passes the settings to the nodes. From 23.11 on, the controller restarts itself on it.
            "reload": ["scontrol", "reconfigure"],
            "ready_address": controller_address,
            "ready_port": _first_port("slurm_conf", options["slurm_conf"], "SlurmctldPort", "6817"),
            "drop_in": _render_drop_in(
                ["StartLimitIntervalSec=0", "After=slurmdbd.service", *mesh_ordering], ["LimitCORE=0"]
            ),
        }
    )
    if options["slurm_rest"]:
        daemons.append(_rest_daemon(mesh_ordering))
    has_proxy = is_proxied(options)
    if has_proxy:
        daemons.append(_rest_proxy(mesh_ordering, options))
    dbd_config = conf.render_file(
        conf.render_settings(
            conf.merge_settings(
                {**_dbd_settings(controller_address), **_token_settings(options)}, options["slurm_dbd_conf"]
            )
        )
    )
    return {
        "programs": required_programs(options, True),
        "token_key": TOKEN_KEY if options["slurm_rest"] else "",
        "system_accounts": [
            *([rest.REST_ACCOUNT] if options["slurm_rest"] else []),
            *([rest.PROXY_ACCOUNT] if has_proxy else []),
        ],
        "certificate": _rest_certificate_identity(record, options, controller_address)._asdict() if has_proxy else None,
        "files": [
            *(
                [{"path": DBD_CONFIG_PATH, "content": dbd_config, "owner": "slurm", "group": "slurm", "mode": "0600"}]
                if options["slurm_accounting"]
                else []
            ),
            *(
                [
                    {
                        "path": rest.PROXY_CONFIG_PATH,
                        "content": rest.render_proxy_config(options["slurm_rest_address"], options["slurm_rest_port"]),
                    }
                ]
                if has_proxy
                else []
            ),
        ],
        "withdrawn": [
            *([] if has_proxy else [rest.PROXY_DIRECTORY]),
            *([] if options["slurm_rest"] else [TOKEN_KEY]),
            *([] if options["slurm_accounting"] else [DBD_CONFIG_PATH]),
        ],
        "daemons": daemons,
    }


def is_proxied(options: Mapping[str, Any]) -> bool:
    """Whether clients reach the REST API through the proxy with TLS."""
    return bool(options["slurm_rest"] and options["slurm_rest_address"])


def _rest_daemon(mesh_ordering: Sequence[str]) -> dict[str, Any]:
    """slurmrestd, which must not run as root or as Slurm's own account."""
    command = f"/usr/sbin/slurmrestd -a rest_auth/jwt unix:{rest.SOCKET_PATH}"
    return {
        "name": rest.REST_DAEMON,
        "command": command,
        "user": rest.REST_ACCOUNT,
        "directories": [rest.SOCKET_DIRECTORY],
        # By default, slurmrestd unshares what its threads share, for which a container may lack the right.
        "environment": {"SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": "disable_unshare_files,disable_unshare_sysv"},
        "reads": ["/etc/slurm/slurm.conf"],
        "ready_path": rest.SOCKET_PATH,
        "drop_in": _render_drop_in(
            ["StartLimitIntervalSec=0", *mesh_ordering],
            [
                f"User={rest.REST_ACCOUNT}",
                f"Group={rest.REST_ACCOUNT}",
                f"RuntimeDirectory={rest.SOCKET_DIRECTORY.rpartition('/')[2]}",
                *_SANDBOX_SETTINGS,
                "Environment=SLURM_JWT=daemon",
                # The variable would add listeners with plain HTTP.
                "UnsetEnvironment=SLURMRESTD_LISTEN",
                "ExecStart=",
                f"ExecStart={command}",
            ],
        ),
    }


def _rest_proxy(mesh_ordering: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The proxy with TLS in front of slurmrestd. Its memory contains its private key."""
    command = f"/usr/bin/stunnel {rest.PROXY_CONFIG_PATH}"
    return {
        "name": rest.PROXY_SERVICE,
        "command": f"prlimit --core=0 {command}",
        "reads": [rest.PROXY_CONFIG_PATH, *current_pair(rest.PROXY_DIRECTORY)],
        "ready_address": options["slurm_rest_address"],
        "ready_port": options["slurm_rest_port"],
        "drop_in": _render_drop_in(
            ["StartLimitIntervalSec=0", f"After={rest.REST_DAEMON}.service", *mesh_ordering],
            [
                "CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_NET_BIND_SERVICE",
                *_SANDBOX_SETTINGS,
                "LimitCORE=0",
                "ExecStart=",
                f"ExecStart={command}",
            ],
        ),
    }


def _rest_certificate_identity(
    record: model.Record, options: Mapping[str, Any], cluster_address: str
) -> CertificateIdentity:
    """Return the identity that the proxy's certificate is for."""
    proxy_addresses = rest.client_addresses(options["slurm_rest_address"], cluster_address)
    return CertificateIdentity(
        rest.PROXY_DIRECTORY, record["name"], "Slurm REST API", record["manager"], proxy_addresses
    )


def required_programs(options: Mapping[str, Any], is_controller: bool) -> list[str]:
    """Return the programs that a node needs, and with ``is_controller`` those of the manager.

    ``options``: slurm_accounting, slurm_rest and slurm_rest_address.
    """
    needed_parts = ["node", *(["controller"] if is_controller else [])]
    needed_parts += [part for part, option_name in _OPTION_BY_PART.items() if is_controller and options[option_name]]
    needed_parts += ["rest_proxy"] if is_controller and is_proxied(options) else []
    return [program for part in needed_parts for program in _PROGRAMS_BY_PART[part]]


def program_path(program: str) -> str:
    """Return the path of a program once its package is installed."""
    return f"/usr/{'bin' if program in _PROGRAMS_BY_PART['rest_proxy'] else 'sbin'}/{program}"


def _first_port(variable_name: str, config_settings: Mapping[str, Any], setting_name: str, default_port: str) -> int:
    return int(config.parse_first_port(variable_name, config_settings, setting_name, default_port))


def _token_settings(options: Mapping[str, Any]) -> dict[str, str]:
    return {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={TOKEN_KEY}"} if options["slurm_rest"] else {}


def _dbd_settings(controller_address: str) -> dict[str, str]:
    """Return the settings of slurmdbd.

    It logs in as its own account through the socket, so there is no password to store.
    """
    return {
        "AuthType": "auth/munge",
        "SlurmUser": "slurm",
        "DbdHost": "localhost",
        "DbdAddr": controller_address,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StorageLoc": DATABASE_NAME,
        "LogFile": "/var/log/slurm/slurmdbd.log",
        "PidFile": "/run/slurmdbd/slurmdbd.pid",
    }


def _order_after_mesh(record: model.Record) -> list[str]:
    """Return the lines that order a unit after the tunnel: the cluster's addresses exist only while it is up."""
    mesh_unit = derive.mesh_unit(record)
    return [f"After={mesh_unit}", f"Wants={mesh_unit}"] if mesh_unit else []


def _render_drop_in(unit_lines: Sequence[str], service_lines: Sequence[str]) -> str:
    return "\n".join(["[Unit]", *unit_lines, "[Service]", *service_lines, *_RESTART_SETTINGS]) + "\n"

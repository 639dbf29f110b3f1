# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired Slurm setup of a member, from the record and the options of the role. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible.module_utils.common.validation import check_type_dict

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.own_certificate import Identity, own
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import conf, config, rest

#: The options of the role, without its prefix, that a host needs.
OPTIONS = (
    "accounting",
    "rest",
    "rest_address",
    "rest_port",
    "max_nodes",
    "conf",
    "cgroup",
    "dbd_conf",
    "gres",
    "node_conf",
    "partitions",
    "nodesets",
    "task_prolog",
    "epilog",
    "health_check",
    "health_check_interval",
    "health_mount_timeout",
    "health_rdma_rate_gbps",
    "health_max_drained_percent",
    "health_prolog",
)
#: The programs of each part, and their packages by the module that installs them. Packages of other systems than Debian
#: have not been tested.
_PROGRAMS = {
    "node": ["slurmd"],
    "controller": ["slurmctld"],
    "accounting": ["slurmdbd", "mariadbd"],
    "rest": ["slurmrestd"],
    "rest_proxy": ["stunnel", "openssl"],
}
_DEBIAN = {
    "node": ["slurmd", "slurm-client"],
    "controller": ["slurmctld"],
    "accounting": ["slurmdbd", "mariadb-server", "python3-pymysql"],
    "rest": ["slurmrestd", "slurm-wlm-jwt-plugin"],
    "rest_proxy": ["stunnel4", "openssl"],
}
_OTHERS = {
    "node": ["slurm-slurmd", "slurm"],
    "controller": ["slurm-slurmctld"],
    "accounting": ["slurm-slurmdbd", "mariadb-server", "python3-PyMySQL"],
    "rest": ["slurm-slurmrestd"],
    "rest_proxy": ["stunnel", "openssl"],
}
DATABASE = "slurm_acct_db"
DATABASE_FOLDER = f"/var/lib/mysql/{DATABASE}"
STATE_FOLDER = "/var/lib/slurm/slurmctld"
#: The key that signs the tokens. It is beside the queue, so that tokens remain valid when the manager changes.
TOKEN_KEY = f"{STATE_FOLDER}/jwt_hs256.key"
DBD_FILE = "/etc/slurm/slurmdbd.conf"
_NODE_FILES = [f"/etc/slurm/{name}" for name in (config.OPTIONS, *config.NODE)]
#: Not a mapping, and so not a value of slurm_gres.
_UNKNOWN = object()
#: A unit that waits for the mesh, the controller or the database after a boot must keep trying.
_RESTART = ["Restart=on-failure", "RestartSec=5"]
#: What a daemon that strangers can talk to gets from systemd.
_CONFINED = ["NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes"]
#: Running programs have loaded the libraries listed there, and keep them.
_PRELOAD = "/etc/ld.so.preload"


def packages(programs: Sequence[str], manager: str) -> list[str]:
    """The packages for programs that are missing on a host. ``manager``: the module that installs them."""
    names = _DEBIAN if manager == "apt" else _OTHERS
    parts = [part for part, needed in _PROGRAMS.items() if set(needed) & set(programs)]
    others = [program for program in programs if not any(program in needed for needed in _PROGRAMS.values())]
    return [*(name for part in parts for name in names[part]), *others]


def refuse_too_many(record: model.Record, userspace_only: Collection[str], options: Mapping[str, Any]) -> None:
    """Raise InputError if the members are more nodes than the controller accepts: it would ignore the last ones."""
    nodes = [member["machine"] for member in record["members"] if member["machine"] not in userspace_only]
    if "maxnodecount" in (key.lower() for key in options["conf"]):
        # The user's own setting takes precedence.
        return
    if len(nodes) > options["max_nodes"]:
        raise InputError(
            f"Cluster '{record['name']}' has {len(nodes)} nodes, and slurm_max_nodes is {options['max_nodes']}.",
            "Increase slurm_max_nodes.",
        )


def configured(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the module that writes the configuration.

    Raises InputError for a machine that is not a member.
    """
    derive.member_of(record, machine)
    views = derive.member_views(record)
    serve = machine == record["manager"]
    check = options["health_check"]
    return {
        "cluster": record["name"],
        "controller": views[record["manager"]]["address"],
        "machine": machine,
        "address": views[machine]["address"],
        "serve": serve,
        "programs": programs(options, serve),
        "accounting": options["accounting"],
        "max_nodes": options["max_nodes"],
        "task_prolog": options["task_prolog"],
        "health_check": check,
        "health_check_interval": options["health_check_interval"],
        "health_mount_timeout": options["health_mount_timeout"],
        "health_rdma_rate_gbps": options["health_rdma_rate_gbps"],
        "health_max_drained_percent": options["health_max_drained_percent"],
        "prolog": check if options["health_prolog"] else "",
        "epilog": options["epilog"],
        "settings": {**_token_settings(options), **options["conf"]},
        "partitions": options["partitions"],
        "nodesets": options["nodesets"],
        "cgroup": options["cgroup"],
        "gres": options["gres"],
        "gpus": views[machine]["gpus"],
        "plugins": options.get("plugins", []),
        "node": options["node_conf"],
    }


def gres_types(record: model.Record, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the names of GRES that the controller has to know, in addition to those of its own host.

    ``given``: slurm_gres by machine, None if it is not set. A controller keeps the names that it has if a member is
    missing there, such as in a slice of the inventory, or has a value that cannot be read.
    """
    names: set[str] = set()
    keep = False
    for machine in (member["machine"] for member in record["members"]):
        value = given.get(machine, _UNKNOWN)
        try:
            names.update(str(name).lower() for name in check_type_dict({} if value in (None, "") else value))
        except TypeError:
            keep = True
    return {"gres_types": sorted(names), "keep_gres_types": keep}


def node(
    record: model.Record,
    machine: str,
    options: Mapping[str, Any],
    forgotten: bool,
    keep_checks: bool,
    controller_version: str = "",
    rest_certificates: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The parameters for a node.

    ``forgotten``: the controller no longer has the node. ``keep_checks``: the controller may still run the health
    program on nodes. ``controller_version``: empty if it is not known. ``rest_certificates``: None if it is not known.
    """
    manager = record["manager"]
    parameters = configured(record, machine, options)
    return {
        **parameters,
        "forgotten": forgotten,
        "keep_checks": keep_checks,
        "controller_name": manager,
        "controller_version": controller_version,
        "rest_certificates": rest_certificates,
        "controller_port": _port("slurm_conf", options["conf"], "SlurmctldPort", "6817"),
        "daemons": [
            {
                "name": "slurmd",
                "command": "/usr/sbin/slurmd -D",
                "reads": [*_NODE_FILES, *([_PRELOAD] if derive.is_pod(record, machine) else [])],
                "drop_in": _drop_in(
                    ["ConditionPathExists=", "StartLimitIntervalSec=0", *_after(record)],
                    ["EnvironmentFile=", "EnvironmentFile=/etc/slurm/node/slurmd.env"],
                ),
            }
        ],
    }


def served(record: model.Record, options: Mapping[str, Any], restart: bool) -> dict[str, Any]:
    """The parameters for the controller and its daemons. ``restart``: it cannot apply its settings otherwise."""
    address = derive.member_views(record)[record["manager"]]["address"]
    after = _after(record)
    daemons: list[dict[str, Any]] = []
    if options["accounting"]:
        daemons.append(
            {
                "name": "slurmdbd",
                "command": "prlimit --core=0 /usr/sbin/slurmdbd -D",
                "user": "slurm",
                "directories": ["/run/slurmdbd"],
                "reads": [DBD_FILE],
                "ready_address": address,
                "ready_port": _port("slurm_dbd_conf", options["dbd_conf"], "DbdPort", "6819"),
                "drop_in": _drop_in(after, ["LimitCORE=0"]),
            }
        )
    # Its memory contains the key of the tokens and the scripts of jobs, which must not be written to disk in a core
    # dump.
    daemons.append(
        {
            "name": "slurmctld",
            "state": "restarted" if restart else "started",
            "command": "prlimit --core=0 /usr/sbin/slurmctld -D",
            "user": "slurm",
            "directories": ["/run/slurmctld"],
            "reads": [f"/etc/slurm/{name}" for name in (*config.SERVED, config.NODE[0])],
            # It passes the settings to the nodes. From 23.11 on, the controller restarts itself on this command.
            "reload": ["scontrol", "reconfigure"],
            "ready_address": address,
            "ready_port": _port("slurm_conf", options["conf"], "SlurmctldPort", "6817"),
            "drop_in": _drop_in(["StartLimitIntervalSec=0", "After=slurmdbd.service", *after], ["LimitCORE=0"]),
        }
    )
    if options["rest"]:
        daemons.append(_rest_daemon(after))
    proxied = _is_proxied(options)
    if proxied:
        daemons.append(_rest_proxy(after, options))
    dbd = conf.text_of(
        conf.render(conf.merge({**_dbd_settings(address), **_token_settings(options)}, options["dbd_conf"]))
    )
    return {
        "programs": programs(options, True),
        "token_key": TOKEN_KEY if options["rest"] else "",
        "system_accounts": [
            *([rest.ACCOUNT] if options["rest"] else []),
            *([rest.PROXY_ACCOUNT] if proxied else []),
        ],
        "certificate": _rest_identity(record, options, address)._asdict() if proxied else None,
        "files": [
            *(
                [{"path": DBD_FILE, "content": dbd, "owner": "slurm", "group": "slurm", "mode": "0600"}]
                if options["accounting"]
                else []
            ),
            *(
                [{"path": rest.CONFIG, "content": rest.proxy_config(options["rest_address"], options["rest_port"])}]
                if proxied
                else []
            ),
        ],
        "withdrawn": [
            *([] if proxied else [rest.FOLDER]),
            *([] if options["rest"] else [TOKEN_KEY]),
            *([] if options["accounting"] else [DBD_FILE]),
        ],
        "daemons": daemons,
    }


def _is_proxied(options: Mapping[str, Any]) -> bool:
    return bool(options["rest"] and options["rest_address"])


def _rest_daemon(after: Sequence[str]) -> dict[str, Any]:
    """slurmrestd, which must not run as root or as Slurm's own account."""
    command = f"/usr/sbin/slurmrestd -a rest_auth/jwt unix:{rest.SOCKET}"
    return {
        "name": rest.DAEMON,
        "command": command,
        "user": rest.ACCOUNT,
        "directories": [rest.SOCKET_FOLDER],
        # It separates what its threads share from other processes, for which a container may lack the right.
        "environment": {"SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": "disable_unshare_files,disable_unshare_sysv"},
        "reads": ["/etc/slurm/slurm.conf"],
        "ready_path": rest.SOCKET,
        "drop_in": _drop_in(
            ["StartLimitIntervalSec=0", *after],
            [
                f"User={rest.ACCOUNT}",
                f"Group={rest.ACCOUNT}",
                f"RuntimeDirectory={rest.SOCKET_FOLDER.rpartition('/')[2]}",
                *_CONFINED,
                "Environment=SLURM_JWT=daemon",
                # It would add listeners, with plain HTTP.
                "UnsetEnvironment=SLURMRESTD_LISTEN",
                "ExecStart=",
                f"ExecStart={command}",
            ],
        ),
    }


def _rest_proxy(after: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The proxy with TLS in front of slurmrestd. Its memory contains its private key."""
    command = f"/usr/bin/stunnel {rest.CONFIG}"
    return {
        "name": rest.PROXY,
        "command": f"prlimit --core=0 {command}",
        "reads": [rest.CONFIG, *own(rest.FOLDER)],
        "ready_address": options["rest_address"],
        "ready_port": options["rest_port"],
        "drop_in": _drop_in(
            ["StartLimitIntervalSec=0", f"After={rest.DAEMON}.service", *after],
            [
                "CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_NET_BIND_SERVICE",
                *_CONFINED,
                "LimitCORE=0",
                "ExecStart=",
                f"ExecStart={command}",
            ],
        ),
    }


def _rest_identity(record: model.Record, options: Mapping[str, Any], cluster_address: str) -> Identity:
    """For whom the proxy's certificate is."""
    addresses = rest.reached_at(options["rest_address"], cluster_address)
    return Identity(rest.FOLDER, record["name"], "Slurm REST API", record["manager"], addresses)


def programs(options: Mapping[str, Any], serve: bool) -> list[str]:
    """The programs that a node needs, and with ``serve`` the manager. ``options``: accounting, rest and rest_address."""
    parts = ["node", *(["controller"] if serve else [])]
    parts += [part for part in ("accounting", "rest") if serve and options[part]]
    parts += ["rest_proxy"] if serve and _is_proxied(options) else []
    return [program for part in parts for program in _PROGRAMS[part]]


def program_path(program: str) -> str:
    """Where a program is once its package is installed."""
    return f"/usr/{'bin' if program in _PROGRAMS['rest_proxy'] else 'sbin'}/{program}"


def _port(variable: str, settings: Mapping[str, Any], name: str, standard: str) -> int:
    return int(config.first_port(variable, settings, name, standard))


def _token_settings(options: Mapping[str, Any]) -> dict[str, str]:
    return {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={TOKEN_KEY}"} if options["rest"] else {}


def _dbd_settings(address: str) -> dict[str, str]:
    """slurmdbd logs in as its own account through the socket, so there is no password to store."""
    return {
        "AuthType": "auth/munge",
        "SlurmUser": "slurm",
        "DbdHost": "localhost",
        "DbdAddr": address,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StorageLoc": DATABASE,
        "LogFile": "/var/log/slurm/slurmdbd.log",
        "PidFile": "/run/slurmdbd/slurmdbd.pid",
    }


def _after(record: model.Record) -> list[str]:
    """The cluster's addresses exist only while the tunnel is up."""
    unit = derive.mesh_unit(record)
    return [f"After={unit}", f"Wants={unit}"] if unit else []


def _drop_in(unit: Sequence[str], service: Sequence[str]) -> str:
    return "\n".join(["[Unit]", *unit, "[Service]", *service, *_RESTART]) + "\n"

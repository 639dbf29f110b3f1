# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster's tracking server, from its record, and its users from a file.

Pure, except for reading the requirements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import (
    OPTIONAL,
    Layer,
    Options,
    Ports,
    never_repeated,
)

_REQUIREMENTS_PATH = Path(__file__).resolve().parents[3] / "roles" / "tracking" / "files" / "requirements.txt"
#: The options of the role that change the record.
SETTING_OPTIONS = (
    "tracking_state",
    "tracking_server",
    "tracking_port",
    "tracking_volume",
    "tracking_tls",
    "tracking_certificate_file",
)
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")
#: MLflow accepts no shorter password.
_MIN_PASSWORD_LENGTH = 12


def desired_parameters(
    record: model.Record,
    machine: str,
    uid: int = settings.DEFAULT_UID,
    unconfined: bool = False,
    makes_certificate: bool = False,
) -> dict[str, Any]:
    """Return the parameters of the module tracking on one machine; only the cluster if no experiments are tracked.

    ``makes_certificate``: the server is to make its certificate itself, which the record does not have yet.
    """
    tracking = record.get("tracking")
    if tracking is None:
        return {"cluster": record["name"]}
    is_server = tracking["server"] == machine
    (mount_point,) = (
        volume["mount_point"] for volume in record["storage"]["volumes"] if volume["name"] == tracking["volume"]
    )
    return {
        "cluster": record["name"],
        "machine": tracking["server"],
        "serves": is_server,
        "address": server_address(record, tracking),
        "port": tracking["port"],
        "tls": tracking["tls"],
        "own_certificate": makes_certificate or bool(tracking["certificates"]),
        "trust": "".join(tracking["certificates"]) or None,
        "mount_point": mount_point,
        "uid": uid,
        "unconfined": unconfined,
        "requirements": _REQUIREMENTS_PATH.read_text(encoding="utf-8") if is_server else "",
    }


def server_address(record: model.Record, tracking: model.TrackingSettings) -> str:
    """The address on which the server listens."""
    return membership.cluster_address(record, membership.find_member(record, tracking["server"]))


def tracking_uri(record: model.Record, tracking: model.TrackingSettings) -> str:
    """Return the URL of the server for members.

    It contains the server's address, or the name in a certificate that the user has provided.
    """
    if tracking["tls"] and not tracking["certificates"]:
        return f"https://{tracking['server']}:{tracking['port']}"
    server_host, scheme = server_address(record, tracking), "https" if tracking["tls"] else "http"
    return f"{scheme}://{f'[{server_host}]' if ':' in server_host else server_host}:{tracking['port']}"


def job_variables(record: model.Record) -> dict[str, str]:
    """The variables of each job; empty if experiments are not tracked. The record's generation is one of its tags."""
    tracking = record.get("tracking")
    if tracking is None:
        return {}
    certificate_variables = (
        {"MLFLOW_TRACKING_SERVER_CERT_PATH": settings.trust_path(record["name"])} if tracking["tls"] else {}
    )
    return {
        "MLFLOW_TRACKING_URI": tracking_uri(record, tracking),
        "GPUMESH_GENERATION": str(record["generation"]),
        **certificate_variables,
    }


def parse_users(text: str, users_path: str) -> list[dict[str, Any]]:
    """Parse the users in a file with lines NAME:PASSWORD.

    An empty password means that the user is removed. Raises InputError. The message is shown, so it never contains a
    password.
    """
    users: list[dict[str, Any]] = []
    for line_number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        user_name, separator, password = line.partition(":")
        line_location = f"tracking_users_file: line {line_number} of {users_path}"
        if not separator or not _USER_NAME.fullmatch(user_name):
            raise InputError(
                f"{line_location} is not NAME:PASSWORD.", "Names have letters, digits, '.', '_', '@' and '-'."
            )
        if user_name == settings.CHECKER_NAME:
            raise InputError(f"{line_location}: '{user_name}' is the account of the check.", "Choose another name.")
        if any(user["name"] == user_name for user in users):
            raise InputError(f"{line_location}: '{user_name}' is listed twice.", "List each user once.")
        if password and len(password) < _MIN_PASSWORD_LENGTH:
            raise InputError(
                f"{line_location}: the password of '{user_name}' is too short.",
                f"MLflow takes {_MIN_PASSWORD_LENGTH} characters or more.",
            )
        users.append(
            {"name": user_name, "password": password or None, "administrator": user_name == settings.ADMINISTRATOR_NAME}
        )
    return users


def refuse_server(server: str, record: model.Record) -> None:
    """Refuse a server that would not be among the members, before anything is changed. Raises InputError."""
    member_machines = [member["machine"] for member in record["members"]]
    if server and server not in member_machines:
        raise InputError(
            f"tracking_server '{server}' is not among the members of '{record['name']}'.",
            f"Choose one of its members: {', '.join(member_machines)}.",
            candidates=member_machines,
        )


def changed_settings(record: model.Record, options: Mapping[str, Any], start: bool = False) -> dict[str, Any] | None:
    """Return the parameters with which the module cluster updates the record; None if it is up to date.

    ``options``: those of SETTING_OPTIONS; ``start``: tracking is requested even if no server is. Raises InputError.
    """
    current_tracking = record["tracking"]
    if options["tracking_state"] == "absent":
        return None if current_tracking is None else {"enabled": False}
    if current_tracking is None and not (start or options["tracking_server"]):
        return None
    requested_settings = {
        name: options[option_name]
        for name, option_name in (
            ("server", "tracking_server"),
            ("port", "tracking_port"),
            ("volume", "tracking_volume"),
        )
        if options[option_name]
    }
    if options["tracking_certificate_file"]:
        if options["tracking_tls"] is False:
            raise InputError(
                "tracking_tls is false, and tracking_certificate_file is set.", "Set one of them, or tracking_tls=true."
            )
        requested_settings.update(tls=True, certificates=[])
    elif options["tracking_tls"] is not None or current_tracking is None:
        requested_settings["tls"] = options["tracking_tls"] is not False
    current_settings: Mapping[str, Any] = current_tracking or {}
    return (
        requested_settings
        if current_tracking is None
        or any(current_settings[name] != value for name, value in requested_settings.items())
        else None
    )


def makes_own_certificate(record: model.Record, options: Mapping[str, Any], start: bool = False) -> bool:
    """Whether the server makes its certificate itself: with TLS, unless one is provided, or was before."""
    current_tracking = record["tracking"]
    if (
        options["tracking_state"] == "absent"
        or options["tracking_certificate_file"]
        or options["tracking_tls"] is False
    ):
        return False
    if current_tracking is None:
        return bool(start or options["tracking_server"])
    return bool(current_tracking["certificates"]) or (options["tracking_tls"] is True and not current_tracking["tls"])


def with_certificates(
    record: model.Record, requested_settings: Mapping[str, Any] | None, server_certificates: list[str] | None
) -> dict[str, Any] | None:
    """Add the certificates that the server has now to the parameters of ``changed_settings``.

    ``server_certificates``: None if nothing is known.
    """
    current_tracking = record["tracking"]
    recorded_certificates = current_tracking["certificates"] if current_tracking else []
    if server_certificates is None or server_certificates == recorded_certificates:
        return None if requested_settings is None else dict(requested_settings)
    return {**(requested_settings or {}), "certificates": server_certificates}


def refuse_failed(result_by_machine: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to change the record if a task has failed on one of the hosts. Raises InputError."""
    for machine, result in result_by_machine.items():
        if result.get("failed"):
            raise InputError(
                f"{machine}: {result.get('msg', 'It failed.')}",
                "The cluster record was not changed. Correct this, and run the playbook tracking again.",
            )


def was_enabled(record: model.Record) -> bool:
    """Whether tracking is switched off after it was on, so that a member may still have the server.

    That member may have been away then. Switching tracking on was a change of its own.
    """
    return record["tracking"] is None and any(entry["change"] == "tracking" for entry in record["history"])


def find_moved_server(
    record: model.Record,
    former_server: str,
    preview_by_machine: Mapping[str, Mapping[str, Any]],
    allow_loss: bool = False,
) -> str:
    """Return the member whose database moves to the server of a changed record; empty if it stays, or if there is none.

    ``former_server``: the server until now, empty for none. ``preview_by_machine``: the results of the module tracking
    in check mode on the hosts that take part. With ``allow_loss``, a lost server need not take part. Raises InputError.
    """
    if record["tracking"] is None:
        if former_server and not allow_loss and former_server not in preview_by_machine:
            raise InputError(
                f"Tracking cannot be switched off: its server {former_server} cannot be reached, or is not in this run, and "
                "would keep running.",
                "Run this when it is up. With cluster_force=true, it is removed from the record, and from the machine "
                "by a later run of tracking or site.",
                machines=[former_server],
            )
        return ""
    server = record["tracking"]["server"]
    needed_machines = dict.fromkeys([server, former_server] if former_server and not allow_loss else [server])
    unreachable_machines = [machine for machine in needed_machines if machine not in preview_by_machine]
    if unreachable_machines:
        raise InputError(
            f"The tracking server cannot be moved: {', '.join(unreachable_machines)} cannot be reached, or "
            f"{'are' if unreachable_machines[1:] else 'is'} not in this run.",
            "With cluster_force=true, it moves without the database of a server that is lost; see the guide for how to "
            "restore it from a backup.",
            machines=unreachable_machines,
        )
    # An older PostgreSQL would refuse the database only after the former server has been stopped.
    new_version, former_version = (
        str(preview_by_machine.get(machine, {}).get("postgresql", "")) for machine in (server, former_server)
    )
    if new_version and former_version and _major_version(new_version) < _major_version(former_version):
        raise InputError(
            f"{server} has PostgreSQL {new_version}, which cannot load the database of {former_server}, since that has PostgreSQL "
            f"{former_version}.",
            f"Choose a tracking_server with PostgreSQL {former_version} or newer.",
            machine=server,
        )
    return former_server if former_server != server else ""


def _major_version(version: str) -> int:
    """Return the major version, such as of 15 or 9.6; 0 for something else that a host has returned."""
    major_text = version.partition(".")[0]
    return int(major_text) if major_text.isdecimal() else 0


def _is_server(record: model.Record, machine: str) -> bool:
    tracking = record.get("tracking")
    return tracking is not None and tracking["server"] == machine


def _server_parameters(record: model.Record, machine: str, options: Options) -> dict[str, Any] | None:
    if record.get("tracking") is None:
        return None
    return desired_parameters(record, machine, options["tracking_uid"], options["tracking_unconfined"])


def _server_ports(record: model.Record, _options: Options) -> Ports:
    tracking = record.get("tracking")
    return Ports(tcp=[str(tracking["port"])] if tracking else [])


def _describe_server(record: Mapping[str, Any]) -> str:
    tracking = record.get("tracking")
    return f"MLflow on {tracking['server']}" if tracking else ""


#: Training does not need it: a server that cannot be started is reported at the end.
def _is_in_use(record: model.Record, options: Options) -> bool:
    """Whether there is a server, was one, or is to be one. What runs in its databases is not compared."""
    return record["tracking"] is not None or was_enabled(record) or bool(options["tracking_server"])


LAYER = Layer(
    "tracking",
    OPTIONAL,
    options=("tracking_uid", "tracking_unconfined"),
    desired_parameters=_server_parameters,
    is_used=_is_server,
    connects=True,
    ports=_server_ports,
    title="Experiments",
    describe=_describe_server,
    repeats=never_repeated,
    requested=_is_in_use,
    request_options=("tracking_server",),
)

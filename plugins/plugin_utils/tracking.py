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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import settings

_REQUIREMENTS = Path(__file__).resolve().parents[2] / "roles" / "tracking" / "files" / "requirements.txt"
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")
#: MLflow accepts no shorter password.
_SHORTEST = 12


def desired(
    record: model.Record, machine: str, uid: int = settings.UID, unconfined: bool = False, own: bool = False
) -> dict[str, Any]:
    """The parameters of the module tracking on one machine; only the cluster if no experiments are tracked.

    ``own``: the server is to make its certificate itself, which the record does not have yet.
    """
    tracking = record.get("tracking")
    if tracking is None:
        return {"cluster": record["name"]}
    serves = tracking["server"] == machine
    (mount_point,) = (
        volume["mount_point"] for volume in record["storage"]["volumes"] if volume["name"] == tracking["volume"]
    )
    return {
        "cluster": record["name"],
        "machine": tracking["server"],
        "serves": serves,
        "address": address(record, tracking),
        "port": tracking["port"],
        "tls": tracking["tls"],
        "own_certificate": own or bool(tracking["certificates"]),
        "trust": "".join(tracking["certificates"]) or None,
        "mount_point": mount_point,
        "uid": uid,
        "unconfined": unconfined,
        "requirements": _REQUIREMENTS.read_text(encoding="utf-8") if serves else "",
    }


def address(record: model.Record, tracking: model.Tracking) -> str:
    """The address on which the server listens."""
    return derive.cluster_address(record, derive.member_of(record, tracking["server"]))


def uri(record: model.Record, tracking: model.Tracking) -> str:
    """The URL of the server for members: with its address, or if you have provided a certificate, with the name in that."""
    if tracking["tls"] and not tracking["certificates"]:
        return f"https://{tracking['server']}:{tracking['port']}"
    host, scheme = address(record, tracking), "https" if tracking["tls"] else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{tracking['port']}"


def variables(record: model.Record) -> dict[str, str]:
    """The variables of each job; empty if experiments are not tracked. The record's generation is one of its tags."""
    tracking = record.get("tracking")
    if tracking is None:
        return {}
    trust = {"MLFLOW_TRACKING_SERVER_CERT_PATH": settings.trust_of(record["name"])} if tracking["tls"] else {}
    return {"MLFLOW_TRACKING_URI": uri(record, tracking), "GPUMESH_GENERATION": str(record["generation"]), **trust}


def parse_users(text: str, path: str) -> list[dict[str, Any]]:
    """The users in a file with lines NAME:PASSWORD.

    An empty password means that the user is removed. Raises InputError.

    The message is shown, so it never contains a password.
    """
    users: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        where = f"tracking_users_file: line {number} of {path}"
        if not colon or not _USER.fullmatch(name):
            raise InputError(f"{where} is not NAME:PASSWORD.", "Names have letters, digits, '.', '_', '@' and '-'.")
        if name == settings.CHECKER:
            raise InputError(f"{where}: '{name}' is the account of the check.", "Choose another name.")
        if any(user["name"] == name for user in users):
            raise InputError(f"{where}: '{name}' is listed twice.", "List each user once.")
        if password and len(password) < _SHORTEST:
            raise InputError(
                f"{where}: the password of '{name}' is too short.", f"MLflow takes {_SHORTEST} characters or more."
            )
        users.append({"name": name, "password": password or None, "administrator": name == settings.ADMINISTRATOR})
    return users


def refuse_server(server: str, record: model.Record) -> None:
    """Refuse a server that would not be among the members, before anything is changed. Raises InputError."""
    machines = [member["machine"] for member in record["members"]]
    if server and server not in machines:
        raise InputError(
            f"tracking_server '{server}' is not among the members of '{record['name']}'.",
            f"Choose one of its members: {', '.join(machines)}.",
            candidates=machines,
        )


def asked(record: model.Record, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The parameters with which the module cluster updates the record; None if it is up to date.

    ``given``: state, start, server, port, volume, tls, certificate_file. Raises InputError.
    """
    was = record["tracking"]
    if given["state"] == "absent":
        return None if was is None else {"enabled": False}
    if was is None and not (given["start"] or given["server"]):
        return None
    wanted = {name: given[name] for name in ("server", "port", "volume") if given[name]}
    if given["certificate_file"]:
        if given["tls"] is False:
            raise InputError(
                "tracking_tls is false, and tracking_certificate_file is set.", "Set one of them, or tracking_tls=true."
            )
        wanted.update(tls=True, certificates=[])
    elif given["tls"] is not None or was is None:
        wanted["tls"] = given["tls"] is not False
    present: Mapping[str, Any] = was or {}
    return wanted if was is None or any(present[name] != value for name, value in wanted.items()) else None


def makes_own(record: model.Record, given: Mapping[str, Any]) -> bool:
    """Whether the server makes its certificate itself: with TLS, unless one is provided, or was before."""
    was = record["tracking"]
    if given["state"] == "absent" or given["certificate_file"] or given["tls"] is False:
        return False
    if was is None:
        return bool(given["start"] or given["server"])
    return bool(was["certificates"]) or (given["tls"] is True and not was["tls"])


def with_certificates(
    record: model.Record, wanted: Mapping[str, Any] | None, made: list[str] | None
) -> dict[str, Any] | None:
    """The parameters of ``asked`` with the certificates that the server has now. ``made``: None if nothing is known."""
    was = record["tracking"]
    present = was["certificates"] if was else []
    if made is None or made == present:
        return None if wanted is None else dict(wanted)
    return {**(wanted or {}), "certificates": made}


def was_on(record: model.Record) -> bool:
    """Whether tracking is switched off after it was on, so that a member may still have the server.

    It may have been away then. To switch tracking on was a change of its own.
    """
    return record["tracking"] is None and any(entry["change"] == "tracking" for entry in record["history"])


def moved_from(
    record: model.Record, former: str, previews: Mapping[str, Mapping[str, Any]], force: bool = False
) -> str:
    """The member whose database moves to the server of a changed record; empty if it stays, or if there is none.

    ``former``: the server until now, empty for none. ``previews``: of the hosts that take part, the results of the
    module tracking in check mode. With ``force``, a lost server need not take part. Raises InputError.
    """
    if record["tracking"] is None:
        if former and not force and former not in previews:
            raise InputError(
                f"Tracking cannot be switched off: its server {former} cannot be reached, or is not in this run, and "
                "would go on running.",
                "Run this when it is up. With cluster_force=true, it is removed from the record, and from the machine "
                "by a later run of tracking or site.",
                machines=[former],
            )
        return ""
    server = record["tracking"]["server"]
    needed = dict.fromkeys([server, former] if former and not force else [server])
    silent = [machine for machine in needed if machine not in previews]
    if silent:
        raise InputError(
            f"The tracking server cannot be moved: {', '.join(silent)} cannot be reached, or "
            f"{'are' if silent[1:] else 'is'} not in this run.",
            "With cluster_force=true, it moves without the database of a server that is lost; see the guide for how to "
            "restore it from a backup.",
            machines=silent,
        )
    # An older PostgreSQL would refuse the database only after the former server has been stopped.
    new, old = (str(previews.get(machine, {}).get("postgresql", "")) for machine in (server, former))
    if new and old and _major(new) < _major(old):
        raise InputError(
            f"{server} has PostgreSQL {new}, which cannot load the database of {former}, since that has PostgreSQL "
            f"{old}.",
            f"Choose a tracking_server with PostgreSQL {old} or newer.",
            machine=server,
        )
    return former if former != server else ""


def _major(version: str) -> int:
    """The major version, such as of 15 or 9.6; 0 for something else that a host has returned."""
    major = version.partition(".")[0]
    return int(major) if major.isdecimal() else 0

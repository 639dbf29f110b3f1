# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parameters of the module ssh_trust, and what it adds to the record. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import desired
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import BASE, Layer, never_repeated

ROLE_OPTIONS = ("ssh_trust_users", "ssh_trust_port")


def given_parameters(_record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the module ssh_trust on one machine that do not follow from the record.

    ``options``: those of ROLE_OPTIONS. Raises InputError for an invalid name of a user.
    """
    users = list(options["ssh_trust_users"])
    desired.refuse_invalid_users(users)
    return {"machine": machine, "users": users, "port": options["ssh_trust_port"]}


def key_registration(record: model.Record, machine: str, module_result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of cluster_member that update a machine's keys in the record; None if it is up to date.

    ``module_result``: that of the module ssh_trust, from a verified connection. Keys that the machine does not have yet
    are left as they are.
    """
    member = next((candidate for candidate in record["members"] if candidate["machine"] == machine), None)
    if member is None:
        return None
    signing_key, host_keys = module_result.get("signing_key"), module_result.get("host_keys")
    changed_keys: dict[str, Any] = {}
    if signing_key and values.ssh_key(signing_key) != member["ssh_public_key"]:
        changed_keys["ssh_public_key"] = values.ssh_key(signing_key)
    if host_keys and host_keys != member["ssh_host_keys"]:
        changed_keys["ssh_host_keys"] = host_keys
    return {"machine": machine, **changed_keys} if changed_keys else None


LAYER = Layer(
    "ssh_trust",
    BASE,
    options=ROLE_OPTIONS,
    given_parameters=given_parameters,
    lists_members=True,
    repeats=never_repeated,
    title="SSH",
)

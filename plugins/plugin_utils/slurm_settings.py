# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which settings of Slurm are refused before anything changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import accounts, conf, rest
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.slurm import DATABASE, STATE_FOLDER

#: The options of the role, without its prefix, that are checked here.
OPTIONS = ("accounting", "conf", "dbd_conf", "qos", "accounts", "rest", "rest_address")


class _Fixed(NamedTuple):
    """A setting on which other steps rely. ``value``: the only one that is accepted, if there is one."""

    reason: str
    remedy: str = "Remove it."
    value: str = ""


_ACCOUNT = _Fixed("all steps expect the daemons to run as slurm", value="slurm")
_SOCKET = "slurmdbd logs in to the manager's own MariaDB through its socket, as slurm and without a password"
_FIXED = {
    "slurm_conf": {
        "clustername": _Fixed("it is the name of the cluster record"),
        "slurmctldhost": _Fixed(
            "the controller is the manager in the cluster record",
            "Remove it. The playbook remove with cluster_new_manager changes the manager.",
        ),
        "slurmuser": _ACCOUNT,
        "statesavelocation": _Fixed(
            f"a change of the manager takes the queue from {STATE_FOLDER}",
            f"Remove it. If the controller has used another directory, first stop slurmctld and move its contents to "
            f"{STATE_FOLDER}, or the queue is lost.",
            STATE_FOLDER,
        ),
    },
    "slurm_dbd_conf": {
        "slurmuser": _ACCOUNT,
        "storagehost": _Fixed(_SOCKET, value="localhost"),
        "storageloc": _Fixed(f"a change of the manager takes the accounting from {DATABASE}", value=DATABASE),
        "storagepass": _Fixed(_SOCKET),
        "storageuser": _Fixed(_SOCKET, value="slurm"),
    },
}


def check(options: Mapping[str, Any]) -> None:
    """Raises InputError, which never contains a value: one of them is a password."""
    for name in ("conf", "dbd_conf"):
        _check_fixed(f"slurm_{name}", options[name])
    if options["rest_address"] and not rest.is_address(options["rest_address"]):
        raise InputError(
            "slurm_rest_address is not an IP address.",
            "Set an address of the manager, or 0.0.0.0 or :: for all of them.",
        )
    if options["rest"] and not options["accounting"]:
        raise InputError(
            "slurm_rest is true, but slurm_accounting is false: slurmrestd does not start without accounting.",
            "Set slurm_accounting=true, or slurm_rest=false.",
        )
    if options["accounting"]:
        asked = accounts.wanted(options["qos"], options["accounts"])
        if enforces_qos(options["conf"]):
            accounts.check_defaults(asked)


def _check_fixed(variable: str, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        fixed = _FIXED[variable].get(conf.check_key(key).lower())
        if fixed and (not fixed.value or value != fixed.value):
            raise InputError(f"{variable} sets {key}, but {fixed.reason}.", fixed.remedy)


def enforces_qos(settings: Mapping[str, Any]) -> bool:
    """Whether the controller rejects jobs with a QOS that their account does not have."""
    for key, value in settings.items():
        if key.lower() == "accountingstorageenforce" and value is not None:
            words = conf.value_text(key, value).lower().split(",")
            return bool({"qos", "all"}.intersection(word.strip() for word in words))
    return False

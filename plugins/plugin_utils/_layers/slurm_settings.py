# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of Slurm that are refused before anything changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import accounts, conf, rest
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.database import DATABASE_NAME
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.state import STATE_DIRECTORY

#: The options of the role that are checked here.
CHECKED_OPTIONS = (
    "slurm_accounting",
    "slurm_conf",
    "slurm_dbd_conf",
    "slurm_qos",
    "slurm_accounts",
    "slurm_rest",
    "slurm_rest_address",
)


class _FixedSetting(NamedTuple):
    """A setting on which other steps rely. ``required_text``: the only value that is accepted, if there is one."""

    reason: str
    remedy: str = "Remove it."
    required_text: str = ""


_DAEMON_ACCOUNT = _FixedSetting("all steps expect the daemons to run as slurm", required_text="slurm")
_SOCKET_REASON = "slurmdbd logs in to the manager's own MariaDB through its socket, as slurm and without a password"
_FIXED_SETTINGS = {
    "slurm_conf": {
        "clustername": _FixedSetting("it is the name of the cluster record"),
        "slurmctldhost": _FixedSetting(
            "the controller is the manager in the cluster record",
            "Remove it. The playbook remove with cluster_new_manager changes the manager.",
        ),
        "slurmuser": _DAEMON_ACCOUNT,
        "statesavelocation": _FixedSetting(
            f"a change of the manager takes the queue from {STATE_DIRECTORY}",
            f"Remove it. If the controller has used another directory, first stop slurmctld and move its contents to "
            f"{STATE_DIRECTORY}, or the queue is lost.",
            STATE_DIRECTORY,
        ),
    },
    "slurm_dbd_conf": {
        "slurmuser": _DAEMON_ACCOUNT,
        "storagehost": _FixedSetting(_SOCKET_REASON, required_text="localhost"),
        "storageloc": _FixedSetting(
            f"a change of the manager takes the accounting from {DATABASE_NAME}", required_text=DATABASE_NAME
        ),
        "storagepass": _FixedSetting(_SOCKET_REASON),
        "storageuser": _FixedSetting(_SOCKET_REASON, required_text="slurm"),
    },
}


def check_settings(options: Mapping[str, Any]) -> None:
    """Refuse settings on which other steps rely.

    Raises InputError, which never contains a value: one of them is a password.
    """
    for option_name in _FIXED_SETTINGS:
        _check_fixed(option_name, options[option_name])
    if options["slurm_rest_address"] and not rest.is_valid_address(options["slurm_rest_address"]):
        raise InputError(
            "slurm_rest_address is not an IP address.",
            "Set an address of the manager, or 0.0.0.0 or :: for all of them.",
        )
    if options["slurm_rest"] and not options["slurm_accounting"]:
        raise InputError(
            "slurm_rest is true, but slurm_accounting is false: slurmrestd does not start without accounting.",
            "Set slurm_accounting=true, or slurm_rest=false.",
        )
    if options["slurm_accounting"]:
        requested_accounts = accounts.parse_desired(options["slurm_qos"], options["slurm_accounts"])
        if enforces_qos(options["slurm_conf"]):
            accounts.check_default_qos(requested_accounts)


def _check_fixed(variable: str, user_settings: Mapping[str, Any]) -> None:
    for key, value in user_settings.items():
        fixed_setting = _FIXED_SETTINGS[variable].get(conf.check_key(key).lower())
        if fixed_setting and (not fixed_setting.required_text or value != fixed_setting.required_text):
            raise InputError(f"{variable} sets {key}, but {fixed_setting.reason}.", fixed_setting.remedy)


def enforces_qos(settings: Mapping[str, Any]) -> bool:
    """Whether the controller rejects jobs with a QOS that their account does not have."""
    for key, value in settings.items():
        if key.lower() == "accountingstorageenforce" and value is not None:
            enforced_limits = conf.format_value(key, value).lower().split(",")
            return bool({"qos", "all"}.intersection(limit.strip() for limit in enforced_limits))
    return False

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that other steps rely on, and accounts whose jobs would be rejected."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import slurm_settings

LOCKED_OUT = {"research": {"QOS": ["short", "long"]}}


def check_options(**options: Any) -> None:
    none = {
        "accounting": True,
        "conf": {},
        "dbd_conf": {},
        "qos": {},
        "accounts": {},
        "rest": False,
        "rest_address": "",
    }
    slurm_settings.check_settings({f"slurm_{name}": value for name, value in {**none, **options}.items()})


@pytest.mark.parametrize(
    ("variable", "setting", "fault"),
    [
        ("conf", {"StateSaveLocation": "/srv/state"}, "takes the queue from /var/lib/slurm/slurmctld"),
        ("conf", {"statesavelocation": None}, "move its contents to /var/lib/slurm/slurmctld, or the queue is lost"),
        ("conf", {"ClusterName": "lab"}, "slurm_conf sets ClusterName, but it is the name of the cluster record"),
        ("conf", {"SlurmctldHost": "n2"}, "cluster_new_manager"),
        ("conf", {"SlurmUser": "root"}, "run as slurm"),
        ("dbd_conf", {"SlurmUser": "root"}, "run as slurm"),
        ("dbd_conf", {"StorageLoc": "jobs"}, "slurm_dbd_conf sets StorageLoc"),
        ("dbd_conf", {"StorageUser": "other"}, "socket"),
        ("dbd_conf", {"StorageHost": "db1"}, "manager's own MariaDB"),
        ("dbd_conf", {"storagepass": "secret"}, "slurm_dbd_conf sets storagepass"),
    ],
)
def test_settings_on_which_other_steps_rely_are_refused(variable: str, setting: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError) as refusal:
        check_options(**{variable: setting})
    assert fault in str(refusal.value)
    assert "Remove it" in refusal.value.remedy
    assert "secret" not in str(refusal.value.to_result())


def test_other_settings_and_equal_values_are_accepted() -> None:
    check_options(conf={"SlurmUser": "slurm", "StateSaveLocation": "/var/lib/slurm/slurmctld", "SlurmdTimeout": 30})
    check_options(
        dbd_conf={"StorageLoc": "slurm_acct_db", "StorageUser": "slurm", "StorageHost": "localhost", "DbdPort": 7000}
    )


@pytest.mark.parametrize("address", ["manager", "10.0.0.1:6820", "10.0.0.1\nconnect = /x"])
def test_the_rest_api_needs_an_address(address: str) -> None:
    for accepted in ("10.0.0.1", "::", "fd00::1"):
        check_options(rest_address=accepted)
    with pytest.raises(InputError, match="slurm_rest_address is not an IP address"):
        check_options(rest_address=address)


def test_the_rest_api_needs_accounting() -> None:
    check_options(rest=True)
    check_options(accounting=False)
    with pytest.raises(InputError, match="slurm_rest is true, but slurm_accounting is false") as refusal:
        check_options(rest=True, accounting=False)
    assert "slurm_rest=false" in refusal.value.remedy


@pytest.mark.parametrize("enforced", ["qos", "associations,limits,QOS", ["limits", "qos"], "all"])
def test_accounts_whose_jobs_would_be_rejected_are_refused(enforced: Any) -> None:
    with pytest.raises(InputError, match="gets the QOS normal"):
        check_options(conf={"accountingstorageenforce": enforced}, accounts=LOCKED_OUT)


@pytest.mark.parametrize("conf", [{}, {"AccountingStorageEnforce": "limits"}, {"AccountingStorageEnforce": None}])
def test_unenforced_accounts_are_accepted(conf: dict[str, Any]) -> None:
    check_options(conf=conf, accounts=LOCKED_OUT)


def test_accounts_and_qos_are_checked_if_there_is_accounting() -> None:
    wrong = {"a": {"Parent": "b"}, "b": {"Parent": "a"}}
    with pytest.raises(InputError, match="cycle"):
        check_options(accounts=wrong)
    check_options(accounts=wrong, accounting=False)

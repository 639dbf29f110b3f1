# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.versions import version_checks

H100 = {
    "driver": "550.90.07",
    "kernel": "6.1.0-28-amd64",
    "models": ["NVIDIA H100 80GB HBM3"],
    "nccl": ["2.23.4"],
    "vbios": ["96.00.89.00.01"],
}


def judge(*versions: dict[str, Any] | None, sites: str = "") -> list[Any]:
    """The check of members that report these versions. ``sites``: a letter for each."""
    members = [{"machine": f"n{n}", "site": (sites or "a" * len(versions))[n - 1]} for n in range(1, len(versions) + 1)]
    record: Any = {"members": members}
    return version_checks(
        record, {f"n{n}": {"versions": reported} for n, reported in enumerate(versions, 1) if reported is not None}
    )


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({}, "pass", ""),
        ({"driver": "535.86.10"}, "fail", "The version of the driver is 550.90.07, but 535.86.10 on n3."),
        ({"nccl": ["2.18.1"]}, "fail", "The version of the NCCL library is 2.23.4, but 2.18.1 on n3."),
        (
            {"vbios": ["96.00.74.00.01"]},
            "skipped",
            "The version of the VBIOS is 96.00.89.00.01, but 96.00.74.00.01 on n3.",
        ),
        (
            {"kernel": "6.1.0-31-amd64"},
            "skipped",
            "The version of the kernel is 6.1.0-28-amd64, but 6.1.0-31-amd64 on n3.",
        ),
        # Other GPUs may need another driver, and a library that is missing is not another one.
        ({"models": ["NVIDIA A40"], "driver": "535.86.10"}, "pass", ""),
        ({"nccl": None}, "pass", ""),
    ],
)
def test_versions_of_equal_members_are_compared(change: dict[str, Any], status: str, reason: str) -> None:
    (check,) = judge(H100, H100, {**H100, **change})
    assert (check["status"], check["reason"], check["host"]) == (status, reason, None)
    assert bool(check["remedy"]) == (status == "fail")


def test_members_at_other_sites_are_not_compared() -> None:
    assert judge(H100, {**H100, "driver": "535.86.10"}, sites="ab") == []


def test_members_without_gpus_or_results_are_not_compared() -> None:
    assert judge(H100, {"kernel": "6.1"}, None) == []
    record: Any = {"members": [{"machine": "n1"}, {"machine": "n2"}]}
    assert version_checks(record, None) == []
    assert version_checks(record, {"n1": {"msg": "failed"}, "n2": None}) == []

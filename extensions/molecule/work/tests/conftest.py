# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of the files: each continues with the hosts as the one before has left them."""

from __future__ import annotations

import pytest
from train_runs import TrainLab

ORDER = (
    "test_full",
    "test_preempted",
    "test_profile",
    "test_torchrun",
    "test_podman",
    "test_train",
    "test_reports",
    "test_frameworks",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.stem))


@pytest.fixture(scope="module", autouse=True)
def _no_jobs_of_the_file_before() -> None:
    TrainLab("molecule-work").clear_queue()

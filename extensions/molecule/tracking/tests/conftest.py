# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of the files: each continues with the hosts as the one before has left them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from desk import GuideRunner
from lab_hosts import ROOT
from tracking_lab import (
    LAB_NAME,
    LIBRARY_COPY,
    MANAGER,
    NETWORK,
    SHARED_VOLUME,
    StartRuns,
    TrackingLab,
    start_with_new_secrets,
)
from train_runs import TrainLab

from ansible_collections.gpumesh.cluster.tests.publication.archive import install

#: A second run; the guide; attacks on its server; its pages; and what changes the server, at whose end the cluster is deleted.
ORDER = ("test_again", "test_chapter", "test_closed", "test_pages", "test_server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.stem))


@pytest.fixture(scope="module", autouse=True)
def _no_jobs_of_the_file_before() -> None:
    TrainLab(LAB_NAME).clear_queue()


@pytest.fixture(name="lab", scope="session")
def _lab() -> TrackingLab:
    """The lab with its MLflow, of which one server serves all files."""
    return TrackingLab()


@pytest.fixture(name="desk", scope="session")
def _desk(tmp_path_factory: pytest.TempPathFactory, lab: TrackingLab) -> GuideRunner:
    """The user who types the guide "See your training"."""
    desk = GuideRunner(install(tmp_path_factory.mktemp("guide")), lab, NETWORK)
    desk.write("inventories/lan/hosts.yml", lab.inventory.read_text())
    shutil.copytree(ROOT / "examples", SHARED_VOLUME / "examples", dirs_exist_ok=True)
    return desk


@pytest.fixture(name="told", scope="session")
def _told(tmp_path_factory: pytest.TempPathFactory, desk: GuideRunner, lab: TrackingLab) -> StartRuns:
    """The start of the server, and what was told meanwhile."""
    return start_with_new_secrets(desk, lab, tmp_path_factory.mktemp("told"))


@pytest.fixture(name="library", scope="session")
def _library(lab: TrackingLab) -> Path:
    """A copy of the library of MLflow, as the first server has installed it."""
    lab.save_library(MANAGER)
    return SHARED_VOLUME / Path(LIBRARY_COPY).name

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparison of a host with its record: each way in which a file or a service can differ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import drift


@pytest.mark.parametrize(
    ("expected", "text", "words"),
    [
        ({}, "anything", ""),
        ({}, None, "/f is missing"),
        ({"contains": "--conf-server 10.99.0.1"}, "X=--conf-server 10.99.0.1 --conf", ""),
        ({"contains": "--conf-server 10.99.0.1"}, "X=--conf-server 10.99.0.2 --conf", "/f differs"),
        ({"state": "absent"}, None, ""),
        ({"state": "absent"}, "", "/f is still there"),
    ],
)
def test_file_difference_is_described(expected: dict[str, Any], text: str | None, words: str) -> None:
    assert drift.describe_file_difference({"layer": "x", "path": "/f", **expected}, text) == words


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}, []),
        ({"LoadState": "loaded", "ActiveState": "activating", "UnitFileState": "static"}, []),
        ({"LoadState": "loaded", "ActiveState": "failed", "UnitFileState": "enabled"}, ["x.service is not running"]),
        (
            {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "disabled"},
            ["x.service does not start at boot"],
        ),
        ({"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""}, ["x.service is missing"]),
        ({}, ["x.service is missing"]),
    ],
)
def test_service_problems_are_described(properties: dict[str, str], words: list[str]) -> None:
    assert drift.describe_service_problems("x.service", properties) == words


def test_units_are_parsed_separately() -> None:
    shown = "Id=a.service\nLoadState=loaded\nActiveState=active\n\nId=b.service\nLoadState=not-found\n"
    assert drift.parse_units(shown) == {
        "a.service": {"Id": "a.service", "LoadState": "loaded", "ActiveState": "active"},
        "b.service": {"Id": "b.service", "LoadState": "not-found"},
    }


def test_layer_without_files_is_not_set_up(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    files = [
        {"layer": "one", "path": str(tmp_path / "none")},
        {"layer": "one", "path": str(tmp_path / "there" / "none")},
        {"layer": "two", "path": str(tmp_path / "none")},
        {"layer": "two", "path": str(tmp_path / "there")},
        {"layer": "three", "path": str(tmp_path / "there")},
        {"layer": "three", "path": str(tmp_path / "none"), "state": "absent"},
        {"layer": "four", "path": str(tmp_path / "none")},
        {"layer": "four", "path": str(tmp_path / "none"), "state": "absent"},
    ]
    assert drift.compare_layers(run, files, []) == {
        "one": "not set up",
        "two": f"{tmp_path / 'none'} is missing",
        "four": "not set up",
    }


def test_what_watches_a_log_is_only_expected_where_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "runs_systemd", lambda: True)
    monkeypatch.setattr(drift, "find_program", lambda name: f"/bin/{name}")
    queries: list[list[str]] = []

    def runner(argv: list[str], **_options: object) -> CommandResult:
        queries.append(argv[3:])
        return CommandResult(0, "", "")

    service = {"layer": "slurm", "unit": "w.service", "reads": [], "watches": str(tmp_path / "kmsg")}
    assert drift.compare_layers(runner, [], [service]) == {} and queries == []
    (tmp_path / "kmsg").touch()
    assert drift.compare_layers(runner, [], [service]) == {"slurm": "not set up"}
    assert queries == [["w.service"]]


def test_named_pipe_is_reported_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    differences = drift.compare_layers(run, [{"layer": "ssh", "path": str(tmp_path / "pipe")}], [])
    assert differences == {"ssh": f"{tmp_path / 'pipe'} is a named pipe, but a file is required"}


def test_layers_with_a_comparison_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_run: Any, _params: Any) -> managed_files.LayerDifferences:
        raise HostStateError("/f cannot be read.", "Move it away.")

    answers = {
        "right": lambda _run, _params: managed_files.LayerDifferences([], False),
        "wrong": lambda _run, params: managed_files.LayerDifferences([f"{params} differs", "/b is missing"], False),
        "bare": lambda _run, _params: managed_files.LayerDifferences(["/a is missing"], True),
        "refused": refused,
    }
    monkeypatch.setattr(drift, "READERS", answers)
    assert drift.compare_modules(run, dict.fromkeys(answers, "/a")) == {
        "wrong": "/a differs, /b is missing",
        "bare": "not set up",
        "refused": "/f cannot be read",
    }

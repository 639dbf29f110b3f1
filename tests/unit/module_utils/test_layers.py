# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host compared with its record: each way in which a file or a service can differ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files, layers
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError


@pytest.mark.parametrize(
    ("expected", "text", "words"),
    [
        ({}, "anything", ""),
        ({}, None, "/f is missing"),
        ({"contains": "--conf-server 10.99.0.1"}, "X=--conf-server 10.99.0.1 --conf", ""),
        ({"contains": "--conf-server 10.99.0.1"}, "X=--conf-server 10.99.0.2 --conf", "/f differs"),
    ],
)
def test_difference_of_a_file(expected: dict[str, Any], text: str | None, words: str) -> None:
    assert layers.difference({"layer": "x", "path": "/f", **expected}, text) == words


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}, []),
        ({"LoadState": "loaded", "ActiveState": "activating", "UnitFileState": "static"}, []),
        ({"LoadState": "loaded", "ActiveState": "failed", "UnitFileState": "enabled"}, ["x.service does not run"]),
        (
            {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "disabled"},
            ["x.service does not start at boot"],
        ),
        ({"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""}, ["x.service is missing"]),
        ({}, ["x.service is missing"]),
    ],
)
def test_difference_of_a_service(properties: dict[str, str], words: list[str]) -> None:
    assert layers.service_differences("x.service", properties) == words


def test_units_are_told_apart() -> None:
    shown = "Id=a.service\nLoadState=loaded\nActiveState=active\n\nId=b.service\nLoadState=not-found\n"
    assert layers.parse_units(shown) == {
        "a.service": {"Id": "a.service", "LoadState": "loaded", "ActiveState": "active"},
        "b.service": {"Id": "b.service", "LoadState": "not-found"},
    }


def test_a_layer_without_anything_is_not_set_up(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    files = [
        {"layer": "one", "path": str(tmp_path / "none")},
        {"layer": "one", "path": str(tmp_path / "there" / "none")},
        {"layer": "two", "path": str(tmp_path / "none")},
        {"layer": "two", "path": str(tmp_path / "there")},
        {"layer": "three", "path": str(tmp_path / "there")},
    ]
    assert layers.compare(run, files, []) == {"one": "not set up", "two": f"{tmp_path / 'none'} is missing"}


def test_what_is_no_file_is_said_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    told = layers.compare(run, [{"layer": "ssh", "path": str(tmp_path / "pipe")}], [])
    assert told == {"ssh": f"{tmp_path / 'pipe'} is a named pipe, but a file is required"}


def test_a_layer_that_compares_the_host_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_run: Any, _params: Any) -> host_files.Differences:
        raise HostStateError("/f cannot be read.", "Move it away.")

    answers = {
        "right": lambda _run, _params: host_files.Differences([], False),
        "wrong": lambda _run, params: host_files.Differences([f"{params} differs", "/b is missing"], False),
        "bare": lambda _run, _params: host_files.Differences(["/a is missing"], True),
        "refused": refused,
    }
    monkeypatch.setattr(layers, "LAYERS", answers)
    assert layers.compare_modules(run, dict.fromkeys(answers, "/a")) == {
        "wrong": "/a differs, /b is missing",
        "bare": "not set up",
        "refused": "/f cannot be read",
    }

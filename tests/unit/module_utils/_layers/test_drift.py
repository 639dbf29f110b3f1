# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparison of a host with its record: each way in which a file or a service can differ."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
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
    assert drift.compare_modules(run, dict.fromkeys(answers, "/a")).drift == {
        "wrong": "/a differs, /b is missing",
        "bare": "not set up",
        "refused": "/f cannot be read",
    }


def work_of(result: ModuleResult | GpumeshError) -> drift.LayerModule:
    """Return a module of the layer `scratch` with the option path that has this result in check mode."""

    def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
        assert check_mode and params["size"] == 3, "the default of an option is missing"
        if isinstance(result, GpumeshError):
            raise result
        return result

    options = {"path": {"type": "str", "required": True}, "size": {"type": "int", "default": 3}}
    return drift.LayerModule("scratch", options, work)


@pytest.mark.parametrize(
    ("result", "description"),
    [
        (ModuleResult(False, {}), None),
        (ModuleResult(True, {}, "", "quota: 100\n"), "lacks 'quota: 100'"),
        (ModuleResult(True, {}, "unit: on\n", ""), "has 'unit: on'"),
        (ModuleResult(True, {}, "", "## /etc/secret.conf\nPassword=x\n"), "/etc/secret.conf differs"),
        (ModuleResult(True, {}, "## /a\n1\n## /b\n2\n", "## /a\n1\n## /b\n"), "/b differs"),
        (ModuleResult(True, {}), "is not as site would leave it"),
        (HostStateError("/f cannot be read.", "Move it away."), "/f cannot be read"),
    ],
)
def test_what_no_reader_sees_is_found_by_the_check_mode_of_the_module(
    monkeypatch: pytest.MonkeyPatch, result: ModuleResult | GpumeshError, description: str | None
) -> None:
    monkeypatch.setattr(drift, "MODULES", {"scratch": work_of(result)})
    expected = {} if description is None else {"scratch": description}
    assert drift.compare_modules(run, {"scratch": {"path": "/a"}}).drift == expected


def test_a_reader_describes_what_the_module_would_change_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = managed_files.LayerDifferences(["/a is missing"], True)
    monkeypatch.setattr(drift, "READERS", {"scratch": lambda _run, _params: missing})
    for changed, expected in ((True, {"scratch": "not set up"}), (False, {})):
        monkeypatch.setattr(drift, "MODULES", {"scratch": work_of(ModuleResult(changed, {}))})
        assert drift.compare_modules(run, {"scratch": {"path": "/a"}}).drift == expected


def test_parameters_that_the_module_would_refuse_are_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "MODULES", {"scratch": work_of(ModuleResult(False, {}))})
    assert "path" in drift.compare_modules(run, {"scratch": {}}).drift["scratch"]


def test_a_second_module_of_a_layer_counts_as_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"scratch": work_of(ModuleResult(False, {})), "scratch_host": work_of(ModuleResult(True, {}))}
    monkeypatch.setattr(drift, "MODULES", modules)
    differences = drift.compare_modules(run, {name: {"path": "/a"} for name in modules}).drift
    assert differences == {"scratch": "is not as site would leave it"}


def test_the_remains_of_sessions_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift.session_node, "has_leftovers", lambda: True)
    find_pending = drift.MODULES["session"].find_pending
    assert find_pending({"state": "present"}, {}) and not find_pending({"state": "absent"}, {})
    monkeypatch.setattr(drift.session_node, "has_leftovers", lambda: False)
    assert not find_pending({"state": "present"}, {})


def test_what_a_layer_has_to_do_besides_is_reported_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = work_of(ModuleResult(False, {"size": 4}))
    pending_module = module._replace(find_pending=lambda params, values: f"{params['size']} of {values['size']}")
    monkeypatch.setattr(drift, "MODULES", {"scratch": pending_module})
    comparison = drift.compare_modules(run, {"scratch": {"path": "/a"}})
    assert (comparison.drift, comparison.pending) == ({}, {"scratch": "3 of 4"})

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An unchanged record is validated once per run, by whichever process comes first; any other is validated completely."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from action_runs import play_action
from ansible import constants

from ansible_collections.gpumesh.cluster.plugins.action import names, ssh_trust
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import generation, model, plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import valid_records
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core import action

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
RECORD: dict[str, Any] = dict(
    plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
)


@pytest.fixture(autouse=True)
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of a run of Ansible that has just begun."""
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    return tmp_path


def count_calls(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *modules: Any) -> list[Any]:
    """Let each of these modules note in the returned list what it calls the function with."""
    calls: list[Any] = []

    def counted(document: Any) -> Any:
        calls.append(document)
        return function(document)

    for module in modules:
        monkeypatch.setattr(module, function.__name__, counted)
    return calls


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The documents that have been validated completely."""
    return count_calls(monkeypatch, model.parse, model)


def run_layers(record: Any, **variables: Any) -> list[dict[str, Any]]:
    """The results of two actions on one host."""
    answers: dict[Any, dict[str, Any]] = {names: {"outdated": []}, ssh_trust: {}}
    return [
        play_action(
            layer.ActionModule,
            {"record": record},
            {f"gpumesh.cluster.{layer.__name__.rpartition('.')[2]}": [{"changed": False, **answer}]},
            {"inventory_hostname": "n1", **variables},
        ).result
        for layer, answer in answers.items()
    ]


def test_two_actions_validate_an_unchanged_record_once(validations: list[Any]) -> None:
    for result in (*run_layers("held", held=RECORD), *run_layers("held", held=copy.deepcopy(RECORD))):
        assert not result.get("failed"), result
    assert len(validations) == 1
    # By value, it is the same record, whatever the order of its keys.
    assert not any(result.get("failed") for result in run_layers(dict(reversed(RECORD.items()))))
    assert len(validations) == 1


def test_an_action_computes_the_digest_of_a_known_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run_layers("held", held=RECORD)
    digests = count_calls(monkeypatch, generation.record_digest, valid_records, action)
    run_layers("held", held=RECORD)
    assert len(digests) == 2, "one for each action"


def test_other_processes_of_the_run_do_not_validate_it_again(run_directory: Path) -> None:
    program = (
        "import json, sys; from ansible import constants; constants.DEFAULT_LOCAL_TMP = sys.argv[1]; "
        f"from {valid_records.__name__} import model, parse_once; model.parse = None; "
        "print(parse_once(json.loads(sys.argv[2]))[1])"
    )
    valid_records.parse_once(RECORD)
    argv = [sys.executable, "-c", program, str(run_directory), json.dumps(RECORD)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == (
        generation.record_digest(RECORD)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"manager": "n9"},
        {"generation": True},
        {"generation": 1.0},
        {"unknown": None},
        {"members": [*RECORD["members"], RECORD["members"][0]]},
        {"members": [{**RECORD["members"][0], "machine": "n1; reboot"}]},
        {"members": [{**RECORD["members"][0], "gpus": {1, 2}}]},
        {1: "a key that is no text"},
    ],
)
def test_a_changed_record_is_validated_and_refused_each_time(change: dict[Any, Any], validations: list[Any]) -> None:
    run_layers("held", held=RECORD)
    changed_record = {**RECORD, **change}
    for result in (*run_layers("held", held=changed_record), *run_layers(changed_record)):
        assert result["error"]["kind"] == "invalid_record"
    assert len(validations) == 1 + 4


def test_a_record_of_an_older_schema_is_converted_each_time(validations: list[Any]) -> None:
    older_record = {key: value for key, value in RECORD.items() if key != "collection_version"}
    older_record["schema_version"] = 5
    for _repetition in range(2):
        record, digest = valid_records.parse_once(older_record)
        assert record["schema_version"] == model.SCHEMA_VERSION and digest == generation.record_digest(record)
    assert len(validations) == 2


def test_a_record_is_validated_without_the_directory(monkeypatch: pytest.MonkeyPatch, validations: list[Any]) -> None:
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", "/nonexistent")
    assert not any(result.get("failed") for result in run_layers("held", held=RECORD))
    assert len(validations) == 2

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that install programs: nothing is written until the controller has sent what is lacking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from module_runs import patch_module_arguments

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import encode_content
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import apply as session_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import install as session_install
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import models
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import paths
from ansible_collections.gpumesh.cluster.plugins.modules import session, train
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import session as session_data
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import train as train_data
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import source_digests


@pytest.fixture(name="place", autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "PROGRAM_PATH", str(tmp_path / "gpumesh-train"))
    monkeypatch.setattr(paths, "TRACE_PATH", str(tmp_path / "gpumesh-trace"))
    monkeypatch.setattr(paths, "LIBRARY_DIR", str(tmp_path / "lib" / "gpumesh" / "python"))
    return tmp_path


@pytest.fixture(name="logged", autouse=True)
def _logged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    logged: list[Any] = []
    monkeypatch.setattr(AnsibleModule, "log", lambda _self, message, log_args=None: logged.append((message, log_args)))
    return logged


def run(module: Any, capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_arguments(arguments), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert not result.get("failed"), result
    return result


def list_written_files(place: Path) -> list[str]:
    return sorted(path.name for path in place.rglob("*") if path.is_file())


def test_training_files_are_pushed_updated_and_removed(
    place: Path, capsys: pytest.CaptureFixture[str], logged: list[Any]
) -> None:
    contents = train_data.program_sources()
    given = {"volumes": ["/mnt/shared"], "digests": source_digests(contents)}
    would = run(train, capsys, **given, _ansible_check_mode=True, _ansible_diff=True)
    assert (would["changed"], would["outdated"], list_written_files(place)) == (True, list(contents), [])
    first = run(train, capsys, **given, _ansible_diff=True)
    assert (first["changed"], first["outdated"], list_written_files(place)) == (False, list(contents), [])
    sent = {name: encode_content(content) for name, content in contents.items()}
    second = run(train, capsys, **given, contents=sent, _ansible_diff=True)
    assert (second["changed"], second["outdated"], list_written_files(place)) == (True, [], sorted(contents))
    assert second["diff"] == would["diff"]
    assert logged and not any(text in f"{logged}{second}" for text in sent.values())
    third = run(train, capsys, **given)
    assert (third["changed"], third["outdated"]) == (False, [])
    # After an interruption, only the missing content is requested.
    (place / "gpumesh-trace").unlink()
    assert run(train, capsys, **given)["outdated"] == ["gpumesh-trace"]
    moved = run(train, capsys, **{**given, "run_dir": "/mnt/other"}, contents={"gpumesh-trace": sent["gpumesh-trace"]})
    assert (moved["changed"], moved["outdated"], list_written_files(place)) == (True, [], sorted(contents))
    gone = run(train, capsys, state="absent")
    assert (gone["changed"], gone["outdated"], list_written_files(place)) == (True, [], [])
    assert not run(train, capsys, state="absent")["changed"]


def test_session_files_are_pushed_and_old_sessions_swept(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(_argv: list[str], **_options: object) -> CommandResult:
        steps.append("command")
        return CommandResult(0, "", "")

    steps: list[str] = []
    monkeypatch.setattr(session_apply, "run", command)
    monkeypatch.setattr(session_install, "missing_requirements", list)
    monkeypatch.setattr(session_install, "refuse_unfit_host", lambda _run, _machine: steps.append("refuse"))
    monkeypatch.setattr(session_apply.node, "clean_up", lambda _run, _machine: steps.append("clean") or [7])
    for module, name in ((session_install.spank, "plan_plugin"), (session_install, "_plan_rules")):
        monkeypatch.setattr(
            module,
            name,
            lambda *_given: session_install.program_archive.file_change(str(place / "other"), b"x"),
        )
    for module in (session_apply, session_install):
        monkeypatch.setattr(module, "PROGRAM_PATH", str(place / models.PROGRAM_NAME))
    contents = session_data.program_sources()
    given = {"machine": "n1", "pools": ["10.192.0.0/10"], "digests": source_digests(contents)}
    first = run(session, capsys, **given)
    assert (first["changed"], first["outdated"], first["swept"]) == (False, [models.PROGRAM_NAME], [])
    assert (steps, list_written_files(place)) == ([], [])
    sent = {name: encode_content(content) for name, content in contents.items()}
    second = run(session, capsys, **given, contents=sent)
    assert (second["changed"], second["outdated"], second["swept"]) == (True, [], [7])
    assert (steps, list_written_files(place)) == (["refuse", "clean"], [models.PROGRAM_NAME, "other"])
    # A new member is a setting: nothing has to be sent.
    third = run(session, capsys, **given, members={"n2": "10.0.0.2"}, _ansible_check_mode=True)
    assert (third["changed"], third["outdated"]) == (True, [])

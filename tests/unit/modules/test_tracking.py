# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module tracking: what it does not reveal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils import basic
from module_runs import patch_module_arguments

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.modules import tracking


@pytest.mark.parametrize("password", ["a@secret-of-alice", r"a\secret-of-alice", "a'b\"secret-of-alice"])
def test_passwords_of_users_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], password: str
) -> None:
    """Ansible recognizes a secret in a list by its text, which it writes differently into the log."""
    logged: list[Any] = []
    monkeypatch.setattr(basic, "has_journal", False)
    monkeypatch.setattr(basic.AnsibleModule, "_log_to_syslog", lambda _self, message: logged.append(message))
    monkeypatch.setattr(
        tracking, "work", lambda given, _check: ModuleResult(False, {"said": str(given["users"][0]["password"])})
    )
    users = json.dumps([{"name": "alice", "password": password}, {"name": "bob", "password": None}])
    # Ansible calls a module in this way, which overrides the module's own settings.
    with patch_module_arguments({"cluster": "lab", "users": users, "_ansible_no_log": False}), pytest.raises(
        SystemExit
    ):
        tracking.main()
    said = capsys.readouterr().out
    assert '"changed": false' in said and logged
    assert "secret-of-alice" not in f"{logged}{said}"

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module session_run: what it returns, and what it does not reveal."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from module_runs import patch_module_arguments

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings
from ansible_collections.gpumesh.cluster.plugins.modules import session_run

SETTINGS = SessionSettings("n1", "n1", "eth0", {"n1": "10.0.0.1"}, ["10.192.0.0/10"], [], True, [], [], [], "/var/tmp")
ROLES = [{"name": "main", "image": "docker.io/library/x:1", "env": {"TOKEN": "very-secret"}}]


def test_the_environment_of_the_roles_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[Any] = []
    monkeypatch.setattr(AnsibleModule, "log", lambda _self, message, log_args=None: logged.append((message, log_args)))
    monkeypatch.setattr(session_run.job, "find_own_session", lambda _run, _name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    given = {"name": "demo", "roles": json.dumps(ROLES), "settings": SETTINGS._asdict()}
    with patch_module_arguments(given), pytest.raises(SystemExit):
        session_run.main()
    said = capsys.readouterr().out
    assert "root cannot own a session" in said
    assert logged and "very-secret" not in f"{logged}{said}"

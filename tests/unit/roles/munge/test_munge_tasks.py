# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reason why a host has no key is shown; the key never is."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
TASKS = [{"ansible.builtin.include_role": {"name": "gpumesh.cluster.munge"}}]


def give_key(folder: Path, path: Path) -> AnsibleRun:
    """Run the role in check mode and with maximum verbosity, on hosts with munge."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("munged", "munge", "unmunge", "supervisord", "supervisorctl"):
        (programs / name).write_text("#!/bin/sh\necho signed\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    variables = {
        "cluster_record": RECORD,
        "munge_key_file": str(path),
    }
    environment = {"PATH": f"{programs}:{{{{ lookup('ansible.builtin.env', 'PATH') }}}}"}
    block = {"environment": environment, "block": TASKS}
    hosts: dict[str, dict[str, str]] = {name: {} for name in ("n1", "n2")}
    return run_tasks(folder, hosts, variables, [block], "--check", "--diff", "-vvvv")


@pytest.fixture(name="talkative", autouse=True)
def _talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_DISPLAY_ARGS_TO_STDOUT", "true")


def hidden(run: AnsibleRun, key: bytes) -> bool:
    return base64.b64encode(key).decode() not in run.output and key.decode() not in run.output


def test_an_accepted_key_is_not_shown(tmp_path: Path) -> None:
    key = b"nobody-is-to-see-this-key-" * 3
    (tmp_path / "given").write_bytes(key)
    run = give_key(tmp_path, tmp_path / "given")
    assert run.exit_status == 0, run.output
    # From ansible-core 2.21 on, results do not repeat the options.
    assert "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER" in run.output or '"invocation"' not in run.output
    assert hidden(run, key)


def test_a_rejected_key_is_not_shown_but_the_reason_is(tmp_path: Path) -> None:
    key = b"nobody-is-to-see-this"
    (tmp_path / "given").write_bytes(key)
    run = give_key(tmp_path, tmp_path / "given")
    assert run.exit_status != 0
    assert "n1: The munge key has 21 bytes; munge accepts 32 to 1024." in run.flat_output
    assert hidden(run, key)

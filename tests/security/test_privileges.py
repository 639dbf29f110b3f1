# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands of whoever may start a playbook do not run as root, nor as an account that can become root."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import privileges
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run

REFUSAL = "Commands of users do not run as such an account"


def refusal_reason(user: str, rc: int = 1, sudo_output: str = "User x is not allowed to run sudo on n1.") -> str:
    def runner(argv: list[str], **_options: Any) -> CommandResult:
        assert argv == ["sudo", "-n", "-l", "-U", user]
        return CommandResult(rc, sudo_output, "")

    return privileges.explain_root_access(runner, lambda _program: "/usr/bin/sudo", user)


def test_root_login_account_and_services() -> None:
    assert refusal_reason("root") == "it is root"
    assert "becomes root" in refusal_reason("")
    assert privileges.explain_root_access(run, lambda _program: None, "nobody") == ""
    # A member that does not have the account cannot run anything as it.
    assert refusal_reason("gpumesh-no-such-account") == ""


def test_accounts_allowed_by_sudo(attacker: pwd.struct_passwd) -> None:
    assert refusal_reason(attacker.pw_name) == ""
    listed = f"User {attacker.pw_name} may run the following commands on n1:\n    (root) /usr/bin/less"
    assert refusal_reason(attacker.pw_name, 0, listed) == "sudo lets it run commands"
    # A sudo that does not work proves nothing.
    assert "does not say" in refusal_reason(attacker.pw_name, 1, "sudo: error in /etc/sudoers")


@pytest.fixture
def trusted(attacker: pwd.struct_passwd) -> Iterator[str]:
    subprocess.run(["usermod", "--append", "--groups", "disk", attacker.pw_name], check=True)
    yield attacker.pw_name
    subprocess.run(["gpasswd", "--delete", attacker.pw_name, "disk"], check=True, capture_output=True)


def test_group_equivalent_to_root(trusted: str) -> None:
    assert refusal_reason(trusted) == "it is a member of the group disk"


def run_role(
    tmp_path: Path, role: str, user: str, *extra_arguments: str, **inventory: object
) -> subprocess.CompletedProcess[str]:
    """Run the beginning of the role that runs commands, on this machine, which has no cluster: it gets no further."""
    hosts = {"all": {"hosts": {"localhost": {"ansible_connection": "local", **inventory}}}}
    (tmp_path / "hosts.json").write_text(json.dumps(hosts), encoding="utf-8")
    tasks = [{"ansible.builtin.include_role": {"name": f"gpumesh.cluster.{role}", "tasks_from": "run"}}]
    tasks[0]["ansible.builtin.include_role"]["rolespec_validate"] = False  # type: ignore[assignment]
    record = {"manager": "localhost", "members": []}
    plays = [{"hosts": "all", "gather_facts": False, "tasks": tasks, "vars": {"cluster_record": record}}]
    (tmp_path / "play.json").write_text(json.dumps(plays), encoding="utf-8")
    command = [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), "-i", str(tmp_path / "hosts.json")]
    extra_vars = json.dumps(
        {f"{role}_user": user, f"{role}_name": "key", f"{role}_command": "cat /etc/munge/munge.key"}
    )
    return subprocess.run(
        [*command, str(tmp_path / "play.json"), "-e", extra_vars, *extra_arguments],
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_PYTHON_INTERPRETER": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("role", ["train", "session"])
def test_extra_variable_does_not_allow_root(tmp_path: Path, role: str) -> None:
    """An answer to a survey of AWX is one."""
    output = " ".join(run_role(tmp_path, role, "root", "-e", f"{role}_privileged=true").stdout.split())
    assert REFUSAL in output and "root can become root" in output
    # Neither does one that overrides what the inventory says.
    output = " ".join(
        run_role(
            tmp_path, role, "root", "-e", f"{role}_privileged=true", **{f"{role}_privileged": False}
        ).stdout.split()
    )
    assert REFUSAL in output


@pytest.mark.parametrize("role", ["train", "session"])
def test_inventory_allows_root(tmp_path: Path, role: str) -> None:
    completed = run_role(tmp_path, role, "root", **{f"{role}_privileged": True})
    assert REFUSAL not in " ".join(completed.stdout.split()) and completed.returncode


@pytest.mark.parametrize("role", ["train", "session"])
def test_account_is_checked_before_anything_runs(role: str) -> None:
    text = (Path(__file__).parents[2] / "roles" / role / "tasks" / "run.yml").read_text(encoding="utf-8")
    assert text.index("gpumesh.cluster.job_account:") < text.index(f"gpumesh.cluster.{role}_run:")

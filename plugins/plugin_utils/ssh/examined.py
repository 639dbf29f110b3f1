# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of a module with which plays start. If the module cannot run on a host, the result explains why."""

from __future__ import annotations

import os
import shlex
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action.normal import ActionModule as RunModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import split_facts
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.causes import SHELL_REMEDY, SilentHostError, quoted
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.silence import Question, why_silent, worded

_LOOK = 'for program in {programs}; do command -v "$program" >/dev/null 2>&1 && echo "has $program"; done; echo looked'


class ExaminedModule(RunModule):
    """Runs the module as Ansible would itself. ``said`` in a result is Ansible's own message."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Runs in the worker of each host, so that as many hosts are examined at once as Ansible has forks."""
        try:
            result = self.outcome(tmp, task_vars)
        except AnsibleConnectionFailure as failure:
            if not self._by_ssh():
                raise
            error = why_silent(self._question())
            return {"unreachable": True, "changed": False, **_worded(error, str(failure))}
        except AnsibleError as failure:
            missing = self._password_of_become(str(failure))
            if missing is None:
                raise
            return {"failed": True, "changed": False, **_worded(missing, str(failure))}
        if result.get("_ansible_parsed") is False:
            result = self._explained(result, task_vars or {})
        return split_facts(result)[0]

    def outcome(self, tmp: str | None, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """The result of the task. Raises what Ansible raises if the host does not answer."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        return result

    def _by_ssh(self) -> bool:
        return str(self._connection.transport).rpartition(".")[2] == "ssh"

    def _question(self) -> Question:
        """The host, with the arguments that Ansible passes to ssh, in the connection plugin's order: the first one
        applies.
        """
        option = self._connection.get_option
        key = os.path.expanduser(option("private_key_file") or "")
        single = {
            "StrictHostKeyChecking": "no" if option("host_key_checking") is False else None,
            "Port": option("port"),
            "IdentityFile": f'"{key}"' if key else None,
            "User": f'"{option("remote_user")}"' if option("remote_user") else None,
        }
        return Question(
            host=str(option("host")),
            arguments=(
                *shlex.split(option("ssh_args") or ""),
                *(f"-o{name}={value}" for name, value in single.items() if value is not None),
                *shlex.split(option("ssh_common_args") or ""),
                *shlex.split(option("ssh_extra_args") or ""),
            ),
            key=key,
            password=bool(option("password")),
        )

    def _password_of_become(self, said: str) -> dict[str, Any] | None:
        """The error if Ansible reports that the password of become is missing or wrong."""
        become = self._connection.become
        if become is None or f"{become.name} password" not in said:
            return None
        user = self._connection.get_option("remote_user") or "the account"
        return SilentHostError(
            "no_sudo",
            f"{user} cannot use {become.name} in this way: {said}.",
            f"Use --ask-become-pass, set ansible_become_password, allow {user} to use {become.name} without a "
            "password (NOPASSWD in sudoers), or log in as root.",
        ).as_result()

    def _explained(self, result: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """A result that no module has written, with the reason if that is a missing Python or sudo."""
        said = str(result.get("module_stderr") or result.get("module_stdout") or result.get("msg"))
        try:
            error = self._missing(said, task_vars)
        except AnsibleError:
            # It has become unreachable meanwhile; then Ansible's message is kept.
            return result
        if error is None:
            return result
        kept = {key: value for key, value in result.items() if key not in ("module_stderr", "module_stdout")}
        return {**kept, **_worded(error, said)}

    def _missing(self, said: str, task_vars: dict[str, Any]) -> dict[str, Any] | None:
        python = str(task_vars.get("ansible_python_interpreter") or "auto")
        python = "python3" if python.startswith("auto") else python
        become = self._connection.become
        tool = str(become.get_option("become_exe") or become.name) if become else ""
        others = ["/usr/bin/python3", "/usr/local/bin/python3", "/usr/libexec/platform-python"]
        wanted = [python, *others, *([tool] if tool else [])]
        look = _LOOK.format(programs=" ".join(shlex.quote(program) for program in wanted))
        answer = self._low_level_execute_command(look, sudoable=False)["stdout"]
        if "looked" not in answer.splitlines():
            return SilentHostError(
                "shell",
                f"The account can log in, but cannot run commands: {quoted(answer.strip() or said or 'no output', 200)}.",
                SHELL_REMEDY,
            ).as_result()
        there = {line.removeprefix("has ").strip() for line in answer.splitlines() if line.startswith("has ")}
        if tool and (tool not in there or f"{tool}:" in said):
            return SilentHostError(
                "no_sudo",
                f"{tool} is not installed." if tool not in there else f"{tool} refuses: {quoted(said, 200)}.",
                f"Install {tool} there, or log in as root."
                if tool not in there
                else "Allow the account to use it (sudoers), use --ask-become-pass, or log in as root.",
            ).as_result()
        if python not in there:
            other = next((program for program in others if program in there), None)
            return SilentHostError(
                "no_python",
                f"There is no Python at {python}." if "/" in python else "Python is not installed.",
                f"Set ansible_python_interpreter={other} in the inventory."
                if other
                else "Install it: ansible HOST --become -m ansible.builtin.raw -a 'apt-get install --yes python3'.",
            ).as_result()
        return None


def _worded(error: dict[str, Any], said: str) -> dict[str, Any]:
    if error["cause"] in ("answers", "not_checked"):
        # Then Ansible's message is all that there is.
        error = {**error, "message": f"{printable(said.strip().rstrip('.'))}. {error['message']}"}
    return {"msg": worded(error), "error": error, "said": said}

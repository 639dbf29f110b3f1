# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of modules with which plays start. If the module cannot run on a host, the result explains why."""

from __future__ import annotations

import os
import shlex
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action.normal import ActionModule as RunModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import split_facts
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.awx import AWX_JOB_VARIABLE
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.causes import (
    SHELL_REMEDY,
    SilentHostError,
    adapt_to_awx,
    quote_message,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.silence import (
    Question,
    explain_unreachable_host,
    format_error,
)

_PROGRAM_CHECK = (
    'for program in {programs}; do command -v "$program" >/dev/null 2>&1 && echo "has $program"; done; echo looked'
)


class ExaminedModule(RunModule):
    """Runs the module as Ansible would itself. ``ansible_message`` in a result is Ansible's own message."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module in the worker of the host, so that as many hosts are examined at once as there are forks."""
        try:
            result = self.run_module(tmp, task_vars)
        except AnsibleConnectionFailure as failure:
            if not self._uses_ssh():
                raise
            unreachable_error = explain_unreachable_host(self._build_question())
            if AWX_JOB_VARIABLE in (task_vars or {}):
                unreachable_error = adapt_to_awx(unreachable_error)
            return {"unreachable": True, "changed": False, **_error_result(unreachable_error, str(failure))}
        except AnsibleError as failure:
            become_error = self._explain_become_password(str(failure))
            if become_error is None:
                raise
            return {"failed": True, "changed": False, **_error_result(become_error, str(failure))}
        if result.get("_ansible_parsed") is False:
            result = self._add_reason(result, task_vars or {})
        return split_facts(result)[0]

    def run_module(self, tmp: str | None, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Run the module, and return its result. Raises what Ansible raises if the host does not answer."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        return result

    def _uses_ssh(self) -> bool:
        return str(self._connection.transport).rpartition(".")[2] == "ssh"

    def _build_question(self) -> Question:
        """Return the host with the arguments that Ansible passes to ssh, in the order of the connection plugin.

        The first of several values of an option applies.
        """
        get_option = self._connection.get_option
        key_path = os.path.expanduser(get_option("private_key_file") or "")
        single_options = {
            "StrictHostKeyChecking": "no" if get_option("host_key_checking") is False else None,
            "Port": get_option("port"),
            "IdentityFile": f'"{key_path}"' if key_path else None,
            "User": f'"{get_option("remote_user")}"' if get_option("remote_user") else None,
        }
        return Question(
            host=str(get_option("host")),
            arguments=(
                *shlex.split(get_option("ssh_args") or ""),
                *(f"-o{option_name}={value}" for option_name, value in single_options.items() if value is not None),
                *shlex.split(get_option("ssh_common_args") or ""),
                *shlex.split(get_option("ssh_extra_args") or ""),
            ),
            key=key_path,
            password=bool(get_option("password")),
        )

    def _explain_become_password(self, ansible_message: str) -> dict[str, Any] | None:
        """Return an error if Ansible reports that the password of become is missing or wrong."""
        become = self._connection.become
        if become is None or f"{become.name} password" not in ansible_message:
            return None
        remote_user = self._connection.get_option("remote_user") or "the account"
        return SilentHostError(
            "no_sudo",
            f"{remote_user} cannot use {become.name}: {ansible_message}.",
            f"Use --ask-become-pass, set ansible_become_password, allow {remote_user} to use {become.name} without a "
            "password (NOPASSWD in sudoers), or log in as root.",
        ).to_result()

    def _add_reason(self, result: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Add the reason to a result that no module has written, if Python or sudo is missing."""
        module_output = str(result.get("module_stderr") or result.get("module_stdout") or result.get("msg"))
        try:
            missing_error = self._find_missing_program(module_output, task_vars)
        except AnsibleError:
            # The host has become unreachable meanwhile, so Ansible's message is kept.
            return result
        if missing_error is None:
            return result
        remaining_result = {
            key: value for key, value in result.items() if key not in ("module_stderr", "module_stdout")
        }
        return {**remaining_result, **_error_result(missing_error, module_output)}

    def _find_missing_program(self, module_output: str, task_vars: dict[str, Any]) -> dict[str, Any] | None:
        interpreter = str(task_vars.get("ansible_python_interpreter") or "auto")
        interpreter = "python3" if interpreter.startswith("auto") else interpreter
        become = self._connection.become
        become_program = str(become.get_option("become_exe") or become.name) if become else ""
        fallback_interpreters = ["/usr/bin/python3", "/usr/local/bin/python3", "/usr/libexec/platform-python"]
        programs = [interpreter, *fallback_interpreters, *([become_program] if become_program else [])]
        check_command = _PROGRAM_CHECK.format(programs=" ".join(shlex.quote(program) for program in programs))
        check_output = self._low_level_execute_command(check_command, sudoable=False)["stdout"]
        if "looked" not in check_output.splitlines():
            return SilentHostError(
                "shell",
                f"The account can log in, but cannot run commands: {quote_message(check_output.strip() or module_output or 'no output', 200)}.",
                SHELL_REMEDY,
            ).to_result()
        available_programs = {
            line.removeprefix("has ").strip() for line in check_output.splitlines() if line.startswith("has ")
        }
        if become_program and (become_program not in available_programs or f"{become_program}:" in module_output):
            return SilentHostError(
                "no_sudo",
                f"{become_program} is not installed."
                if become_program not in available_programs
                else f"{become_program} refuses: {quote_message(module_output, 200)}.",
                f"Install {become_program} there, or log in as root."
                if become_program not in available_programs
                else "Allow the account to use it (sudoers), use --ask-become-pass, or log in as root.",
            ).to_result()
        if interpreter not in available_programs:
            available_interpreter = next(
                (program for program in fallback_interpreters if program in available_programs), None
            )
            return SilentHostError(
                "no_python",
                f"There is no Python at {interpreter}." if "/" in interpreter else "Python is not installed.",
                f"Set ansible_python_interpreter={available_interpreter} in the inventory."
                if available_interpreter
                else "Install it: ansible HOST --become -m ansible.builtin.raw -a 'apt-get install --yes python3'.",
            ).to_result()
        return None


def _error_result(error: dict[str, Any], ansible_message: str) -> dict[str, Any]:
    if error["cause"] in ("answers", "not_checked"):
        # In these cases, Ansible's message is the only information.
        error = {**error, "message": f"{printable(ansible_message.strip().rstrip('.'))}. {error['message']}"}
    return {"msg": format_error(error), "error": error, "ansible_message": ansible_message}

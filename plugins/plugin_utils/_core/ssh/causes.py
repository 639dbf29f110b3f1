# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The causes for which a host does not answer over SSH, and the error that names one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable

#: The causes are in the order in which they can occur during a connection. The troubleshooting guide describes each.
CAUSES = (
    "configuration",
    "name",
    "no_route",
    "no_answer",
    "refused",
    "jump_host",
    "turned_away",
    "no_banner",
    "not_ssh",
    "host_key_unknown",
    "host_key_changed",
    "host_key_revoked",
    "no_key",
    "key_missing",
    "key_ignored",
    "key_encrypted",
    "key_refused",
    "too_many_keys",
    "second_factor",
    "password_wanted",
    "password_refused",
    "shell",
    "no_python",
    "no_sudo",
    "answers",
    "not_checked",
)

#: An account may allow logins, but not run commands.
SHELL_REMEDY = "Check the account's shell, its password's age (chage -l), and a forced command in its authorized_keys."


class SilentHostError(GpumeshError):
    """The reason why a host does not answer. ``cause`` is one of CAUSES."""

    def __init__(self, cause: str, message: str, remedy: str, **details: Any) -> None:
        # Much of the text comes from the other end, which may be any machine.
        super().__init__(printable(message), printable(remedy), cause=cause, **details)
        self.cause = cause


#: What to do in a job of AWX, in which keys come from credentials and every file is gone with the job.
_AWX_REMEDIES = {
    "host_key_changed": "If it was reinstalled, replace its line in the credential of the type 'gpumesh host keys', and compare "
    "the new key at its console. Otherwise, another machine answers at its address.",
    "host_key_unknown": "Add its key to the credential of the type 'gpumesh host keys', as printed by ssh-keyscan on a trusted "
    "network or compared at its console, and add this credential to the template.",
    "no_key": "Add a machine credential to the template, and its public key to the authorized_keys of the account.",
    "key_refused": "Correct the machine credential of the template, or add its public key to the authorized_keys of the account.",
}


def adapt_to_awx(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return an ``error`` of a result with the remedy that fits a job of AWX."""
    return {**error, "remedy": _AWX_REMEDIES.get(error["cause"], error["remedy"])}


def quote_message(text: str, max_length: int = 80) -> str:
    """Return a message as one short quoted line."""
    single_line = " ".join(text.split())
    return f"'{single_line if len(single_line) <= max_length else single_line[: max_length - 1] + '…'}'"

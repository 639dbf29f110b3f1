# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The causes for which a host does not answer over SSH, and the error that names one of them."""

from __future__ import annotations

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


def quote_message(text: str, max_length: int = 80) -> str:
    """Return a message as one short quoted line."""
    single_line = " ".join(text.split())
    return f"'{single_line if len(single_line) <= max_length else single_line[: max_length - 1] + '…'}'"

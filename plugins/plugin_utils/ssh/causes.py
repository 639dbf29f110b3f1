# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a host does not answer over SSH: the causes, and the error that names one of them."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

#: In the order in which they can occur during a connection. The troubleshooting guide describes each of them.
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
    """Why a host does not answer. ``cause`` is one of CAUSES."""

    def __init__(self, cause: str, message: str, remedy: str, **details: Any) -> None:
        # Much of it is text from the other end, which may be any machine.
        super().__init__(printable(message), printable(remedy), cause=cause, **details)
        self.cause = cause


def quoted(text: str, most: int = 80) -> str:
    """A message as one short quoted line."""
    line = " ".join(text.split())
    return f"'{line if len(line) <= most else line[: most - 1] + '…'}'"

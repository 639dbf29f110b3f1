# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that try what the kernel should deny them, and print what happened each time."""

from __future__ import annotations

#: The beginning of such a program, which then calls ``tries(NAME, FUNCTION)``.
TRIES_PROGRAM = """
def tries(name, action):
    try:
        action()
    except OSError as failure:
        print(name, type(failure).__name__)
    else:
        print(name, "done")
"""


def find_denied(result_by_name: dict[str, str]) -> set[str]:
    """Return the names of what the kernel denied. Everything else in ``result_by_name`` must be done."""
    denied_names = {name for name, result in result_by_name.items() if result == "PermissionError"}
    assert {name for name, result in result_by_name.items() if result == "done"} == set(
        result_by_name
    ) - denied_names, result_by_name
    return denied_names

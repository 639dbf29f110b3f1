# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that try what the kernel should deny them, and print what happened each time."""

from __future__ import annotations

#: The beginning of such a program, which then calls ``tries(NAME, FUNCTION)``.
TRIES = """
def tries(name, action):
    try:
        action()
    except OSError as failure:
        print(name, type(failure).__name__)
    else:
        print(name, "done")
"""


def denied(said: dict[str, str]) -> set[str]:
    """Return the names of what the kernel denied. Everything else in ``result_by_name`` must be done."""
    found = {name for name, word in said.items() if word == "PermissionError"}
    assert {name for name, word in said.items() if word == "done"} == set(said) - found, said
    return found

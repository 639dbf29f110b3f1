# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The width of the terminal for which a filter draws."""

from __future__ import annotations

import os

from ansible.utils.display import Display

_DEFAULT_WIDTH = 80


def available_width(width: int = 0) -> int:
    """Return the width for tables.render_table: ``width``, 0 for the terminal's, below 0 for no limit (which is 0).

    COLUMNS takes precedence if it is set; otherwise, the width is what Ansible measured before it detached its workers
    from the terminal.
    """
    if width:
        return max(0, width)
    environment_width = os.environ.get("COLUMNS", "")
    return (
        int(environment_width)
        if environment_width.isdecimal() and int(environment_width)
        else int(Display().columns or _DEFAULT_WIDTH)
    )

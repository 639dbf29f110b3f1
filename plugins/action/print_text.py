# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of print_text. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction


class ActionModule(ControllerAction):
    """Prints text with its own lines."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        text = printable(self.arguments(text={"type": "str", "required": True})["text"])
        self.print_message(text)
        return {"changed": False, "text": text}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of print_text. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

#: Callbacks whose whole output is read by programs: there the text is in the task's result alone.
_FOR_PROGRAMS = ("json", "jsonl", "ansible.posix.json", "ansible.posix.jsonl")


class ActionModule(ActionBase):
    """Print text with its own lines; nothing runs on the host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the text through Ansible's own display, which is where every callback prints too."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec({"text": {"type": "str", "required": True}})
        text = printable(options["text"])
        if constants.config.get_config_value("DEFAULT_STDOUT_CALLBACK") not in _FOR_PROGRAMS:
            self._display.display(text)
        return {**result, "changed": False, "text": text}

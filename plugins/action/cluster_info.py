# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module cluster_info, and reports why a host does not answer. Its documentation is in the module.

Ansible looks an action up in the process that forks its workers, and plays begin with this one, so it loads the filters
there.
"""

from __future__ import annotations

import shlex
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import (
    BEGINNING,
    DEFAULT_FOLDER,
    generation_in,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ready import load_filters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.examined import ExaminedModule

load_filters()


class ActionModule(ExaminedModule):
    """Runs the module, unless only a generation is to be compared that the beginning of the file confirms.

    Each play of the layers begins with that. A module costs a host 0.3 s of processor time, and head 0.01 s.
    """

    def outcome(self, tmp: str | None, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """See the documentation of the module, which also reports what is wrong."""
        return {"changed": False} if self._is_current() else super().outcome(tmp, task_vars)

    def _is_current(self) -> bool:
        """Whether the host's record is no newer than the given generation."""
        given = self._task.args
        if not {"cluster", "generation"} <= given.keys():
            return False
        path = f"{given.get('path', DEFAULT_FOLDER)}/{given['cluster']}.json"
        read = self._low_level_execute_command(f"head -c {BEGINNING} {shlex.quote(path)}")
        held = None if read["rc"] else generation_in(read["stdout"])
        return held is not None and held <= int(given["generation"])

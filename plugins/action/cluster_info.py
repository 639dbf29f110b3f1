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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    DEFAULT_DIRECTORY,
    HEAD_LENGTH,
    parse_generation,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.plugin_preload import load_plugins
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.examined import ExaminedModule

load_plugins()


class ActionModule(ExaminedModule):
    """Runs the module, unless the beginning of the file confirms the generation that is to be compared.

    Each play of the layers begins with this. A module costs a host 0.3 s of processor time, and head 0.01 s.
    """

    def run_module(self, tmp: str | None, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """See the documentation of the module, which also reports what is wrong."""
        return {"changed": False} if self._is_current() else super().run_module(tmp, task_vars)

    def _is_current(self) -> bool:
        """Whether the host's record is no newer than the given generation."""
        task_args = self._task.args
        if not {"cluster", "generation"} <= task_args.keys():
            return False
        record_path = f"{task_args.get('path', DEFAULT_DIRECTORY)}/{task_args['cluster']}.json"
        head_result = self._low_level_execute_command(f"head -c {HEAD_LENGTH} {shlex.quote(record_path)}")
        record_generation = None if head_result["rc"] else parse_generation(head_result["stdout"])
        return record_generation is not None and record_generation <= int(task_args["generation"])

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: chaos_steps
type: aggregate
short_description: Record in a file which task runs, and kill the playbook when a given task starts
description:
  - For C(make chaos). Writes a line of JSON to E(CHAOS_STEPS) for each task that starts, and for each host that it changes.
  - When the task with the number E(CHAOS_DIE_AT) starts, the process group of the playbook is killed.
"""


class CallbackModule(CallbackBase):
    """A counter of tasks, starting from 1."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "chaos_steps"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._task_number = 0
        self._kill_at = int(os.environ.get("CHAOS_DIE_AT", "0"))
        self._steps_path = Path(os.environ["CHAOS_STEPS"])

    def _write_line(self, **fields: object) -> None:
        with self._steps_path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(fields) + "\n")

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Record the task before any of it runs."""
        self._task_number += 1
        self._write_line(task=self._task_number, name=task.get_name(), at=time.monotonic())
        if self._task_number == self._kill_at:
            os.killpg(0, signal.SIGKILL)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Record a handler as a task."""
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Record that a host has completed the task and was changed."""
        if result.is_changed():
            self._write_line(changed=self._task_number)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: progress_summary
type: aggregate
short_description: Print tables of hosts and phases at the end of a run
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Prints the final tables of P(gpumesh.cluster.progress#callback), together with any stdout callback.
  - Intended for AWX and automation controller, which replace your stdout callback with their own, but also run this one.
requirements:
  - Enable it in the configuration with C(callbacks_enabled).
seealso:
  - plugin: gpumesh.cluster.progress
    plugin_type: callback
"""

EXAMPLES = r"""
# ansible.cfg
# [defaults]
# callbacks_enabled = gpumesh.cluster.progress_summary
"""

from typing import Any

from ansible.plugins.callback import CallbackBase

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress import events, lines
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress.tally import PlaybookRun
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import available_width


class CallbackModule(CallbackBase):
    """Counts all results, and prints the tables at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpumesh.cluster.progress_summary"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._playbook_run = PlaybookRun()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Begin a phase."""
        events.begin_play(self._playbook_run, play)

    def v2_playbook_on_task_start(self, task: Any, **_conditional: Any) -> None:
        """Begin a task."""
        events.begin_task(self._playbook_run, task)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Begin a handler."""
        events.begin_task(self._playbook_run, task, is_handler=True)

    def v2_runner_on_start(self, host: Any, *_task: Any) -> None:
        """Note that a host begins a task."""
        self._playbook_run.begin_host(str(host.get_name()))

    def v2_runner_on_ok(self, result: Any) -> None:
        """Record a success."""
        events.end_host(self._playbook_run, result, "changed" if result._result.get("changed") else "ok")

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Record a skipped task."""
        events.end_host(self._playbook_run, result, "skipped")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Record a failure."""
        events.end_host(self._playbook_run, result, events.failure_outcome(result, ignore_errors))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Record an unreachable host."""
        events.end_host(self._playbook_run, result, "unreachable")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the tables."""
        self._playbook_run.end_phase()
        counts_by_host = {host: stats.summarize(host) for host in sorted(stats.processed)}
        if not counts_by_host:
            return
        self._display.banner("SUMMARY")
        for summary_line in lines.format_summary(self._playbook_run, counts_by_host, available_width()):
            self._display.display(summary_line)

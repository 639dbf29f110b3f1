# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: stdout
short_description: Show one line per phase, with only changes and errors
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Shows each play as a phase on one line. While it runs on a terminal, the line shows the task, the number of hosts that
    have finished it, the elapsed time and the hosts that are still running. Afterwards, it shows the result.
  - Below the phase, it shows a line for each task that changed something, and all errors in full, with their remedies.
  - In a pipe or in CI, only plain lines are printed, and nothing is redrawn.
  - With C(-v) or more, results are printed as by the P(ansible.builtin.default#callback) callback.
  - At the end, it prints a table of the hosts and one of the phases.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - Set as C(stdout_callback) in the configuration.
seealso:
  - plugin: gpumesh.cluster.progress_summary
    plugin_type: callback
options:
  progress_live:
    description:
      - Whether to redraw the line of the current phase.
      - V(auto) does so on a terminal, unless E(CI) is set or E(TERM) is V(dumb).
    type: str
    choices: [auto, always, never]
    default: auto
    env:
      - name: GPUMESH_PROGRESS_LIVE
    ini:
      - section: callback_progress
        key: live
  progress_width:
    description: The width of a line in columns. V(0) means the width of the terminal, or 80 without a terminal.
    type: int
    default: 0
    env:
      - name: GPUMESH_PROGRESS_WIDTH
    ini:
      - section: callback_progress
        key: width
"""

EXAMPLES = r"""
# ansible.cfg
# [defaults]
# stdout_callback = gpumesh.cluster.progress
"""

import os
import shutil
from typing import Any

from ansible import constants, context
from ansible.plugins.callback.default import CallbackModule as DefaultCallback
from ansible.utils.color import stringc

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import (
    all_printable,
    join_names,
    printable,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress import events, lines
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress.screen import LiveLine
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress.tally import (
    LOST_OUTCOMES,
    Phase,
    PlaybookRun,
    PlayTask,
)

_WIDTH_WITHOUT_TERMINAL = 80


class CallbackModule(DefaultCallback):
    """Counts all results; prints them itself without -v, and has the default callback print them with -v."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpumesh.cluster.progress"

    def __init__(self) -> None:
        super().__init__()
        self._playbook_run = PlaybookRun()
        self._line: LiveLine | None = None
        self._titled_phase: Phase | None = None
        # The last error consists of the task, the lines below the host, and the host.
        self._last_error: tuple[str, list[str], str] = ("", [], "")
        # The hosts, with reasons, that items of the loop of the current task could not reach.
        self._unreachable_hosts: list[tuple[str, str]] = []

    # Appearance

    @property
    def _verbose(self) -> bool:
        return bool(self._display.verbosity)

    @property
    def _width(self) -> int:
        configured_width = int(self.get_option("progress_width"))
        if configured_width:
            return configured_width
        # The last column stays free, since some terminals wrap when it is written.
        return (
            shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns - 1
            if self._on_terminal
            else _WIDTH_WITHOUT_TERMINAL
        )

    @property
    def _on_terminal(self) -> bool:
        return os.isatty(1)

    def _is_live(self) -> bool:
        live_setting = self.get_option("progress_live")
        if live_setting != "auto":
            return bool(live_setting == "always")
        return self._on_terminal and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"

    def _live_text(self) -> str:
        phase = self._playbook_run.phase
        if phase is None:
            return ""
        live_line = lines.format_live_line(phase, self._playbook_run.task, self._playbook_run.now(), self._width - 2)
        return f"{stringc('›', constants.COLOR_HIGHLIGHT)} {live_line}"

    def _print_line(self, text: str, color: str | None = None, error: bool = False) -> None:
        self._display.display(text, color=color, stderr=error and bool(self.get_option("display_failed_stderr")))

    def _draw_live_line(self) -> None:
        if self._line is not None:
            self._line.draw()

    def _print_phase_name(self) -> None:
        """Print the name of the phase before the first line that belongs to it."""
        phase = self._playbook_run.phase
        if phase is not None and self._titled_phase is not phase:
            self._titled_phase = phase
            mode_note = " (check mode)" if phase.check_mode else ""
            self._print_line(f"  {printable(phase.name or 'Play')}{mode_note}")

    def _print_below_phase(self, text: str, color: str | None = None, error: bool = False) -> None:
        self._print_phase_name()
        self._print_line(text, color, error)

    # Phases and tasks

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Start the live line."""
        super().v2_playbook_on_start(playbook)
        if not self._verbose and self._is_live():
            self._line = LiveLine(self._live_text)
            self._line.start()

    def _close_phase(self) -> None:
        self._close_task()
        phase = self._playbook_run.end_phase()
        if phase is not None and (phase.tasks or phase.lost_hosts) and not self._verbose:
            self._print_phase_line(phase)

    def _print_phase_line(self, phase: Phase) -> None:
        lost_count = phase.count_outcomes(*LOST_OUTCOMES)
        symbol, color = ("✕", constants.COLOR_ERROR) if lost_count else ("✓", constants.COLOR_OK)
        self._print_line(f"{stringc(symbol, color)} {lines.format_phase(phase, self._width - 2)}")

    def _close_task(self) -> None:
        task = self._playbook_run.end_task()
        if task is not None and not self._verbose:
            self._print_changed_line(task)

    def _print_changed_line(self, task: PlayTask) -> None:
        phase = self._playbook_run.phase
        for changed_line in lines.format_changes(task, phase is not None and phase.check_mode, self._width):
            self._print_below_phase(changed_line, color=constants.COLOR_CHANGED)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Begin a phase. Without a live line, print its name now, so that a long phase can be seen."""
        self._close_phase()
        events.begin_play(self._playbook_run, play)
        self._play = play
        if self._verbose:
            super().v2_playbook_on_play_start(play)
        elif self._line is None:
            self._print_phase_name()

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        self._close_task()
        self._unreachable_hosts = []
        events.begin_task(self._playbook_run, task, is_handler=prefix == "RUNNING HANDLER")
        if self._verbose:
            super()._task_start(task, prefix)
        self._draw_live_line()

    def _get_diff(self, difflist: Any) -> str:
        """Make the texts printable, which come from hosts. Our colours are added later."""
        return str(super()._get_diff(all_printable(difflist)))

    def _print_task_banner(self, task: Any) -> None:
        """Print one line before a diff, where the default callback prints a banner."""
        if self._verbose:
            super()._print_task_banner(task)
        else:
            self._print_below_phase(f"    {printable(str(task.get_name()))}")
            self._last_task_banner = task._uuid

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Note that a host begins a task."""
        self._playbook_run.begin_host(str(host.get_name()))
        if self._verbose:
            super().v2_runner_on_start(host, task)

    # Results

    def _record_result(self, result: Any, outcome: str) -> None:
        events.end_host(self._playbook_run, result, outcome)
        if not self._verbose:
            # The default callback prints the warnings, and we print the error with its remedy.
            self._handle_warnings(result._result)
        self._draw_live_line()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Record a success."""
        self._record_result(result, "changed" if result._result.get("changed") else "ok")
        if self._verbose:
            super().v2_runner_on_ok(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Record a skipped task."""
        self._record_result(result, "skipped")
        if self._verbose:
            super().v2_runner_on_skipped(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Record a failure, and print it."""
        outcome = events.failure_outcome(result, ignore_errors)
        self._record_result(result, outcome)
        if self._verbose:
            super().v2_runner_on_failed(result, ignore_errors)
        elif outcome == "failed":
            self._print_failure(result)
        else:
            self._print_below_phase(
                f"    {outcome}  {events.host_name(result)}: {self._format_headline(result)}",
                color=constants.COLOR_SKIP,
            )

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Record an unreachable host, and print the reason."""
        is_ignored = bool(getattr(result._task, "ignore_unreachable", False)) and not events.ends_run(result)
        self._record_result(result, "ignored" if is_ignored else "unreachable")
        if self._verbose:
            super().v2_runner_on_unreachable(result)
        elif is_ignored:
            for host_name, reason in self._unreachable_hosts or [events.unreachable_reason(result)]:
                for line in lines.format_unreachable(host_name, reason, self._width):
                    self._print_below_phase(line, color=constants.COLOR_UNREACHABLE)
        else:
            self._print_failure(result, constants.COLOR_UNREACHABLE)

    def _format_headline(self, result: Any) -> str:
        message = str(result._result.get("msg") or result._task.get_name())
        return lines.shorten(printable(" ".join(message.split())), self._width - 24)

    def _print_failure(self, result: Any, color: str = constants.COLOR_ERROR) -> None:
        first_line, *detail_lines = lines.format_failure(
            events.format_worker(result),
            str(result._task.get_name()),
            result._result,
            events.task_location(result),
            self._width,
        )
        last_task, last_details, last_host = self._last_error
        # Nobody can know whether hidden errors are the same.
        if (last_task, last_details) == (str(result._task._uuid), detail_lines) and not result._result.get("censored"):
            self._print_line(f"  ✕ {events.host_name(result)}: the same as on {last_host}", color=color, error=True)
            return
        self._last_error = (str(result._task._uuid), detail_lines, events.host_name(result))
        self._print_below_phase(f"  ✕ {first_line}", color=color, error=True)
        for detail_line in detail_lines:
            self._print_line(detail_line, color=color if "→" not in detail_line[:6] else None, error=True)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Note that an item of a loop has changed something, which is counted when the task ends."""
        if result._result.get("changed"):
            self._playbook_run.add_changed_worker(events.host_name(result), events.format_worker(result))
        if self._verbose:
            super().v2_runner_item_on_ok(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Note an unreachable host of an item of a loop, which is shown when the task ends."""
        if result._result.get("unreachable"):
            self._unreachable_hosts.append(events.unreachable_reason(result))
        if self._verbose:
            super().v2_runner_item_on_failed(result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Print a skipped item only with -v."""
        if self._verbose:
            super().v2_runner_item_on_skipped(result)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Print an include only with -v."""
        if self._verbose:
            super().v2_playbook_on_include(included_file)

    def v2_runner_retry(self, result: Any) -> None:
        """Print a retry only with -v."""
        if self._verbose:
            super().v2_runner_retry(result)

    def v2_runner_on_async_poll(self, result: Any) -> None:
        """Print a poll only with -v."""
        if self._verbose:
            super().v2_runner_on_async_poll(result)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Print that a play has no hosts."""
        if self._verbose:
            super().v2_playbook_on_no_hosts_matched()
        else:
            self._print_line("  – no host matches; skipped", color=constants.COLOR_SKIP)

    # The end

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Close the last phase, and print the summary."""
        self._close_phase()
        if self._line is not None:
            self._line.stop()
            self._line = None
        if self._verbose:
            super().v2_playbook_on_stats(stats)
        counts_by_host = {host: stats.summarize(host) for host in sorted(stats.processed)}
        if not counts_by_host:
            if not self._verbose:
                self._print_line(
                    "Nothing was done: no play had a host, or the tags exclude all tasks.", color=constants.COLOR_WARN
                )
            return
        self._print_line("")
        for summary_line in lines.format_summary(self._playbook_run, counts_by_host, self._width - 2):
            self._print_line(f"  {summary_line}".rstrip())
        self._print_line("")
        if not self._verbose:
            self._print_verdict(counts_by_host)

    def _print_verdict(self, counts_by_host: dict[str, dict[str, int]]) -> None:
        # Ansible does not count an unreachable host that has ended the run although its task ignores that.
        lost_hosts = self._playbook_run.lost_hosts
        failed_hosts = [
            host
            for host, host_counts in counts_by_host.items()
            if host_counts["failures"] or host_counts["unreachable"] or host in lost_hosts
        ]
        elapsed_time = lines.format_duration(self._playbook_run.now())
        check_mode_note = " Check mode: nothing was changed." if context.CLIARGS.get("check") else ""
        if failed_hosts:
            self._print_line(
                f"Failed on {join_names(failed_hosts, '')} after {elapsed_time}.{check_mode_note}",
                color=constants.COLOR_ERROR,
                error=True,
            )
            return
        change_count = sum(host_counts["changed"] for host_counts in counts_by_host.values())
        change_summary = f"{lines.pluralize(change_count, 'change')}" if change_count else "Nothing to change"
        if check_mode_note and change_count:
            change_summary = f"{lines.pluralize(change_count, 'change')} would be made"
        self._print_line(
            f"Done in {elapsed_time}. {change_summary}.{check_mode_note}",
            color=constants.COLOR_CHANGED if change_count else constants.COLOR_OK,
        )

    def __del__(self) -> None:
        """Restore the terminal if Ansible ends without an event, as on a syntax error."""
        if getattr(self, "_line", None) is not None and self._line is not None:
            self._line.stop()

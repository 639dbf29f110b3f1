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
    description: The width of a line in columns. V(0) means the width of the terminal, or 100 without a terminal.
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

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import all_printable, printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.progress import (
    events,
    lines,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.progress.screen import (
    LiveLine,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.progress.tally import (
    LOSSES,
    Phase,
    Run,
    Task,
)

_WIDTH_WITHOUT_TERMINAL = 100


class CallbackModule(DefaultCallback):
    """Counts always; prints by itself without -v, and lets the default callback print with it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpumesh.cluster.progress"

    def __init__(self) -> None:
        super().__init__()
        self._run = Run()
        self._line: LiveLine | None = None
        self._headed: Phase | None = None
        # The last error: its task, its lines below the host, and the host.
        self._told: tuple[str, list[str], str] = ("", [], "")
        # The items of the current task's loop whose hosts did not answer.
        self._silent_items: list[tuple[str, str]] = []

    # What it looks like

    @property
    def _verbose(self) -> bool:
        return bool(self._display.verbosity)

    @property
    def _width(self) -> int:
        given = int(self.get_option("progress_width"))
        if given:
            return given
        # The last column stays free: some terminals wrap when it is written.
        return (
            shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns - 1
            if self._on_terminal
            else _WIDTH_WITHOUT_TERMINAL
        )

    @property
    def _on_terminal(self) -> bool:
        return os.isatty(1)

    def _wants_live(self) -> bool:
        wish = self.get_option("progress_live")
        if wish != "auto":
            return bool(wish == "always")
        return self._on_terminal and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"

    def _live_text(self) -> str:
        phase = self._run.phase
        if phase is None:
            return ""
        text = lines.live(phase, self._run.task, self._run.now(), self._width - 2)
        return f"{stringc('›', constants.COLOR_HIGHLIGHT)} {text}"

    def _say(self, text: str, color: str | None = None, error: bool = False) -> None:
        self._display.display(text, color=color, stderr=error and bool(self.get_option("display_failed_stderr")))

    def _draw(self) -> None:
        if self._line is not None:
            self._line.draw()

    def _head(self) -> None:
        """Print the name of the phase before the first line that belongs to it."""
        phase = self._run.phase
        if phase is not None and self._headed is not phase:
            self._headed = phase
            mode = " (check mode)" if phase.check_mode else ""
            self._say(f"  {printable(phase.name or 'Play')}{mode}")

    def _say_below(self, text: str, color: str | None = None, error: bool = False) -> None:
        self._head()
        self._say(text, color, error)

    # Phases and tasks

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin; from here on the live line is there."""
        super().v2_playbook_on_start(playbook)
        if not self._verbose and self._wants_live():
            self._line = LiveLine(self._live_text)
            self._line.start()

    def _close_phase(self) -> None:
        self._close_task()
        phase = self._run.end_phase()
        if phase is not None and (phase.tasks or phase.lost) and not self._verbose:
            self._phase_line(phase)

    def _phase_line(self, phase: Phase) -> None:
        bad = phase.count(*LOSSES)
        sign, color = ("✕", constants.COLOR_ERROR) if bad else ("✓", constants.COLOR_OK)
        self._say(f"{stringc(sign, color)} {lines.done(phase, self._width - 2)}")

    def _close_task(self) -> None:
        task = self._run.end_task()
        if task is not None and not self._verbose:
            self._changed_line(task)

    def _changed_line(self, task: Task) -> None:
        phase = self._run.phase
        text = lines.changed(task, phase is not None and phase.check_mode)
        if text is not None:
            self._say_below(f"    {text}", color=constants.COLOR_CHANGED)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A phase begins. Without a live line its name is printed now, so that one sees where a long one is."""
        self._close_phase()
        events.begin_play(self._run, play)
        self._play = play
        if self._verbose:
            super().v2_playbook_on_play_start(play)
        elif self._line is None:
            self._head()

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        self._close_task()
        self._silent_items = []
        events.begin_task(self._run, task, handler=prefix == "RUNNING HANDLER")
        if self._verbose:
            super()._task_start(task, prefix)
        self._draw()

    def _get_diff(self, difflist: Any) -> str:
        """The texts are of hosts; the colours, which come after this, are ours."""
        return str(super()._get_diff(all_printable(difflist)))

    def _print_task_banner(self, task: Any) -> None:
        """The default callback puts a banner before a diff; ours is one line."""
        if self._verbose:
            super()._print_task_banner(task)
        else:
            self._say_below(f"    {printable(str(task.get_name()))}")
            self._last_task_banner = task._uuid

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """A host begins a task."""
        self._run.begin_host(str(host.get_name()))
        if self._verbose:
            super().v2_runner_on_start(host, task)

    # Results

    def _result(self, result: Any, outcome: str) -> None:
        events.end_host(self._run, result, outcome)
        if not self._verbose:
            # Warnings only: the error itself is printed by us, with its remedy.
            self._handle_warnings(result._result)
        self._draw()

    def v2_runner_on_ok(self, result: Any) -> None:
        """A host has ended a task well."""
        self._result(result, "changed" if result._result.get("changed") else "ok")
        if self._verbose:
            super().v2_runner_on_ok(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """A host has skipped a task."""
        self._result(result, "skipped")
        if self._verbose:
            super().v2_runner_on_skipped(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A host has failed."""
        outcome = events.failure(result, ignore_errors)
        self._result(result, outcome)
        if self._verbose:
            super().v2_runner_on_failed(result, ignore_errors)
        elif outcome == "failed":
            self._failure(result)
        else:
            self._say_below(
                f"    {outcome}  {events.host(result)}: {self._headline(result)}", color=constants.COLOR_SKIP
            )

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A host does not answer."""
        ignored = bool(getattr(result._task, "ignore_unreachable", False)) and not events.ends_run(result)
        self._result(result, "ignored" if ignored else "unreachable")
        if self._verbose:
            super().v2_runner_on_unreachable(result)
        elif ignored:
            for host, said in self._silent_items or [events.silence(result)]:
                for line in lines.silence(host, said, self._width):
                    self._say_below(line, color=constants.COLOR_UNREACHABLE)
        else:
            self._failure(result, constants.COLOR_UNREACHABLE)

    def _headline(self, result: Any) -> str:
        text = str(result._result.get("msg") or result._task.get_name())
        return lines.cut(printable(" ".join(text.split())), self._width - 24)

    def _failure(self, result: Any, color: str = constants.COLOR_ERROR) -> None:
        first, *rest = lines.failure(
            events.worked(result),
            str(result._task.get_name()),
            result._result,
            events.written_at(result),
            self._width,
        )
        task, said, host = self._told
        # Of hidden errors, nobody can know whether they are the same.
        if (task, said) == (str(result._task._uuid), rest) and not result._result.get("censored"):
            self._say(f"  ✕ {events.host(result)}: the same as on {host}", color=color, error=True)
            return
        self._told = (str(result._task._uuid), rest, events.host(result))
        self._say_below(f"  ✕ {first}", color=color, error=True)
        for line in rest:
            self._say(line, color=color if "→" not in line[:6] else None, error=True)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """An item of a loop; it is counted with the others when the task ends."""
        if result._result.get("changed"):
            self._run.end_item(events.host(result), events.worked(result))
        if self._verbose:
            super().v2_runner_item_on_ok(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """An item of a loop; it is shown when the task ends."""
        if result._result.get("unreachable"):
            self._silent_items.append(events.silence(result))
        if self._verbose:
            super().v2_runner_item_on_failed(result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """An item of a loop."""
        if self._verbose:
            super().v2_runner_item_on_skipped(result)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """A file is included: no news."""
        if self._verbose:
            super().v2_playbook_on_include(included_file)

    def v2_runner_retry(self, result: Any) -> None:
        """A task is tried again: no news on a quiet screen."""
        if self._verbose:
            super().v2_runner_retry(result)

    def v2_runner_on_async_poll(self, result: Any) -> None:
        """A task is waited for."""
        if self._verbose:
            super().v2_runner_on_async_poll(result)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """A play has no hosts."""
        if self._verbose:
            super().v2_playbook_on_no_hosts_matched()
        else:
            self._say("  – no host matches; skipped", color=constants.COLOR_SKIP)

    # The end

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Close the last phase and sum up."""
        self._close_phase()
        if self._line is not None:
            self._line.stop()
            self._line = None
        if self._verbose:
            super().v2_playbook_on_stats(stats)
        numbers = {host: stats.summarize(host) for host in sorted(stats.processed)}
        if not numbers:
            if not self._verbose:
                self._say(
                    "Nothing was done: no play had a host, or the tags exclude all tasks.", color=constants.COLOR_WARN
                )
            return
        self._say("")
        for line in lines.summary(self._run, numbers):
            self._say(f"  {line}".rstrip())
        self._say("")
        if not self._verbose:
            self._verdict(numbers)

    def _verdict(self, numbers: dict[str, dict[str, int]]) -> None:
        # Ansible's numbers do not contain a host that ended the run although its task ignores that it is unreachable.
        gone = self._run.gone
        bad = [host for host, one in numbers.items() if one["failures"] or one["unreachable"] or host in gone]
        took = lines.seconds(self._run.now())
        dry = " Check mode: nothing was changed." if context.CLIARGS.get("check") else ""
        if bad:
            self._say(f"Failed on {lines.named(bad)} after {took}.{dry}", color=constants.COLOR_ERROR, error=True)
            return
        changed = sum(one["changed"] for one in numbers.values())
        what = f"{lines.plural(changed, 'change')}" if changed else "Nothing to change"
        if dry and changed:
            what = f"{lines.plural(changed, 'change')} would be made"
        self._say(f"Done in {took}. {what}.{dry}", color=constants.COLOR_CHANGED if changed else constants.COLOR_OK)

    def __del__(self) -> None:
        """Ansible may end without telling us, as on a syntax error: the terminal must not stay ours."""
        if getattr(self, "_line", None) is not None and self._line is not None:
            self._line.stop()

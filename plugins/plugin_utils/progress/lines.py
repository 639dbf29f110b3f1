# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of a run: what is running, what changed, what failed, and the summary."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.progress.tally import (
    LOSSES,
    Phase,
    Run,
    Task,
)

_NAMED_HOSTS = 5
#: Keys of a failed result that are more informative than its message, with the number of lines to show.
_OUTPUTS = (("stderr", 20), ("module_stderr", 20), ("stdout", 20), ("module_stdout", 20))


def seconds(value: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 05 s``, ``1 h 02 min``."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def named(hosts: Sequence[str]) -> str:
    """The names of hosts, or only the first few if there are many."""
    if len(hosts) <= _NAMED_HOSTS:
        return ", ".join(hosts)
    return f"{', '.join(hosts[:2])} and {len(hosts) - 2} more"


def plural(number: int, word: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def cut(text: str, width: int) -> str:
    """At most ``width`` columns, with an ellipsis if it was longer."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def live(phase: Phase, task: Task | None, now: float, width: int) -> str:
    """The line that is redrawn while a phase runs. Without a percentage, since the number of tasks is not known."""
    parts = [phase.name or "Play"]
    if task is not None:
        parts.append(f"task {task.number}: {task.name}")
        done = len(task.outcome)
        if task.total > 1:
            parts.append(f"{done} of {task.total} hosts")
        if task.waiting and (done or task.total == 1) and now - task.started > 2:
            parts.append(f"waiting for {named(task.waiting)}")
    tail = f"  {seconds(now - phase.started)}"
    return cut("  ".join(printable(part) for part in parts), width - len(tail)) + tail


def changed(task: Task, check_mode: bool) -> str | None:
    """One line on what a task has changed, or would change; None for nothing."""
    hosts = task.hosts("changed")
    if not hosts:
        return None
    took = max(task.took[host] for host in hosts)
    verb = "would change" if check_mode else "changed"
    time = f"  ({seconds(took)})" if took >= 2 else ""
    return f"{verb}  {printable(task.name)}: {named(task.changed_on())}{time}"


def done(phase: Phase, width: int) -> str:
    """The line of a phase that has ended."""
    parts = [plural(len(phase.tasks), "task"), seconds((phase.ended or phase.started) - phase.started)]
    number = phase.count("changed")
    if number:
        parts.append(f"{number} would change" if phase.check_mode else f"{number} changed")
    for outcome in LOSSES:
        number = phase.count(outcome)
        if number:
            parts.append(f"{number} {outcome}")
    slowest = phase.slowest()
    if slowest is not None and slowest[1] >= 1:
        parts.append(f"slowest {slowest[0]} ({seconds(slowest[1])})")
    tail = " · ".join(parts)
    name = printable(phase.name or "Play")
    room = max(width - len(tail) - 2, 12)
    return f"{cut(name, room):<{min(room, 34)}}  {tail}"


def _failures(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The failed items of a looped task, or the result itself."""
    items = result.get("results")
    if isinstance(items, list):
        failed: list[Mapping[str, Any]] = [
            item for item in items if isinstance(item, dict) and (item.get("failed") or item.get("unreachable"))
        ]
        if failed:
            return failed
    return [result]


def _paragraph(text: str, width: int, indent: str) -> list[str]:
    lines: list[str] = []
    for line in printable(text).rstrip().splitlines():
        # A line that is already indented was formatted by its writer: a table, or a command's output.
        if line.startswith((" ", "\t")) or not line.strip() or len(line) <= width - len(indent):
            lines.append(f"{indent}{line}".rstrip())
        else:
            lines += textwrap.wrap(
                line,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


def silence(host: str, said: str, width: int) -> list[str]:
    """A host that does not answer, with the whole reason, as no other line has it."""
    text = " ".join(said.split()).removeprefix("Task failed: ")
    first, *rest = _paragraph(f"no answer  {host}: {text}", width - 6, "    ")
    return [first, *(f"      {line.strip()}" for line in rest)]


def failure(host: str, task: str, result: Mapping[str, Any], path: str, width: int) -> list[str]:
    """Everything needed to understand an error: host, task, complete message, remedy, output, and its location.

    Only the first line has no indent.
    """
    lines = [f"{host}: {printable(task)}"]
    for one in _failures(result):
        if "item" in one and one is not result:
            lines += _paragraph(f"item: {one.get('_ansible_item_label', one['item'])}", width, "    ")
        error = one.get("error")
        if isinstance(error, dict) and error.get("message"):
            lines += _paragraph(str(error["message"]), width, "    ")
            if error.get("remedy"):
                lines += _paragraph(f"→ {error['remedy']}", width, "    ")
            continue
        message = one.get("msg") or one.get("reason")
        if one.get("censored"):
            message = "The details are hidden because the task sets no_log."
        elif isinstance(message, (list, tuple)):
            message = "\n".join(str(part) for part in message)
        lines += _paragraph(str(message or "The task failed without a message."), width, "    ")
        for key, number in _OUTPUTS:
            text = one.get(key)
            if isinstance(text, str) and text.strip() and text.strip() not in str(message):
                shown = text.strip().splitlines()
                more = [f"… {len(shown) - number} lines before"] if len(shown) > number else []
                lines.append(f"    {key}:")
                lines += _paragraph("\n".join([*more, *shown[-number:]]), width, "      ")
    if path:
        lines.append(f"    {path}")
    return lines


def summary(run: Run, stats: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A table of the hosts and one of the phases. ``stats`` are Ansible's own counts by host."""
    times: dict[str, float] = {}
    for phase in run.phases:
        for host, took in phase.host_times().items():
            times[host] = times.get(host, 0.0) + took
    keys = ["ok", "changed", "failures", "unreachable", "skipped"]
    keys += [key for key in ("rescued", "ignored") if any(numbers.get(key) for numbers in stats.values())]
    rows = [["host", *("failed" if key == "failures" else key for key in keys), "time"]]
    rows += [[host, *(str(stats[host].get(key, 0)) for key in keys), seconds(times.get(host, 0.0))] for host in stats]
    lines = _columns(rows)
    ended = [phase for phase in run.phases if phase.ended is not None and phase.tasks]
    if len(ended) > 1:
        rows = [["phase", "tasks", "time", "slowest task"]]
        for phase in ended:
            slowest = max(phase.tasks, key=lambda task: (task.ended or task.started) - task.started)
            took = (slowest.ended or slowest.started) - slowest.started
            rows.append(
                [
                    cut(phase.name or "Play", 34),
                    str(len(phase.tasks)),
                    seconds((phase.ended or 0.0) - phase.started),
                    f"{cut(slowest.name, 44)} ({seconds(took)})" if took >= 1 else "",
                ]
            )
        lines += ["", *_columns(rows, left=(0, 3))]
    return lines


def _columns(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Align rows in columns, numbers to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(widths[index]) if index in left else text.rjust(widths[index]) for index, text in enumerate(row)
        ).rstrip()
        for row in rows
    ]

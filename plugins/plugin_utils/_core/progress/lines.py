# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format the lines of a run: what is running, what changed, what failed, and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names, printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress.tally import (
    LOST_OUTCOMES,
    Phase,
    PlaybookRun,
    PlayTask,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import wrap_text

#: These keys of a failed result are more informative than its message. The numbers are those of the lines to show.
_OUTPUT_LIMITS = (("stderr", 20), ("module_stderr", 20), ("stdout", 20), ("module_stdout", 20))


def format_duration(duration: float) -> str:
    """Format seconds as ``0.4 s``, ``12 s``, ``3 min 05 s`` or ``1 h 02 min``."""
    if duration < 9.95:
        return f"{duration:.1f} s"
    whole_seconds = round(duration)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02d} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60:02d} min"


def pluralize(count: int, noun: str) -> str:
    """Format a count as ``1 task`` or ``2 tasks``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shorten(text: str, width: int) -> str:
    """Shorten a text to at most ``width`` columns, with an ellipsis if it was longer."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def format_live_line(phase: Phase, task: PlayTask | None, now: float, width: int) -> str:
    """Format the line that is redrawn while a phase runs. It has no percentage: the number of tasks is unknown."""
    line_parts = [phase.name or "Play"]
    if task is not None:
        line_parts.append(f"task {task.task_number}: {task.name}")
        finished_count = len(task.outcomes)
        if task.host_count > 1:
            line_parts.append(f"{finished_count} of {task.host_count} hosts")
        if task.waiting_hosts and (finished_count or task.host_count == 1) and now - task.started_at > 2:
            line_parts.append(f"waiting for {join_names(task.waiting_hosts, '')}")
    time_suffix = f"  {format_duration(now - phase.started_at)}"
    return shorten("  ".join(printable(part) for part in line_parts), width - len(time_suffix)) + time_suffix


def format_changes(task: PlayTask, check_mode: bool, width: int) -> list[str]:
    """Format what a task has changed, or would change, as one line if it fits; nothing if it is nothing."""
    hosts = task.hosts_with_outcome("changed")
    if not hosts:
        return []
    longest_time = max(task.durations[host] for host in hosts)
    verb = "would change" if check_mode else "changed"
    time_note = f"  ({format_duration(longest_time)})" if longest_time >= 2 else ""
    changed_line = f"{verb}  {printable(task.name)}: {join_names(task.changed_hosts(), '')}{time_note}"
    return _wrap_hanging(changed_line, width)


def format_phase(phase: Phase, width: int) -> str:
    """Format the line of a phase that has ended."""
    result_parts = [
        pluralize(len(phase.tasks), "task"),
        format_duration((phase.ended_at or phase.started_at) - phase.started_at),
    ]
    host_count = phase.count_outcomes("changed")
    if host_count:
        result_parts.append(f"{host_count} would change" if phase.check_mode else f"{host_count} changed")
    for outcome in LOST_OUTCOMES:
        host_count = phase.count_outcomes(outcome)
        if host_count:
            result_parts.append(f"{host_count} {outcome}")
    slowest_host = phase.find_slowest_host()
    if slowest_host is not None and slowest_host[1] >= 1:
        result_parts.append(f"slowest {slowest_host[0]} ({format_duration(slowest_host[1])})")
    result_text = " · ".join(result_parts)
    phase_name = printable(phase.name or "Play")
    name_width = max(width - len(result_text) - 2, 12)
    return f"{shorten(phase_name, name_width):<{min(name_width, 34)}}  {result_text}"


def _failed_results(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the failed items of a looped task, or the result itself."""
    loop_results = result.get("results")
    if isinstance(loop_results, list):
        failed_results: list[Mapping[str, Any]] = [
            loop_result
            for loop_result in loop_results
            if isinstance(loop_result, dict) and (loop_result.get("failed") or loop_result.get("unreachable"))
        ]
        if failed_results:
            return failed_results
    return [result]


def format_unreachable(host: str, reason: str, width: int) -> list[str]:
    """Format an unreachable host with the whole reason, which no other line has."""
    reason_text = " ".join(reason.split()).removeprefix("Task failed: ")
    return _wrap_hanging(f"no answer  {host}: {reason_text}", width)


def _wrap_hanging(text: str, width: int) -> list[str]:
    """Wrap a text below the name of a phase. The further lines are indented more."""
    first_line, *more_lines = wrap_text(text, width - 2, "    ")
    return [first_line, *(f"      {line.strip()}" for line in more_lines)]


def format_failure(host: str, task_name: str, result: Mapping[str, Any], task_path: str, width: int) -> list[str]:
    """Format everything needed to understand an error: host, task, complete message, remedy, output and location.

    Only the first line has no indent.
    """
    failure_lines = [f"{host}: {printable(task_name)}"]
    for failed_result in _failed_results(result):
        if "item" in failed_result and failed_result is not result:
            failure_lines += wrap_text(
                f"item: {failed_result.get('_ansible_item_label', failed_result['item'])}", width, "    "
            )
        error = failed_result.get("error")
        if isinstance(error, dict) and error.get("message"):
            failure_lines += wrap_text(str(error["message"]), width, "    ")
            if error.get("remedy"):
                failure_lines += wrap_text(f"→ {error['remedy']}", width, "    ")
            continue
        message = failed_result.get("msg") or failed_result.get("reason")
        if failed_result.get("censored"):
            message = "The details are hidden because the task sets no_log."
        elif isinstance(message, (list, tuple)):
            message = "\n".join(str(message_part) for message_part in message)
        failure_lines += wrap_text(str(message or "The task failed without a message."), width, "    ")
        for output_key, line_limit in _OUTPUT_LIMITS:
            output_text = failed_result.get(output_key)
            if isinstance(output_text, str) and output_text.strip() and output_text.strip() not in str(message):
                output_lines = output_text.strip().splitlines()
                omission_note = (
                    [f"… {len(output_lines) - line_limit} lines before"] if len(output_lines) > line_limit else []
                )
                failure_lines.append(f"    {output_key}:")
                failure_lines += wrap_text("\n".join([*omission_note, *output_lines[-line_limit:]]), width, "      ")
    if task_path:
        failure_lines.append(f"    {task_path}")
    return failure_lines


def format_summary(playbook_run: PlaybookRun, counts_by_host: Mapping[str, Mapping[str, int]], width: int) -> list[str]:
    """Format a table of the hosts and one of the phases. ``counts_by_host`` are the counts of Ansible itself.

    Names of phases and tasks are shortened to ``width`` columns.
    """
    seconds_by_host: dict[str, float] = {}
    for phase in playbook_run.phases:
        for host, duration in phase.host_durations().items():
            seconds_by_host[host] = seconds_by_host.get(host, 0.0) + duration
    count_keys = ["ok", "changed", "failures", "unreachable", "skipped"]
    count_keys += [
        count_key
        for count_key in ("rescued", "ignored")
        if any(host_counts.get(count_key) for host_counts in counts_by_host.values())
    ]
    table_rows = [["host", *("failed" if count_key == "failures" else count_key for count_key in count_keys), "time"]]
    table_rows += [
        [
            host,
            *(str(counts_by_host[host].get(count_key, 0)) for count_key in count_keys),
            format_duration(seconds_by_host.get(host, 0.0)),
        ]
        for host in counts_by_host
    ]
    summary_lines = _align_columns(table_rows)
    ended_phases = [phase for phase in playbook_run.phases if phase.ended_at is not None and phase.tasks]
    if len(ended_phases) > 1:
        table_rows = [["phase", "tasks", "time", "slowest task"]]
        # What the numbers, their titles and the gaps between the columns leave for the two names.
        names_width = max(width - 36, 32)
        phase_width = min(34, names_width // 2, max(len(phase.name or "Play") for phase in ended_phases))
        for phase in ended_phases:
            slowest_task = max(phase.tasks, key=lambda task: (task.ended_at or task.started_at) - task.started_at)
            duration = (slowest_task.ended_at or slowest_task.started_at) - slowest_task.started_at
            slowest_text = (
                f"{shorten(slowest_task.name, min(44, names_width - phase_width))} ({format_duration(duration)})"
            )
            table_rows.append(
                [
                    shorten(phase.name or "Play", phase_width),
                    str(len(phase.tasks)),
                    format_duration((phase.ended_at or 0.0) - phase.started_at),
                    slowest_text if duration >= 1 else "",
                ]
            )
        summary_lines += ["", *_align_columns(table_rows, left_columns=(0, 3))]
    return summary_lines


def _align_columns(table_rows: Sequence[Sequence[str]], left_columns: Sequence[int] = (0,)) -> list[str]:
    """Align the cells of rows in columns, to the right unless the column is in ``left_columns``."""
    column_widths = [max(len(row[column_index]) for row in table_rows) for column_index in range(len(table_rows[0]))]
    return [
        "  ".join(
            cell_text.ljust(column_widths[column_index])
            if column_index in left_columns
            else cell_text.rjust(column_widths[column_index])
            for column_index, cell_text in enumerate(row)
        ).rstrip()
        for row in table_rows
    ]

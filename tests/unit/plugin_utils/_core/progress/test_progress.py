# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress import lines
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress.tally import PlaybookRun


class Clock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.value = 100.0

    def __call__(self) -> float:
        return self.value


@pytest.fixture
def clock() -> Clock:
    return Clock()


def two_tasks(clock: Clock, check_mode: bool = False) -> PlaybookRun:
    run = PlaybookRun(clock)
    run.begin_phase("Connect the members", ["n1", "n2", "n3"], check_mode)
    run.begin_task("Install WireGuard")
    for host in ("n1", "n2", "n3"):
        run.begin_host(host)
    for host, took in (("n1", 1), ("n2", 1), ("n3", 4)):
        clock.value += took
        run.end_host(host, "changed" if host != "n2" else "ok")
    run.begin_task("Write the configuration")
    run.begin_host("n1")
    return run


def test_live_line_says_task_hosts_time_and_who_is_waited_for(clock: Clock) -> None:
    run = two_tasks(clock)
    run.begin_host("n2")
    run.end_host("n1", "ok")
    clock.value += 3
    text = lines.format_live_line(run.phase, run.task, run.now(), 120)
    assert text == "Connect the members  task 2: Write the configuration  1 of 3 hosts  waiting for n2  9.0 s"
    assert len(lines.format_live_line(run.phase, run.task, run.now(), 40)) == 40
    assert "%" not in text


def test_changed_line_names_hosts_and_is_conditional_in_check_mode(clock: Clock) -> None:
    task = two_tasks(clock).phases[0].tasks[0]
    assert lines.format_changes(task, False, 80) == ["    changed  Install WireGuard: n1, n3  (6.0 s)"]
    assert lines.format_changes(task, True, 80)[0].startswith("    would change")
    assert lines.format_changes(task, False, 40) == ["    changed  Install WireGuard: n1, n3", "      (6.0 s)"]


def test_done_line_names_the_slowest_host(clock: Clock) -> None:
    run = two_tasks(clock)
    phase = run.end_phase()
    assert (
        lines.format_phase(phase, 100).split("  ", 1)[1].strip() == "2 tasks · 6.0 s · 2 changed · slowest n3 (6.0 s)"
    )


def test_a_lost_host_leaves_the_totals_of_later_tasks_and_phases(clock: Clock) -> None:
    run = two_tasks(clock)
    run.end_host("n1", "unreachable")
    assert run.begin_task("Next").host_count == 2
    assert run.begin_task("Once", runs_once=True).host_count == 1
    assert run.begin_phase("Other", ["n1", "n2", "n3"]).host_count == 2


def test_failure_shows_message_remedy_output_and_place() -> None:
    result = {
        "msg": "n3: long form",
        "error": {"message": "10.0.0.7 is not in 192.168.1.0/24.", "remedy": "Give cluster_subnet=10.0.0.0/24."},
    }
    made = lines.format_failure("n3", "Choose the subnet", result, "roles/x.yml:4", 80)
    assert made == [
        "n3: Choose the subnet",
        "    10.0.0.7 is not in 192.168.1.0/24.",
        "    → Give cluster_subnet=10.0.0.0/24.",
        "    roles/x.yml:4",
    ]


def test_failure_of_a_command_shows_the_end_of_its_output() -> None:
    made = lines.format_failure(
        "n1", "t", {"msg": "non-zero return code", "stderr": "\n".join(map(str, range(30)))}, "", 80
    )
    assert "      … 10 lines before" in made
    assert made[-1] == "      29"


def test_failed_items_are_shown_and_good_ones_are_not() -> None:
    result = {
        "msg": "One or more items failed",
        "results": [{"item": "a"}, {"item": "b", "failed": True, "msg": "bad"}],
    }
    made = lines.format_failure("n1", "t", result, "", 80)
    assert made == ["n1: t", "    item: b", "    bad"]


def test_no_log_stays_hidden_and_escape_codes_are_disarmed() -> None:
    assert (
        "no_log" in lines.format_failure("n1", "t", {"censored": "the output has been hidden", "msg": "x"}, "", 80)[1]
    )
    assert "\x1b" not in "".join(lines.format_failure("n1", "t", {"msg": "\x1b]0;x\x07"}, "", 80))


def test_long_messages_are_wrapped_and_tables_are_not() -> None:
    table = "  " + "x " * 60
    made = lines.format_failure("n1", "t", {"msg": "word " * 40 + "\n" + table}, "", 60)
    assert all(len(line) <= 60 for line in made if "x x" not in line)
    assert f"    {table}".rstrip() in made


def test_summary_has_hosts_and_phases(clock: Clock) -> None:
    run = two_tasks(clock)
    run.begin_phase("Check", ["n1"])
    run.begin_task("Look")
    run.end_phase()
    made = lines.format_summary(run, {"n1": {"ok": 2, "changed": 1, "failures": 0, "unreachable": 0, "skipped": 0}}, 78)
    assert made[0].split() == ["host", "ok", "changed", "failed", "unreachable", "skipped", "time"]
    assert made[1].split() == ["n1", "2", "1", "0", "0", "0", "1.0", "s"]
    assert any(line.startswith("Connect the members") and "Install WireGuard (6.0 s)" in line for line in made)


def test_summary_with_long_names_fits_80_columns(clock: Clock) -> None:
    run = PlaybookRun(clock)
    for number in range(2):
        run.begin_phase(f"A phase with a long name, number {number}", ["n1"])
        run.begin_task("Validate the new record and find outdated copies")
        run.begin_host("n1")
        clock.value += 754
        run.end_host("n1", "ok")
        run.end_phase()
    made = lines.format_summary(run, {"n1": {"ok": 2, "changed": 1, "failures": 0, "unreachable": 0, "skipped": 0}}, 78)
    assert max(map(len, made)) <= 78
    assert any("A phase with" in line and "Validate the" in line and "(12 min 34 s)" in line for line in made)


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (65, "1 min 05 s"), (3720, "1 h 02 min")]
)
def test_seconds(value: float, text: str) -> None:
    assert lines.format_duration(value) == text

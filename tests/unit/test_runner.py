# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs the tests: what starts when, what is counted, and which tree counts as proven."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from lab_hosts import summarize_failures
from runner import __main__ as runner
from runner import usage
from runner.steps import IMAGE_STEP, PARTS, CommandStep, find_scenarios, next_step, plan_steps

ROOT = Path(__file__).resolve().parents[2]


def test_every_part_and_every_scenario_is_planned_once():
    scenarios = find_scenarios(ROOT)
    names = [step.name for step in plan_steps(PARTS, scenarios)]

    assert len(names) == len(set(names))
    assert {f"molecule: {name}" for name in scenarios} <= set(names)
    assert {name.split(":")[0] for name in names} == set(PARTS)


def test_a_scenario_waits_for_the_image_and_others_do_not():
    image, scenario, lint = (
        CommandStep(IMAGE_STEP, ()),
        CommandStep("molecule: a", (), needs=IMAGE_STEP),
        CommandStep("lint", ()),
    )

    assert next_step([scenario, lint], [image], 3) == lint
    assert next_step([scenario], [image], 3) is None
    assert next_step([scenario], [], 3) == scenario


def test_no_more_steps_run_than_are_allowed():
    step = CommandStep("step", ())

    assert next_step([step], [step, step], 2) is None
    assert next_step([step], [step], 2) == step
    assert next_step([], [], 2) is None


def test_what_takes_longest_starts_first():
    names = [step.name for step in plan_steps(PARTS, find_scenarios(ROOT))]

    assert names.index(IMAGE_STEP) == 0
    order = ("molecule: work", "integration", "unit", "molecule: registry", "security")
    assert sorted(order, key=names.index) == list(order)


def test_a_guide_names_the_scenarios_that_run_with_the_oldest_ansible_core():
    steps = plan_steps(PARTS, find_scenarios(ROOT))
    oldest = [step.name.partition(": ")[2] for step in steps if "2.18" in step.command]
    guide = " ".join((ROOT / "docs" / "guides" / "proof.md").read_text(encoding="utf-8").split())

    *most, last = (f"`{name}`" for name in sorted([*oldest, "awx"]))
    assert f"support, in {', '.join(most)} and {last}, and 2.19 in all others" in guide


OUTPUT = """\
TASK [Log in] ******
ok: [t1]
fatal: [t3]: FAILED! =>
    msg: The control server did not answer.
ok: [t2]

TASK [Show the cluster] ******
ok: [t1]
ok: [t2]
""" + "\n".join(f"more {number}" for number in range(900))


def test_a_failed_task_far_from_the_end_of_a_playbook_is_reported_first():
    first, second, end = summarize_failures(OUTPUT).split("\n", 2)

    assert [first, second] == ["Log in: fatal: [t3]: FAILED! =>", "    msg: The control server did not answer."]
    assert end == OUTPUT[-4000:] and end.endswith("more 899")


def test_the_reasons_of_a_failure_are_found_in_a_long_output():
    pytest_output = "E       AssertionError: " + OUTPUT.replace("\n", "\nE       ") + "\nFAILED test_a.py::test_b - x\n"

    found = runner.find_reasons(pytest_output)

    assert "E       fatal: [t3]: FAILED! =>" in found and found[-1] == "FAILED test_a.py::test_b - x"
    assert "E           msg: The control server did not answer." in found
    assert len(found) < 20


def test_the_last_reasons_are_shown_if_they_are_many():
    found = runner.find_reasons("".join(f"FAILED test {number}\n" for number in range(300)))

    assert len(found) == 60 and found[-1] == "FAILED test 299"


def test_without_a_reason_the_end_of_the_output_is_shown():
    assert runner.find_reasons("\n".join(f"line {number}" for number in range(300)))[-1] == "line 299"


def test_a_counter_goes_on_when_its_container_is_restarted():
    counter = usage.ReadingCounter()
    for reading in (1.0, 4.0, 0.5, 2.0):
        counter.add_reading(reading)

    assert counter.seconds == 6.0


@pytest.mark.parametrize(
    ("name", "text"), [("cpuacct.usage", "2500000000\n"), ("cpu.stat", "usage_usec 2500000\nuser_usec 1\n")]
)
def test_control_groups_of_both_versions_are_read(tmp_path, name, text):
    (tmp_path / name).write_text(text)

    assert usage.read_usage(tmp_path) == 2.5
    assert usage.read_usage(tmp_path / "missing") is None


def test_containers_of_a_lab_are_added_up(tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(usage, "list_containers", lambda: {"a": "lab1", "b": "lab1", "c": "lab2"})
    for container in "abc":
        (tmp_path / "cpuacct/docker" / container).mkdir(parents=True)
        (tmp_path / "cpuacct/docker" / container / "cpuacct.usage").write_text("3000000000")
    labs = usage.LabUsage()
    labs.read_counters()

    assert labs.seconds_of("lab1") == 6.0
    assert labs.seconds_of("lab2") == 3.0
    assert labs.seconds_of("") == 0


@pytest.fixture(name="checkout")
def _checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "LOG_DIRECTORY", tmp_path / ".cache/run")
    monkeypatch.setattr(runner, "PASSED_TREE", tmp_path / ".cache/passed")
    for name in ("SCENARIO", "JOBS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".gitignore").write_text(".cache/\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def _plan(monkeypatch, *commands):
    steps = [CommandStep(f"step {number}", command) for number, command in enumerate(commands)]
    monkeypatch.setattr(runner, "plan_steps", lambda parts, scenarios: steps)


def test_a_clean_checkout_in_which_all_has_passed_is_noted(checkout, monkeypatch, capsys):
    _plan(monkeypatch, ("true",), ("echo", "3 passed in 1s"))

    assert runner.main([]) == 0

    tree = subprocess.run(
        ["git", "rev-parse", "HEAD^{tree}"], cwd=checkout, check=True, capture_output=True, text=True
    ).stdout
    assert (checkout / ".cache/passed").read_text() == tree
    output = capsys.readouterr().out
    assert "3 passed in 1s" in output
    assert output.splitlines()[-1] == "2 passed, 0 failed"


@pytest.mark.parametrize("reason", ["failed", "part", "scenario", "changed"])
def test_anything_less_is_not_noted(checkout, monkeypatch, capsys, reason):
    _plan(monkeypatch, ("sh", "-c", f"echo the reason; {'exit 3' if reason == 'failed' else 'true'}"), ("true",))
    if reason == "scenario":
        monkeypatch.setenv("SCENARIO", "default")
    if reason == "changed":
        (checkout / "new").touch()

    status = runner.main(["lint"] if reason == "part" else [])

    assert not (checkout / ".cache/passed").exists()
    assert status == (1 if reason == "failed" else 0)
    assert ("the reason" in capsys.readouterr().out) == (reason == "failed")


def test_an_unknown_part_is_refused(checkout, capsys):
    assert runner.main(["units"]) == 2
    assert "no part 'units'" in capsys.readouterr().err


def test_what_a_command_leaves_in_the_background_ends_with_an_interrupt(checkout):
    execution = runner.StepExecution(CommandStep("sleeper", ("sh", "-c", "sleep 1000 & wait")), None)
    execution.stop(15)
    while not execution.poll():
        pass

    assert execution.status == -15

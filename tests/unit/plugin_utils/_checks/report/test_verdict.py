# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from xml.etree import ElementTree

import jsonschema
import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import junit, prometheus, terminal
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import verdict as module
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.report import samples

with open(os.path.join(os.path.dirname(module.__file__), "verdict.schema.json"), encoding="utf-8") as stream:
    SCHEMA = json.load(stream)


@pytest.mark.parametrize(
    ("members", "options"),
    [
        (3, {}),
        (3, {"dead": ["n3"], "measured": False}),
        (50, {"sites": ("a", "b"), "runs": 40}),
        (120, {"sites": ("a", "b"), "dead": ["n017"]}),
        (1, {"runs": 0}),
    ],
)
def test_every_verdict_is_valid_by_the_schema(members: int, options: dict) -> None:
    jsonschema.validate(json.loads(json.dumps(samples.verdict(members, **options))), SCHEMA)


@pytest.mark.parametrize(
    ("partial", "expected"),
    [
        (False, "Ready to train: 1 check passed."),
        (True, "Partial check: 1 check passed."),
    ],
)
def test_only_a_check_of_everything_proves_that_a_cluster_is_ready(partial: bool, expected: str) -> None:
    checks = [samples.check("health.disk", "n1")]
    verdict = module.assemble_verdict(samples.record(3), checks, "2026-11-20T20:31:00Z", partial=partial)
    assert module.format_headline(verdict) == expected
    jsonschema.validate(verdict, SCHEMA)


def test_the_headline_counts_what_passed_and_what_was_skipped() -> None:
    checks = [samples.check("health.disk", machine, status) for machine, status in (("n1", "pass"), ("n2", "pass"))]
    checks += [samples.check("health.rdma_ports", machine, "skipped") for machine in ("n1", "n2", "n3")]
    verdict = module.assemble_verdict(samples.record(3), checks, "2026-11-20T20:31:00Z")
    assert module.format_headline(verdict) == "Ready to train: all 2 checks passed, 3 skipped."


def test_the_schema_refuses_a_check_without_a_remedy_key() -> None:
    verdict = samples.verdict()
    del verdict["checks"][0]["remedy"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(verdict, SCHEMA)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["pass", "skipped"], "pass"),
        (["pass", "error"], "error"),
        (["error", "fail"], "fail"),
        (["skipped"], "error"),
        ([], "error"),
    ],
)
def test_nothing_checked_is_never_a_pass(statuses: list, expected: str) -> None:
    assert module.overall_status([samples.check("health.x", "n1", status) for status in statuses]) == expected


def test_the_history_is_bounded_and_belongs_to_one_cluster() -> None:
    verdict = samples.verdict(runs=40)
    assert len(verdict["history"]) == module.HISTORY_LENGTH
    other = {**samples.record(3), "id": "another"}
    fresh = module.assemble_verdict(other, [], "2026-11-20T20:31:00Z", previous_verdict=verdict)
    assert fresh["history"] == []


def test_changes_name_what_fails_now_and_what_is_fixed() -> None:
    verdict = samples.verdict(3, dead=["n3"])
    assert module.find_changes(verdict) == {
        "new": ["members.answer@n3", "reachability.peers@n1", "reachability.peers@n2"],
        "fixed": [],
        "unchecked": [],
    }
    healed = module.assemble_verdict(
        samples.record(3), samples.checks(samples.record(3)), "2026-11-21T20:31:00Z", previous_verdict=verdict
    )
    assert module.find_changes(healed)["new"] == []
    assert "members.answer@n3" in module.find_changes(healed)["fixed"]
    assert module.find_changes(samples.verdict(runs=0)) is None


def test_what_was_not_checked_again_is_not_fixed() -> None:
    """The machine may have left, or its node may be drained now."""
    verdict = samples.verdict(3, dead=["n3"])
    later = [samples.check("members.answer", "n1"), samples.check("members.answer", "n3", "skipped")]
    found = module.find_changes(
        module.assemble_verdict(samples.record(3), later, "2026-11-21T20:31:00Z", previous_verdict=verdict)
    )
    assert found == {
        "new": [],
        "fixed": [],
        "unchecked": ["members.answer@n3", "reachability.peers@n1", "reachability.peers@n2"],
    }


def test_keys_of_members_are_not_in_the_verdict() -> None:
    assert "public_key" not in json.dumps(samples.verdict())


def test_junit_counts_and_survives_control_characters() -> None:
    verdict = samples.verdict(3, dead=["n3"])
    verdict["checks"][0]["reason"] = "\x00\x1b[31m<&>\ud800"
    verdict["checks"][0]["status"] = "error"
    root = ElementTree.fromstring(junit.render(verdict))
    assert int(root.attrib["failures"]) == 3
    assert len(root.findall(".//failure")) == 3
    assert len(root.findall(".//error")) == 1
    assert len(root.findall(".//testcase")) == len(verdict["checks"])


def test_prometheus_lines_are_well_formed_and_skipped_checks_are_left_out() -> None:
    verdict = samples.verdict(3, dead=["n3"])
    verdict["cluster"]["name"] = 'a"b\\c\nd'
    text = prometheus.render(verdict)
    assert 'gpumesh_cluster_ok{cluster="a\\"b\\\\c\\nd"} 0.0' in text.splitlines()
    assert "rdma_ports" not in text
    assert all(
        line.startswith("# ") or line.rsplit(" ", 1)[1].replace(".", "").replace("e+", "").replace("e-", "").isdigit()
        for line in text.splitlines()
    )
    assert text.count("gpumesh_pair_ok{") == 6


def test_a_duplicate_series_has_the_worse_value() -> None:
    verdict = samples.verdict(3)
    verdict["collectives"].append({**verdict["collectives"][0], "busbw_gbps": 0.5})
    found = [line for line in prometheus.render(verdict).splitlines() if 'collective="all_reduce"' in line]
    assert [line.rsplit(" ", 1)[1] for line in found] == ["500000000.0"]


def test_terminal_text_names_exactly_the_broken_pairs() -> None:
    text = terminal.render(samples.verdict(3, dead=["n3"]))
    named = [
        line.strip().split(":")[0]
        for line in text.splitlines()
        if line.startswith("  ") and line.endswith(": member does not answer")
    ]
    assert named == ["n1 → n3", "n2 → n3", "n3 → n1", "n3 → n2"]
    assert "Skipped:" in text
    assert "no RDMA device" in text


def test_terminal_text_has_no_control_characters() -> None:
    verdict = samples.verdict(3)
    verdict["checks"][0].update(status="fail", reason="\x1b]0;owned\x07", actual="\x1b[2J")
    assert "\x1b" not in terminal.render(verdict)


def test_terminal_text_counts_skipped_checks_by_reason() -> None:
    machines = ["n1", "n2", "n3"]
    no_gpus, drained = "This host has no GPUs.", "The node is drained: maintenance."
    checks = [
        samples.check(f"health.gpu_{number}", machine, "skipped", reason=no_gpus)
        for number in range(12)
        for machine in machines
    ]
    checks += [samples.check("health.swap", "n1", "skipped", reason="Swap is unknown.")]
    checks += [samples.check("slurm.node", "n2", "skipped", reason=drained), samples.check("slurm.job", None)]
    verdict = module.assemble_verdict(samples.record(3), checks, "2026-11-20T20:31:00Z")
    assert terminal.render(verdict).split("\n\n") == [
        "Ready to train: 1 check passed, 38 skipped.",
        (
            "Skipped:\n"
            "  slurm.node (n2): The node is drained: maintenance.\n"
            "  36 checks (all members): This host has no GPUs.\n"
            "  health.swap (n1): Swap is unknown."
        ),
    ]


def test_terminal_text_counts_the_reasons_that_it_does_not_show() -> None:
    checks = [samples.check(f"health.c{n}", machine, "skipped", reason=f"R{n}.") for n in range(20) for machine in "ab"]
    verdict = module.assemble_verdict(samples.record(3), checks, "2026-11-20T20:31:00Z")
    lines = terminal.render(verdict).splitlines()
    assert lines[-2:] == ["  health.c11 (a, b): R11.", "  and 16 for other reasons, which are in the report"]


def test_terminal_text_has_measured_values_under_their_own_heading() -> None:
    reason = "Not judged: there are too few links to compare."
    checks = [
        samples.check("reachability.bandwidth", machine, "skipped", actual=speed, unit="Gbit/s", reason=reason)
        for machine, speed in (("n1", 0.9), ("n2", 0.8), ("n3", 0.9))
    ]
    verdict = module.assemble_verdict(samples.record(3), checks, "2026-11-20T20:31:00Z")
    text = terminal.render(verdict)
    assert text.split("\n\n")[1:] == [
        "Measured:\n  reachability.bandwidth: 0.8 – 0.9 Gbit/s (all members). Not judged: there\n    are too few links to compare."
    ]


def test_speeds_of_volumes_are_shown_only_in_their_table() -> None:
    check = samples.check("storage.write", "n1", "skipped", actual=881, unit="MB/s", reason="Not judged.")
    volumes = samples.volumes(["n1", "n2", "n3"])
    for shown_volumes, is_listed in ((volumes, False), ([], True)):
        verdict = module.assemble_verdict(samples.record(3), [check], "2026-11-20T20:31:00Z", volumes=shown_volumes)
        assert ("Measured:" in terminal.render(verdict)) == is_listed


def test_the_table_of_measured_volumes_breaks_no_word() -> None:
    text = terminal.render(samples.verdict(3))
    assert all(words in text for words in (" mounted ", " /mnt/data ", " 880 – ", " files/s "))


def test_terminal_text_fits_80_columns_in_an_error_of_the_progress_callback() -> None:
    verdict = samples.verdict(3, dead=["n3"])
    for check in verdict["checks"]:
        check.update(purpose="A purpose in many words, as some checks have", actual="x" * 30, required="y " * 30)
    assert max(map(len, terminal.render(verdict).splitlines())) <= 76

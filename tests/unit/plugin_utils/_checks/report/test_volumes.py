# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks from the results of volume_probe, and what the reports show about volumes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import volumes
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.report import samples

MACHINES = ["n1", "n2", "n3"]
GIB = 1 << 30


def record(**options: Any) -> Any:
    made = samples.record(3)
    made["storage"]["volumes"] = [{"name": "shared", "mount_point": "/mnt/shared", **options}]
    return made


def healthy_evidence() -> dict[str, Any]:
    written = {
        "trouble": "",
        "filesystem": "lustre",
        "source": "mgs:/data",
        "point": "/mnt/shared",
        "read_only": False,
        "total_bytes": 1000 * GIB,
        "free_bytes": 600 * GIB,
        "used_percent": 40.0,
        "uid": 0,
        "refusal": "",
        "lock_error": "",
        "write_mbps": 900.0,
        "files_per_second": 300.0,
    }
    phases = {
        "write": written,
        "compare": {
            "trouble": "",
            "missing_members": [],
            "read_mbps": 1200.0,
            "lock": "busy",
            "released_lock": "granted",
            "lock_error": "",
        },
    }
    found: dict[str, Any] = {"members": MACHINES}
    for phase, value in phases.items():
        found[phase] = {machine: {"volumes": {"shared": copy.deepcopy(value)}} for machine in MACHINES}
    for machine in MACHINES:
        found["write"][machine]["users"] = {"alice": 1000, "bob": 1001}
    return found


def changed_evidence(phase: str, machine: str, **values: Any) -> dict[str, Any]:
    found = healthy_evidence()
    found[phase][machine]["volumes"]["shared"].update(values)
    return found


def judge_volumes(
    evidence_of_run: Any, level: str = "full", record_of_cluster: Any = None, **limits: float
) -> dict[str, dict[str, Any]]:
    checks, _shown = volumes.volume_checks(
        record_of_cluster or record(), evidence_of_run, volumes.VolumeLimits(**limits), level
    )
    return {f"{check['id']}@{check['host']}": check for check in checks}


def failing_reasons(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: check["reason"] for name, check in checks.items() if check["status"] in ("fail", "error")}


def test_a_good_volume_passes_every_check() -> None:
    checks = judge_volumes(healthy_evidence(), write_mbps=100, read_mbps=100, files_per_second=10)
    assert failing_reasons(checks) == {}
    assert {check["status"] for check in checks.values()} == {"pass"}
    assert checks["storage.write@n2"]["actual"] == 900.0
    assert len(checks) == 2 + 5 * len(MACHINES)


def test_a_speed_without_a_minimum_is_reported_and_not_judged() -> None:
    checks = judge_volumes(healthy_evidence(), read_mbps=100)
    for name, value in (("write", 900.0), ("files", 300.0)):
        found = checks[f"storage.{name}@n2"]
        assert (found["status"], found["actual"], found["required"]) == ("skipped", value, None)
        assert "check_min_volume_write_mbps" in found["reason"]
    assert checks["storage.read@n2"]["status"] == "pass"


def test_level_quick_measures_nothing() -> None:
    checks = judge_volumes(healthy_evidence(), level="quick")
    assert [checks[f"{name}@None"]["status"] for name in ("storage.write", "storage.read", "storage.files")] == [
        "skipped"
    ] * 3
    assert checks["storage.locks@n1"]["status"] == "pass"


@pytest.mark.parametrize(
    ("change", "declared", "name", "words"),
    [
        (
            ("compare", "n2", {"missing_members": ["n3"]}),
            {},
            "storage.shared@n2",
            "n2 does not see what n3 wrote to shared",
        ),
        (("compare", "n2", {"lock": "granted"}), {}, "storage.locks@n2", "got a lock on shared while n3 held it"),
        (("compare", "n3", {"lock": "Function not implemented"}), {}, "storage.locks@n3", "no locks on n3: Function"),
        (
            ("compare", "n1", {"released_lock": "busy"}),
            {},
            "storage.locks@n1",
            "n2 has released a lock on shared, but n1 still",
        ),
        (("write", "n1", {"filesystem": "ext4"}), {"filesystem": "lustre"}, "storage.shared@n1", "lustre is required"),
        (("write", "n1", {"read_only": True}), {}, "storage.shared@n1", "mounted read-only"),
        (("write", "n1", {"used_percent": 97.5}), {}, "storage.space@None", "97.5 % full, as n1 sees it"),
    ],
)
def test_each_fault_is_named(change: tuple[str, str, Any], declared: Any, name: str, words: str) -> None:
    phase, machine, values = change
    found = failing_reasons(
        judge_volumes(changed_evidence(phase, machine, **values), record_of_cluster=record(**declared))
    )
    assert list(found) == [name]
    assert words in found[name]
    assert judge_volumes(changed_evidence(phase, machine, **values), record_of_cluster=record(**declared))[name][
        "remedy"
    ]


def test_users_with_different_ids_are_named() -> None:
    found = healthy_evidence()
    found["write"]["n3"]["users"] = {"alice": 1001, "carol": 1002}
    checks = judge_volumes(found)
    assert failing_reasons(checks) == {"storage.users@None": "alice is 1000 on n1, n2 and 1001 on n3."}
    told = checks["storage.users@None"]
    assert (told["actual"], told["required"]) == (2, 3)
    assert "usermod --uid" in told["remedy"]


def test_members_without_users_are_skipped() -> None:
    found = healthy_evidence()
    for machine in MACHINES:
        del found["write"][machine]["users"]
    assert judge_volumes(found)["storage.users@None"]["status"] == "skipped"


def test_a_slow_volume_is_named_with_the_requirement() -> None:
    checks = judge_volumes(
        changed_evidence("write", "n3", write_mbps=80.0), write_mbps=100, read_mbps=100, files_per_second=10
    )
    assert failing_reasons(checks) == {"storage.write@n3": "shared reaches 80 MB/s on n3, but 100 are required."}
    assert checks["storage.write@n3"]["required"] == "≥ 100"


def test_a_volume_that_could_not_be_examined_is_an_error() -> None:
    found = healthy_evidence()
    found["write"]["n2"] = {"volumes": {"shared": {"trouble": "no answer within 10 s"}}}
    found["compare"]["n2"] = {"msg": "broken."}
    found["compare"]["n1"]["volumes"]["shared"].update(missing_members=["n2"], lock=None, read_mbps=None)
    checks = judge_volumes(found)
    assert "no answer within 10 s" in failing_reasons(checks)["storage.shared@n2"]
    # n1 is not to blame, and reports why its own lock could not be tested.
    assert checks["storage.shared@n1"]["status"] == "pass"
    assert checks["storage.locks@n1"]["status"] == "skipped"
    assert set(failing_reasons(checks)) == {
        f"storage.{name}@n2" for name in ("shared", "locks", "write", "read", "files")
    }


def test_a_full_volume_is_reported_as_not_measured() -> None:
    found = changed_evidence("write", "n1", write_mbps=None, files_per_second=None, refusal="it is too full")
    assert failing_reasons(judge_volumes(found))["storage.write@n1"] == "shared was not measured: it is too full."


def test_a_volume_without_write_access_is_skipped() -> None:
    found = changed_evidence("write", "n1", uid=None, refusal="root may not", write_mbps=None, files_per_second=None)
    found["compare"]["n3"]["volumes"]["shared"].update(missing_members=["n1"], lock=None, read_mbps=None)
    checks = judge_volumes(found)
    assert failing_reasons(checks) == {}
    assert checks["storage.shared@n1"]["reason"] == "shared could not be written to: root may not."
    assert (
        judge_volumes(healthy_evidence(), record_of_cluster=record(read_only=True))["storage.locks@n1"]["status"]
        == "skipped"
    )


def record_with_two_volumes() -> tuple[Any, dict[str, Any]]:
    """A record with a healthy volume and with one to which no member may write, and the results."""
    declared, found = record(), healthy_evidence()
    declared["storage"]["volumes"].append({"name": "scratch", "mount_point": "/mnt/scratch"})
    refused = {"uid": None, "refusal": "root may not", "write_mbps": None, "files_per_second": None}
    for machine in MACHINES:
        for phase, values in {"write": refused, "compare": {"lock": None, "read_mbps": None}}.items():
            results = found[phase][machine]["volumes"]
            results["scratch"] = {**results["shared"], **values}
    return declared, found


@pytest.mark.parametrize(
    ("level", "names"), [("quick", ["shared", "locks"]), ("full", ["shared", "locks", "write", "read", "files"])]
)
def test_an_untested_volume_is_reported_in_a_separate_check(level: str, names: list[str]) -> None:
    declared, found = record_with_two_volumes()
    checks = judge_volumes(found, level, declared, write_mbps=50, read_mbps=50, files_per_second=50)
    assert failing_reasons(checks) == {}
    for name in names:
        for machine in MACHINES:
            assert checks[f"storage.{name}@{machine}"]["status"] == "pass"
            left = checks[f"storage.{name}_unjudged@{machine}"]
            assert left["status"] == "skipped"
            assert "scratch" in left["reason"] and "root may not" in left["reason"]
    assert (checks["storage.shared@n1"]["actual"], checks["storage.shared@n1"]["required"]) == (1, 2)


def test_a_volume_that_fails_does_not_hide_one_that_was_not_tested() -> None:
    declared, found = record_with_two_volumes()
    found["compare"]["n2"]["volumes"]["shared"]["missing_members"] = ["n3"]
    checks = judge_volumes(found, record_of_cluster=declared)
    assert list(failing_reasons(checks)) == ["storage.shared@n2"]
    assert checks["storage.shared_unjudged@n2"]["status"] == "skipped"


def test_volumes_that_were_not_examined_are_skipped() -> None:
    assert {check["status"] for check in judge_volumes(None).values()} == {"skipped"}
    declared = samples.record(3)
    declared["storage"]["volumes"] = []
    assert {check["reason"] for check in judge_volumes(None, record_of_cluster=declared).values()} == {
        "The record has no volume."
    }


def test_the_table_shows_free_space_and_speed() -> None:
    found = changed_evidence("write", "n2", write_mbps=450.0, free_bytes=599 * GIB)
    _checks, shown = volumes.volume_checks(record(), found, volumes.VolumeLimits(), "full")
    (row,) = volumes.format_rows(shown, 3)
    assert (row["server"], row["mounted_on"], row["write"], row["read"]) == (
        "external",
        "every member",
        "450 – 900",
        "1200",
    )
    assert (row["free"], row["total"]) == ("599 GiB", "1000 GiB")
    drawn = volumes.format_table(shown, 3, 200)
    assert "450 – 900" in drawn
    assert "/mnt/shared" in drawn


@pytest.mark.parametrize(("value", "text"), [(None, ""), (512, "512 B"), (3 << 40, "3 TiB"), (1023 << 20, "1023 MiB")])
def test_sizes_are_formatted(value: int | None, text: str) -> None:
    assert volumes.format_bytes(value) == text


def test_a_served_volume_has_the_types_of_its_disk_and_of_its_mounts() -> None:
    seen = healthy_evidence()["write"]["n1"]["volumes"]["shared"]
    looked = {"n1": {**seen, "filesystem": "xfs"}, "n2": {**seen, "filesystem": "nfs4"}, "n3": {"trouble": "gone"}}
    assert volumes.merge_states(looked)["filesystem"] == "nfs4, xfs"
    assert volumes.merge_states({"n3": {"trouble": "gone"}})["filesystem"] is None

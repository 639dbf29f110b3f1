# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of tracking: the parameters of a member from the record, changes to the record, and files with secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader

from ansible_collections.gpumesh.cluster.plugins.action import (
    tracking,
    tracking_change,
    tracking_settings,
    tracking_test,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.tracking import tracking_checks
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import job_environment
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import tracking as derived
from ansible_collections.gpumesh.cluster.tests.support import certificates
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": f"n{number}", "address": f"10.0.0.{number}", "interface": "eth0"} for number in (1, 2)]
CREATED_RECORD = plan.commit(
    plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP
)
TRACKING_OFF = plan.set_storage(CREATED_RECORD, [{"name": "shared", "mount_point": "/mnt/shared"}]).record
TRACKING_ON = plan.set_tracking(TRACKING_OFF, {"server": "n2"}).record
TRACKING_WITH_TLS = plan.set_tracking(TRACKING_OFF, {"server": "n2", "tls": True}).record
MODULE = "gpumesh.cluster.tracking"
COLLECTION = Path(__file__).resolve().parents[3]
WITH_OPENSSL = pytest.mark.skipif(certificates.OPENSSL_MISSING, reason="not checked: there is no openssl")
UNCHANGED = {"changed": False, "missing": [], "leftover": False}


def run_tracking(
    machine: str = "n2", record: Any = TRACKING_ON, arguments: dict[str, Any] | None = None, **options: Any
) -> ActionRun:
    """Run the action on a host. ``options``: those of the role, without its name."""
    variables = {"inventory_hostname": machine, **{f"tracking_{name}": value for name, value in options.items()}}
    return play_action(tracking.ActionModule, {"record": record, **(arguments or {})}, {MODULE: [UNCHANGED]}, variables)


def module_arguments_of(run: ActionRun) -> dict[str, Any]:
    ((_module, parameters),) = run.module_calls
    return parameters


def derive_settings(record: Any, start: bool = False, **options: Any) -> Any:
    variables = {"inventory_hostname": "n1", **{f"tracking_{name}": value for name, value in options.items()}}
    return play_action(tracking_settings.ActionModule, {"record": record, "start": start}, {}, variables).result


def test_only_the_member_named_in_the_record_serves() -> None:
    own, other = module_arguments_of(run_tracking("n2")), module_arguments_of(run_tracking("n1"))
    assert (own["serves"], own["address"], own["mount_point"]) == (True, "10.0.0.2", "/mnt/shared")
    assert "mlflow==3.17.2" in own["requirements"] and "--hash=sha256:" in own["requirements"]
    assert (other["serves"], other["requirements"]) == (False, "")


def test_missing_packages_are_installed_on_debian() -> None:
    lacking = {**UNCHANGED, "missing": ["postgresql"]}
    apt = {"ansible.builtin.apt": [{"changed": True}], MODULE: [lacking, UNCHANGED]}
    variables = {"inventory_hostname": "n2", "ansible_facts": {"pkg_mgr": "apt"}}
    run = play_action(tracking.ActionModule, {"record": TRACKING_ON, "state": "installed"}, apt, variables)
    assert (
        run.result["changed"]
        and [given.get("state") for name, given in run.module_calls if name == MODULE] == ["installed"] * 2
    )


def test_tracking_is_off_by_default() -> None:
    assert derive_settings(TRACKING_OFF)["settings"] is None
    assert derive_settings(TRACKING_OFF, start=True)["settings"] == {"tls": True}
    assert derive_settings(TRACKING_OFF, server="n1")["settings"] == {"server": "n1", "tls": True}
    assert derive_settings(TRACKING_OFF, state="absent")["settings"] is None


def test_only_changed_settings_are_written_to_the_record() -> None:
    assert derive_settings(TRACKING_ON, start=True, server="n2", port=5000)["settings"] is None
    found = derive_settings(TRACKING_ON, server="n1")
    assert found == {
        "changed": False,
        "settings": {"server": "n1"},
        "own_certificate": False,
        "former_server": "n2",
        "was_enabled": False,
    }
    assert derive_settings(TRACKING_ON, certificate_file="/x")["settings"] == {"tls": True, "certificates": []}
    assert derive_settings(TRACKING_WITH_TLS, certificate_file="/x")["settings"] is None
    assert derive_settings(TRACKING_ON, state="absent")["settings"] == {"enabled": False}


PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
OWN_CERTIFICATE = plan.set_tracking(TRACKING_ON, {"tls": True, "certificates": [PEM]}).record


@pytest.mark.parametrize(
    ("record", "options", "settings", "own"),
    [
        # A new server has TLS, and makes its certificate itself. An answer that AWX passes as an empty text is none.
        (TRACKING_OFF, {"start": True, "tls": ""}, {"tls": True}, True),
        (TRACKING_OFF, {"start": True, "tls": "true"}, {"tls": True}, True),
        (TRACKING_OFF, {"start": True, "tls": False}, {"tls": False}, False),
        (TRACKING_OFF, {"start": True, "certificate_file": "/x"}, {"tls": True, "certificates": []}, False),
        (TRACKING_OFF, {}, None, False),
        # What there is stays, unless something else is asked for.
        (TRACKING_ON, {}, None, False),
        (TRACKING_ON, {"tls": True}, {"tls": True}, True),
        (TRACKING_WITH_TLS, {"tls": True}, None, False),
        (TRACKING_WITH_TLS, {"tls": False}, {"tls": False}, False),
        (OWN_CERTIFICATE, {}, None, True),
        (OWN_CERTIFICATE, {"tls": True, "server": "n1"}, {"tls": True, "server": "n1"}, True),
        (OWN_CERTIFICATE, {"tls": False}, {"tls": False}, False),
        (OWN_CERTIFICATE, {"certificate_file": "/x"}, {"tls": True, "certificates": []}, False),
        (OWN_CERTIFICATE, {"state": "absent"}, {"enabled": False}, False),
    ],
)
def test_a_server_has_tls_unless_that_is_switched_off(record: Any, options: Any, settings: Any, own: bool) -> None:
    found = derive_settings(record, **options)
    assert (found["settings"], found["own_certificate"]) == (settings, own)


def test_tls_is_not_switched_off_with_a_certificate() -> None:
    refused = derive_settings(TRACKING_ON, tls=False, certificate_file="/x")
    assert refused["failed"] and "tracking_tls is false, and tracking_certificate_file is set" in refused["msg"]


@pytest.mark.parametrize(
    ("record", "wanted", "made", "settings"),
    [
        (TRACKING_ON, {"tls": True}, [PEM], {"tls": True, "certificates": [PEM]}),
        (OWN_CERTIFICATE, None, [PEM], None),
        (OWN_CERTIFICATE, None, [PEM, PEM], {"certificates": [PEM, PEM]}),
        (OWN_CERTIFICATE, {"port": 5001}, [PEM], {"port": 5001}),
        # Check mode, or a server that is not in the run.
        (TRACKING_ON, {"tls": True}, None, {"tls": True}),
        (OWN_CERTIFICATE, None, None, None),
    ],
)
def test_the_record_has_the_certificates_that_the_server_has_made(
    record: Any, wanted: Any, made: Any, settings: Any
) -> None:
    hostvars = {"n1": {"certified": {"certificates": None}}, "n2": {"certified": {"certificates": made}}}
    variables = {"inventory_hostname": "n1", "ansible_play_batch": ["n1", "n2"], "hostvars": hostvars}
    given = {"record": record, "settings": wanted, "registered": "certified"}
    assert play_action(tracking_settings.ActionModule, given, {}, variables).result["settings"] == settings


def test_members_trust_the_certificates_in_the_record(tmp_path: Path) -> None:
    both = plan.set_tracking(OWN_CERTIFICATE, {"certificates": [PEM, PEM]}).record
    for machine in ("n1", "n2"):
        parameters = module_arguments_of(run_tracking(machine, both))
        assert (parameters["trust"], parameters["own_certificate"]) == (PEM + PEM, True)
    # The certificate is for the address, so that containers need no name for it.
    assert derived.job_variables(OWN_CERTIFICATE)["MLFLOW_TRACKING_URI"] == "https://10.0.0.2:5000"
    assert (
        derived.job_variables(OWN_CERTIFICATE)["MLFLOW_TRACKING_SERVER_CERT_PATH"] == "/etc/gpumesh/tracking-ca-lab.crt"
    )
    # Before the record has it, nothing is missing yet.
    assert module_arguments_of(run_tracking("n2", TRACKING_WITH_TLS, {"own_certificate": True}))["own_certificate"]
    (tmp_path / "ca").write_text(PEM, encoding="ascii")
    refused = run_tracking("n1", OWN_CERTIFICATE, ca_file=str(tmp_path / "ca")).result
    assert refused["failed"] and "the server makes its own certificate" in refused["msg"]


TRACKING_MOVED = plan.set_tracking(TRACKING_ON, {"server": "n1"}).record


@pytest.mark.parametrize(
    ("own", "other", "refused"),
    [
        ("15", "17", True),
        ("15", "9.6", False),
        ("15", "15", False),
        # A version is unknown.
        ("", "17", False),
        ("15", "", False),
    ],
)
def test_the_server_does_not_move_to_an_older_postgresql(own: str, other: str, refused: bool) -> None:
    previews = {"n1": {"postgresql": own}, "n2": {"postgresql": other}}
    if not refused:
        assert derived.find_moved_server(TRACKING_MOVED, "n2", previews) == "n2"
        return
    with pytest.raises(InputError, match="n1 has PostgreSQL 15, which cannot load the database of n2, since that has"):
        derived.find_moved_server(TRACKING_MOVED, "n2", previews)


def test_a_move_requires_both_members_unless_it_is_forced() -> None:
    both: dict[str, Any] = {"n1": {}, "n2": {}}
    assert derived.find_moved_server(TRACKING_MOVED, "n2", both) == "n2"
    assert derived.find_moved_server(TRACKING_ON, "n2", both) == derived.find_moved_server(TRACKING_ON, "", both) == ""
    assert derived.find_moved_server(TRACKING_OFF, "", {}) == derived.find_moved_server(TRACKING_OFF, "n2", both) == ""
    for present, silent in ((["n1"], "n2"), (["n2"], "n1")):
        with pytest.raises(InputError, match=f"cannot be moved: {silent} cannot be reached, or is not in this run"):
            derived.find_moved_server(TRACKING_MOVED, "n2", {machine: {} for machine in present})
    assert derived.find_moved_server(TRACKING_MOVED, "n2", {"n1": {}}, allow_loss=True) == "n2"
    with pytest.raises(InputError, match="cannot be moved: n1 cannot be reached"):
        derived.find_moved_server(TRACKING_MOVED, "n2", {"n2": {}}, allow_loss=True)


def test_tracking_is_switched_off_only_if_the_server_takes_part_unless_forced() -> None:
    with pytest.raises(InputError, match="cannot be switched off: its server n2 cannot be reached") as refused:
        derived.find_moved_server(TRACKING_OFF, "n2", {"n1": {}})
    assert "cluster_force=true" in refused.value.remedy
    assert derived.find_moved_server(TRACKING_OFF, "n2", {"n1": {}}, allow_loss=True) == ""


def test_a_server_that_was_away_when_it_was_switched_off_is_removed_later() -> None:
    """This includes a server whose volume was lost, since remove has then switched tracking off."""
    on = plan.commit(plan.set_tracking(TRACKING_OFF, {"server": "n2"}), STAMP)
    off = plan.commit(plan.set_tracking(on, {"enabled": False}), STAMP)
    assert [derive_settings(record)["was_enabled"] for record in (TRACKING_OFF, on, off)] == [False, False, True]
    volume = {"name": "data", "mount_point": "/mnt/d", "server": "n1", "path": "/srv/d"}
    lost = plan.commit(plan.set_storage(CREATED_RECORD, [volume]), STAMP)
    lost = plan.commit(plan.set_tracking(lost, {"server": "n2"}), STAMP)
    gone = plan.commit(plan.remove(lost, ["n1"], STAMP, "n2", force=True), STAMP)
    assert gone["tracking"] is None and derive_settings(gone)["was_enabled"]


@pytest.mark.parametrize(
    ("action", "given"),
    [
        (tracking_change, {}),
        (tracking_change, {"record": TRACKING_MOVED, "former_server": "n2"}),
        (tracking_settings, {"record": TRACKING_MOVED, "settings": None}),
    ],
)
def test_a_failure_on_one_host_stops_the_change_on_all(action: Any, given: dict[str, Any]) -> None:
    """Every host fails individually, since a failure that is fatal for all could not be rescued, and site would end."""

    def agree(machine: str, result: dict[str, Any]) -> Any:
        hostvars = {"n1": {"tried": {"changed": False}}, "n2": {"tried": result}}
        variables = {"inventory_hostname": machine, "ansible_play_batch": ["n1", "n2"], "hostvars": hostvars}
        return play_action(action.ActionModule, {"registered": "tried", **given}, {}, variables)

    for machine in ("n1", "n2"):
        refused = agree(machine, {"failed": True, "msg": "pip cannot install MLflow."}).result
        assert refused["failed"] and refused["msg"].startswith(
            "n2: pip cannot install MLflow. The cluster record was not"
        )
        assert not agree(machine, {"changed": True}).result.get("failed")


def test_hosts_that_have_failed_do_not_take_part_in_a_move() -> None:
    def move(*present: str, **more: Any) -> Any:
        hosts = {"ansible_play_batch": list(present), "hostvars": {"n1": {}, "n2": {}}}
        variables = {"inventory_hostname": "n1", **hosts, **more}
        given = {"record": TRACKING_MOVED, "former_server": "n2", "registered": "preview"}
        return play_action(tracking_change.ActionModule, given, {}, variables).result

    assert move("n1", "n2")["moved_from"] == "n2"
    assert move("n1")["failed"]
    # Nor do those that run nothing of this layer.
    for machine in ("n1", "n2"):
        assert move("n1", "n2", cluster_userspace_only=[machine])["failed"]


def test_a_relative_path_starts_at_the_working_directory_or_the_playbook_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, here, beside = COLLECTION / "playbooks", tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
        (folder / "users").write_text(f"{folder.name}:the-admins-secret\n", encoding="utf-8")
    monkeypatch.chdir(here)
    for folder, name in ((ours, "here"), (beside, "beside")):
        monkeypatch.setattr(DataLoader, "get_basedir", lambda _loader, folder=folder: str(folder))
        assert [
            user["name"] for user in json.loads(module_arguments_of(run_tracking("n2", users_file="users"))["users"])
        ] == [name]


@WITH_OPENSSL
def test_each_file_is_sent_only_to_the_hosts_that_need_it(tmp_path: Path) -> None:
    made, key = certificates.create_self_signed(tmp_path, "n2")
    (tmp_path / "users").write_text("# x\nadmin:the-admins-secret\nbob:\n", encoding="utf-8")
    given = {"users_file": str(tmp_path / "users"), "certificate_file": str(made), "key_file": str(key)}
    own, other = (
        module_arguments_of(run_tracking("n2", TRACKING_WITH_TLS, **given)),
        module_arguments_of(run_tracking("n1", TRACKING_WITH_TLS, **given)),
    )
    text = made.read_text()
    assert (own["certificate"], own["key"], own["trust"]) == (text, key.read_text(), text)
    assert json.loads(own["users"]) == [
        {"name": "admin", "password": "the-admins-secret", "administrator": True},
        {"name": "bob", "password": None, "administrator": False},
    ]
    assert other["trust"] == text
    assert not {"key", "users", "certificate"} & set(other)
    refused = run_tracking("n2", TRACKING_WITH_TLS, certificate_file=str(made)).result
    assert refused["failed"] and "must be set together" in refused["msg"]
    absent = run_tracking("n2", users_file=str(tmp_path / "none")).result["msg"]
    assert "cannot be read: " in absent and "remote_src" not in absent
    assert absent.endswith(". Correct the path.") and ".." not in absent


@WITH_OPENSSL
def test_a_private_key_in_a_certificate_file_is_sent_only_to_the_server(tmp_path: Path) -> None:
    made, key = certificates.create_self_signed(tmp_path, "n2")
    combined = tmp_path / "combined.pem"
    combined.write_text(key.read_text() + made.read_text())
    given = {"certificate_file": str(combined), "key_file": str(combined)}
    own, other = (
        module_arguments_of(run_tracking("n2", TRACKING_WITH_TLS, **given)),
        module_arguments_of(run_tracking("n1", TRACKING_WITH_TLS, **given)),
    )
    assert "PRIVATE KEY" not in own["certificate"] + own["trust"] and "PRIVATE KEY" in own["key"]
    assert "PRIVATE KEY" not in str(other) and other["trust"] == made.read_text()
    # The same with a CA's file, which may be given alone.
    alone = module_arguments_of(run_tracking("n1", TRACKING_WITH_TLS, ca_file=str(combined)))
    assert alone["trust"] == made.read_text()
    refused = run_tracking("n1", TRACKING_WITH_TLS, ca_file=str(key)).result
    assert refused["failed"] and f"tracking_ca_file: {key} contains no certificate" in refused["msg"]


@WITH_OPENSSL
@pytest.mark.parametrize("machine", ["n1", "n2"])
def test_an_unusable_certificate_is_not_sent(tmp_path: Path, machine: str) -> None:
    made, key = certificates.create_self_signed(tmp_path, "n1")
    run = run_tracking(machine, TRACKING_WITH_TLS, certificate_file=str(made), key_file=str(key))
    assert f"tracking_certificate_file: {made} is not for the name 'n2'" in run.result["msg"]
    assert not run.module_calls


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bob", "line 1 of f is not NAME:PASSWORD"),
        ("\n-b:aaaaaaaaaaaaa", "line 2 of f is not NAME:PASSWORD"),
        ("bob:short", "the password of 'bob' is too short"),
        ("bob:long-enough-x\nbob:long-enough-y", "'bob' is listed twice"),
        ("gpumesh:long-enough-x", "'gpumesh' is the account of the check"),
    ],
)
def test_invalid_users_are_refused_without_showing_passwords(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        derived.parse_users(text, "f")
    assert "long-enough" not in str(refused.value) and "short'" not in str(refused.value)


def test_jobs_get_the_address_of_the_server_only_if_tracking_is_on() -> None:
    defaults = {"port_range": [15000, 24999], "dialects": [], "variables": {}, "rdma": True, "logins": True}
    options = {f"job_environment_{name}": value for name, value in defaults.items()}

    def told(record: Any) -> Any:
        return job_environment.given_parameters(record, "n1", options)["settings"]["tracking"]

    assert told(TRACKING_OFF) == {}
    assert told(TRACKING_ON) == {"MLFLOW_TRACKING_URI": "http://10.0.0.2:5000", "GPUMESH_GENERATION": "1"}
    assert told(TRACKING_WITH_TLS)["MLFLOW_TRACKING_URI"] == "https://n2:5000"
    assert told(TRACKING_WITH_TLS)["MLFLOW_TRACKING_SERVER_CERT_PATH"] == "/etc/gpumesh/tracking-ca-lab.crt"


def test_only_members_can_reach_the_port_of_the_server() -> None:
    assert derived.LAYER.ports is not None
    assert derived.LAYER.ports(TRACKING_OFF, {}).tcp == []
    assert derived.LAYER.ports(TRACKING_ON, {}).tcp == ["5000"]


def test_a_server_that_would_not_be_a_member_is_refused() -> None:
    derived.refuse_server("", TRACKING_ON)
    derived.refuse_server("n1", TRACKING_ON)
    with pytest.raises(InputError, match="tracking_server 'bad' is not among the members of 'lab'"):
        derived.refuse_server("bad", TRACKING_ON)


def test_only_the_server_writes_a_run_for_the_check() -> None:
    def test(machine: str) -> dict[str, Any]:
        name = "gpumesh.cluster.tracking_test"
        given = {"record": TRACKING_WITH_TLS}
        return module_arguments_of(
            play_action(tracking_test.ActionModule, given, {name: [{}]}, {"inventory_hostname": machine})
        )

    assert (test("n2")["write"], test("n1")["write"]) == (True, False)
    assert test("n1")["uri"] == "https://n2:5000"
    assert test("n1")["trust"] == "/etc/gpumesh/tracking-ca-lab.crt"


def test_the_tracking_checks_of_a_verdict() -> None:
    results = {"n1": {"problem": "no route", "wrote": False}, "n2": {"problem": "", "wrote": True}}

    def found(record: Any, *answered: str) -> dict[str, str]:
        return {f"{one['id']}@{one['host']}": one["status"] for one in tracking_checks(record, answered, results)}

    assert found(TRACKING_OFF, "n1", "n2") == {}
    assert found(TRACKING_ON, "n1", "n2") == {"tracking.answer@n1": "fail", "tracking.run@n2": "pass"}
    assert found(TRACKING_ON, "n1") == {"tracking.answer@n1": "fail", "tracking.run@n2": "skipped"}
    results["n2"] = {"problem": "", "wrote": False}
    assert found(TRACKING_ON, "n1", "n2")["tracking.run@n2"] == "fail"
    assert {one["status"] for one in tracking_checks(TRACKING_ON, ["n1", "n2"], None)} == {"skipped"}


@pytest.mark.parametrize(
    ("certificates", "left", "status", "remedy"),
    [
        (0, 30, "pass", ""),
        (0, 29, "fail", "Set tracking_certificate_file"),
        (1, 400, "pass", ""),
        (1, 29, "fail", "Run the playbook tracking, which renews it."),
        # The members trust the next one, to which a later run changes over.
        (2, 10, "pass", ""),
        (2, 0, "fail", "Run the playbook tracking, which renews it."),
        (1, None, "skipped", ""),
    ],
)
def test_the_certificate_check_of_a_verdict(certificates: int, left: int | None, status: str, remedy: str) -> None:
    assert TRACKING_WITH_TLS["tracking"] is not None
    record: Any = {
        **TRACKING_WITH_TLS,
        "tracking": {**TRACKING_WITH_TLS["tracking"], "certificates": ["pem"] * certificates},
    }
    shown = {} if left is None else {"days_left": left, "expires": "2028-11-20T20:31:00Z"}
    results = {"n1": {"problem": ""}, "n2": {"problem": "", "wrote": True, **shown}}
    found = {one["id"]: one for one in tracking_checks(record, ["n1", "n2"], results)}
    assert list(found) == ["tracking.answer", "tracking.run", "tracking.certificate"]
    judged = found["tracking.certificate"]
    assert (judged["status"], judged["host"]) == (status, "n2")
    assert remedy in judged["remedy"] and bool(judged["remedy"]) == (status == "fail")

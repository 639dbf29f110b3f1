# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module slurm as Ansible runs it, on a host that is a folder."""

from __future__ import annotations

import json
import os
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest
from module_runs import patch_module_arguments, read_result, start_module, write_programs
from program_builds import push_options

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import apply, rest, spank
from ansible_collections.gpumesh.cluster.plugins.modules import slurm
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import pushed_sources
from ansible_collections.gpumesh.cluster.tests.support import certificates

SLURMD = {"name": "slurmd", "command": "/usr/sbin/slurmd -D", "reads": [], "drop_in": "[Unit]\n"}


@pytest.fixture(name="given")
def _given(tmp_path: Path) -> dict[str, Any]:
    folders = {name: tmp_path / name for name in ("state_folder", "spool_folder", "log_folder", "directory")}
    for folder in folders.values():
        folder.mkdir()
    return {
        **{name: str(folder) for name, folder in folders.items()},
        "cluster": "lab",
        "controller": "127.0.0.1",
        "controller_name": "n1",
        "machine": "n2",
        "address": "10.0.0.2",
        "health_check": str(tmp_path / "checks"),
        **push_options(pushed_sources()),
        "daemons": [SLURMD],
        "supervisor_programs": str(tmp_path),
    }


@pytest.fixture(name="programs")
def _programs(tmp_path: Path) -> Path:
    """A host whose supervisord runs everything, and whose slurmd accepts all files."""
    scripts = {
        "slurmd": '[ "$1" = -V ] && echo slurm-wlm 24.11.5; exit 0',
        "supervisord": "exit 0",
        "supervisorctl": 'case $3 in pid) echo 1;; status) echo "$4 RUNNING pid 0, uptime 1";; esac',
        "systemctl": "echo LoadState=loaded; echo ActiveState=active; echo UnitFileState=enabled",
    }
    return write_programs(tmp_path / "bin", scripts)


def run_slurm_module(folder: Path, base_arguments: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return read_result(start_module("slurm", {**base_arguments, **arguments}, environment))


def test_a_node_is_configured_and_started_in_one_call(
    programs: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(given["directory"])
    would = run_slurm_module(programs, given, _ansible_check_mode=True, _ansible_diff=True)
    assert would["changed"] and not list(folder.iterdir())
    assert "node/slurmd.env" in would["diff"]["after"]
    # The controller is not running, and nobody waits for it here.
    monkeypatch.setattr(apply, "_CONTROLLER_TIMEOUT", 0.0)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        changes = {"controller_port": port, "reregister": True, "task_prolog": "", "epilog": "", "machine": "n3"}
        with patch_module_arguments({**given, **changes}), pytest.raises(SystemExit):
            slurm.main()
    waiting = json.loads(capsys.readouterr().out)
    assert f"The controller on n1 does not answer at 127.0.0.1:{port} (TCP)" in waiting["msg"]
    assert (folder / "node" / "slurmd.env").exists()


def test_the_second_run_changes_nothing(programs: Path, given: dict[str, Any]) -> None:
    manager = {**given, "serve": True, "state": "configured"}
    first = run_slurm_module(programs, manager)
    assert (first["changed"], first["reload"], first["validated"]) == (True, "restart", True)
    assert "node/slurmd.env" not in first["changed_files"], "it comes with slurmd"
    assert os.access(given["health_check"], os.X_OK)
    again = run_slurm_module(programs, manager)
    assert (again["changed"], again["reload"]) == (False, "none")


@pytest.mark.parametrize("readable", [True, False])
def test_the_kernel_log_is_watched_where_it_can_be_read(monkeypatch: pytest.MonkeyPatch, readable: bool) -> None:
    monkeypatch.setattr(apply, "can_read", lambda path: readable and path == "/dev/kmsg")
    watcher = {"name": "gpumesh-health", "command": "/usr/local/sbin/gpumesh-node-health --watch"}
    absent = {"name": "gpumesh-health", "state": "absent"}
    assert apply._stop_blind_watcher(watcher) == (watcher if readable else absent)
    assert apply._stop_blind_watcher(absent) == absent
    assert apply._stop_blind_watcher(SLURMD) == SLURMD


def test_gres_types_are_kept_while_some_members_are_unknown(programs: Path, given: dict[str, Any]) -> None:
    """With a slice of the inventory, for example, the nodes that it lacks keep their GRES."""
    manager = {**given, "serve": True, "state": "configured"}
    run_slurm_module(programs, {**manager, "gres_types": ["nic", "tape"]})
    sliced = run_slurm_module(programs, {**manager, "gres_types": ["tape"], "keep_gres_types": True})
    assert (sliced["changed"], sliced["reload"]) == (False, "none")
    whole = run_slurm_module(programs, {**manager, "gres_types": ["tape"]})
    assert (whole["changed_files"], whole["reload"]) == (["slurm.conf"], "restart")


def test_the_job_plugin_is_used_where_the_controller_includes_it(
    programs: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = spank.JobPlugin((), (24, 11, 5))
    monkeypatch.setattr(spank, "plan_job_plugin", lambda *_arguments: plugin)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    folder = Path(given["directory"])

    def configure(**changed: Any) -> tuple[bool, bool]:
        """Whether the file that includes plugins is served, and whether this host has the plugin and no task prolog."""
        arguments = {**given, "state": "configured", "task_prolog": given["health_check"], "epilog": "", **changed}
        with patch_module_arguments(arguments), pytest.raises(SystemExit):
            slurm.main()
        result = json.loads(capsys.readouterr().out)
        has_plugin = (folder / "plugstack.conf.d" / "gpumesh.conf").exists()
        assert ('TaskProlog=""' in (folder / "node" / "slurm.conf").read_text()) == has_plugin
        return result["plugins_included"], has_plugin

    # A run without the manager that knows nothing of it, and one that does.
    assert configure() == (False, False)
    assert configure(plugins_included=True) == (True, True)
    assert configure() == (True, True)
    assert configure(plugins_included=False) == (False, False)
    # The manager decides by its own file.
    assert configure(serve=True) == (True, True)
    assert (folder / "plugstack.conf").exists()
    assert configure(serve=True) == (True, True)
    (folder / "plugstack.conf").write_text("required /their.so\n")
    # A node does not read it, and the manager says what is missing.
    assert configure(plugins_included=True) == (True, True)
    assert configure(serve=True) == (False, False)
    assert (folder / "plugstack.conf").read_text() == "required /their.so\n"


def test_a_plugin_that_nothing_would_load_is_not_planned(
    programs: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"serve": True, "settings": {}, "plugins_included": None, "slurm_node": True, **given}
    monkeypatch.setattr(spank, "plan_job_plugin", lambda *_arguments: "planned")
    assert apply._plan_job_plugin(params) == "planned"
    assert apply._plan_job_plugin({**params, "settings": {"taskprolog": None}}) == spank.JobPlugin()
    assert apply._plan_job_plugin({**params, "serve": False, "plugins_included": False}) == spank.JobPlugin()
    assert apply._plan_job_plugin({**params, "serve": False, "plugins_included": True}) == "planned"
    plugstack = Path(given["directory"]) / "plugstack.conf"
    plugstack.write_text("required /their.so\n")
    assert apply._plan_job_plugin(params) == spank.JobPlugin()
    refused = run_slurm_module(programs, given, serve=True, state="configured")
    warning = str(refused["warnings"])
    assert "does not include" in warning and "slurm_job_plugin" in warning


def test_a_member_without_jobs_keeps_the_file_that_includes_plugins(programs: Path, given: dict[str, Any]) -> None:
    member = {**given, "slurm_node": False, "state": "configured"}
    assert "plugstack.conf" in run_slurm_module(programs, member, plugins_included=True)["changed_files"]
    # A comparison does not know the manager's.
    assert run_slurm_module(programs, member, _ansible_check_mode=True)["changed_files"] == []


def test_a_redefined_node_waits_for_the_controller(programs: Path, given: dict[str, Any]) -> None:
    env = Path(given["directory"]) / "node" / "slurmd.env"
    env.parent.mkdir()
    env.write_text("SLURMD_OPTIONS=\"-Z -N n2 --conf-server 127.0.0.1 --conf 'NodeAddr=10.0.0.9 Gres=gpu:8'\"\n")
    found = run_slurm_module(programs, given)
    assert (found["redefined"], found["restarted"]) == (True, [])


STOPPED = [{"name": name, "state": "absent"} for name in ("gpumesh-health", "slurmd")]


def test_a_node_that_is_to_run_no_jobs_is_withdrawn_once_the_controller_has_deleted_it(
    programs: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    folder, spool = Path(given["directory"]), Path(given["spool_folder"])
    run_slurm_module(programs, {**given, "state": "configured"})
    program = tmp_path / "gpumesh-slurmd.conf"
    for path in (folder / "node" / "slurmd.env", spool / "cred_state", spool / "conf-cache" / "slurm.conf", program):
        path.parent.mkdir(exist_ok=True)
        path.write_text("SLURMD_OPTIONS=\"-Z -N n2 --conf-server 127.0.0.1 --conf 'NodeAddr=10.0.0.2'\"\n")
    head = {**given, "slurm_node": False, "daemons": STOPPED, "contents": {}, "digests": {}}
    first = run_slurm_module(programs, head)
    assert (first["redefined"], first["slurm_node"], first["changed"]) == (True, False, True)
    assert program.exists() and (spool / "cred_state").exists() and (folder / "node" / "slurmd.env").exists()
    assert Path(given["health_check"]).exists(), "slurmd still runs it"
    would = run_slurm_module(programs, {**head, "reregister": True}, _ansible_check_mode=True)
    assert would["changed"] and (folder / "node" / "slurmd.env").exists()
    done = run_slurm_module(programs, {**head, "reregister": True})
    assert done["changed"]
    assert not program.exists() and not list(spool.iterdir()) and not Path(given["health_check"]).exists()
    assert not (folder / "node" / "slurmd.env").exists()
    assert "SlurmctldHost=n1(127.0.0.1)" in (folder / "slurm.conf").read_text()
    # Its supervisord still reports every program as running.
    again = run_slurm_module(programs, {**head, "daemons": []})
    assert (again["changed"], again["redefined"], again["slurm_node"]) == (False, False, False)


def test_missing_programs_are_reported_before_anything_changes(programs: Path, given: dict[str, Any]) -> None:
    lacking = run_slurm_module(programs, given, programs=["no-such-program"])
    assert (lacking["changed"], lacking["missing"]) == (False, ["no-such-program"])
    assert not list(Path(given["directory"]).iterdir())
    would = run_slurm_module(
        programs, given, programs=["no-such-program"], _ansible_check_mode=True, _ansible_diff=True
    )
    assert would["changed"] and "no-such-program" in would["diff"]["after"]


def test_the_health_program_is_requested_before_anything_changes(programs: Path, given: dict[str, Any]) -> None:
    lacking = run_slurm_module(programs, given, contents={})
    assert (lacking["changed"], lacking["outdated"]) == (False, ["gpumesh-node-health"])
    assert not list(Path(given["directory"]).iterdir())


@pytest.mark.parametrize(("rate", "stored"), [(0, "null"), (400, "400.0")])
def test_the_health_program_receives_the_rate_of_the_rdma_ports(
    programs: Path, given: dict[str, Any], rate: float, stored: str
) -> None:
    run_slurm_module(programs, {**given, "state": "configured", "health_rdma_rate_gbps": rate})
    with zipfile.ZipFile(given["health_check"]) as archive:
        assert f'"rdma_rate_gbps": {stored}' in archive.read("__main__.py").decode()


def test_an_unused_health_program_is_removed(programs: Path, given: dict[str, Any]) -> None:
    checks = Path(given["health_check"])
    run_slurm_module(programs, {**given, "state": "configured"})
    assert checks.exists()
    assert not run_slurm_module(programs, {**given, "state": "configured", "health_check": "", "keep_checks": True})[
        "leftover"
    ]
    assert checks.exists()


def test_withdrawn_services_are_reported(programs: Path, given: dict[str, Any], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    served = {"state": "served", "daemons": [], "withdrawn": [str(key), str(tmp_path / "none")]}
    found = run_slurm_module(programs, given, **served)
    assert (found["withdrawn"], found["changed"]) == ([str(key)], False)


@pytest.mark.parametrize(
    ("values", "state", "reason"),
    [
        ({"sessions": False}, "present", ""),
        ({"leftover": True}, "present", "the queue of a former manager is here"),
        ({"sessions": True}, "present", "the plugin of sessions is here"),
        ({"sessions": True, "withdrawn": []}, "served", ""),
        ({"withdrawn": ["/etc/a", "/b"]}, "served", "services are here that are no longer wanted: /etc/a, /b"),
    ],
)
def test_what_a_run_has_to_do_besides_is_pending(values: dict[str, Any], state: str, reason: str) -> None:
    assert apply.find_pending({"state": state, "plugins": []}, values) == reason


def test_a_removal_deletes_the_configuration(programs: Path, given: dict[str, Any]) -> None:
    run_slurm_module(programs, {**given, "serve": True, "state": "configured"})
    left = run_slurm_module(programs, given, state="absent")
    assert left["changed"]
    assert not (Path(given["directory"]) / "slurm.conf").exists()
    assert not run_slurm_module(programs, given, state="absent")["changed"]


@pytest.fixture(name="rest_paths")
def _rest_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The paths of the REST API on a host that is this folder."""
    monkeypatch.setattr(rest, "TRUST_PATH", str(tmp_path / "gpumesh" / "ca.crt"))
    monkeypatch.setattr(rest, "PROXY_DIRECTORY", str(tmp_path / "gpumesh" / "slurm-rest"))
    monkeypatch.setattr(rest, "SOCKET_DIRECTORY", str(tmp_path / "run"))
    return tmp_path


def module(given: dict[str, Any], capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    """The result of the module, run in this process."""
    with patch_module_arguments({**given, **arguments}), pytest.raises(SystemExit):
        slurm.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.usefixtures("rest_paths")
def test_members_trust_the_rest_api_and_a_former_manager_loses_its_key(
    programs: Path,
    given: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    trust, key, link = (
        Path(rest.TRUST_PATH),
        Path(rest.PROXY_DIRECTORY) / "own.key",
        Path(rest.SOCKET_DIRECTORY) / "socket",
    )
    # slurmd would have to be registered first, so nothing of the node itself is done here.
    node = {**given, "programs": [], "health_check": "", "daemons": []}
    monkeypatch.setattr(apply, "_run_node", lambda *_given: ModuleResult(False, {}))
    for path in (key, link):
        path.parent.mkdir(parents=True)
        path.touch()
    assert module(node, capsys, rest_certificates=["one\n", "two\n"], _ansible_check_mode=True)["changed"]
    assert not trust.exists() and key.exists()
    assert module(node, capsys, rest_certificates=["one\n", "two\n"], serve=True)["changed"]
    assert (trust.read_text(), trust.stat().st_mode & 0o777, key.exists()) == ("one\ntwo\n", 0o644, True)
    assert not module(node, capsys, rest_certificates=["one\n", "two\n"], serve=True)["changed"]
    assert module(node, capsys)["changed"]
    assert trust.exists() and not key.parent.exists() and not link.parent.exists()
    assert not module(node, capsys)["changed"]
    assert module(node, capsys, rest_certificates=[])["changed"]
    assert not trust.exists()


@pytest.mark.usefixtures("rest_paths")
def test_a_removal_deletes_the_files_of_the_rest_api(given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path(rest.PROXY_DIRECTORY).mkdir(parents=True)
    Path(rest.TRUST_PATH).touch()
    assert module(given, capsys, state="absent")["changed"]
    assert not Path(rest.TRUST_PATH).parent.exists()
    assert not module(given, capsys, state="absent")["changed"]


@pytest.mark.skipif(certificates.OPENSSL_MISSING, reason="not checked: there is no openssl")
@pytest.mark.usefixtures("rest_paths")
def test_the_certificate_of_the_rest_api_is_created_once(
    programs: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    about = {
        "folder": rest.PROXY_DIRECTORY,
        "cluster": "lab",
        "service": "REST",
        "machine": "n1",
        "addresses": ["10.0.0.1"],
    }
    served = {**given, "state": "served", "daemons": [], "certificate": about}
    would = module(served, capsys, _ansible_check_mode=True)
    assert (would["changed"], would["rest_certificates"]) == (True, None)
    made = module(served, capsys)
    assert made["changed"] and len(made["rest_certificates"]) == 1
    again = module(served, capsys)
    assert (again["changed"], again["rest_certificates"]) == (False, made["rest_certificates"])
    assert (Path(rest.PROXY_DIRECTORY) / "own.key").stat().st_mode & 0o777 == 0o600
    assert module({**served, "certificate": None}, capsys)["rest_certificates"] == []


def test_a_node_with_an_incompatible_slurm_release_is_refused(programs: Path, given: dict[str, Any]) -> None:
    """slurmd has 24.11.5 here. Nothing is written, and neither is it in check mode, or for a host that would get it."""
    folder = Path(given["directory"])
    for check_mode in (False, True):
        refused = run_slurm_module(programs, given, controller_version="22.05.8", _ansible_check_mode=check_mode)
        assert "n2: Slurm 24.11.5 is installed, but the controller on n1 has Slurm 22.05.8" in refused["msg"]
        assert not list(folder.iterdir())
    for version in ("", "24.11.1", "25.11.0"):
        assert "failed" not in run_slurm_module(programs, given, controller_version=version, _ansible_check_mode=True)
    bare = {**given, "programs": ["slurmd"]}
    assert run_slurm_module(programs, bare, controller_version="22.05.8")["missing"] == ["slurmd"]
    offer = programs / "apt-cache"
    offer.write_text("#!/bin/sh\necho '  Candidate: 24.11.5-4'\n", encoding="utf-8")
    offer.chmod(0o755)
    refused = run_slurm_module(programs, bare, controller_version="22.05.8")
    assert "n2: Slurm 24.11.5 would be installed" in refused["msg"] and "on n2 as well" in refused["msg"]
    assert run_slurm_module(programs, bare, controller_version="24.11.5")["missing"] == ["slurmd"]

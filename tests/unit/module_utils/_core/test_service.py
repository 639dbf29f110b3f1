# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps to run a daemon, from the output of systemd and supervisord."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import time
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import interface

PLUGINS = Path(__file__).resolve().parents[4] / "plugins"
SERVICE_PATHS = service.ServicePaths(
    "/etc/systemd/system", "/etc/supervisor/supervisord.conf", "/etc/supervisor/conf.d"
)
CONTROL = ["supervisorctl", "--configuration", "/etc/supervisor/supervisord.conf"]
RUNS = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no"}
UPDATES = [["reread"], ["update", "slurmd"]]
UPDATE = [[*CONTROL, *words] for words in UPDATES]
RESTART = ["systemctl", "restart", "slurmd.service"]


def make_daemon(state: str = "started", **changes: object) -> service.Daemon:
    return service.Daemon(
        name="slurmd",
        state=state,
        command="/usr/sbin/slurmd -D --conf 'NodeAddr=10.0.0.1 Gres=gpu:2'",
        drop_in="",
        user="root",
        directories=(),
        environment={},
    )._replace(**changes)


def plan_systemd(unit: dict[str, str], present: str | None = None, **changes: object) -> service.DaemonPlan:
    return service.plan_systemd(make_daemon(**changes), SERVICE_PATHS, unit, present)  # type: ignore[arg-type]


def test_running_daemon_is_not_changed() -> None:
    assert not plan_systemd(RUNS).changed
    assert not plan_systemd(RUNS, "[Service]\n", drop_in="[Service]\n").changed
    # systemd waits until it starts the unit again.
    assert not plan_systemd({**RUNS, "ActiveState": "activating"}).changed
    assert not plan_systemd({**RUNS, "UnitFileState": "static"}).changed


def test_stopped_daemon_is_started_and_disabled_one_enabled() -> None:
    stopped = plan_systemd({**RUNS, "ActiveState": "failed"})
    assert (stopped.commands, stopped.restarts_daemon) == ([RESTART], False)
    assert plan_systemd({**RUNS, "UnitFileState": "disabled"}).commands == [["systemctl", "enable", "slurmd.service"]]


def test_new_settings_restart_the_daemon() -> None:
    plan = plan_systemd(RUNS, None, drop_in="[Service]\n")
    assert plan.settings_path == "/etc/systemd/system/slurmd.service.d/gpumesh.conf"
    assert (plan.after, plan.restarts_daemon) == ("[Service]\n", True)
    assert plan.commands == [["systemctl", "daemon-reload"], RESTART]
    assert plan_systemd(RUNS, state="restarted").commands == [RESTART]
    # A run has been interrupted between writing and reloading.
    assert plan_systemd({**RUNS, "NeedDaemonReload": "yes"}).commands == [["systemctl", "daemon-reload"]]


def test_absent_stops_and_disables_the_daemon_once() -> None:
    plan = plan_systemd(RUNS, "[Service]\n", state="absent")
    assert (plan.after, plan.commands) == ("", [["systemctl", "disable", "--now", "slurmd.service"]])
    assert not plan_systemd({"LoadState": "not-found", "ActiveState": "inactive"}, state="absent").changed
    assert not plan_systemd({**RUNS, "ActiveState": "inactive", "UnitFileState": "disabled"}, state="absent").changed
    failed = plan_systemd({**RUNS, "ActiveState": "failed"}, state="absent")
    assert failed.commands == [
        ["systemctl", "disable", "--now", "slurmd.service"],
        ["systemctl", "reset-failed", "slurmd.service"],
    ]
    left = plan_systemd({**RUNS, "ActiveState": "failed", "UnitFileState": "disabled"}, state="absent")
    assert left.commands == failed.commands[1:]


def test_unknown_unit_is_refused() -> None:
    with pytest.raises(HostStateError, match=r"systemd does not know slurmd\.service"):
        plan_systemd({"LoadState": "not-found"})


def test_unit_properties_are_parsed() -> None:
    assert service.parse_unit_properties("LoadState=loaded\nActiveState=active\n") == {
        "LoadState": "loaded",
        "ActiveState": "active",
    }


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("slurmd                           RUNNING   pid 12, uptime 0:00:12\n", "RUNNING"),
        ("slurmd                           FATAL     Exited too quickly (process log may have details)\n", "FATAL"),
        ("slurmd: ERROR (no such process)\n", ""),
        ("", ""),
    ],
)
def test_program_state_is_parsed(text: str, state: str) -> None:
    assert service.parse_status(text) == state


def plan_supervisord(up: bool, status: str, program: str | None, **changes: object) -> service.DaemonPlan:
    return service.plan_supervisord(make_daemon(**changes), SERVICE_PATHS, up, status, program)  # type: ignore[arg-type]


def test_program_is_started_only_if_necessary() -> None:
    text = service.program_text(make_daemon())
    assert not plan_supervisord(True, "RUNNING", text).changed
    # The program may have new settings that supervisord has not read yet, and starts by itself with them.
    assert plan_supervisord(True, "EXITED", text).commands == [*UPDATE, [*CONTROL, "start", "slurmd"]]
    assert plan_supervisord(True, "RUNNING", text, state="restarted").commands == [[*CONTROL, "restart", "slurmd"]]
    # A restart would use the old settings.
    renewed = plan_supervisord(True, "RUNNING", "old", state="restarted")
    assert (renewed.commands, renewed.restarts_daemon) == (UPDATE, True)
    assert plan_supervisord(False, "", None).commands == [["supervisord", *CONTROL[1:]]]


def test_absent_program_is_removed_once() -> None:
    plan = plan_supervisord(True, "RUNNING", "text", state="absent")
    assert (plan.after, plan.commands) == ("", [[*CONTROL, "reread"], [*CONTROL, "update", "slurmd"]])
    assert not plan_supervisord(True, "", None, state="absent").changed
    assert not plan_supervisord(False, "", None, state="absent").changed


def test_program_section_is_valid_for_supervisord_and_the_shell() -> None:
    text = service.program_text(
        make_daemon(user="munge", directories=["/run/munge", "/run/a b"], environment={"A": '50% "x"', "B": "2"})
    )
    # supervisord reads its files with this parser, and expands % itself.
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", " #"))
    parser.read_string(text)
    section = dict(parser.items("program:slurmd"))
    shell, option, script = shlex.split(section["command"])
    assert (shell, option) == ("/bin/sh", "-c")
    assert script == (
        "install -d -o munge -m 0755 /run/munge && install -d -o munge -m 0755 '/run/a b' && "
        'exec setpriv --reuid=munge --regid="$(id -g munge)" --init-groups '
        "/usr/sbin/slurmd -D --conf 'NodeAddr=10.0.0.1 Gres=gpu:2'"
    )
    assert section["environment"] == r'A="50%% \"x\"",B="2"'
    assert section["autorestart"] == "true"


class FakeHost:
    """A runner that replies to commands by their first argument, and records them."""

    def __init__(self, **results: CommandResult) -> None:
        self.results = results
        self.commands: list[list[str]] = []

    def __call__(self, argv: list[str], timeout: float = 30, check: bool = True) -> CommandResult:
        self.commands.append(argv)
        done = self.results.get(argv[0], CommandResult(0, "", ""))
        if check and done.rc:
            raise CommandError(argv, f"exited {done.rc}", rc=done.rc, stderr=done.stderr)
        return done


def test_drop_in_is_written_before_the_start_and_removed_when_absent(tmp_path: Path) -> None:
    places = service.ServicePaths(str(tmp_path), "", "")
    host = FakeHost()
    plan = service.plan_systemd(make_daemon(drop_in="[Unit]\n"), places, RUNS, None)
    service.apply_plan(host, service.SYSTEMD, make_daemon(), SERVICE_PATHS, plan)
    written = tmp_path / "slurmd.service.d" / "gpumesh.conf"
    assert written.read_text(encoding="utf-8") == "[Unit]\n"
    assert host.commands == [["systemctl", "daemon-reload"], RESTART]
    gone = service.plan_systemd(make_daemon("absent"), places, RUNS, "[Unit]\n")
    service.apply_plan(host, service.SYSTEMD, make_daemon("absent"), SERVICE_PATHS, gone)
    assert not written.parent.exists()


def test_a_daemon_without_a_package_has_a_unit_of_ours(tmp_path: Path) -> None:
    paths = service.ServicePaths(str(tmp_path), "", "")
    unit_file = tmp_path / "slurmd.service"
    wanted = make_daemon(unit="[Service]\nExecStart=/bin/true\n")

    def host(**properties: str) -> FakeHost:
        return FakeHost(
            systemctl=CommandResult(0, "".join(f"{name}={value}\n" for name, value in properties.items()), "")
        )

    def ensure(daemon: service.Daemon, given: FakeHost) -> service.DaemonPlan:
        ready = service.ReadyCondition()
        plan = service.ensure_daemon(given, service.SYSTEMD, daemon, paths, ready, 1.0, False)
        del given.commands[0]
        return plan

    missing = host(LoadState="not-found", ActiveState="inactive", UnitFileState="")
    assert not ensure(make_daemon("absent"), missing).changed and missing.commands == []
    assert not service.make_plan(missing, service.SYSTEMD, wanted, paths).restarts_daemon
    assert not unit_file.exists()
    missing.commands.clear()
    ensure(wanted, missing)
    assert missing.commands == [
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", "slurmd.service"],
        ["systemctl", "restart", "slurmd.service"],
    ]
    assert unit_file.read_text(encoding="utf-8").endswith(wanted.unit)
    assert not ensure(wanted, host(**RUNS)).changed
    assert ensure(wanted._replace(unit="[Service]\nExecStart=/bin/false\n"), host(**RUNS)).restarts_daemon
    # systemd stops a unit that it still has, and forgets it then.
    running = host(**RUNS)
    assert ensure(make_daemon("absent"), running).changed
    assert running.commands == [["systemctl", "disable", "--now", "slurmd.service"], ["systemctl", "daemon-reload"]]
    assert not unit_file.exists()
    # A run was interrupted after the stop.
    ensure(wanted, missing)
    stopped = host(LoadState="loaded", ActiveState="inactive", UnitFileState="disabled")
    assert ensure(make_daemon("absent"), stopped).changed
    assert stopped.commands == [["systemctl", "daemon-reload"]] and not unit_file.exists()
    # A unit of the host's own is not ours to remove, nor is one that another layer of ours has written.
    unit_file.write_text("# Written by the Ansible collection gpumesh.cluster; changes here are lost.\n[Unit]\n")
    ensure(make_daemon("absent"), host(**RUNS))
    ensure(make_daemon(), host(**RUNS))
    assert unit_file.read_text().endswith("lost.\n[Unit]\n")
    # Debian masks the unit of a package that is removed.
    unit_file.unlink()
    unit_file.symlink_to("/dev/null")
    masked = host(LoadState="masked", ActiveState="inactive", UnitFileState="masked")
    assert not ensure(make_daemon("absent"), masked).changed and unit_file.is_symlink()


def test_arguments_in_a_unit_are_quoted() -> None:
    assert service.quote_unit_argument('/opt/a b/100%/$x/"y"\\') == '"/opt/a b/100%%/$$x/\\"y\\"\\\\"'


def test_empty_runtime_directories_are_removed_with_the_program(tmp_path: Path) -> None:
    """systemd removes a RuntimeDirectory; supervisord has no equivalent."""
    places = service.ServicePaths("", "", str(tmp_path))
    folders = [Path(f"/run/gpumesh-test-{os.getpid()}-{name}") for name in ("empty", "used")]
    made = service.program_text(make_daemon(user="slurm", directories=list(map(str, folders))))
    try:
        for folder in folders:
            folder.mkdir()
        (folders[1] / "socket").touch()
        (tmp_path / "gpumesh-slurmd.conf").write_text(made, encoding="utf-8")
        gone = service.plan_supervisord(make_daemon("absent"), places, True, "RUNNING", made)
        service.apply_plan(FakeHost(), service.SUPERVISORD, make_daemon("absent"), places, gone)
        assert [folder.exists() for folder in folders] == [False, True]
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def test_failed_start_shows_the_end_of_the_log() -> None:
    host = FakeHost(
        systemctl=CommandResult(1, "", "Job for slurmd.service failed"),
        journalctl=CommandResult(0, "fatal: no such node\n", ""),
    )
    plan = service.plan_systemd(make_daemon(), SERVICE_PATHS, {**RUNS, "ActiveState": "failed"}, None)
    with pytest.raises(HostStateError) as refusal:
        service.apply_plan(host, service.SYSTEMD, make_daemon(), SERVICE_PATHS, plan)
    assert "slurmd does not start" in str(refusal.value)
    assert "fatal: no such node" in str(refusal.value)
    assert "journalctl -u slurmd" in refusal.value.remedy


def test_daemon_that_has_not_read_its_files_is_restarted(tmp_path: Path) -> None:
    """An earlier run may have been interrupted between the file and the restart."""
    settings = tmp_path / "slurmd.env"
    began = service.process_start_time(os.getpid())
    assert began is not None and 0 < time.time() - began < 86400
    assert service.find_unread_files(began, [str(settings)]) == []
    settings.touch()
    assert service.find_unread_files(began, [str(settings)]) == [str(settings)]
    assert service.find_unread_files(service.process_start_time(0), [str(settings)]) == []
    for seconds, late in ((began - 10, []), (time.time() + 3600, [])):
        os.utime(settings, (seconds, seconds))
        assert service.find_unread_files(began, [str(settings)]) == late
    settings.touch()
    unit = "".join(f"{name}={value}\n" for name, value in {**RUNS, "MainPID": os.getpid()}.items())
    reader = make_daemon(reads=[str(settings)])
    host = FakeHost(systemctl=CommandResult(0, unit, ""))
    plan = service.make_plan(host, service.SYSTEMD, reader, SERVICE_PATHS)
    assert (plan.commands, plan.restarts_daemon) == ([RESTART], True)
    supervisor = tmp_path / "supervisor"
    supervisor.mkdir()
    places = SERVICE_PATHS._replace(supervisor_programs=str(supervisor))
    Path(places.program_path("slurmd")).write_text(service.program_text(reader))
    status = CommandResult(0, f"slurmd   RUNNING   pid {os.getpid()}, uptime 0:00:12\n", "")
    plan = service.make_plan(FakeHost(supervisorctl=status), service.SUPERVISORD, reader, places)
    assert plan.commands == [*UPDATE, [*CONTROL, "restart", "slurmd"]]


def test_daemon_that_has_not_read_its_settings_is_restarted(tmp_path: Path) -> None:
    """An interrupted run has written the settings, and done nothing else."""
    places = service.ServicePaths(str(tmp_path), "", str(tmp_path))
    pid = os.getpid()
    drop_in = Path(places.drop_in_path("slurmd"))
    drop_in.parent.mkdir()
    drop_in.touch()
    unit = "".join(f"{name}={value}\n" for name, value in {**RUNS, "MainPID": pid}.items())
    plan = service.make_plan(FakeHost(systemctl=CommandResult(0, unit, "")), service.SYSTEMD, make_daemon(), places)
    assert plan.commands == [RESTART]
    Path(places.program_path("slurmd")).write_text(service.program_text(make_daemon()))
    status = CommandResult(0, f"slurmd   RUNNING   pid {pid}, uptime 0:00:12\n", "")
    plan = service.make_plan(FakeHost(supervisorctl=status), service.SUPERVISORD, make_daemon(), places)
    assert plan.commands[:2] == [["supervisorctl", "--configuration", "", *words] for words in UPDATES]


def test_already_started_program_is_not_an_error() -> None:
    plan = plan_supervisord(True, "EXITED", service.program_text(make_daemon()))
    host = FakeHost(supervisorctl=CommandResult(0, "slurmd: ERROR (already started)\n", ""))
    service.apply_plan(host, service.SUPERVISORD, make_daemon(), SERVICE_PATHS, plan)
    assert host.commands == plan.commands


def test_reload_precedes_and_may_replace_the_restart(tmp_path: Path) -> None:
    settings = tmp_path / "slurm.conf"
    settings.touch()
    unit = "".join(f"{name}={value}\n" for name, value in {**RUNS, "MainPID": os.getpid()}.items())
    reader = make_daemon(reads=[str(settings)], reload=["scontrol", "reconfigure"])
    host = FakeHost(systemctl=CommandResult(0, unit, ""), scontrol=CommandResult(1, "", "refused"))
    service.apply_plan(
        host, service.SYSTEMD, reader, SERVICE_PATHS, service.make_plan(host, service.SYSTEMD, reader, SERVICE_PATHS)
    )
    assert host.commands[1] == ["scontrol", "reconfigure"]
    assert host.commands[-1] == RESTART
    plan = service.make_plan(host, service.SYSTEMD, reader, SERVICE_PATHS)
    # The daemon has restarted itself.
    os.utime(settings, (1000, 1000))
    host.commands.clear()
    service.apply_plan(host, service.SYSTEMD, reader, SERVICE_PATHS, plan)
    assert RESTART not in host.commands and ["scontrol", "reconfigure"] in host.commands


def test_waiting_ends_with_the_socket_or_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = tmp_path / "socket"
    times = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    monkeypatch.setattr("time.sleep", lambda _seconds: socket.touch())
    ready = service.ReadyCondition(str(socket), None, None)
    service.wait_until_ready("munge", ready, 10)
    with pytest.raises(HostStateError, match=r"munge runs, but .*/other is not available after 10 s"):
        service.wait_until_ready("munge", service.ReadyCondition(str(tmp_path / "other"), None, None), 10)
    service.wait_until_ready("munge", service.ReadyCondition(None, None, None), 0)


def test_boot_state_is_read_from_the_configured_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = service.ServicePaths(unit_directory=str(tmp_path), supervisor_programs=str(tmp_path))
    tunnel = interface.WireguardHost(run, False, service_paths=places)
    for systemd, name in ((True, "multi-user.target.wants/wg-quick@wg0.service"), (False, "gpumesh-wg-quick@wg0.conf")):
        monkeypatch.setattr(interface, "runs_systemd", lambda systemd=systemd: systemd)
        assert not interface._starts_at_boot(tunnel, "wg0")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert interface._starts_at_boot(tunnel, "wg0")


def test_supervisord_paths_are_defined_in_one_module() -> None:
    sources = (path for path in PLUGINS.rglob("*.py") if '"/etc/supervisor' in path.read_text(encoding="utf-8"))
    assert [path.relative_to(PLUGINS).as_posix() for path in sources] == ["module_utils/_core/service.py"]


def test_command_lines_of_a_program_are_found(tmp_path: Path) -> None:
    for pid, comm, command in (
        ("1", "systemd", "/sbin/init\0"),
        ("2", "kthreadd", ""),
        ("3", "slurmctld", "/usr/sbin/slurmctld\0-D\0"),
        # The daemon of Debian has this name after `scontrol reconfigure`, on which it executes itself again.
        ("4", "slurmctld-wlm", "slurmctld\0-D\0"),
        ("5", "slurmctld-wlm", "/usr/sbin/slurmctld-wlm\0"),
        # The exit status of this process has not been collected yet.
        ("6", "slurmctld", ""),
        ("7", "sh", "/bin/sh\0-c\0exec /usr/sbin/slurmctld -D\0"),
        ("8", "slurmd", "/usr/sbin/slurmd\0-D\0"),
        ("9", "a-program-with-", "/opt/a-program-with-a-long-name\0"),
    ):
        folder = tmp_path / "proc" / pid
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{comm}\n", encoding="utf-8")
        (folder / "cmdline").write_text(command, encoding="utf-8")
        (folder / "status").write_text(f"Name:\t{comm}\nUid:\t0\t0\t0\t0\nNSpid:\t{pid}\n", encoding="utf-8")
    tree = Tree(str(tmp_path))
    assert sorted(service.find_command_lines(tree, "slurmctld")) == [
        ["/usr/sbin/slurmctld", "-D"],
        ["/usr/sbin/slurmctld-wlm"],
        ["slurmctld", "-D"],
    ]
    assert service.find_command_lines(tree, "slurmd") == [["/usr/sbin/slurmd", "-D"]]
    assert service.find_command_lines(tree, "a-program-with-a-long-name") == [["/opt/a-program-with-a-long-name"]]
    assert service.find_command_lines(tree, "slurmctld", uid=64030) == []

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

from ansible_collections.gpumesh.cluster.plugins.module_utils import daemon
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import interface
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
PLACES = daemon.Places("/etc/systemd/system", "/etc/supervisor/supervisord.conf", "/etc/supervisor/conf.d")
CONTROL = ["supervisorctl", "--configuration", "/etc/supervisor/supervisord.conf"]
RUNS = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no"}
UPDATES = [["reread"], ["update", "slurmd"]]
UPDATE = [[*CONTROL, *words] for words in UPDATES]
RESTART = ["systemctl", "restart", "slurmd.service"]


def wanted(state: str = "started", **changes: object) -> daemon.Daemon:
    return daemon.Daemon(
        name="slurmd",
        state=state,
        command="/usr/sbin/slurmd -D --conf 'NodeAddr=10.0.0.1 Gres=gpu:2'",
        drop_in="",
        user="root",
        directories=(),
        environment={},
    )._replace(**changes)


def of_systemd(unit: dict[str, str], present: str | None = None, **changes: object) -> daemon.Plan:
    return daemon.plan_systemd(wanted(**changes), PLACES, unit, present)  # type: ignore[arg-type]


def test_a_daemon_that_runs_is_left_alone() -> None:
    assert not of_systemd(RUNS).changed
    assert not of_systemd(RUNS, "[Service]\n", drop_in="[Service]\n").changed
    # It waits for its next start.
    assert not of_systemd({**RUNS, "ActiveState": "activating"}).changed
    assert not of_systemd({**RUNS, "UnitFileState": "static"}).changed


def test_what_does_not_run_or_not_at_boot_is_started_and_enabled() -> None:
    stopped = of_systemd({**RUNS, "ActiveState": "failed"})
    assert (stopped.commands, stopped.restarts) == ([RESTART], False)
    assert of_systemd({**RUNS, "UnitFileState": "disabled"}).commands == [["systemctl", "enable", "slurmd.service"]]


def test_new_settings_restart_it() -> None:
    plan = of_systemd(RUNS, None, drop_in="[Service]\n")
    assert plan.path == "/etc/systemd/system/slurmd.service.d/gpumesh.conf"
    assert (plan.after, plan.restarts) == ("[Service]\n", True)
    assert plan.commands == [["systemctl", "daemon-reload"], RESTART]
    assert of_systemd(RUNS, state="restarted").commands == [RESTART]
    # A run that was interrupted between writing and reloading.
    assert of_systemd({**RUNS, "NeedDaemonReload": "yes"}).commands == [["systemctl", "daemon-reload"]]


def test_absent_ends_it_once() -> None:
    plan = of_systemd(RUNS, "[Service]\n", state="absent")
    assert (plan.after, plan.commands) == ("", [["systemctl", "disable", "--now", "slurmd.service"]])
    assert not of_systemd({"LoadState": "not-found", "ActiveState": "inactive"}, state="absent").changed
    assert not of_systemd({**RUNS, "ActiveState": "inactive", "UnitFileState": "disabled"}, state="absent").changed
    failed = of_systemd({**RUNS, "ActiveState": "failed"}, state="absent")
    assert failed.commands == [
        ["systemctl", "disable", "--now", "slurmd.service"],
        ["systemctl", "reset-failed", "slurmd.service"],
    ]
    left = of_systemd({**RUNS, "ActiveState": "failed", "UnitFileState": "disabled"}, state="absent")
    assert left.commands == failed.commands[1:]


def test_a_unit_that_is_not_there_is_refused() -> None:
    with pytest.raises(HostStateError, match=r"systemd does not know slurmd\.service"):
        of_systemd({"LoadState": "not-found"})


def test_properties_are_read() -> None:
    assert daemon.parse_unit("LoadState=loaded\nActiveState=active\n") == {
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
def test_the_state_of_a_program_is_read(text: str, state: str) -> None:
    assert daemon.parse_status(text) == state


def of_supervisord(up: bool, status: str, program: str | None, **changes: object) -> daemon.Plan:
    return daemon.plan_supervisord(wanted(**changes), PLACES, up, status, program)  # type: ignore[arg-type]


def test_a_program_is_started_only_where_it_has_to_be() -> None:
    text = daemon.program_text(wanted())
    assert not of_supervisord(True, "RUNNING", text).changed
    # It may have other settings that supervisord has not read yet, and starts by itself when it has.
    assert of_supervisord(True, "EXITED", text).commands == [*UPDATE, [*CONTROL, "start", "slurmd"]]
    assert of_supervisord(True, "RUNNING", text, state="restarted").commands == [[*CONTROL, "restart", "slurmd"]]
    # A restart would use the old settings.
    renewed = of_supervisord(True, "RUNNING", "old", state="restarted")
    assert (renewed.commands, renewed.restarts) == (UPDATE, True)
    assert of_supervisord(False, "", None).commands == [["supervisord", *CONTROL[1:]]]


def test_a_program_is_forgotten_once() -> None:
    plan = of_supervisord(True, "RUNNING", "text", state="absent")
    assert (plan.after, plan.commands) == ("", [[*CONTROL, "reread"], [*CONTROL, "update", "slurmd"]])
    assert not of_supervisord(True, "", None, state="absent").changed
    assert not of_supervisord(False, "", None, state="absent").changed


def test_a_program_is_what_supervisord_and_the_shell_read() -> None:
    text = daemon.program_text(
        wanted(user="munge", directories=["/run/munge", "/run/a b"], environment={"A": '50% "x"', "B": "2"})
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


class Host:
    """Replies to commands by their first words, and records them."""

    def __init__(self, **answers: Completed) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], timeout: float = 30, check: bool = True) -> Completed:
        self.asked.append(argv)
        done = self.answers.get(argv[0], Completed(0, "", ""))
        if check and done.rc:
            raise CommandError(argv, f"exited {done.rc}", rc=done.rc, stderr=done.stderr)
        return done


def test_settings_are_written_before_the_start_and_removed_at_the_end(tmp_path: Path) -> None:
    places = daemon.Places(str(tmp_path), "", "")
    host = Host()
    plan = daemon.plan_systemd(wanted(drop_in="[Unit]\n"), places, RUNS, None)
    daemon.apply(host, daemon.SYSTEMD, wanted(), PLACES, plan)
    written = tmp_path / "slurmd.service.d" / "gpumesh.conf"
    assert written.read_text(encoding="utf-8") == "[Unit]\n"
    assert host.asked == [["systemctl", "daemon-reload"], RESTART]
    gone = daemon.plan_systemd(wanted("absent"), places, RUNS, "[Unit]\n")
    daemon.apply(host, daemon.SYSTEMD, wanted("absent"), PLACES, gone)
    assert not written.parent.exists()


def test_the_folders_of_a_program_go_with_it_unless_something_is_in_them(tmp_path: Path) -> None:
    """systemd removes a RuntimeDirectory; supervisord has no equivalent."""
    places = daemon.Places("", "", str(tmp_path))
    folders = [Path(f"/run/gpumesh-test-{os.getpid()}-{name}") for name in ("empty", "used")]
    made = daemon.program_text(wanted(user="slurm", directories=list(map(str, folders))))
    try:
        for folder in folders:
            folder.mkdir()
        (folders[1] / "socket").touch()
        (tmp_path / "gpumesh-slurmd.conf").write_text(made, encoding="utf-8")
        gone = daemon.plan_supervisord(wanted("absent"), places, True, "RUNNING", made)
        daemon.apply(Host(), daemon.SUPERVISORD, wanted("absent"), places, gone)
        assert [folder.exists() for folder in folders] == [False, True]
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def test_a_daemon_that_does_not_start_is_told_with_its_last_words() -> None:
    host = Host(
        systemctl=Completed(1, "", "Job for slurmd.service failed"),
        journalctl=Completed(0, "fatal: no such node\n", ""),
    )
    plan = daemon.plan_systemd(wanted(), PLACES, {**RUNS, "ActiveState": "failed"}, None)
    with pytest.raises(HostStateError) as refusal:
        daemon.apply(host, daemon.SYSTEMD, wanted(), PLACES, plan)
    assert "slurmd does not start" in str(refusal.value)
    assert "fatal: no such node" in str(refusal.value)
    assert "journalctl -u slurmd" in refusal.value.remedy


def test_a_daemon_that_is_older_than_what_it_reads_is_restarted(tmp_path: Path) -> None:
    """Even in a run that changes nothing, after one that was interrupted between the file and the restart."""
    settings = tmp_path / "slurmd.env"
    began = daemon.started_at(os.getpid())
    assert began is not None and 0 < time.time() - began < 86400
    assert daemon.unread(began, [str(settings)]) == []
    settings.touch()
    assert daemon.unread(began, [str(settings)]) == [str(settings)]
    assert daemon.unread(daemon.started_at(0), [str(settings)]) == []
    for seconds, late in ((began - 10, []), (time.time() + 3600, [])):
        os.utime(settings, (seconds, seconds))
        assert daemon.unread(began, [str(settings)]) == late
    settings.touch()
    unit = "".join(f"{name}={value}\n" for name, value in {**RUNS, "MainPID": os.getpid()}.items())
    reader = wanted(reads=[str(settings)])
    host = Host(systemctl=Completed(0, unit, ""))
    plan = daemon.make_plan(host, daemon.SYSTEMD, reader, PLACES)
    assert (plan.commands, plan.restarts) == ([RESTART], True)
    supervisor = tmp_path / "supervisor"
    supervisor.mkdir()
    places = PLACES._replace(supervisor_programs=str(supervisor))
    Path(places.program("slurmd")).write_text(daemon.program_text(reader))
    status = Completed(0, f"slurmd   RUNNING   pid {os.getpid()}, uptime 0:00:12\n", "")
    plan = daemon.make_plan(Host(supervisorctl=status), daemon.SUPERVISORD, reader, places)
    assert plan.commands == [*UPDATE, [*CONTROL, "restart", "slurmd"]]


def test_a_daemon_that_is_older_than_its_own_settings_is_restarted(tmp_path: Path) -> None:
    """An interrupted run has written them, and nothing else."""
    places = daemon.Places(str(tmp_path), "", str(tmp_path))
    pid = os.getpid()
    drop_in = Path(places.drop_in("slurmd"))
    drop_in.parent.mkdir()
    drop_in.touch()
    unit = "".join(f"{name}={value}\n" for name, value in {**RUNS, "MainPID": pid}.items())
    plan = daemon.make_plan(Host(systemctl=Completed(0, unit, "")), daemon.SYSTEMD, wanted(), places)
    assert plan.commands == [RESTART]
    Path(places.program("slurmd")).write_text(daemon.program_text(wanted()))
    status = Completed(0, f"slurmd   RUNNING   pid {pid}, uptime 0:00:12\n", "")
    plan = daemon.make_plan(Host(supervisorctl=status), daemon.SUPERVISORD, wanted(), places)
    assert plan.commands[:2] == [["supervisorctl", "--configuration", "", *words] for words in UPDATES]


def test_a_program_that_its_new_settings_have_started_is_no_error() -> None:
    plan = of_supervisord(True, "EXITED", daemon.program_text(wanted()))
    host = Host(supervisorctl=Completed(0, "slurmd: ERROR (already started)\n", ""))
    daemon.apply(host, daemon.SUPERVISORD, wanted(), PLACES, plan)
    assert host.asked == plan.commands


def test_a_reload_comes_first_and_may_be_enough(tmp_path: Path) -> None:
    settings = tmp_path / "slurm.conf"
    settings.touch()
    unit = "".join(f"{name}={value}\n" for name, value in {**RUNS, "MainPID": os.getpid()}.items())
    reader = wanted(reads=[str(settings)], reload=["scontrol", "reconfigure"])
    host = Host(systemctl=Completed(0, unit, ""), scontrol=Completed(1, "", "refused"))
    daemon.apply(host, daemon.SYSTEMD, reader, PLACES, daemon.make_plan(host, daemon.SYSTEMD, reader, PLACES))
    assert host.asked[1] == ["scontrol", "reconfigure"]
    assert host.asked[-1] == RESTART
    plan = daemon.make_plan(host, daemon.SYSTEMD, reader, PLACES)
    # It has restarted itself.
    os.utime(settings, (1000, 1000))
    host.asked.clear()
    daemon.apply(host, daemon.SYSTEMD, reader, PLACES, plan)
    assert RESTART not in host.asked and ["scontrol", "reconfigure"] in host.asked


def test_waiting_ends_with_the_socket_or_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = tmp_path / "socket"
    times = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    monkeypatch.setattr("time.sleep", lambda _seconds: socket.touch())
    ready = daemon.Ready(str(socket), None, None)
    daemon.wait_until_ready("munge", ready, 10)
    with pytest.raises(HostStateError, match=r"munge runs, but .*/other is not available after 10 s"):
        daemon.wait_until_ready("munge", daemon.Ready(str(tmp_path / "other"), None, None), 10)
    daemon.wait_until_ready("munge", daemon.Ready(None, None, None), 0)


def test_what_starts_at_boot_is_looked_for_where_the_daemon_was_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = daemon.Places(units=str(tmp_path), supervisor_programs=str(tmp_path))
    tunnel = interface.Host(run, False, places=places)
    for systemd, name in ((True, "multi-user.target.wants/wg-quick@wg0.service"), (False, "gpumesh-wg-quick@wg0.conf")):
        monkeypatch.setattr(interface, "runs_systemd", lambda systemd=systemd: systemd)
        assert not interface._starts_at_boot(tunnel, "wg0")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert interface._starts_at_boot(tunnel, "wg0")


def test_the_folders_of_supervisord_have_one_home() -> None:
    sources = (path for path in PLUGINS.rglob("*.py") if '"/etc/supervisor' in path.read_text(encoding="utf-8"))
    assert [path.relative_to(PLUGINS).as_posix() for path in sources] == ["module_utils/daemon.py"]


def test_the_commands_of_a_program(tmp_path: Path) -> None:
    for pid, comm, command in (
        ("1", "systemd", "/sbin/init\0"),
        ("2", "kthreadd", ""),
        ("3", "slurmctld", "/usr/sbin/slurmctld\0-D\0"),
        # As Debian's is called after it has executed itself again, on `scontrol reconfigure`.
        ("4", "slurmctld-wlm", "slurmctld\0-D\0"),
        ("5", "slurmctld-wlm", "/usr/sbin/slurmctld-wlm\0"),
        # Nobody has collected its exit status yet.
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
    assert sorted(daemon.commands_of(tree, "slurmctld")) == [
        ["/usr/sbin/slurmctld", "-D"],
        ["/usr/sbin/slurmctld-wlm"],
        ["slurmctld", "-D"],
    ]
    assert daemon.commands_of(tree, "slurmd") == [["/usr/sbin/slurmd", "-D"]]
    assert daemon.commands_of(tree, "a-program-with-a-long-name") == [["/opt/a-program-with-a-long-name"]]
    assert daemon.commands_of(tree, "slurmctld", uid=64030) == []

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a daemon under the service manager that runs as PID 1: systemd with the packaged unit, or else supervisord.

One command reads the state of either; a plan is made from its output, and carried out with as few commands as possible.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import (
    read_text,
    remove_empty,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import detach

SYSTEMD, SUPERVISORD = "systemd", "supervisord"
#: A database may take minutes to start on a busy machine.
_PATIENCE = 300.0
#: The states of a unit that systemd, or another unit, starts at boot.
_AT_BOOT = ("enabled", "enabled-runtime", "static", "indirect", "generated", "alias", "linked")


class Daemon(NamedTuple):
    """The wanted daemon. ``drop_in`` is for systemd; the three fields after it, and the command, are for supervisord.

    ``reads``: files that it reads at its start. ``reload``: a command that passes them to it, and to others, while it
    runs.
    """

    name: str
    state: str = "started"
    command: str = ""
    drop_in: str = ""
    user: str = "root"
    directories: Sequence[str] = ()
    environment: Mapping[str, str] = {}
    reads: Sequence[str] = ()
    reload: Sequence[str] = ()


class Places(NamedTuple):
    """The paths of the settings."""

    units: str = "/etc/systemd/system"
    supervisor_config: str = "/etc/supervisor/supervisord.conf"
    supervisor_programs: str = "/etc/supervisor/conf.d"

    @classmethod
    def given(cls, params: Mapping[str, Any]) -> Places:
        """Those of supervisord, from a module's options."""
        return cls(supervisor_config=params["supervisor_config"], supervisor_programs=params["supervisor_programs"])

    def drop_in(self, name: str) -> str:
        """Our drop-in for a packaged unit."""
        return os.path.join(self.units, f"{name}.service.d", "gpumesh.conf")

    def program(self, name: str) -> str:
        """The settings of a program of supervisord."""
        return os.path.join(self.supervisor_programs, f"gpumesh-{name}.conf")


def starts_at_boot(name: str, systemd: bool, places: Places) -> bool:
    """Whether systemd or supervisord has something with this name to start."""
    wanted = os.path.join(places.units, "multi-user.target.wants", f"{name}.service")
    return os.path.lexists(wanted if systemd else places.program(name))


class Plan(NamedTuple):
    """The file to write (or to remove, if there is no text), then the commands.

    ``restarts``: a running daemon is replaced.
    """

    path: str
    before: str
    after: str
    commands: List[List[str]]
    restarts: bool

    @property
    def changed(self) -> bool:
        """Whether anything has to be done."""
        return self.before != self.after or bool(self.commands)


def service_manager(tree: Tree) -> str:
    """The service manager that runs as PID 1."""
    return SYSTEMD if tree.read("proc/1/comm") == "systemd" else SUPERVISORD


# --- What a daemon has read


def started_at(pid: int) -> Optional[float]:
    """When the process started, in seconds since 1970; None if it does not exist."""
    text = read_text(f"/proc/{pid}/stat") if pid else None
    if text is None:
        return None
    # The name of the program, in parentheses, may contain blanks. The 22nd field is in clock ticks since the boot.
    ticks = int(text.rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def commands_of(tree: Tree, program: str, uid: int = 0) -> List[List[str]]:
    """The command line of each process of this program that a user runs, except those in containers on this host."""
    # Debian's /usr/sbin/slurmd is a link to slurmd-wlm, and a daemon that executes itself again follows it. The kernel
    # keeps 15 characters.
    names = (program[:15], f"{program}-wlm"[:15])
    found = []
    for pid in tree.names("proc"):
        if not pid.isdecimal():
            continue
        # Empty for a process that has ended, and for threads of the kernel.
        command = tree.read("proc", pid, "cmdline") or ""
        words = command.rstrip("\0").split("\0")
        if not command or (tree.read("proc", pid, "comm") not in names and os.path.basename(words[0]) != program):
            continue
        status = tree.read("proc", pid, "status") or ""
        # A process in a container also has a process ID of its own there.
        contained = re.search(r"^NSpid:\s+\d+\s+\d", status, re.MULTILINE)
        if re.search(rf"^Uid:\s+{uid}\s", status, re.MULTILINE) and not contained:
            found.append(words)
    return found


def unread(started: Optional[float], files: Sequence[str]) -> List[str]:
    """The files that are newer than the process, which therefore still uses their previous content.

    A modification time in the future, from a clock that was wrong, is ignored.
    """
    if started is None:
        return []
    times = ((path, os.stat(path).st_mtime) for path in files if os.path.exists(path))
    return [path for path, written in times if started < written <= time.time()]


# --- systemd


def parse_unit(text: str) -> Dict[str, str]:
    """The properties in the output of `systemctl show`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def plan_systemd(
    daemon: Daemon, places: Places, unit: Mapping[str, str], drop_in: Optional[str], late: Sequence[str] = ()
) -> Plan:
    """Plan from the unit's properties, its current drop-in and what it has not read.

    Raises HostStateError without a unit.
    """
    path = places.drop_in(daemon.name)
    service = f"{daemon.name}.service"
    known = unit.get("LoadState") not in ("not-found", None)
    running = unit.get("ActiveState") in ("active", "activating", "reloading")
    at_boot = unit.get("UnitFileState") in _AT_BOOT
    before = drop_in or ""
    if daemon.state == "absent":
        commands = [["systemctl", "disable", "--now", service]] if known and (running or at_boot) else []
        if known and unit.get("ActiveState") == "failed":
            # It stays so after a stop, such as where it could not start at a boot, since the manager had been removed.
            commands.append(["systemctl", "reset-failed", service])
        return Plan(path, before, "", commands, False)
    if not known:
        raise HostStateError(f"systemd does not know {service}.", "Install the package that it belongs to.")
    new_settings = daemon.drop_in != before
    commands = []
    if new_settings or unit.get("NeedDaemonReload") == "yes":
        commands.append(["systemctl", "daemon-reload"])
    if not at_boot:
        commands.append(["systemctl", "enable", service])
    if not running or new_settings or late or daemon.state == "restarted":
        commands.append(["systemctl", "restart", service])
    return Plan(
        path, before, daemon.drop_in, commands, running and commands[-1:] == [["systemctl", "restart", service]]
    )


# --- supervisord


def program_text(daemon: Daemon) -> str:
    """The section of a program. A shell creates the folders at each start, since /run is empty after a boot."""
    owner = f"install -d -o {daemon.user} -m 0755"
    # The group is the account's own, which may have another name: that of nobody is nogroup on Debian.
    become = [] if daemon.user == "root" else ["setpriv", f"--reuid={daemon.user}", f'--regid="$(id -g {daemon.user})"']
    if become:
        become.append("--init-groups")
    steps = [f"{owner} {shlex.quote(folder)}" for folder in daemon.directories]
    steps.append(" ".join(["exec", *become, daemon.command]))
    lines = [
        "# Written by the Ansible collection gpumesh.cluster; changes here are lost.",
        f"[program:{daemon.name}]",
        "command=" + _percent(f"/bin/sh -c {shlex.quote(' && '.join(steps))}"),
    ]
    if daemon.environment:
        quoted = (
            '{}="{}"'.format(name, _percent(str(value)).replace('"', '\\"'))
            for name, value in sorted(daemon.environment.items())
        )
        lines.append("environment=" + ",".join(quoted))
    lines += [
        "autostart=true",
        "autorestart=true",
        "startsecs=2",
        # A daemon that waits for the mesh, the controller or the database must keep trying, with growing delays.
        "startretries=60",
        "stopwaitsecs=30",
        "redirect_stderr=true",
        f"stdout_logfile=/var/log/gpumesh-{daemon.name}.log",
        "stdout_logfile_maxbytes=10MB",
        "stdout_logfile_backups=2",
    ]
    return "\n".join(lines) + "\n"


def folders_made(program: str) -> List[str]:
    """The folders below /run that a program, as ``program_text`` writes it, creates at its start."""
    return re.findall(r"\binstall -d -o [\w-]+ -m 0755 (/run/[\w.-]+)(?= && )", program)


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def parse_status(text: str) -> str:
    """The state of a program in the output of `supervisorctl status NAME`; empty if it is unknown.

    ``slurmd   RUNNING   pid 12, uptime 0:00:12``
    """
    match = re.search(r"^\S+\s+([A-Z]+)\b", text, re.MULTILINE)
    return match.group(1) if match and "no such" not in text else ""


def parse_pid(text: str) -> int:
    """The process ID in the same output; 0 if it is not running."""
    match = re.search(r"\bpid ([0-9]{1,18})\b", text)
    return int(match.group(1)) if match else 0


def plan_supervisord(
    daemon: Daemon, places: Places, up: bool, status: str, program: Optional[str], late: Sequence[str] = ()
) -> Plan:
    """Plan from whether supervisord runs, the program's state, its current settings, and what it has not read."""
    path = places.program(daemon.name)
    control = ["supervisorctl", "--configuration", places.supervisor_config]
    before = program or ""
    running = up and status in ("RUNNING", "STARTING")
    if daemon.state == "absent":
        forget = [[*control, "reread"], [*control, "update", daemon.name]] if up and (status or before) else []
        return Plan(path, before, "", forget, False)
    after = program_text(daemon)
    if not up:
        # Starting supervisord starts all of its programs.
        return Plan(path, before, after, [["supervisord", "--configuration", places.supervisor_config]], False)
    if after != before or not status:
        # `restart` would start it with its old settings.
        return Plan(path, before, after, [[*control, "reread"], [*control, "update", daemon.name]], running)
    # An interrupted run may have left new settings that supervisord has not read: it would start the program with
    # the old ones.
    unread_settings = [[*control, "reread"], [*control, "update", daemon.name]] if late or not running else []
    if not running:
        return Plan(path, before, after, [*unread_settings, [*control, "start", daemon.name]], False)
    if late or daemon.state == "restarted":
        return Plan(path, before, after, [*unread_settings, [*control, "restart", daemon.name]], True)
    return Plan(path, before, after, [], False)


# --- This host


def supervisord_missing(manager: str) -> bool:
    """Whether supervisord would have to be installed."""
    return manager == SUPERVISORD and (find("supervisord") is None or find("supervisorctl") is None)


def make_plan(run: Runner, manager: str, daemon: Daemon, places: Places) -> Plan:
    """Read the current state, and return what has to be done."""
    if manager == SYSTEMD:
        properties = "--property=LoadState,ActiveState,UnitFileState,NeedDaemonReload,MainPID"
        unit = parse_unit(run(["systemctl", "show", "--no-pager", properties, f"{daemon.name}.service"]).stdout)
        late = unread(started_at(int(unit.get("MainPID", 0))), [places.drop_in(daemon.name), *daemon.reads])
        return plan_systemd(daemon, places, unit, read_text(places.drop_in(daemon.name)), late)
    control = ["supervisorctl", "--configuration", places.supervisor_config]
    up = run([*control, "pid"], check=False).rc == 0
    said = run([*control, "status", daemon.name], check=False).stdout if up else ""
    late = unread(started_at(parse_pid(said)), [places.program(daemon.name), *daemon.reads])
    return plan_supervisord(daemon, places, up, parse_status(said), read_text(places.program(daemon.name)), late)


def apply(run: Runner, manager: str, daemon: Daemon, places: Places, plan: Plan) -> None:
    """Carry out the plan. Raises HostStateError, with the end of the daemon's log, if it does not start."""
    if plan.commands and daemon.state != "absent":
        # An interrupted check may still be listening on the daemon's port.
        detach.stop_all()
    if daemon.reload and plan.restarts and plan.before == plan.after:
        # Before the restart, since nothing would show afterwards that a reload is due. Some daemons restart themselves
        # on it, and some cannot apply everything, so the state is read again.
        run(daemon.reload, timeout=_PATIENCE, check=False)
        plan = make_plan(run, manager, daemon, places)
    _write(manager, plan)
    for command in plan.commands:
        try:
            done = run(command, timeout=_PATIENCE)
        except CommandError as failure:
            words = last_words(run, manager, daemon.name)
            raise HostStateError(
                f"{daemon.name} does not start: {failure.message} {words}".strip(), f"See {_log(manager, daemon.name)}."
            ) from failure
        # `update` has already started it with the new settings.
        if manager == SUPERVISORD and "ERROR" in done.stdout and "already started" not in done.stdout:
            raise HostStateError(
                f"{daemon.name} does not start: {done.stdout.strip()}.", f"See {_log(manager, daemon.name)}."
            )
    if manager == SUPERVISORD and not plan.after:
        # As systemd does with a RuntimeDirectory. A folder that is not empty is used by something else, too.
        for folder in folders_made(plan.before):
            remove_empty(folder)


def _write(manager: str, plan: Plan) -> None:
    """Write the file of the plan, or remove it."""
    if plan.after and plan.after != plan.before:
        os.makedirs(os.path.dirname(plan.path), mode=0o755, exist_ok=True)
        write_atomic(plan.path, plan.after, mode=0o644)
    elif plan.before and not plan.after and remove_file(plan.path) and manager == SYSTEMD:
        remove_empty(os.path.dirname(plan.path))


def last_words(run: Runner, manager: str, name: str) -> str:
    """The end of the daemon's log."""
    if manager == SYSTEMD:
        argv = ["journalctl", "--no-pager", "--output=cat", "--lines=8", f"--unit={name}.service"]
        text = run(argv, check=False).stdout
    else:
        text = read_text(_log(manager, name)) or ""
    return "; ".join(text.strip().splitlines()[-8:])


def _log(manager: str, name: str) -> str:
    return f"journalctl -u {name}" if manager == SYSTEMD else f"/var/log/gpumesh-{name}.log"


class Ready(NamedTuple):
    """What exists once the daemon is ready. Values that are None are not waited for."""

    path: Optional[str] = None
    address: Optional[str] = None
    port: Optional[int] = None

    def holds(self) -> bool:
        """Whether it exists."""
        if self.path and not os.path.exists(self.path):
            return False
        return not self.address or self.port is None or answers(self.address, self.port)


def answers(address: str, port: int) -> bool:
    """Whether something listens at this address and TCP port."""
    try:
        with socket.create_connection((address, port), timeout=5):
            return True
    except OSError:
        return False


def wait_until_ready(name: str, ready: Ready, seconds: float) -> None:
    """Wait until the daemon is ready. Raises HostStateError after ``seconds``."""
    end = time.monotonic() + seconds
    while not ready.holds():
        if time.monotonic() >= end:
            wanted = ready.path or f"{ready.address}:{ready.port}"
            raise HostStateError(f"{name} runs, but {wanted} is not available after {seconds:g} s.", "See its log.")
        time.sleep(0.25)


def bring_about(
    run: Runner, manager: str, daemon: Daemon, places: Places, ready: Ready, seconds: float, look_only: bool
) -> Plan:
    """Make a plan, and unless ``look_only``, apply it and wait until the daemon is ready. Returns the plan.

    Raises HostStateError if the daemon does not start, or is not ready after ``seconds``.
    """
    plan = make_plan(run, manager, daemon, places)
    if not look_only:
        apply(run, manager, daemon, places, plan)
        if daemon.state != "absent":
            wait_until_ready(daemon.name, ready, seconds)
    return plan

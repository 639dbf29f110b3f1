# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a daemon under the service manager that runs as PID 1: systemd with the packaged unit, or one of ours, or else
supervisord.

One command reads the current state. A plan is made from its output, and applied with as few commands as possible.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import leased_process
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_text,
    remove_empty_directory,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

SYSTEMD, SUPERVISORD = "systemd", "supervisord"
#: A database may take minutes to start on a busy machine.
_START_TIMEOUT = 300.0
#: The first line of the units that are written here, by which they are known when they are to be removed.
_UNIT_HEADER = "# Written with its daemon by the Ansible collection gpumesh.cluster; changes here are lost.\n"
#: The states of a unit that systemd, or another unit, starts at boot.
BOOT_UNIT_STATES = ("enabled", "enabled-runtime", "static", "indirect", "generated", "alias", "linked")


class Daemon(NamedTuple):
    """The desired daemon. ``drop_in`` is for systemd. ``unit``: the whole unit, for a daemon that no package brings.

    ``command``, ``user``, ``directories`` and ``environment`` are for supervisord. ``reads``: files that the daemon
    reads at its start. ``reload``: a command that makes the running daemon, and others, read them again.
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
    unit: str = ""


class ServicePaths(NamedTuple):
    """The paths of the settings of both service managers."""

    unit_directory: str = "/etc/systemd/system"
    supervisor_config: str = "/etc/supervisor/supervisord.conf"
    supervisor_programs: str = "/etc/supervisor/conf.d"

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> ServicePaths:
        """Return the default paths with those of supervisord from the options of a module."""
        return cls(supervisor_config=params["supervisor_config"], supervisor_programs=params["supervisor_programs"])

    def drop_in_path(self, service_name: str) -> str:
        """Return the path of our drop-in for a packaged unit."""
        return os.path.join(self.unit_directory, f"{service_name}.service.d", "gpumesh.conf")

    def unit_path(self, service_name: str) -> str:
        """Return the path of our unit for a daemon that no package brings."""
        return os.path.join(self.unit_directory, f"{service_name}.service")

    def program_path(self, program_name: str) -> str:
        """Return the path of the settings of a supervisord program."""
        return os.path.join(self.supervisor_programs, f"gpumesh-{program_name}.conf")


def starts_at_boot(service_name: str, uses_systemd: bool, service_paths: ServicePaths) -> bool:
    """Whether systemd or supervisord starts something with this name at boot."""
    wants_link = os.path.join(service_paths.unit_directory, "multi-user.target.wants", f"{service_name}.service")
    return os.path.lexists(wants_link if uses_systemd else service_paths.program_path(service_name))


class DaemonPlan(NamedTuple):
    """The settings file to write, or to remove if ``after`` is empty, and the commands to run then.

    ``restarts_daemon``: a running daemon is replaced. ``removes_unit``: the file is a unit, without which systemd could
    not stop the daemon, so it is removed after the commands.
    """

    settings_path: str
    before: str
    after: str
    commands: List[List[str]]
    restarts_daemon: bool
    removes_unit: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything has to be done."""
        return self.before != self.after or bool(self.commands)


def service_manager(tree: Tree) -> str:
    """Return the service manager that runs as PID 1."""
    return SYSTEMD if tree.read("proc/1/comm") == "systemd" else SUPERVISORD


# --- What a daemon has read


def process_start_time(pid: int) -> Optional[float]:
    """Return when the process started, in seconds since 1970; None if it does not exist."""
    stat_text = read_text(f"/proc/{pid}/stat") if pid else None
    if stat_text is None:
        return None
    # The name of the program, in parentheses, may contain blanks. The 22nd field is in clock ticks since the boot.
    start_ticks = int(stat_text.rpartition(")")[2].split()[19])
    process_age = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - process_age


def find_command_lines(tree: Tree, program_name: str, uid: int = 0) -> List[List[str]]:
    """Return the command line of each process of a program that the user runs outside of containers on this host."""
    # Debian's /usr/sbin/slurmd is a link to slurmd-wlm, and a daemon that executes itself again follows it. The kernel
    # keeps 15 characters.
    process_names = (program_name[:15], f"{program_name}-wlm"[:15])
    command_lines = []
    for pid in tree.list_names("proc"):
        if not pid.isdecimal():
            continue
        # The command line of a process that has ended, and of a kernel thread, is empty.
        command_line = tree.read("proc", pid, "cmdline") or ""
        arguments = command_line.rstrip("\0").split("\0")
        if not command_line or (
            tree.read("proc", pid, "comm") not in process_names and os.path.basename(arguments[0]) != program_name
        ):
            continue
        process_status = tree.read("proc", pid, "status") or ""
        # A process in a container has a second process ID there.
        in_container = re.search(r"^NSpid:\s+\d+\s+\d", process_status, re.MULTILINE)
        if re.search(rf"^Uid:\s+{uid}\s", process_status, re.MULTILINE) and not in_container:
            command_lines.append(arguments)
    return command_lines


def find_unread_files(start_time: Optional[float], settings_files: Sequence[str]) -> List[str]:
    """Return the files that are newer than the process, which therefore still uses their previous content.

    A modification time in the future, from a clock that was wrong, is ignored.
    """
    if start_time is None:
        return []
    modification_times = ((path, os.stat(path).st_mtime) for path in settings_files if os.path.exists(path))
    return [path for path, modified_at in modification_times if start_time < modified_at <= time.time()]


# --- systemd


def parse_unit_properties(text: str) -> Dict[str, str]:
    """Parse the properties in the output of `systemctl show`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def plan_systemd(
    daemon: Daemon,
    service_paths: ServicePaths,
    unit_properties: Mapping[str, str],
    current_settings: Optional[str],
    unread_files: Sequence[str] = (),
    has_own_unit: bool = False,
) -> DaemonPlan:
    """Plan from the properties of the unit, its current drop-in, and the files that it has not read.

    ``has_own_unit``: the unit is ours, and ``current_settings`` its text instead of a drop-in. Raises HostStateError
    without a unit.
    """
    settings_path = service_paths.unit_path(daemon.name) if has_own_unit else service_paths.drop_in_path(daemon.name)
    desired_settings = _UNIT_HEADER + daemon.unit if has_own_unit else daemon.drop_in
    unit_name = f"{daemon.name}.service"
    unit_exists = unit_properties.get("LoadState") not in ("not-found", None)
    is_running = unit_properties.get("ActiveState") in ("active", "activating", "reloading")
    enabled_at_boot = unit_properties.get("UnitFileState") in BOOT_UNIT_STATES
    previous_settings = current_settings or ""
    if daemon.state == "absent":
        commands = (
            [["systemctl", "disable", "--now", unit_name]] if unit_exists and (is_running or enabled_at_boot) else []
        )
        if unit_exists and unit_properties.get("ActiveState") == "failed":
            # A failed unit stays failed after a stop, such as where it could not start at boot without the manager.
            commands.append(["systemctl", "reset-failed", unit_name])
        return DaemonPlan(settings_path, previous_settings, "", commands, False, has_own_unit)
    if not unit_exists and not has_own_unit:
        raise HostStateError(f"systemd does not know {unit_name}.", "Install the package that it belongs to.")
    settings_changed = desired_settings != previous_settings
    commands = []
    if settings_changed or unit_properties.get("NeedDaemonReload") == "yes":
        commands.append(["systemctl", "daemon-reload"])
    if not enabled_at_boot:
        commands.append(["systemctl", "enable", unit_name])
    if not is_running or settings_changed or unread_files or daemon.state == "restarted":
        commands.append(["systemctl", "restart", unit_name])
    return DaemonPlan(
        settings_path,
        previous_settings,
        desired_settings,
        commands,
        is_running and commands[-1:] == [["systemctl", "restart", unit_name]],
    )


# --- supervisord


def program_text(daemon: Daemon) -> str:
    """Return the section of a program. A shell creates its directories at each start: /run is empty after a boot."""
    install_command = f"install -d -o {daemon.user} -m 0755"
    # The primary group of the account may have another name: on Debian, that of nobody is nogroup.
    setpriv_arguments = (
        [] if daemon.user == "root" else ["setpriv", f"--reuid={daemon.user}", f'--regid="$(id -g {daemon.user})"']
    )
    if setpriv_arguments:
        setpriv_arguments.append("--init-groups")
    shell_steps = [f"{install_command} {shlex.quote(directory)}" for directory in daemon.directories]
    shell_steps.append(" ".join(["exec", *setpriv_arguments, daemon.command]))
    lines = [
        "# Written by the Ansible collection gpumesh.cluster; changes here are lost.",
        f"[program:{daemon.name}]",
        "command=" + _escape_percent(f"/bin/sh -c {shlex.quote(' && '.join(shell_steps))}"),
    ]
    if daemon.environment:
        quoted_variables = (
            '{}="{}"'.format(variable_name, _escape_percent(str(value)).replace('"', '\\"'))
            for variable_name, value in sorted(daemon.environment.items())
        )
        lines.append("environment=" + ",".join(quoted_variables))
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


def parse_created_directories(program_section: str) -> List[str]:
    """Return the directories below /run that a program section by ``program_text`` creates at its start."""
    return re.findall(r"\binstall -d -o [\w-]+ -m 0755 (/run/[\w.-]+)(?= && )", program_section)


def _escape_percent(text: str) -> str:
    return text.replace("%", "%%")


def parse_status(status_output: str) -> str:
    """Parse the state of a program in the output of `supervisorctl status NAME`; empty if the program is unknown.

    ``slurmd   RUNNING   pid 12, uptime 0:00:12``
    """
    match = re.search(r"^\S+\s+([A-Z]+)\b", status_output, re.MULTILINE)
    return match.group(1) if match and "no such" not in status_output else ""


def parse_pid(status_output: str) -> int:
    """Parse the process ID in the output of `supervisorctl status NAME`; 0 if the program is not running."""
    match = re.search(r"\bpid ([0-9]{1,18})\b", status_output)
    return int(match.group(1)) if match else 0


def plan_supervisord(
    daemon: Daemon,
    service_paths: ServicePaths,
    supervisord_running: bool,
    program_status: str,
    current_section: Optional[str],
    unread_files: Sequence[str] = (),
) -> DaemonPlan:
    """Plan from the state of supervisord and the program, its current section, and the files that it has not read."""
    section_path = service_paths.program_path(daemon.name)
    supervisorctl = ["supervisorctl", "--configuration", service_paths.supervisor_config]
    previous_section = current_section or ""
    is_running = supervisord_running and program_status in ("RUNNING", "STARTING")
    if daemon.state == "absent":
        removal_commands = (
            [[*supervisorctl, "reread"], [*supervisorctl, "update", daemon.name]]
            if supervisord_running and (program_status or previous_section)
            else []
        )
        return DaemonPlan(section_path, previous_section, "", removal_commands, False)
    desired_section = program_text(daemon)
    if not supervisord_running:
        # Starting supervisord starts all of its programs.
        return DaemonPlan(
            section_path,
            previous_section,
            desired_section,
            [["supervisord", "--configuration", service_paths.supervisor_config]],
            False,
        )
    if desired_section != previous_section or not program_status:
        # `restart` would start the program with its old settings.
        return DaemonPlan(
            section_path,
            previous_section,
            desired_section,
            [[*supervisorctl, "reread"], [*supervisorctl, "update", daemon.name]],
            is_running,
        )
    # An interrupted run may have left new settings that supervisord has not read, so that it would start the program
    # with the old ones.
    reread_commands = (
        [[*supervisorctl, "reread"], [*supervisorctl, "update", daemon.name]] if unread_files or not is_running else []
    )
    if not is_running:
        return DaemonPlan(
            section_path,
            previous_section,
            desired_section,
            [*reread_commands, [*supervisorctl, "start", daemon.name]],
            False,
        )
    if unread_files or daemon.state == "restarted":
        return DaemonPlan(
            section_path,
            previous_section,
            desired_section,
            [*reread_commands, [*supervisorctl, "restart", daemon.name]],
            True,
        )
    return DaemonPlan(section_path, previous_section, desired_section, [], False)


# --- This host


def supervisord_missing(init_system: str) -> bool:
    """Whether supervisord would have to be installed."""
    return init_system == SUPERVISORD and (find_program("supervisord") is None or find_program("supervisorctl") is None)


def is_own_unit(unit_text: Optional[str]) -> bool:
    """Whether a unit was written here."""
    return unit_text is not None and unit_text.startswith(_UNIT_HEADER)


def quote_unit_argument(argument: str) -> str:
    """Quote an argument of a command in a unit, in which % begins a specifier and $ a variable."""
    for special, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        argument = argument.replace(special, escaped)
    return f'"{argument}"'


def make_plan(run: Runner, init_system: str, daemon: Daemon, service_paths: ServicePaths) -> DaemonPlan:
    """Read the current state, and plan what has to be done."""
    if init_system == SYSTEMD:
        property_option = "--property=LoadState,ActiveState,UnitFileState,NeedDaemonReload,MainPID"
        unit_properties = parse_unit_properties(
            run(["systemctl", "show", "--no-pager", property_option, f"{daemon.name}.service"]).stdout
        )
        unit_path = service_paths.unit_path(daemon.name)
        # A masked unit is a link to /dev/null.
        has_own_unit = bool(daemon.unit) or (not os.path.islink(unit_path) and is_own_unit(read_text(unit_path)))
        settings_path = unit_path if has_own_unit else service_paths.drop_in_path(daemon.name)
        unread_files = find_unread_files(
            process_start_time(int(unit_properties.get("MainPID", 0))), [settings_path, *daemon.reads]
        )
        return plan_systemd(
            daemon, service_paths, unit_properties, read_text(settings_path), unread_files, has_own_unit
        )
    supervisorctl = ["supervisorctl", "--configuration", service_paths.supervisor_config]
    supervisord_running = run([*supervisorctl, "pid"], check=False).rc == 0
    status_output = run([*supervisorctl, "status", daemon.name], check=False).stdout if supervisord_running else ""
    unread_files = find_unread_files(
        process_start_time(parse_pid(status_output)), [service_paths.program_path(daemon.name), *daemon.reads]
    )
    return plan_supervisord(
        daemon,
        service_paths,
        supervisord_running,
        parse_status(status_output),
        read_text(service_paths.program_path(daemon.name)),
        unread_files,
    )


def apply_plan(run: Runner, init_system: str, daemon: Daemon, service_paths: ServicePaths, plan: DaemonPlan) -> None:
    """Apply the plan. Raises HostStateError with the end of the log if the daemon does not start."""
    if plan.commands and daemon.state != "absent":
        # An interrupted check may still be listening on the daemon's port.
        leased_process.stop_all_runs()
    if daemon.reload and plan.restarts_daemon and plan.before == plan.after:
        # The reload precedes the restart, since nothing would show afterwards that a reload is due. Some daemons
        # restart themselves on a reload, and some cannot apply everything, so the state is read again.
        run(daemon.reload, timeout=_START_TIMEOUT, check=False)
        plan = make_plan(run, init_system, daemon, service_paths)
    if not plan.removes_unit:
        _write_settings(init_system, plan)
    for command in plan.commands:
        try:
            completed = run(command, timeout=_START_TIMEOUT)
        except CommandError as failure:
            log_tail = read_log_tail(run, init_system, daemon.name)
            raise HostStateError(
                f"{daemon.name} does not start: {failure.message} {log_tail}".strip(),
                f"See {_log_location(init_system, daemon.name)}.",
            ) from failure
        # `update` may have started the program with its new settings already, which makes `start` fail.
        if init_system == SUPERVISORD and "ERROR" in completed.stdout and "already started" not in completed.stdout:
            raise HostStateError(
                f"{daemon.name} does not start: {completed.stdout.strip()}.",
                f"See {_log_location(init_system, daemon.name)}.",
            )
    if plan.removes_unit and remove_file(plan.settings_path):
        run(["systemctl", "daemon-reload"], timeout=_START_TIMEOUT)
    if init_system == SUPERVISORD and not plan.after:
        # systemd removes a RuntimeDirectory in the same way. Something else uses a directory that is not empty.
        for directory in parse_created_directories(plan.before):
            remove_empty_directory(directory)


def _write_settings(init_system: str, plan: DaemonPlan) -> None:
    """Write or remove the settings file of the plan."""
    if plan.after and plan.after != plan.before:
        os.makedirs(os.path.dirname(plan.settings_path), mode=0o755, exist_ok=True)
        write_atomic(plan.settings_path, plan.after, mode=0o644)
    elif plan.before and not plan.after and remove_file(plan.settings_path) and init_system == SYSTEMD:
        remove_empty_directory(os.path.dirname(plan.settings_path))


def read_log_tail(run: Runner, init_system: str, daemon_name: str) -> str:
    """Return the end of the log of the daemon."""
    if init_system == SYSTEMD:
        journalctl_command = ["journalctl", "--no-pager", "--output=cat", "--lines=8", f"--unit={daemon_name}.service"]
        log_text = run(journalctl_command, check=False).stdout
    else:
        log_text = read_text(_log_location(init_system, daemon_name)) or ""
    return "; ".join(log_text.strip().splitlines()[-8:])


def _log_location(init_system: str, daemon_name: str) -> str:
    return f"journalctl -u {daemon_name}" if init_system == SYSTEMD else f"/var/log/gpumesh-{daemon_name}.log"


class ReadyCondition(NamedTuple):
    """The condition under which a daemon is ready: a path, and a listener at an address. None is not waited for."""

    required_path: Optional[str] = None
    address: Optional[str] = None
    port: Optional[int] = None

    def is_met(self) -> bool:
        """Whether everything that is waited for exists."""
        if self.required_path and not os.path.exists(self.required_path):
            return False
        return not self.address or self.port is None or accepts_connections(self.address, self.port)


def accepts_connections(address: str, port: int) -> bool:
    """Whether something listens at this address and TCP port."""
    try:
        with socket.create_connection((address, port), timeout=5):
            return True
    except OSError:
        return False


def wait_until_ready(daemon_name: str, ready_condition: ReadyCondition, timeout_seconds: float) -> None:
    """Wait until the daemon is ready. Raises HostStateError after ``seconds``."""
    deadline = time.monotonic() + timeout_seconds
    while not ready_condition.is_met():
        if time.monotonic() >= deadline:
            missing_endpoint = ready_condition.required_path or f"{ready_condition.address}:{ready_condition.port}"
            raise HostStateError(
                f"{daemon_name} runs, but {missing_endpoint} is not available after {timeout_seconds:g} s.",
                f"Find the reason in the log of {daemon_name}.",
            )
        time.sleep(0.25)


def ensure_daemon(
    run: Runner,
    init_system: str,
    daemon: Daemon,
    service_paths: ServicePaths,
    ready_condition: ReadyCondition,
    ready_timeout: float,
    check_mode: bool,
) -> DaemonPlan:
    """Make a plan, and apply it and wait until the daemon is ready, unless ``check_mode`` is set. Return the plan.

    Raises HostStateError if the daemon does not start, or is not ready after ``seconds``.
    """
    plan = make_plan(run, init_system, daemon, service_paths)
    if not check_mode:
        apply_plan(run, init_system, daemon, service_paths, plan)
        if daemon.state != "absent":
            wait_until_ready(daemon.name, ready_condition, ready_timeout)
    return plan

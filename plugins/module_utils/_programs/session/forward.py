# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Publish ports of main1 on the manager's cluster address: one ssh, run as the session's user while the job exists.

Its connection is the standard input and output of a step of the job, which is an sshd in the namespace of main1, so
that nothing is opened between the hosts and the session. The session's key is kept in the memory of an ssh-agent,
which ends with this program.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import shlex
import socket
import time
from typing import List, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.background import start_in_background
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import (
    ChildProcess,
    Runner,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import command_as
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.inherited import unset_job_arguments
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    Container,
    SessionSettings,
    SessionSpec,
)

#: The interval, in seconds, between two queries of a session that does not run yet, or not again yet.
_QUERY_INTERVAL = 3.0
#: The timeout, in seconds, for a forward to start once the session runs.
_START_TIMEOUT = 30.0
#: The interval, in seconds, between two checks whether a forward has started.
_START_CHECK_INTERVAL = 0.3
#: The timeout, in seconds, for Slurm's controller to respond after a boot.
_BOOT_TIMEOUT = 600.0


def parse_ports(port_mappings: Sequence[str]) -> List[Tuple[int, int]]:
    """Return the manager's port and the port of main1 for each forward."""
    split_mappings = (mapping.partition(":")[::2] for mapping in port_mappings)
    return [(int(manager_port), int(container_port)) for manager_port, container_port in split_mappings]


def refuse_ports(spec: SessionSpec, settings: SessionSettings) -> None:
    """Refuse ports that cannot be forwarded. Raises InputError."""
    if not spec.ports:
        return
    if settings.machine != settings.manager:
        raise InputError(
            f"session_ports can only be published on {settings.manager}, the manager.",
            f"Start the session on {settings.manager}.",
        )
    manager_address = settings.members[settings.manager]
    for manager_port, _container_port in parse_ports(spec.ports):
        with socket.socket(socket.AF_INET6 if ":" in manager_address else socket.AF_INET) as probe_socket:
            probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe_socket.bind((manager_address, manager_port))
            except OSError as failure:
                raise InputError(
                    f"session_ports: port {manager_port} of {manager_address} cannot be used: {failure.strerror}.",
                    "Publish it as another port, such as 9000:8888.",
                ) from failure


def start_forward(program_path: str, job_id: int, port_mappings: Sequence[str]) -> None:
    """Start the forward in the background. The agent ends with the program that it runs. Raises CommandError."""
    start_in_background(["ssh-agent", program_path, "forward", str(job_id), *port_mappings])


def resume_forwards(run: Runner, program_path: str) -> List[int]:
    """Start the forwards that a reboot of the manager has ended, each as the user of its session. Returns their jobs.

    Root calls this. The sessions have survived the reboot on other nodes, or are started again. Raises CommandError.
    """
    resumed_jobs = []
    for session in _wait_for_sessions(run):
        port_mappings = job.published_ports(run, session)
        if not port_mappings or session.has_ended:
            continue
        try:
            session_user = pwd.getpwnam(session.user)
        except KeyError:
            continue
        if not _is_forwarding(session.job_id, session_user.pw_uid):
            _start_as(run, session_user, ["ssh-agent", program_path, "forward", str(session.job_id), *port_mappings])
            resumed_jobs.append(session.job_id)
    return resumed_jobs


def _wait_for_sessions(run: Runner) -> List[job.QueuedSession]:
    """Return the sessions of all users as soon as the controller responds. Raises CommandError."""
    deadline = time.monotonic() + _BOOT_TIMEOUT
    while True:
        try:
            return job.list_sessions(run)
        except CommandError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_QUERY_INTERVAL)


def _is_forwarding(job_id: int, user_id: int) -> bool:
    """Return whether a user has a process that forwards the ports of a job."""
    argument_bytes = f"\0forward\0{job_id}\0".encode()
    for pid in list_names("/proc"):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                if argument_bytes in stream.read(4096) and os.stat(f"/proc/{pid}").st_uid == user_id:
                    return True
        except OSError:
            continue
    return False


def _start_as(run: Runner, session_user: pwd.struct_passwd, arguments: Sequence[str]) -> None:
    """Start a program as the user, which continues after this one has ended."""
    if processes.runs_systemd():
        run(["systemd-run", "--quiet", "--collect", "--no-block", f"--uid={session_user.pw_name}", *arguments])
        return
    env_command = [
        "env",
        f"HOME={session_user.pw_dir}",
        f"USER={session_user.pw_name}",
        f"LOGNAME={session_user.pw_name}",
    ]
    start_in_background(command_as(session_user.pw_name, [*env_command, *arguments]))


def forward_while_running(
    run: Runner, program_path: str, job_id: int, port_mappings: Sequence[str], settings: SessionSettings
) -> int:
    """Forward the ports while the job exists, even if it is started again on other nodes. Returns the exit status."""
    while True:
        try:
            session = job.query_session(run, job_id)
        except CommandError:
            # The forward is useful as long as the session runs, even if the controller fails in the meantime.
            continue
        if session is None or session.has_ended:
            return 0
        if session.stage == job.RUNNING:
            first_container = job.list_containers(session, settings)[0]
            try:
                public_key = _load_session_key(run, step_command(program_path, job_id, first_container, "key"))
            except CommandError:
                # The container has just ended, or does not exist yet.
                time.sleep(_QUERY_INTERVAL)
                continue
            proxy_command = step_command(program_path, job_id, first_container, "daemon")
            with ChildProcess(
                tunnel_command(proxy_command, public_key, port_mappings, settings.members[settings.manager])
            ) as process:
                process.wait()
        time.sleep(_QUERY_INTERVAL)


def _load_session_key(run: Runner, key_command: Sequence[str]) -> str:
    """Add the session's key, and nothing else, to the agent. Returns its public key. Raises CommandError."""
    private_key = run(_first_container_command(key_command)).stdout
    run(["ssh-add", "-q", "-D"])
    run(["ssh-add", "-q", "-"], stdin=private_key)
    return " ".join(run(["ssh-add", "-L"]).stdout.split()[:2])


def step_command(program_path: str, job_id: int, first_container: Container, verb: str) -> List[str]:
    """Return the srun command that runs a verb of this program beside the first container, in its namespace."""
    # Without --unbuffered, srun withholds an incomplete line.
    return [
        *job.step_beside(job_id, first_container),
        "--unbuffered",
        program_path,
        verb,
        str(job_id),
        str(first_container.local),
    ]


def _first_container_command(step_arguments: Sequence[str]) -> List[str]:
    """Return the command of a step in the namespace of the first container, even if this program runs in another job."""
    return ["env", *unset_job_arguments(), f"{job.CONTAINER_VARIABLE}=0", *step_arguments]


def tunnel_command(
    proxy_arguments: Sequence[str], public_key: str, port_mappings: Sequence[str], manager_address: str
) -> List[str]:
    """Return the ssh command that forwards the ports. ``public_key``: the key that the daemon must have."""
    proxy_command = " ".join(shlex.quote(argument) for argument in _first_container_command(proxy_arguments))
    bracketed_address = f"[{manager_address}]" if ":" in manager_address else manager_address
    ssh_options = [
        "BatchMode=yes",
        "ExitOnForwardFailure=yes",
        "StrictHostKeyChecking=yes",
        f"HostKeyAlias={ssh.HOST_KEY_ALIAS}",
        f"KnownHostsCommand=/bin/echo {ssh.HOST_KEY_ALIAS} {public_key}",
        "UserKnownHostsFile=/dev/null",
        "GlobalKnownHostsFile=/dev/null",
        "ServerAliveInterval=15",
        f"ProxyCommand={proxy_command}",
    ]
    ssh_command = ["ssh", "-F", "/dev/null", "-N", "-T"]
    ssh_command += [argument for option in ssh_options for argument in ("-o", option)]
    for manager_port, container_port in parse_ports(port_mappings):
        ssh_command += ["-L", f"{bracketed_address}:{manager_port}:127.0.0.1:{container_port}"]
    return [*ssh_command, "main1"]


def format_forwards(spec: SessionSpec, settings: SessionSettings) -> List[str]:
    """Describe each forward in a line for users."""
    manager_address = settings.members[settings.manager]
    return [
        f"port {container_port} of main1 is {manager_address}:{manager_port}"
        for manager_port, container_port in parse_ports(spec.ports)
    ]


def wait_until_listening(port_mappings: Sequence[str], settings: SessionSettings) -> bool:
    """Wait for the forwards to start. Returns whether they have: another user may listen on a port instead."""
    manager_address = str(ipaddress.ip_address(settings.members[settings.manager]))
    expected_listeners = {
        (processes.LISTENING, manager_address, manager_port, os.geteuid())
        for manager_port, _container_port in parse_ports(port_mappings)
    }
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        tcp_sockets = processes.read_tcp_sockets("/proc").values()
        if expected_listeners <= {
            (listener.state, listener.local_address, listener.local_port, listener.owner_uid)
            for listener in tcp_sockets
        }:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_START_CHECK_INTERVAL)

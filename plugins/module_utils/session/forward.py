# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of main1 on the manager's cluster address: one ssh on the manager, as the session's user, while the job exists.

Its connection is the standard input and output of a step of the job, which is an sshd in the namespace of main1:
nothing is opened between the hosts and the session. The key of the session stays in the memory of an agent that ends
with this.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import shlex
import socket
import time
from typing import List, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process, Runner, start_detached
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import command_as
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job, ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container, Settings, Spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.inherited import unset_job

#: Seconds between two queries of a session that does not run yet, or again.
_SPACING = 3.0
#: Seconds for a forward to start once the session runs.
_PATIENCE = 30.0
#: Seconds between two looks whether it has started.
_SOON = 0.3
#: Seconds for Slurm's controller to answer after a boot.
_BOOT = 600.0


def pairs(ports: Sequence[str]) -> List[Tuple[int, int]]:
    """The manager's port and the port of main1 for each forward."""
    found = (one.partition(":")[::2] for one in ports)
    return [(int(outer), int(inner)) for outer, inner in found]


def refuse(spec: Spec, settings: Settings) -> None:
    """Refuse ports that could not be forwarded. Raises InputError."""
    if not spec.ports:
        return
    if settings.machine != settings.manager:
        raise InputError(
            f"session_ports can only be published on {settings.manager}, the manager.",
            f"Start the session on {settings.manager}.",
        )
    address = settings.members[settings.manager]
    for outer, _inner in pairs(spec.ports):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as asked:
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                asked.bind((address, outer))
            except OSError as failure:
                raise InputError(
                    f"session_ports: port {outer} of {address} cannot be used: {failure.strerror}.",
                    "Publish it as another port, such as 9000:8888.",
                ) from failure


def begin(program: str, number: int, ports: Sequence[str]) -> None:
    """Start the forward in the background. The agent ends with the program that it runs. Raises CommandError."""
    start_detached(["ssh-agent", program, "forward", str(number), *ports])


def resume(run: Runner, program: str) -> List[int]:
    """Start the forwards that a reboot of the manager has ended, each as the user of its session; as root. The jobs.

    A session outlives it on other nodes, or is started again. Raises CommandError.
    """
    begun = []
    for found in _sessions(run):
        ports = job.ports(run, found)
        if not ports or found.over:
            continue
        try:
            user = pwd.getpwnam(found.user)
        except KeyError:
            continue
        if not _exists(found.job, user.pw_uid):
            _begin_as(run, user, ["ssh-agent", program, "forward", str(found.job), *ports])
            begun.append(found.job)
    return begun


def _sessions(run: Runner) -> List[job.Session]:
    """Those of all users, as soon as the controller answers."""
    end = time.monotonic() + _BOOT
    while True:
        try:
            return job.queue(run)
        except CommandError:
            if time.monotonic() > end:
                raise
        time.sleep(_SPACING)


def _exists(number: int, uid: int) -> bool:
    """Whether a user has a process that forwards the ports of a job."""
    words = f"\0forward\0{number}\0".encode()
    for pid in names_in("/proc"):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                if words in stream.read(4096) and os.stat(f"/proc/{pid}").st_uid == uid:
                    return True
        except OSError:
            continue
    return False


def _begin_as(run: Runner, user: pwd.struct_passwd, words: Sequence[str]) -> None:
    """Start a program of the user that goes on after this one."""
    if processes.runs_systemd():
        run(["systemd-run", "--quiet", "--collect", "--no-block", f"--uid={user.pw_name}", *words])
        return
    own = ["env", f"HOME={user.pw_dir}", f"USER={user.pw_name}", f"LOGNAME={user.pw_name}"]
    start_detached(command_as(user.pw_name, [*own, *words]))


def keep(run: Runner, program: str, number: int, ports: Sequence[str], settings: Settings) -> int:
    """Forward the ports while there is the job, also when it is started again on other nodes; the exit status."""
    while True:
        try:
            found = job.follow(run, number)
        except CommandError:
            # The forward is useful as long as the session runs, even if the controller fails meanwhile.
            continue
        if found is None or found.over:
            return 0
        if found.stage == job.RUNNING:
            first = job.containers(found, settings)[0]
            try:
                public = _learn(run, step(program, number, first, "key"))
            except CommandError:
                # It has just ended, or does not exist yet.
                time.sleep(_SPACING)
                continue
            proxy = step(program, number, first, "daemon")
            with Process(tunnel(proxy, public, ports, settings.members[settings.manager])) as process:
                process.wait()
        time.sleep(_SPACING)


def _learn(run: Runner, argv: Sequence[str]) -> str:
    """Add the session's key, and nothing else, to the agent; its public half. Raises CommandError."""
    private = run(_beside_first(argv)).stdout
    run(["ssh-add", "-q", "-D"])
    run(["ssh-add", "-q", "-"], stdin=private)
    return " ".join(run(["ssh-add", "-L"]).stdout.split()[:2])


def step(program: str, number: int, first: Container, verb: str) -> List[str]:
    """srun that runs a command beside the first container, in its namespace."""
    # Without it, an incomplete line is held back.
    return [*job.beside(number, first), "--unbuffered", program, verb, str(number), str(first.local)]


def _beside_first(argv: Sequence[str]) -> List[str]:
    """A step in the namespace of the first container, whatever job this program has been started in."""
    return ["env", *unset_job(), f"{job.PLACE}=0", *argv]


def tunnel(proxy: Sequence[str], public: str, ports: Sequence[str], address: str) -> List[str]:
    """ssh that forwards the ports. ``public``: the key that the daemon must have."""
    command = " ".join(shlex.quote(word) for word in _beside_first(proxy))
    shown = f"[{address}]" if ":" in address else address
    options = [
        "BatchMode=yes",
        "ExitOnForwardFailure=yes",
        "StrictHostKeyChecking=yes",
        f"HostKeyAlias={ssh.ALIAS}",
        f"KnownHostsCommand=/bin/echo {ssh.ALIAS} {public}",
        "UserKnownHostsFile=/dev/null",
        "GlobalKnownHostsFile=/dev/null",
        "ServerAliveInterval=15",
        f"ProxyCommand={command}",
    ]
    words = ["ssh", "-F", "/dev/null", "-N", "-T"]
    words += [word for option in options for word in ("-o", option)]
    for outer, inner in pairs(ports):
        words += ["-L", f"{shown}:{outer}:127.0.0.1:{inner}"]
    return [*words, "main1"]


def shown(spec: Spec, settings: Settings) -> List[str]:
    """The forwards for people."""
    address = settings.members[settings.manager]
    return [f"port {inner} of main1 is {address}:{outer}" for outer, inner in pairs(spec.ports)]


def started(ports: Sequence[str], settings: Settings) -> bool:
    """Whether the forwards have started within a moment. Another user may listen on a port instead."""
    address = str(ipaddress.ip_address(settings.members[settings.manager]))
    wanted = {(processes.LISTENING, address, outer, os.geteuid()) for outer, _inner in pairs(ports)}
    end = time.monotonic() + _PATIENCE
    while True:
        found = processes.tcp_sockets("/proc").values()
        if wanted <= {(one.state, one.local, one.port, one.uid) for one in found}:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_SOON)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How OpenSSH would connect to a host: ``ssh -G`` evaluates all files, matches and arguments."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.causes import SilentHostError, quoted

_SECONDS = 5


class Settings(NamedTuple):
    """The settings that determine whether and how a connection is made.

    ``known_as``: the host's name in known_hosts files. ``strict``: StrictHostKeyChecking. ``agent``: the agent's
    socket; empty for none. ``proxy``: the command that connects to the host, None if ssh does itself. ``jump``: the
    hosts on the path, for messages.
    """

    host: str
    port: int
    user: str
    known_as: str
    known_hosts: tuple[str, ...]
    strict: str
    keys: tuple[str, ...]
    only_these_keys: bool
    agent: str
    proxy: str | None
    jump: str


def ask(arguments: Sequence[str], host: str) -> Settings:
    """The settings of ``ssh ARGUMENTS host``. Raises SilentHostError."""
    argv = ["ssh", "-G", *arguments, "--", host]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise SilentHostError(
            "not_checked",
            f"The reason was not examined: '{shlex.join(argv)}' did not run: {failure}.",
            "Install the OpenSSH client on the machine that runs Ansible.",
        ) from failure
    if done.returncode != 0:
        raise SilentHostError(
            "configuration",
            f"ssh rejects its own configuration: {quoted(done.stderr, 300)}.",
            "Correct ~/.ssh/config, /etc/ssh/ssh_config or ansible_ssh_common_args on the machine that runs Ansible.",
        )
    return parse(done.stdout, arguments)


def parse(text: str, arguments: Sequence[str] = ()) -> Settings:
    """Parse the output of ``ssh -G``.

    ``arguments`` are those that it was given; a jump host is reached with its files.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _space, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)

    def one(key: str, default: str = "") -> str:
        return found.get(key, [default])[0]

    host, port, user = one("hostname"), int(one("port", "22")), one("user")
    agent = one("identityagent", "SSH_AUTH_SOCK")
    files = f"{one('userknownhostsfile')} {one('globalknownhostsfile')}".split()
    jump = one("proxyjump", "none")
    jump = "" if jump == "none" else jump
    command = _through(jump, arguments) if jump else one("proxycommand", "none")
    tokens = {"%h": host, "%p": str(port), "%r": user, "%n": one("host", host), "%%": "%"}
    return Settings(
        host=host,
        port=port,
        user=user,
        known_as=one("hostkeyalias") or (host if port == 22 else f"[{host}]:{port}"),
        known_hosts=tuple(os.path.expanduser(file) for file in files),
        strict={"true": "yes", "off": "no", "false": "no"}.get(
            one("stricthostkeychecking"), one("stricthostkeychecking")
        ),
        keys=tuple(os.path.expanduser(key) for key in found.get("identityfile", [])),
        only_these_keys=one("identitiesonly") == "yes",
        agent={"none": "", "SSH_AUTH_SOCK": os.environ.get("SSH_AUTH_SOCK", "")}.get(agent, os.path.expanduser(agent)),
        proxy=None if command == "none" else re.sub("%.", lambda token: tokens.get(token[0], token[0]), command),
        jump=jump,
    )


def _through(jump: str, arguments: Sequence[str]) -> str:
    """The command with which ssh reaches a host through jump hosts: the last one forwards, the others lead to it."""
    *before, last = jump.split(",")
    argv = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=4"]
    for index, argument in enumerate(arguments[:-1]):
        # As with ssh, only the configuration file among the arguments applies to the hosts on the path.
        argv += ["-F", arguments[index + 1]] if argument == "-F" else []
    argv += ["-J", ",".join(before)] if before else []
    return shlex.join([*argv, "-W", "[%h]:%p", "--", last if last.startswith("ssh://") else _as_url(last)])


def _as_url(place: str) -> str:
    """``user@host:port`` as a single word for ssh."""
    return f"ssh://{place}"

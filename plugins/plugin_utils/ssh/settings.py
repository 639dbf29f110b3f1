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
    """What decides whether and how a connection comes about.

    ``known_as``: the name under which known_hosts files have the host. ``strict``: StrictHostKeyChecking. ``agent``: the
    agent's socket; empty for none. ``proxy``: the command that connects to the host, None where ssh itself does.
    ``jump``: the hosts on the way, for people.
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
    """What ``ssh -G`` prints. ``arguments`` are those that it was given; a jump host is reached with its files."""
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
    """The command by which ssh reaches a host through others: the last one forwards, those before it are its own."""
    *before, last = jump.split(",")
    argv = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=4"]
    for index, argument in enumerate(arguments[:-1]):
        # As ssh does by itself: of all arguments, only the file of settings counts for the hosts on the way.
        argv += ["-F", arguments[index + 1]] if argument == "-F" else []
    argv += ["-J", ",".join(before)] if before else []
    return shlex.join([*argv, "-W", "[%h]:%p", "--", last if last.startswith("ssh://") else _as_url(last)])


def _as_url(place: str) -> str:
    """``user@host:port`` as ssh takes it in one word."""
    return f"ssh://{place}"

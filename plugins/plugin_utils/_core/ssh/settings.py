# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings with which OpenSSH would connect to a host: ``ssh -G`` evaluates all files, matches and arguments."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.causes import SilentHostError, quote_message

_TIMEOUT_SECONDS = 5


class SshSettings(NamedTuple):
    """The settings that determine whether and how a connection is made.

    ``known_hosts_name``: the host's name in known_hosts files. ``strict_checking``: StrictHostKeyChecking.
    ``agent_socket``: empty if there is no agent. ``proxy_command``: the command that connects to the host; None if ssh
    connects itself. ``jump_hosts``: the hosts on the path, for messages.
    """

    host: str
    port: int
    user: str
    known_hosts_name: str
    known_hosts: tuple[str, ...]
    strict_checking: str
    key_files: tuple[str, ...]
    identities_only: bool
    agent_socket: str
    proxy_command: str | None
    jump_hosts: str


def query_settings(arguments: Sequence[str], host: str) -> SshSettings:
    """Return the settings of ``ssh ARGUMENTS host``. Raises UnreachableHostError."""
    query_command = ["ssh", "-G", *arguments, "--", host]
    try:
        completed = subprocess.run(
            query_command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise SilentHostError(
            "not_checked",
            f"The cause could not be determined: '{shlex.join(query_command)}' did not run: {failure}.",
            "Install the OpenSSH client on the machine that runs Ansible.",
        ) from failure
    if completed.returncode != 0:
        raise SilentHostError(
            "configuration",
            f"ssh rejects its own configuration: {quote_message(completed.stderr, 300)}.",
            "Correct ~/.ssh/config, /etc/ssh/ssh_config or ansible_ssh_common_args on the machine that runs Ansible.",
        )
    return parse_settings(completed.stdout, arguments)


def parse_settings(ssh_output: str, arguments: Sequence[str] = ()) -> SshSettings:
    """Parse the output of ``ssh -G``.

    ``arguments``: those of the command; a jump host is reached with the configuration file among them.
    """
    values_by_option: dict[str, list[str]] = {}
    for line in ssh_output.splitlines():
        key, _space, value = line.partition(" ")
        values_by_option.setdefault(key.lower(), []).append(value)

    def first_value(option_name: str, default: str = "") -> str:
        return values_by_option.get(option_name, [default])[0]

    host, port, user = first_value("hostname"), int(first_value("port", "22")), first_value("user")
    identity_agent = first_value("identityagent", "SSH_AUTH_SOCK")
    known_hosts_files = f"{first_value('userknownhostsfile')} {first_value('globalknownhostsfile')}".split()
    jump_hosts = first_value("proxyjump", "none")
    jump_hosts = "" if jump_hosts == "none" else jump_hosts
    proxy_command = _build_jump_command(jump_hosts, arguments) if jump_hosts else first_value("proxycommand", "none")
    token_values = {"%h": host, "%p": str(port), "%r": user, "%n": first_value("host", host), "%%": "%"}
    return SshSettings(
        host=host,
        port=port,
        user=user,
        known_hosts_name=first_value("hostkeyalias") or (host if port == 22 else f"[{host}]:{port}"),
        known_hosts=tuple(os.path.expanduser(file) for file in known_hosts_files),
        strict_checking={"true": "yes", "off": "no", "false": "no"}.get(
            first_value("stricthostkeychecking"), first_value("stricthostkeychecking")
        ),
        key_files=tuple(os.path.expanduser(key) for key in values_by_option.get("identityfile", [])),
        identities_only=first_value("identitiesonly") == "yes",
        agent_socket={"none": "", "SSH_AUTH_SOCK": os.environ.get("SSH_AUTH_SOCK", "")}.get(
            identity_agent, os.path.expanduser(identity_agent)
        ),
        proxy_command=None
        if proxy_command == "none"
        else re.sub("%.", lambda token: token_values.get(token[0], token[0]), proxy_command),
        jump_hosts=jump_hosts,
    )


def _build_jump_command(jump_hosts: str, arguments: Sequence[str]) -> str:
    """Return the command with which ssh reaches a host through jump hosts; the last one forwards the connection."""
    *earlier_hosts, last_host = jump_hosts.split(",")
    jump_command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=4"]
    for index, argument in enumerate(arguments[:-1]):
        # Only the configuration file among the arguments applies to the hosts on the path, as with ssh.
        jump_command += ["-F", arguments[index + 1]] if argument == "-F" else []
    jump_command += ["-J", ",".join(earlier_hosts)] if earlier_hosts else []
    return shlex.join(
        [*jump_command, "-W", "[%h]:%p", "--", last_host if last_host.startswith("ssh://") else _format_url(last_host)]
    )


def _format_url(destination: str) -> str:
    """Format ``user@host:port`` as a single argument for ssh."""
    return f"ssh://{destination}"

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ssh between the containers of a session: configuration of its daemons and clients. Pure, except for the key.

In the namespace of each container, the user runs the host's own sshd, which accepts one key and enters the container,
so that an image needs no sshd. The session has one key, for logins and for the daemons alike: anyone in one container
of a session may enter the others.
"""

from __future__ import annotations

import os
from typing import Dict, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import Container

#: The port of our daemons. The sshd of an image may use the standard port.
SSH_PORT = 2200
#: The names in the directory of a container on its node, and the directory in the container.
KEY_FILE, SERVER_CONFIG, CLIENT_DIRECTORY = "key", "sshd_config", "ssh"
CONTAINER_DIRECTORY = "/etc/gpumesh-ssh"
#: A file in the directory whose files OpenSSH clients include.
CLIENT_CONFIG = "/etc/ssh/ssh_config.d/gpumesh.conf"
HOST_KEY_ALIAS = "gpumesh-session"


def make_key(run: Runner, path: str) -> str:
    """Create a random key at this path. Returns the private key. Raises GpumeshError."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", HOST_KEY_ALIAS, "-f", path])
    private_key = read_text(path)
    if not private_key:
        raise HostStateError(f"ssh-keygen wrote no key to {path}.", "Check whether the file system is full.")
    return private_key


def read_public_key(run: Runner, path: str) -> str:
    """Return the type and the public key of the private key at this path. Raises CommandError."""
    return " ".join(run(["ssh-keygen", "-y", "-P", "", "-f", path]).stdout.split()[:2])


def format_server_config(container: Container, run_directory: str, login_command: str) -> str:
    """Return the configuration of sshd. ``login_command``: the command of each login, which reads the request from its
    environment.

    The configuration allows any user, since a daemon that does not run as root cannot act as another user.
    """
    config_lines = [
        f"ListenAddress {container.address}:{SSH_PORT}",
        f"HostKey {run_directory}/{KEY_FILE}",
        f"AuthorizedKeysFile {run_directory}/authorized_keys",
        "AuthenticationMethods publickey",
        f"ForceCommand {login_command}",
        # The daemon runs outside of the container: it must not create or open sockets of the host, or run ~/.ssh/rc.
        "AllowStreamLocalForwarding no",
        "AllowAgentForwarding no",
        "PermitUserRC no",
        "Subsystem sftp /usr/lib/openssh/sftp-server",
        "StrictModes no",
        "UsePAM no",
        "PidFile none",
        "PrintMotd no",
        "PrintLastLog no",
        "UseDNS no",
        "LogLevel ERROR",
        # mpirun starts all of its logins at once.
        "MaxStartups 1000",
        "MaxSessions 1000",
    ]
    return "".join(f"{line}\n" for line in config_lines)


def format_client_config(containers: Sequence[Container], user_name: str) -> str:
    """Return the configuration of ssh in the container."""
    host_names = " ".join(host_name for container in containers for host_name in (container.name, container.address))
    config_lines = [
        f"Port {SSH_PORT}",
        f"User {user_name}",
        f"IdentityFile {CONTAINER_DIRECTORY}/{KEY_FILE}",
        "IdentitiesOnly yes",
        "PreferredAuthentications publickey",
        f"HostKeyAlias {HOST_KEY_ALIAS}",
        f"UserKnownHostsFile {CONTAINER_DIRECTORY}/known_hosts",
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
    ]
    return f"Host {host_names}\n" + "".join(f"    {line}\n" for line in config_lines)


def client_mounts(run_directory: str) -> Sequence[str]:
    """Return the mounts for podman. ``run_directory``: the directory of the container on its node."""
    client_directory = os.path.join(run_directory, CLIENT_DIRECTORY)
    return [f"{client_directory}:{CONTAINER_DIRECTORY}:ro", f"{client_directory}/config:{CLIENT_CONFIG}:ro"]


def build_files(
    container: Container,
    containers: Sequence[Container],
    run_directory: str,
    login_command: str,
    user_name: str,
    private_key: str,
    public_key: str,
) -> Dict[str, str]:
    """Return all files by their path below the directory of a container, except the key of its daemon."""
    return {
        SERVER_CONFIG: format_server_config(container, run_directory, login_command),
        "authorized_keys": f"{public_key}\n",
        f"{CLIENT_DIRECTORY}/config": format_client_config(containers, user_name),
        # All daemons of a session have one key.
        f"{CLIENT_DIRECTORY}/known_hosts": f"{HOST_KEY_ALIAS} {public_key}\n",
        f"{CLIENT_DIRECTORY}/{KEY_FILE}": private_key,
    }

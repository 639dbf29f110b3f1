# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ssh between the containers of a session: the configuration of its daemons and clients. Pure, except for the key.

In the namespace of each container, the user runs the host's own sshd, which knows one key and enters the container: an
image needs no sshd. The session has one key, for logins and for the daemons alike: anyone in one container of a session
may enter the others.
"""

from __future__ import annotations

import os
from typing import Dict, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container

#: Not the standard port of ssh, which the sshd of an image may use.
PORT = 2200
#: In the folder of a container on its node, and in the container.
KEY, SERVER, CLIENT = "key", "sshd_config", "ssh"
INSIDE = "/etc/gpumesh-ssh"
#: Where clients of OpenSSH read what a distribution adds.
INCLUDED = "/etc/ssh/ssh_config.d/gpumesh.conf"
ALIAS = "gpumesh-session"


def make_key(run: Runner, path: str) -> str:
    """A random key, also at this path; the private half. Raises GpumeshError."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", ALIAS, "-f", path])
    text = read_text(path)
    if not text:
        raise HostStateError(f"ssh-keygen has written no key to {path}.", "Check whether the file system is full.")
    return text


def public_half(run: Runner, path: str) -> str:
    """Type and key of what is at this path. Raises CommandError."""
    return " ".join(run(["ssh-keygen", "-y", "-P", "", "-f", path]).stdout.split()[:2])


def server(own: Container, folder: str, command: str) -> str:
    """The configuration of sshd. ``command``: what a login runs, which finds what it has to run in its environment.

    It allows any user, since a daemon that is not root's runs nothing as another one.
    """
    lines = [
        f"ListenAddress {own.address}:{PORT}",
        f"HostKey {folder}/{KEY}",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        "AuthenticationMethods publickey",
        f"ForceCommand {command}",
        # It is outside of the container: it must not make or open sockets of the host, or run the user's ~/.ssh/rc.
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
    return "".join(f"{line}\n" for line in lines)


def client(session: Sequence[Container], user: str) -> str:
    """The configuration of ssh in the container."""
    names = " ".join(name for one in session for name in (one.name, one.address))
    lines = [
        f"Port {PORT}",
        f"User {user}",
        f"IdentityFile {INSIDE}/{KEY}",
        "IdentitiesOnly yes",
        "PreferredAuthentications publickey",
        f"HostKeyAlias {ALIAS}",
        f"UserKnownHostsFile {INSIDE}/known_hosts",
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
    ]
    return f"Host {names}\n" + "".join(f"    {line}\n" for line in lines)


def mounts(folder: str) -> Sequence[str]:
    """The mounts for podman. ``folder``: of the container, on its node."""
    inside = os.path.join(folder, CLIENT)
    return [f"{inside}:{INSIDE}:ro", f"{inside}/config:{INCLUDED}:ro"]


def files(
    own: Container, session: Sequence[Container], folder: str, command: str, user: str, private: str, public: str
) -> Dict[str, str]:
    """All files by their path below the folder of a container, less the key of its daemon."""
    return {
        SERVER: server(own, folder, command),
        "authorized_keys": f"{public}\n",
        f"{CLIENT}/config": client(session, user),
        # All daemons of a session have one key.
        f"{CLIENT}/known_hosts": f"{ALIAS} {public}\n",
        f"{CLIENT}/{KEY}": private,
    }

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's REST API: slurmrestd on a Unix socket, and a proxy with TLS in front of it. Its names, paths and files. Pure.

slurmrestd itself has TLS only with a library that Debian does not package.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Any, Dict, List, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import own_certificate

DAEMON = "slurmrestd"
#: A unit of the package stunnel4, whose settings are elsewhere: its init script starts all that are in /etc/stunnel.
PROXY = "stunnel@gpumesh-rest"
#: The system accounts as which they run, so that no other process can listen for them.
ACCOUNT = "gpumesh_rest"
PROXY_ACCOUNT = "gpumesh_rest_tls"
#: slurmrestd owns it, and everybody can reach the socket in it: who asks needs a token.
SOCKET_FOLDER = "/run/gpumesh-rest"
SOCKET = f"{SOCKET_FOLDER}/socket"
#: The settings of the proxy, and its certificate.
FOLDER = "/etc/gpumesh/slurm-rest"
CONFIG = f"{FOLDER}/stunnel.conf"
#: The file on every member with the certificates against which clients verify the proxy.
TRUST = "/etc/gpumesh/slurm-rest-ca.crt"


def is_address(text: str) -> bool:
    """Whether it is an address on which the proxy can listen."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def reached_at(address: str, cluster_address: str) -> List[str]:
    """The addresses at which clients reach the proxy that listens on ``address``."""
    listened = ipaddress.ip_address(address)
    if not listened.is_unspecified:
        return [str(listened)]
    return [cluster_address, "127.0.0.1" if listened.version == 4 else "::1"]


def proxy_config(address: str, port: int) -> str:
    """The settings of stunnel. It reads the private key as root, and keeps no right to read it again."""
    pair = own_certificate.own(FOLDER)
    return (
        "; Written by the Ansible collection gpumesh.cluster; changes here are lost.\n"
        "foreground = yes\npid =\nsyslog = no\ndebug = warning\n"
        f"setuid = {PROXY_ACCOUNT}\nsetgid = {PROXY_ACCOUNT}\n\n"
        f"[rest]\naccept = {address}:{port}\nconnect = {SOCKET}\n"
        f"cert = {pair.certificate}\nkey = {pair.key}\nsslVersionMin = TLSv1.2\n"
    )


def trust_files(certificates: Sequence[str]) -> List[Dict[str, Any]]:
    """Return the entry of the file of the members for ``host_files``: absent if nothing has to be trusted."""
    if not certificates:
        return [{"path": TRUST, "state": "absent"}]
    return [
        {"path": os.path.dirname(TRUST), "state": "directory"},
        {"path": TRUST, "content": "".join(certificates), "mode": "0644"},
    ]

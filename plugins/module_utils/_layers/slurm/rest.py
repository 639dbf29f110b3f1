# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's REST API: the names, paths and files of slurmrestd, which listens on a Unix socket, and of its TLS proxy.

slurmrestd itself has TLS only with a library that Debian does not package.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Any, Dict, List, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import server_certificate

REST_DAEMON = "slurmrestd"
#: The unit of the package stunnel4. Its settings are not in /etc/stunnel, since the init script starts all of those.
PROXY_SERVICE = "stunnel@gpumesh-rest"
#: The system accounts of the daemon and the proxy: no other process can listen in their place.
REST_ACCOUNT = "gpumesh_rest"
PROXY_ACCOUNT = "gpumesh_rest_tls"
#: slurmrestd owns this directory, and everybody can connect to the socket in it: requests need a token.
SOCKET_DIRECTORY = "/run/gpumesh-rest"
SOCKET_PATH = f"{SOCKET_DIRECTORY}/socket"
#: The settings of the proxy, and its certificate.
PROXY_DIRECTORY = "/etc/gpumesh/slurm-rest"
PROXY_CONFIG_PATH = f"{PROXY_DIRECTORY}/stunnel.conf"
#: The file on every member with the certificates against which clients verify the proxy.
TRUST_PATH = "/etc/gpumesh/slurm-rest-ca.crt"


def is_valid_address(text: str) -> bool:
    """Whether the proxy can listen on this address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def client_addresses(address: str, cluster_address: str) -> List[str]:
    """Return the addresses at which clients reach the proxy that listens on ``address``."""
    listen_address = ipaddress.ip_address(address)
    if not listen_address.is_unspecified:
        return [str(listen_address)]
    return [cluster_address, "127.0.0.1" if listen_address.version == 4 else "::1"]


def render_proxy_config(address: str, port: int) -> str:
    """Return the settings of stunnel, which reads the private key as root and then drops its privileges."""
    certificate_pair = server_certificate.current_pair(PROXY_DIRECTORY)
    return (
        "; Written by the Ansible collection gpumesh.cluster; changes here are lost.\n"
        "foreground = yes\npid =\nsyslog = no\ndebug = warning\n"
        f"setuid = {PROXY_ACCOUNT}\nsetgid = {PROXY_ACCOUNT}\n\n"
        f"[rest]\naccept = {address}:{port}\nconnect = {SOCKET_PATH}\n"
        f"cert = {certificate_pair.certificate_path}\nkey = {certificate_pair.key_path}\nsslVersionMin = TLSv1.2\n"
    )


def trust_file_entries(certificates: Sequence[str]) -> List[Dict[str, Any]]:
    """Return the entries of the trust file for ``managed_files``: absent if there are no certificates."""
    if not certificates:
        return [{"path": TRUST_PATH, "state": "absent"}]
    return [
        {"path": os.path.dirname(TRUST_PATH), "state": "directory"},
        {"path": TRUST_PATH, "content": "".join(certificates), "mode": "0644"},
    ]

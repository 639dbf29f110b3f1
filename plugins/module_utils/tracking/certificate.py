# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate that the tracking server makes for itself. Its private key never leaves the host.

Clients trust the certificate itself, so there is no CA whose key would have to be kept. In the year before it expires, the
next one is made. Clients trust both from then on, for some time, before the server changes over to it.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from typing import List, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import settings
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking.settings import Server

_DAY = 24 * 3600
#: Days: how long a certificate is valid, how long before its end the next one is made, and how long clients trust that
#: before it is used.
_VALID = 730
_RENEWED = 365
_TRUSTED = 30


class Pair(NamedTuple):
    """The paths of a certificate and of its private key."""

    certificate: str
    key: str


OWN = Pair(settings.OWN_CERTIFICATE, settings.OWN_KEY)
NEXT = Pair(f"{settings.FOLDER}/next.crt", f"{settings.FOLDER}/next.key")


def settle(run: Runner, server: Server) -> List[str]:
    """Make or renew the certificate if necessary. Returns those that clients have to trust. Raises CommandError."""
    following = _is_usable(run, server, NEXT)
    if following and (not _is_usable(run, server, OWN) or not _lasts(run, NEXT, _VALID - _TRUSTED)):
        # If this is interrupted, the next one is still complete.
        _put(NEXT, OWN)
        following = False
    elif not _is_usable(run, server, OWN):
        _make(run, server, OWN)
    elif not following and not _lasts(run, OWN, _RENEWED):
        _make(run, server, NEXT)
        following = True
    if not following:
        for path in NEXT:
            remove_file(path)
    return [settings.certificates(read_text(pair.certificate) or "") for pair in (OWN, NEXT)[: 1 + following]]


def present(run: Runner, server: Server) -> List[str]:
    """The certificates that clients have to trust, without changing anything: none if one would have to be made."""
    if not _is_usable(run, server, OWN):
        return []
    pairs = [OWN, NEXT] if _is_usable(run, server, NEXT) else [OWN]
    return [settings.certificates(read_text(pair.certificate) or "") for pair in pairs]


def _is_usable(run: Runner, server: Server, pair: Pair) -> bool:
    """Whether a server can use it now, and clients accept it for the address and the name."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)
    except (OSError, ssl.SSLError):
        # It does not exist, or an interrupted run has written one of them only.
        return False
    argv = ["openssl", "x509", "-noout", "-in", pair.certificate]
    for option, wanted in (("-checkip", server.address), ("-checkhost", server.machine)):
        if "does match" not in run([*argv, option, wanted], check=False).stdout:
            return False
    return _lasts(run, pair, 1)


def _lasts(run: Runner, pair: Pair, days: int) -> bool:
    """Whether it is valid for so many days from now on."""
    argv = ["openssl", "x509", "-noout", "-in", pair.certificate, "-checkend", str(days * _DAY)]
    return run(argv, check=False).rc == 0


def request(server: Server) -> str:
    """The configuration of openssl for the certificate. Python 3.13 verifies strictly: all extensions are needed."""
    return f"""[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
O = gpumesh cluster {server.cluster}
CN = MLflow
[extensions]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
subjectAltName = IP:{server.address}, DNS:{server.machine}
"""


def _make(run: Runner, server: Server, pair: Pair) -> None:
    os.makedirs(settings.FOLDER, mode=0o755, exist_ok=True)
    # Only root can look into it.
    with tempfile.TemporaryDirectory(dir=settings.FOLDER) as folder:
        config, made = f"{folder}/config", Pair(f"{folder}/crt", f"{folder}/key")
        write_atomic(config, request(server), mode=0o600)
        argv = ["openssl", "req", "-x509", "-config", config, "-days", str(_VALID), "-sha256", "-nodes"]
        argv += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        run([*argv, "-keyout", made.key, "-out", made.certificate])
        _put(made, pair)


def _put(source: Pair, target: Pair) -> None:
    """Copy the key first, and then the certificate."""
    for path, copy in zip(reversed(source), reversed(target)):
        write_atomic(copy, read_text(path) or "", mode=0o600)

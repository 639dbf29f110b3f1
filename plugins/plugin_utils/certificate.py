# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates of servers: try one before it replaces one that works, by a TLS handshake in memory."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError

#: OpenSSL's codes: the name and the address in the certificate, and a time that has not come yet or has passed.
_OTHER_NAME = (62, 64)
_OTHER_TIME = (9, 10)
#: Messages in each direction; TLS 1.3 needs two.
_ROUNDS = 10


class Offered(NamedTuple):
    """The paths of a certificate and its key, and the options and paths to show for both and for the CA.

    ``trust``: the certificates with which clients verify it. ``ca``: empty if no CA certificates were given.
    """

    certificate: str
    key: str
    trust: str
    shown_certificate: str
    shown_key: str
    ca: str


def refuse_unusable(offered: Offered, name: str) -> None:
    """Refuse a certificate with which a server does not start, or which clients do not accept for this name.

    Raises InputError.
    """
    server = _server(offered)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        client.load_verify_locations(cadata=offered.trust)
    except ssl.SSLError as failure:
        shown = offered.ca or offered.shown_certificate
        raise InputError(
            f"{shown} is not valid: {_reason(failure)}.", "Provide certificates in PEM format."
        ) from failure
    try:
        shake_hands(server, client, name)
    except ssl.SSLCertVerificationError as failure:
        raise InputError(*_why(failure.verify_code, failure.verify_message, offered, name)) from failure
    except (ssl.SSLError, ValueError) as failure:
        raise InputError(
            f"{offered.shown_certificate} does not work: {_reason(failure)}.", "Provide another certificate."
        ) from failure


def _server(offered: Offered) -> ssl.SSLContext:
    def no_password() -> str:
        raise InputError(
            f"{offered.shown_key} is encrypted with a password, which the server does not have.",
            "Provide the key without a password. The file can be encrypted with ansible-vault.",
        )

    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(offered.certificate, offered.key, no_password)
    except ssl.SSLError as failure:
        if failure.reason == "KEY_VALUES_MISMATCH":
            raise InputError(
                f"{offered.shown_key} is not the private key of {offered.shown_certificate}.",
                "Provide the key with which the certificate was requested. The server's own certificate comes first.",
            ) from failure
        raise InputError(
            f"{offered.shown_certificate} cannot be used with {offered.shown_key}: {_reason(failure)}.",
            "Provide both in PEM format.",
        ) from failure
    return server


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Connect a client to a server in memory. Raises ssl.SSLError, or ValueError for a name that no server can have."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=name), server.wrap_bio(there, back, server_side=True)]
    for _round in range(_ROUNDS):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not ends:
            return
    raise ValueError("the handshake does not end")


def _why(code: int, message: str, offered: Offered, name: str) -> tuple[str, str]:
    """What is wrong with a certificate that clients do not accept, and the remedy."""
    shown = offered.shown_certificate
    if code in _OTHER_NAME:
        return (
            f"{shown} is not for the name '{name}', under which jobs and members reach the server.",
            f"Provide a certificate with the subjectAltName DNS:{name}.",
        )
    if code in _OTHER_TIME:
        return f"{shown} is not accepted: {message}.", "Renew it, or correct the clock of this machine."
    if not offered.ca:
        return (
            f"{shown} was signed by a CA, so that clients cannot verify it without the CA's certificate: {message}.",
            "Set tracking_ca_file to the certificate of that CA.",
        )
    remedy = "Set tracking_ca_file to that of the root CA, and append those of other CAs to tracking_certificate_file."
    return f"{shown} is not verified by {offered.ca}: {message}.", remedy


def _reason(failure: Exception) -> str:
    """OpenSSL's words for an error."""
    reason = getattr(failure, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(failure)

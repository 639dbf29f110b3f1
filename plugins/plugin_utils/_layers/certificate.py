# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates of servers: try one before it replaces one that works, by a TLS handshake in memory."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

#: OpenSSL's codes: the name and the address in the certificate, and a time that has not come yet or has passed.
_NAME_MISMATCH_CODES = (62, 64)
_VALIDITY_CODES = (9, 10)
#: The maximum number of messages in each direction; TLS 1.3 needs two.
_MAX_HANDSHAKE_ROUNDS = 10


class OfferedCertificate(NamedTuple):
    """The paths of a certificate and its key, and the labels (options and paths) of both and of the CA in messages.

    ``trusted_certificates``: those with which clients verify it. ``ca_label``: empty if no CA certificates were given.
    """

    certificate_path: str
    key_path: str
    trusted_certificates: str
    certificate_label: str
    key_label: str
    ca_label: str


def refuse_unusable_certificate(offered: OfferedCertificate, server_name: str) -> None:
    """Refuse a certificate with which a server does not start, or which clients do not accept for this name.

    Raises InputError.
    """
    server_context = _load_server_context(offered)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        client_context.load_verify_locations(cadata=offered.trusted_certificates)
    except ssl.SSLError as failure:
        invalid_label = offered.ca_label or offered.certificate_label
        raise InputError(
            f"{invalid_label} is not valid: {_openssl_reason(failure)}.", "Provide certificates in PEM format."
        ) from failure
    try:
        try_handshake(server_context, client_context, server_name)
    except ssl.SSLCertVerificationError as failure:
        raise InputError(
            *_explain_rejection(failure.verify_code, failure.verify_message, offered, server_name)
        ) from failure
    except (ssl.SSLError, ValueError) as failure:
        raise InputError(
            f"{offered.certificate_label} does not work: {_openssl_reason(failure)}.", "Provide another certificate."
        ) from failure


def _load_server_context(offered: OfferedCertificate) -> ssl.SSLContext:
    def no_password() -> str:
        raise InputError(
            f"{offered.key_label} is encrypted with a password, which the server does not have.",
            "Provide the key without a password. The file can be encrypted with ansible-vault.",
        )

    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server_context.load_cert_chain(offered.certificate_path, offered.key_path, no_password)
    except ssl.SSLError as failure:
        if failure.reason == "KEY_VALUES_MISMATCH":
            raise InputError(
                f"{offered.key_label} is not the private key of {offered.certificate_label}.",
                "Provide the key with which the certificate was requested. The server's own certificate comes first.",
            ) from failure
        raise InputError(
            f"{offered.certificate_label} cannot be used with {offered.key_label}: {_openssl_reason(failure)}.",
            "Provide both in PEM format.",
        ) from failure
    return server_context


def try_handshake(server_context: ssl.SSLContext, client_context: ssl.SSLContext, server_name: str) -> None:
    """Connect a client to a server in memory.

    Raises ssl.SSLError, or ValueError for a name that no server can have.
    """
    client_output, server_output = ssl.MemoryBIO(), ssl.MemoryBIO()
    pending_ends = [
        client_context.wrap_bio(server_output, client_output, server_hostname=server_name),
        server_context.wrap_bio(client_output, server_output, server_side=True),
    ]
    for _round in range(_MAX_HANDSHAKE_ROUNDS):
        for tls_end in list(pending_ends):
            try:
                tls_end.do_handshake()
                pending_ends.remove(tls_end)
            except ssl.SSLWantReadError:
                continue
        if not pending_ends:
            return
    raise ValueError("the handshake does not complete")


def _explain_rejection(
    verify_code: int, verify_message: str, offered: OfferedCertificate, server_name: str
) -> tuple[str, str]:
    """Explain why clients do not accept a certificate. Returns the message and the remedy."""
    label = offered.certificate_label
    if verify_code in _NAME_MISMATCH_CODES:
        return (
            f"{label} is not for the name '{server_name}', under which jobs and members reach the server.",
            f"Provide a certificate with the subjectAltName DNS:{server_name}.",
        )
    if verify_code in _VALIDITY_CODES:
        return f"{label} is not accepted: {verify_message}.", "Renew it, or correct the clock of this machine."
    if not offered.ca_label:
        return (
            f"{label} was signed by a CA, so that clients cannot verify it without the CA's certificate: {verify_message}.",
            "Set tracking_ca_file to the certificate of that CA.",
        )
    remedy = "Set tracking_ca_file to that of the root CA, and append those of other CAs to tracking_certificate_file."
    return f"{label} is not verified by {offered.ca_label}: {verify_message}.", remedy


def _openssl_reason(failure: Exception) -> str:
    """Return OpenSSL's description of an error."""
    reason = getattr(failure, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(failure)

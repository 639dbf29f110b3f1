# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the certificate of a server on its host, which the private key never leaves.

Clients trust the certificate itself, so there is no CA whose key would have to be kept. In the year before the
certificate expires, the next one is created. Clients trust both for some time, and then the server switches over.
"""

from __future__ import annotations

import datetime
import os
import re
import ssl
import tempfile
from typing import Iterator, List, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, remove_file, write_atomic

_SECONDS_PER_DAY = 24 * 3600
#: A certificate is valid for this many days, the next one is created this many days before the certificate expires,
#: and clients trust the next one for this many days before it is used.
_VALID_DAYS = 730
_RENEWAL_DAYS = 365
_TRUST_DAYS = 30
_PEM_CERTIFICATE = re.compile(r"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----.*?-----END \1-----", re.DOTALL)


class CertificatePair(NamedTuple):
    """The paths of a certificate and of its private key."""

    certificate_path: str
    key_path: str


class CertificateIdentity(NamedTuple):
    """The subject of a certificate: its directory, the name of the service, and how clients reach it."""

    folder: str
    cluster: str
    service: str
    machine: str
    addresses: Sequence[str]

    @property
    def current_pair(self) -> CertificatePair:
        """Return the certificate that the server uses."""
        return current_pair(self.folder)

    @property
    def next_pair(self) -> CertificatePair:
        """Return the certificate that clients trust before the server uses it."""
        return _next_pair(self.folder)


def current_pair(directory: str) -> CertificatePair:
    """Return the certificate that the server of this directory uses."""
    return CertificatePair(f"{directory}/own.crt", f"{directory}/own.key")


def _next_pair(directory: str) -> CertificatePair:
    return CertificatePair(f"{directory}/next.crt", f"{directory}/next.key")


def list_files(directory: str) -> List[str]:
    """Return every file that this module may write to the directory."""
    return [*current_pair(directory), *_next_pair(directory)]


def split_certificates(pem_text: str) -> List[str]:
    """Return the certificates in a PEM file, without other content such as a private key."""
    return [f"{match[0]}\n" for match in _PEM_CERTIFICATE.finditer(pem_text)]


def extract_certificates(pem_text: str) -> str:
    """Return the certificates in a PEM file as one text."""
    return "".join(split_certificates(pem_text))


def read_trusted(directory: str) -> List[str]:
    """Return the certificates that clients of the server of this directory have to trust, without checking them."""
    certificate_texts = (
        extract_certificates(read_text(pair.certificate_path) or "")
        for pair in (current_pair(directory), _next_pair(directory))
    )
    return [text for text in certificate_texts if text]


def ensure_certificate(run: Runner, identity: CertificateIdentity) -> List[str]:
    """Create or renew the certificate if necessary. Return those that clients have to trust. Raises CommandError."""
    has_next = _is_usable(run, identity, identity.next_pair)
    if has_next and (
        not _is_usable(run, identity, identity.current_pair)
        or not _remains_valid(run, identity.next_pair, _VALID_DAYS - _TRUST_DAYS)
    ):
        # The next certificate stays complete if the copying is interrupted.
        _copy_pair(identity.next_pair, identity.current_pair)
        has_next = False
    elif not _is_usable(run, identity, identity.current_pair):
        _create_certificate(run, identity, identity.current_pair)
    elif not has_next and not _remains_valid(run, identity.current_pair, _RENEWAL_DAYS):
        _create_certificate(run, identity, identity.next_pair)
        has_next = True
    if not has_next:
        for path in identity.next_pair:
            remove_file(path)
    return [
        extract_certificates(read_text(pair.certificate_path) or "")
        for pair in (identity.current_pair, identity.next_pair)[: 1 + has_next]
    ]


def usable_certificates(run: Runner, identity: CertificateIdentity) -> List[str]:
    """Return the certificates that clients have to trust; none if one would have to be created. Changes nothing."""
    if not _is_usable(run, identity, identity.current_pair):
        return []
    usable_pairs = (
        [identity.current_pair, identity.next_pair]
        if _is_usable(run, identity, identity.next_pair)
        else [identity.current_pair]
    )
    return [extract_certificates(read_text(pair.certificate_path) or "") for pair in usable_pairs]


def _is_usable(run: Runner, identity: CertificateIdentity, pair: CertificatePair) -> bool:
    """Whether a server can use the pair now, and clients accept it for all addresses and the name."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)
    except (OSError, ssl.SSLError):
        # The pair does not exist, or an interrupted run has written only one of the two files.
        return False
    openssl_command = ["openssl", "x509", "-noout", "-in", pair.certificate_path]
    for check_option, expected_name in (
        *(("-checkip", address) for address in identity.addresses),
        ("-checkhost", identity.machine),
    ):
        if "does match" not in run([*openssl_command, check_option, expected_name], check=False).stdout:
            return False
    return _remains_valid(run, pair, 1)


def _remains_valid(run: Runner, pair: CertificatePair, valid_days: int) -> bool:
    """Whether the certificate is valid for this many days from now on."""
    openssl_command = [
        "openssl",
        "x509",
        "-noout",
        "-in",
        pair.certificate_path,
        "-checkend",
        str(valid_days * _SECONDS_PER_DAY),
    ]
    return run(openssl_command, check=False).rc == 0


def format_request(identity: CertificateIdentity) -> str:
    """Return the openssl configuration of the certificate. Python 3.13 verifies strictly: all extensions are needed."""
    subject_names = ", ".join([*(f"IP:{address}" for address in identity.addresses), f"DNS:{identity.machine}"])
    return f"""[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
O = gpumesh cluster {identity.cluster}
CN = {identity.service}
[extensions]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
subjectAltName = {subject_names}
"""


def _create_certificate(run: Runner, identity: CertificateIdentity, target_pair: CertificatePair) -> None:
    os.makedirs(identity.folder, mode=0o755, exist_ok=True)
    # Only root can read the temporary directory.
    with tempfile.TemporaryDirectory(dir=identity.folder) as temporary_directory:
        config_path, new_pair = (
            f"{temporary_directory}/config",
            CertificatePair(f"{temporary_directory}/crt", f"{temporary_directory}/key"),
        )
        write_atomic(config_path, format_request(identity), mode=0o600)
        openssl_command = [
            "openssl",
            "req",
            "-x509",
            "-config",
            config_path,
            "-days",
            str(_VALID_DAYS),
            "-sha256",
            "-nodes",
        ]
        openssl_command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        run([*openssl_command, "-keyout", new_pair.key_path, "-out", new_pair.certificate_path])
        _copy_pair(new_pair, target_pair)


def _copy_pair(source_pair: CertificatePair, target_pair: CertificatePair) -> None:
    """Copy the key, and then the certificate."""
    for source_path, target_path in zip(reversed(source_pair), reversed(target_pair)):
        write_atomic(target_path, read_text(source_path) or "", mode=0o600)


def expiry_time(certificate: str) -> float:
    """Return when a certificate in PEM format expires, in seconds since 1970. Raises ValueError.

    The standard library shows this only for a certificate that another host presents, or that may sign others.
    """
    try:
        ((_tag, certificate_der),) = _parse_der(ssl.PEM_cert_to_DER_cert(certificate))
        certificate_fields = [
            value for tag, value in _parse_der(next(_parse_der(certificate_der))[1]) if tag != _VERSION_TAG
        ]
        # The serial number, the algorithm and the issuer come first.
        _not_before, (tag, time_content) = _parse_der(certificate_fields[3])
        time_text = time_content.decode("ascii")
        if tag == _UTC_TIME_TAG:
            time_text = ("19" if time_text >= "5" else "20") + time_text
        expires_at = datetime.datetime.strptime(f"{time_text}+0000", "%Y%m%d%H%M%SZ%z")
    except (IndexError, StopIteration, ValueError) as failure:
        raise ValueError("this is not a certificate") from failure
    return expires_at.timestamp()


#: DER tags of the optional version of a certificate, and of a time with two digits of the year (RFC 5280).
_VERSION_TAG = 0xA0
_UTC_TIME_TAG = 0x17


def _parse_der(der: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield the tag and the content of each value in DER."""
    offset = 0
    while offset < len(der):
        tag, length, offset = der[offset], der[offset + 1], offset + 2
        if length > 0x7F:
            length_size = length & 0x7F
            length, offset = int.from_bytes(der[offset : offset + length_size], "big"), offset + length_size
        if offset + length > len(der):
            raise ValueError("a value is cut off")
        yield tag, der[offset : offset + length]
        offset += length

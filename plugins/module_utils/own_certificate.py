# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate that a server makes for itself. Its private key never leaves the host.

Clients trust the certificate itself, so there is no CA whose key would have to be kept. In the year before it expires, the
next one is made. Clients trust both from then on, for some time, before the server changes over to it.
"""

from __future__ import annotations

import datetime
import os
import re
import ssl
import tempfile
from typing import Iterator, List, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic

_DAY = 24 * 3600
#: Days: how long a certificate is valid, how long before its end the next one is made, and how long clients trust that
#: before it is used.
_VALID = 730
_RENEWED = 365
_TRUSTED = 30
_PEM = re.compile(r"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----.*?-----END \1-----", re.DOTALL)


class Pair(NamedTuple):
    """The paths of a certificate and of its private key."""

    certificate: str
    key: str


class Identity(NamedTuple):
    """For whom the certificate is: the folder that has it, the name of the service, and how clients reach it."""

    folder: str
    cluster: str
    service: str
    machine: str
    addresses: Sequence[str]

    @property
    def own(self) -> Pair:
        """The certificate that the server uses."""
        return own(self.folder)

    @property
    def next(self) -> Pair:
        """The certificate that clients trust before the server uses it."""
        return _next(self.folder)


def own(folder: str) -> Pair:
    """The certificate that the server of this folder uses."""
    return Pair(f"{folder}/own.crt", f"{folder}/own.key")


def _next(folder: str) -> Pair:
    return Pair(f"{folder}/next.crt", f"{folder}/next.key")


def files(folder: str) -> List[str]:
    """Every file that this module may write there."""
    return [*own(folder), *_next(folder)]


def each_in(text: str) -> List[str]:
    """The certificates in a PEM file, without what else is in it, such as a private key."""
    return [f"{found[0]}\n" for found in _PEM.finditer(text)]


def certificates_in(text: str) -> str:
    """The same as one text."""
    return "".join(each_in(text))


def read(folder: str) -> List[str]:
    """The certificates that clients of the server of this folder have to trust, as they were made last."""
    texts = (certificates_in(read_text(pair.certificate) or "") for pair in (own(folder), _next(folder)))
    return [text for text in texts if text]


def settle(run: Runner, identity: Identity) -> List[str]:
    """Make or renew the certificate if necessary. Returns those that clients have to trust. Raises CommandError."""
    following = _is_usable(run, identity, identity.next)
    if following and (not _is_usable(run, identity, identity.own) or not _lasts(run, identity.next, _VALID - _TRUSTED)):
        # If this is interrupted, the next one is still complete.
        _put(identity.next, identity.own)
        following = False
    elif not _is_usable(run, identity, identity.own):
        _make(run, identity, identity.own)
    elif not following and not _lasts(run, identity.own, _RENEWED):
        _make(run, identity, identity.next)
        following = True
    if not following:
        for path in identity.next:
            remove_file(path)
    return [
        certificates_in(read_text(pair.certificate) or "") for pair in (identity.own, identity.next)[: 1 + following]
    ]


def present(run: Runner, identity: Identity) -> List[str]:
    """The certificates that clients have to trust, without changing anything: none if one would have to be made."""
    if not _is_usable(run, identity, identity.own):
        return []
    pairs = [identity.own, identity.next] if _is_usable(run, identity, identity.next) else [identity.own]
    return [certificates_in(read_text(pair.certificate) or "") for pair in pairs]


def _is_usable(run: Runner, identity: Identity, pair: Pair) -> bool:
    """Whether a server can use it now, and clients accept it for the address and the name."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)
    except (OSError, ssl.SSLError):
        # It does not exist, or an interrupted run has written one of them only.
        return False
    argv = ["openssl", "x509", "-noout", "-in", pair.certificate]
    for option, wanted in (
        *(("-checkip", address) for address in identity.addresses),
        ("-checkhost", identity.machine),
    ):
        if "does match" not in run([*argv, option, wanted], check=False).stdout:
            return False
    return _lasts(run, pair, 1)


def _lasts(run: Runner, pair: Pair, days: int) -> bool:
    """Whether it is valid for so many days from now on."""
    argv = ["openssl", "x509", "-noout", "-in", pair.certificate, "-checkend", str(days * _DAY)]
    return run(argv, check=False).rc == 0


def request(identity: Identity) -> str:
    """The configuration of openssl for the certificate. Python 3.13 verifies strictly: all extensions are needed."""
    names = ", ".join([*(f"IP:{address}" for address in identity.addresses), f"DNS:{identity.machine}"])
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
subjectAltName = {names}
"""


def _make(run: Runner, identity: Identity, pair: Pair) -> None:
    os.makedirs(identity.folder, mode=0o755, exist_ok=True)
    # Only root can look into it.
    with tempfile.TemporaryDirectory(dir=identity.folder) as folder:
        config, made = f"{folder}/config", Pair(f"{folder}/crt", f"{folder}/key")
        write_atomic(config, request(identity), mode=0o600)
        argv = ["openssl", "req", "-x509", "-config", config, "-days", str(_VALID), "-sha256", "-nodes"]
        argv += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        run([*argv, "-keyout", made.key, "-out", made.certificate])
        _put(made, pair)


def _put(source: Pair, target: Pair) -> None:
    """Copy the key first, and then the certificate."""
    for path, copy in zip(reversed(source), reversed(target)):
        write_atomic(copy, read_text(path) or "", mode=0o600)


def end_of(certificate: str) -> float:
    """When a certificate in PEM format expires, in seconds since 1970. Raises ValueError.

    The standard library shows this only of a certificate that another host presents, or that may sign others.
    """
    try:
        ((_tag, whole),) = _values(ssl.PEM_cert_to_DER_cert(certificate))
        fields = [value for tag, value in _values(next(_values(whole))[1]) if tag != _VERSION]
        # The serial number, the algorithm and the issuer come first.
        _begin, (tag, content) = _values(fields[3])
        text = content.decode("ascii")
        if tag == _SHORT_TIME:
            text = ("19" if text >= "5" else "20") + text
        moment = datetime.datetime.strptime(f"{text}+0000", "%Y%m%d%H%M%SZ%z")
    except (IndexError, StopIteration, ValueError) as failure:
        raise ValueError("this is not a certificate") from failure
    return moment.timestamp()


#: The optional version of a certificate, and a time with two digits of the year (RFC 5280).
_VERSION = 0xA0
_SHORT_TIME = 0x17


def _values(der: bytes) -> Iterator[Tuple[int, bytes]]:
    """The tag and the content of each value in DER."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length > 0x7F:
            more = length & 0x7F
            length, at = int.from_bytes(der[at : at + more], "big"), at + more
        if at + length > len(der):
            raise ValueError("a value is cut off")
        yield tag, der[at : at + length]
        at += length

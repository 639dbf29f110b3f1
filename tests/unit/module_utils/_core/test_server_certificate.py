# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate of a server, created and renewed with openssl, and verified by TLS handshakes."""

from __future__ import annotations

import os
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import server_certificate
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.server_certificate import CertificateIdentity
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.certificate import try_handshake
from ansible_collections.gpumesh.cluster.tests.support import certificates

NAMES = ("10.0.0.1", "n1")

pytestmark = pytest.mark.skipif(certificates.OPENSSL_MISSING, reason="not checked: there is no openssl")


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> CertificateIdentity:
    return CertificateIdentity(str(tmp_path), "lab", "MLflow", "n1", ["10.0.0.1"])


def verify_accepted(made: CertificateIdentity, trust: str, name: str) -> None:
    """Check that a client as strict as Python 3.13 accepts the certificate of the server. Raises ssl.SSLError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*made.current_pair)
    client = ssl.create_default_context(cadata=trust)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    try_handshake(server, client, name)


def test_certificate_is_valid_for_address_and_name_and_is_kept(server: CertificateIdentity, tmp_path: Path) -> None:
    assert server_certificate.usable_certificates(run, server) == []
    (made,) = server_certificate.ensure_certificate(run, server)
    assert values.certificate(made) == made
    for name in NAMES:
        verify_accepted(server, made, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        verify_accepted(server, made, "10.0.0.2")
    assert (
        server_certificate.ensure_certificate(run, server)
        == server_certificate.usable_certificates(run, server)
        == [made]
    )
    assert sorted(os.listdir(tmp_path)) == ["own.crt", "own.key"]
    assert stat.S_IMODE((tmp_path / "own.key").stat().st_mode) == 0o600


def test_certificate_covers_all_addresses_including_ipv6(server: CertificateIdentity) -> None:
    also = server._replace(addresses=["10.0.0.1", "fd7a:115c:a1e0::1"])
    (first,) = server_certificate.ensure_certificate(run, server)
    (made,) = server_certificate.ensure_certificate(run, also)
    for name in ("fd7a:115c:a1e0::1", *NAMES):
        verify_accepted(also, made, name)
    assert server_certificate.ensure_certificate(run, also) == [made] != [first]


def test_next_certificate_is_trusted_before_it_is_used(
    server: CertificateIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_certificate, "_VALID_DAYS", 300)
    (first,) = server_certificate.ensure_certificate(run, server)
    monkeypatch.setattr(server_certificate, "_VALID_DAYS", 730)
    both = server_certificate.ensure_certificate(run, server)
    assert both[0] == first and len(both) == 2
    assert (
        server_certificate.ensure_certificate(run, server)
        == server_certificate.usable_certificates(run, server)
        == both
    )
    assert server_certificate.read_trusted(server.folder) == both
    # One job has read the certificate before, and one reads it now.
    for trust in (first, "".join(both)):
        verify_accepted(server, trust, "n1")
    # The time of trust before the use has passed.
    monkeypatch.setattr(server_certificate, "_TRUST_DAYS", 0)
    assert server_certificate.ensure_certificate(run, server) == [both[1]]
    with pytest.raises(ssl.SSLCertVerificationError):
        verify_accepted(server, first, "n1")
    for trust in (both[1], "".join(both)):
        verify_accepted(server, trust, "n1")


def test_invalid_certificate_is_replaced_at_once(server: CertificateIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_certificate, "_VALID_DAYS", 1)
    (expired,) = server_certificate.ensure_certificate(run, server)
    monkeypatch.setattr(server_certificate, "_VALID_DAYS", 730)
    assert server_certificate.usable_certificates(run, server) == []
    (first,) = server_certificate.ensure_certificate(run, server)
    assert first != expired
    moved = server._replace(addresses=["10.0.0.9"])
    (second,) = server_certificate.ensure_certificate(run, moved)
    assert second != first
    verify_accepted(moved, second, "10.0.0.9")


def test_interrupted_renewal_is_continued(server: CertificateIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has written the key of a new or the next certificate, but not the certificate."""
    (first,) = server_certificate.ensure_certificate(run, server)
    key = Path(server.current_pair.key_path).read_text()
    os.remove(server.current_pair.certificate_path)
    (second,) = server_certificate.ensure_certificate(run, server)
    assert second != first and Path(server.current_pair.key_path).read_text() != key
    monkeypatch.setattr(server_certificate, "_RENEWAL_DAYS", 731)
    both = server_certificate.ensure_certificate(run, server)
    Path(server.current_pair.key_path).write_text(Path(server.next_pair.key_path).read_text())
    assert server_certificate.ensure_certificate(run, server)[0] == both[1]
    verify_accepted(server, both[1], "n1")


def test_failed_creation_leaves_no_files(
    server: CertificateIdentity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server_certificate, "format_request", lambda _server: "nonsense")
    with pytest.raises(CommandError, match="openssl req"):
        server_certificate.ensure_certificate(run, server)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("days", [2, 730, 40000])
def test_expiry_time_matches_openssl(tmp_path: Path, days: int) -> None:
    """The year has four digits after 2049."""
    ca = certificates.create_self_signed(tmp_path, "ca")
    made, _key = certificates.create_signed(tmp_path, "n1", *ca, days=days)
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-enddate", "-in", str(made)], check=True, capture_output=True, text=True
    ).stdout
    assert server_certificate.expiry_time(made.read_text()) == ssl.cert_time_to_seconds(shown.strip().partition("=")[2])


@pytest.mark.parametrize("content", ["", "AAAA", "MIIB", "MAA=", "MIIBkTCB", "/////w==", "MAUwA6ABAA=="])
def test_malformed_certificate_has_no_expiry_time(content: str) -> None:
    with pytest.raises(ValueError, match="this is not a certificate"):
        server_certificate.expiry_time(f"-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")

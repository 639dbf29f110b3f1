# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate that a server makes for itself, made and renewed by openssl, and verified by TLS handshakes."""

from __future__ import annotations

import os
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import own_certificate
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.own_certificate import Identity
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import values
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.certificate import shake_hands
from ansible_collections.gpumesh.cluster.tests.support import certificates

NAMES = ("10.0.0.1", "n1")

pytestmark = pytest.mark.skipif(certificates.MISSING, reason="not checked: there is no openssl")


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Identity:
    return Identity(str(tmp_path), "lab", "MLflow", "n1", ["10.0.0.1"])


def accepted(made: Identity, trust: str, name: str) -> None:
    """Whether a client that verifies as strictly as Python 3.13 accepts what the server has. Raises ssl.SSLError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*made.own)
    client = ssl.create_default_context(cadata=trust)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    shake_hands(server, client, name)


def test_clients_accept_it_for_the_address_and_the_name_and_it_is_kept(server: Identity, tmp_path: Path) -> None:
    assert own_certificate.present(run, server) == []
    (made,) = own_certificate.settle(run, server)
    assert values.certificate(made) == made
    for name in NAMES:
        accepted(server, made, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        accepted(server, made, "10.0.0.2")
    assert own_certificate.settle(run, server) == own_certificate.present(run, server) == [made]
    assert sorted(os.listdir(tmp_path)) == ["own.crt", "own.key"]
    assert stat.S_IMODE((tmp_path / "own.key").stat().st_mode) == 0o600


def test_it_is_for_every_address_also_of_ipv6(server: Identity) -> None:
    also = server._replace(addresses=["10.0.0.1", "fd7a:115c:a1e0::1"])
    (first,) = own_certificate.settle(run, server)
    (made,) = own_certificate.settle(run, also)
    for name in ("fd7a:115c:a1e0::1", *NAMES):
        accepted(also, made, name)
    assert own_certificate.settle(run, also) == [made] != [first]


def test_clients_trust_the_next_one_for_some_time_before_it_is_used(
    server: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_certificate, "_VALID", 300)
    (first,) = own_certificate.settle(run, server)
    monkeypatch.setattr(own_certificate, "_VALID", 730)
    both = own_certificate.settle(run, server)
    assert both[0] == first and len(both) == 2
    assert own_certificate.settle(run, server) == own_certificate.present(run, server) == both
    assert own_certificate.read(server.folder) == both
    # A job that has read it before, and one that reads it now.
    for trust in (first, "".join(both)):
        accepted(server, trust, "n1")
    # After that time.
    monkeypatch.setattr(own_certificate, "_TRUSTED", 0)
    assert own_certificate.settle(run, server) == [both[1]]
    with pytest.raises(ssl.SSLCertVerificationError):
        accepted(server, first, "n1")
    for trust in (both[1], "".join(both)):
        accepted(server, trust, "n1")


def test_one_that_no_client_would_accept_is_replaced_at_once(server: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_certificate, "_VALID", 1)
    (expired,) = own_certificate.settle(run, server)
    monkeypatch.setattr(own_certificate, "_VALID", 730)
    assert own_certificate.present(run, server) == []
    (first,) = own_certificate.settle(run, server)
    assert first != expired
    moved = server._replace(addresses=["10.0.0.9"])
    (second,) = own_certificate.settle(run, moved)
    assert second != first
    accepted(moved, second, "10.0.0.9")


def test_an_interrupted_run_is_continued(server: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has written the key of a new certificate, or of the next one, and not the certificate."""
    (first,) = own_certificate.settle(run, server)
    key = Path(server.own.key).read_text()
    os.remove(server.own.certificate)
    (second,) = own_certificate.settle(run, server)
    assert second != first and Path(server.own.key).read_text() != key
    monkeypatch.setattr(own_certificate, "_RENEWED", 731)
    both = own_certificate.settle(run, server)
    Path(server.own.key).write_text(Path(server.next.key).read_text())
    assert own_certificate.settle(run, server)[0] == both[1]
    accepted(server, both[1], "n1")


def test_a_failure_leaves_nothing_behind(server: Identity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_certificate, "request", lambda _server: "nonsense")
    with pytest.raises(CommandError, match="openssl req"):
        own_certificate.settle(run, server)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("days", [2, 730, 40000])
def test_the_end_of_one_is_read_as_openssl_reads_it(tmp_path: Path, days: int) -> None:
    """After 2049, the year has four digits."""
    ca = certificates.self_signed(tmp_path, "ca")
    made, _key = certificates.signed(tmp_path, "n1", *ca, days=days)
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-enddate", "-in", str(made)], check=True, capture_output=True, text=True
    ).stdout
    assert own_certificate.end_of(made.read_text()) == ssl.cert_time_to_seconds(shown.strip().partition("=")[2])


@pytest.mark.parametrize("content", ["", "AAAA", "MIIB", "MAA=", "MIIBkTCB", "/////w==", "MAUwA6ABAA=="])
def test_what_only_looks_like_one_has_no_end(content: str) -> None:
    with pytest.raises(ValueError, match="this is not a certificate"):
        own_certificate.end_of(f"-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")

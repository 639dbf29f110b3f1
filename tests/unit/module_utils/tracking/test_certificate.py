# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate of the tracking server, made and renewed by openssl, and verified by TLS handshakes."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import certificate, settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.certificate import shake_hands
from ansible_collections.gpumesh.cluster.tests.support import certificates

SERVER = settings.Server("lab", "n1", "10.0.0.1", 5000, True, "/mnt/shared", 875, own_certificate=True)
NAMES = ("10.0.0.1", "n1")

pytestmark = pytest.mark.skipif(certificates.MISSING, reason="not checked: there is no openssl")


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "FOLDER", str(tmp_path))
    for pair in ("OWN", "NEXT"):
        paths = (str(tmp_path / f"{pair.lower()}.{kind}") for kind in ("crt", "key"))
        monkeypatch.setattr(certificate, pair, certificate.Pair(*paths))


def accepted(trust: str, name: str) -> None:
    """Whether a client that verifies as strictly as Python 3.13 accepts what the server has. Raises ssl.SSLError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate.OWN)
    client = ssl.create_default_context(cadata=trust)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    shake_hands(server, client, name)


def test_clients_accept_it_for_the_address_and_the_name_and_it_is_kept(tmp_path: Path) -> None:
    assert certificate.present(run, SERVER) == []
    (made,) = certificate.settle(run, SERVER)
    assert values.certificate(made) == made
    for name in NAMES:
        accepted(made, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        accepted(made, "10.0.0.2")
    assert certificate.settle(run, SERVER) == certificate.present(run, SERVER) == [made]
    assert sorted(os.listdir(tmp_path)) == ["own.crt", "own.key"]
    assert stat.S_IMODE((tmp_path / "own.key").stat().st_mode) == 0o600


def test_it_is_for_an_address_of_ipv6() -> None:
    server = SERVER._replace(address="fd7a:115c:a1e0::1")
    (made,) = certificate.settle(run, server)
    accepted(made, "fd7a:115c:a1e0::1")
    assert certificate.settle(run, server) == [made]


def test_clients_trust_the_next_one_for_some_time_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "_VALID", 300)
    (first,) = certificate.settle(run, SERVER)
    monkeypatch.setattr(certificate, "_VALID", 730)
    both = certificate.settle(run, SERVER)
    assert both[0] == first and len(both) == 2
    assert certificate.settle(run, SERVER) == certificate.present(run, SERVER) == both
    # A job that has read it before, and one that reads it now.
    for trust in (first, "".join(both)):
        accepted(trust, "n1")
    # After that time.
    monkeypatch.setattr(certificate, "_TRUSTED", 0)
    assert certificate.settle(run, SERVER) == [both[1]]
    with pytest.raises(ssl.SSLCertVerificationError):
        accepted(first, "n1")
    for trust in (both[1], "".join(both)):
        accepted(trust, "n1")


def test_one_that_no_client_would_accept_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "_VALID", 1)
    (expired,) = certificate.settle(run, SERVER)
    monkeypatch.setattr(certificate, "_VALID", 730)
    assert certificate.present(run, SERVER) == []
    (first,) = certificate.settle(run, SERVER)
    assert first != expired
    moved = SERVER._replace(address="10.0.0.9")
    (second,) = certificate.settle(run, moved)
    assert second != first
    accepted(second, "10.0.0.9")


def test_an_interrupted_run_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has written the key of a new certificate, or of the next one, and not the certificate."""
    (first,) = certificate.settle(run, SERVER)
    key = Path(certificate.OWN.key).read_text()
    os.remove(certificate.OWN.certificate)
    (second,) = certificate.settle(run, SERVER)
    assert second != first and Path(certificate.OWN.key).read_text() != key
    monkeypatch.setattr(certificate, "_RENEWED", 731)
    both = certificate.settle(run, SERVER)
    Path(certificate.OWN.key).write_text(Path(certificate.NEXT.key).read_text())
    assert certificate.settle(run, SERVER)[0] == both[1]
    accepted(both[1], "n1")


def test_a_failure_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(certificate, "request", lambda _server: "nonsense")
    with pytest.raises(CommandError, match="openssl req"):
        certificate.settle(run, SERVER)
    assert os.listdir(tmp_path) == []

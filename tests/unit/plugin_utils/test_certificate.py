# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificates that a server and its clients can use, and those that are refused before anything changes."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import certificate
from ansible_collections.gpumesh.cluster.tests.support import certificates

pytestmark = pytest.mark.skipif(certificates.MISSING, reason="not checked: there is no openssl")


def offered(made: Path, key: Path, ca: Path | None = None, **more: str) -> certificate.Offered:
    trust = (ca or made).read_text()
    shown = f"tracking_ca_file: {ca.name}" if ca else ""
    own = certificate.Offered(str(made), str(key), trust, "the certificate", "the key", shown)
    return own._replace(**more)


def refused(given: certificate.Offered, name: str = "n1") -> InputError:
    with pytest.raises(InputError) as failure:
        certificate.refuse_unusable(given, name)
    return failure.value


@pytest.fixture(name="ca", scope="module")
def _ca(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificates.self_signed(tmp_path_factory.mktemp("ca"), "the-ca")


def test_one_that_has_signed_itself_or_comes_with_its_ca_is_accepted(tmp_path: Path, ca: tuple[Path, Path]) -> None:
    certificate.refuse_unusable(offered(*certificates.self_signed(tmp_path, "n1")), "n1")
    certificate.refuse_unusable(offered(*certificates.self_signed(tmp_path, "gpu_1")), "gpu_1")
    leaf, key = certificates.signed(tmp_path, "n2", *ca)
    certificate.refuse_unusable(offered(leaf, key, ca[0]), "n2")
    # A file with the whole chain contains the CA's certificate, and one with the key as well is accepted by uvicorn.
    leaf.write_text(leaf.read_text() + ca[0].read_text() + key.read_text())
    certificate.refuse_unusable(offered(leaf, leaf, trust=leaf.read_text()), "n2")


def test_one_of_a_ca_needs_the_cas_certificate(tmp_path: Path, ca: tuple[Path, Path]) -> None:
    """Otherwise no client could verify it, except with Python 3.13 or newer."""
    leaf, key = certificates.signed(tmp_path, "n1", *ca)
    failure = refused(offered(leaf, key))
    assert "was signed by a CA" in failure.message and failure.remedy.startswith("Set tracking_ca_file")
    other, _key = certificates.self_signed(tmp_path, "another-ca")
    assert "is not verified by tracking_ca_file: another-ca.pem" in refused(offered(leaf, key, other)).message


def test_one_for_another_name_or_of_another_time_is_refused(tmp_path: Path, ca: tuple[Path, Path]) -> None:
    made = certificates.self_signed(tmp_path, "n1")
    failure = refused(offered(*made), "n2")
    assert "is not for the name 'n2'" in failure.message and "DNS:n2" in failure.remedy
    assert "does not work" in refused(offered(*made), "n1..").message
    leaf, key = certificates.signed(tmp_path, "n3", *ca, days=-1)
    failure = refused(offered(leaf, key, ca[0]), "n3")
    assert "certificate has expired" in failure.message and failure.remedy.startswith("Renew it")


def test_a_key_that_the_server_cannot_use_is_refused_without_asking(tmp_path: Path) -> None:
    made, key = certificates.self_signed(tmp_path, "n1")
    _other, other_key = certificates.self_signed(tmp_path, "n2")
    assert "the key is not the private key of the certificate" in refused(offered(made, other_key)).message
    failure = refused(offered(made, certificates.encrypted(key)))
    assert "is encrypted with a password" in failure.message and "ansible-vault" in failure.remedy
    for nothing in (made, Path("/dev/null")):
        assert "the certificate cannot be used with the key" in refused(offered(made, nothing)).message
    assert "the certificate is not valid" in refused(offered(made, key, trust="nothing")).message


def test_a_handshake_that_does_not_end_is_an_error() -> None:
    class Waiting:
        def wrap_bio(self, *_given: Any, **_more: Any) -> Any:
            return self

        def do_handshake(self) -> None:
            raise ssl.SSLWantReadError

    waiting: Any = Waiting()
    with pytest.raises(ValueError, match="does not end"):
        certificate.shake_hands(waiting, waiting, "n1")

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificates that a server and its clients can use, and those that are refused before anything changes."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import certificate
from ansible_collections.gpumesh.cluster.tests.support import certificates

pytestmark = pytest.mark.skipif(certificates.OPENSSL_MISSING, reason="not checked: there is no openssl")


def offer_certificate(
    certificate_path: Path, key: Path, ca: Path | None = None, **more: str
) -> certificate.OfferedCertificate:
    trust = (ca or certificate_path).read_text()
    ca_label = f"tracking_ca_file: {ca.name}" if ca else ""
    certificate_text = certificate.OfferedCertificate(
        str(certificate_path), str(key), trust, "the certificate", "the key", ca_label
    )
    return certificate_text._replace(**more)


def check_refusal(candidate: certificate.OfferedCertificate, name: str = "n1") -> InputError:
    with pytest.raises(InputError) as failure:
        certificate.refuse_unusable_certificate(candidate, name)
    return failure.value


@pytest.fixture(name="ca", scope="module")
def _ca(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificates.create_self_signed(tmp_path_factory.mktemp("ca"), "the-ca")


def test_self_signed_or_with_its_ca_is_accepted(tmp_path: Path, ca: tuple[Path, Path]) -> None:
    certificate.refuse_unusable_certificate(offer_certificate(*certificates.create_self_signed(tmp_path, "n1")), "n1")
    certificate.refuse_unusable_certificate(
        offer_certificate(*certificates.create_self_signed(tmp_path, "gpu_1")), "gpu_1"
    )
    leaf, key = certificates.create_signed(tmp_path, "n2", *ca)
    certificate.refuse_unusable_certificate(offer_certificate(leaf, key, ca[0]), "n2")
    # A file with the whole chain contains the CA's certificate, and one with the key as well is accepted by uvicorn.
    leaf.write_text(leaf.read_text() + ca[0].read_text() + key.read_text())
    certificate.refuse_unusable_certificate(offer_certificate(leaf, leaf, trusted_certificates=leaf.read_text()), "n2")


def test_ca_signed_certificate_needs_the_ca_certificate(tmp_path: Path, ca: tuple[Path, Path]) -> None:
    """Otherwise no client could verify it, except with Python 3.13 or newer."""
    leaf, key = certificates.create_signed(tmp_path, "n1", *ca)
    failure = check_refusal(offer_certificate(leaf, key))
    assert "was signed by a CA" in failure.message and failure.remedy.startswith("Set tracking_ca_file")
    other, _key = certificates.create_self_signed(tmp_path, "another-ca")
    assert (
        "is not verified by tracking_ca_file: another-ca.pem"
        in check_refusal(offer_certificate(leaf, key, other)).message
    )


def test_wrong_name_or_validity_period_is_refused(tmp_path: Path, ca: tuple[Path, Path]) -> None:
    made = certificates.create_self_signed(tmp_path, "n1")
    failure = check_refusal(offer_certificate(*made), "n2")
    assert "is not for the name 'n2'" in failure.message and "DNS:n2" in failure.remedy
    assert "does not work" in check_refusal(offer_certificate(*made), "n1..").message
    leaf, key = certificates.create_signed(tmp_path, "n3", *ca, days=-1)
    failure = check_refusal(offer_certificate(leaf, key, ca[0]), "n3")
    assert "certificate has expired" in failure.message and failure.remedy.startswith("Renew it")


def test_unusable_key_is_refused_without_a_password_prompt(tmp_path: Path) -> None:
    made, key = certificates.create_self_signed(tmp_path, "n1")
    _other, other_key = certificates.create_self_signed(tmp_path, "n2")
    assert (
        "the key is not the private key of the certificate" in check_refusal(offer_certificate(made, other_key)).message
    )
    failure = check_refusal(offer_certificate(made, certificates.encrypt_key(key)))
    assert "is encrypted with a password" in failure.message and "ansible-vault" in failure.remedy
    for nothing in (made, Path("/dev/null")):
        assert "the certificate cannot be used with the key" in check_refusal(offer_certificate(made, nothing)).message
    assert (
        "the certificate is not valid"
        in check_refusal(offer_certificate(made, key, trusted_certificates="nothing")).message
    )


def test_endless_handshake_is_an_error() -> None:
    class Waiting:
        def wrap_bio(self, *_given: Any, **_more: Any) -> Any:
            return self

        def do_handshake(self) -> None:
            raise ssl.SSLWantReadError

    waiting: Any = Waiting()
    with pytest.raises(ValueError, match="does not complete"):
        certificate.try_handshake(waiting, waiting, "n1")

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates for tests, created by openssl."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import Lab

OPENSSL_MISSING = shutil.which("openssl") is None
_KEY_OPTIONS = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def _openssl(*argv: str) -> None:
    subprocess.run(["openssl", *argv], check=True, capture_output=True)


def create_self_signed(directory: Path, name: str, *extra_options: str) -> tuple[Path, Path]:
    """Create a self-signed certificate for this name. Returns its path, and that of its private key."""
    certificate_path, key_path = directory / f"{name}.pem", directory / f"{name}.key"
    subject_options = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    _openssl(
        "req",
        "-x509",
        *_KEY_OPTIONS,
        "-days",
        "2",
        *subject_options,
        *extra_options,
        "-keyout",
        str(key_path),
        "-out",
        str(certificate_path),
    )
    return certificate_path, key_path


def create_signed(directory: Path, name: str, ca: Path, ca_key: Path, days: int = 2) -> tuple[Path, Path]:
    """Create a certificate for this name that a CA has signed. Returns its path, and that of its private key."""
    certificate_path, key_path, request_path, extensions_path = (
        directory / f"{name}.{kind}" for kind in ("pem", "key", "csr", "ext")
    )
    extensions_path.write_text(f"subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n")
    _openssl("req", *_KEY_OPTIONS, "-subj", f"/CN={name}", "-keyout", str(key_path), "-out", str(request_path))
    signing_options = ["-CA", str(ca), "-CAkey", str(ca_key), "-CAcreateserial", "-extfile", str(extensions_path)]
    _openssl(
        "x509", "-req", "-in", str(request_path), *signing_options, "-days", str(days), "-out", str(certificate_path)
    )
    return certificate_path, key_path


def encrypt_key(key: Path) -> Path:
    """Encrypt the private key with a password. Returns the path of the encrypted key."""
    encrypted_path = key.with_suffix(".encrypted")
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:a-password", "-out", str(encrypted_path))
    return encrypted_path


#: A stand-in for openssl to which a certificate is as old as it will be in some days.
_AGING_SCRIPT = """#!/bin/sh
for word; do
    shift
    [ "$former" != -checkend ] || case " $* " in *" $FILE "*) word=$((word + $DAYS * 86400)) ;; esac
    former=$word
    set -- "$@" "$word"
done
exec /usr/bin/openssl "$@"
"""


@contextlib.contextmanager
def age_certificate(lab: Lab, host: str, certificate: str, days: int) -> Iterator[None]:
    """Let openssl on a host report that a certificate is this many days older, for the duration of the context."""
    program = "/usr/local/bin/openssl"
    script = _AGING_SCRIPT.replace("$FILE", certificate).replace("$DAYS", str(days))
    lab.run(host, "sh", "-c", 'printf %s "$1" > "$2" && chmod 755 "$2"', "-", script, program)
    try:
        yield
    finally:
        lab.run(host, "rm", program)

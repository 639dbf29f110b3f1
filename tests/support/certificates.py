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

MISSING = shutil.which("openssl") is None
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def _openssl(*argv: str) -> None:
    subprocess.run(["openssl", *argv], check=True, capture_output=True)


def self_signed(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    """Create a self-signed certificate for this name. Returns its path, and that of its private key."""
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    about = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    _openssl("req", "-x509", *_KEY, "-days", "2", *about, *more, "-keyout", str(key), "-out", str(made))
    return made, key


def signed(folder: Path, name: str, ca: Path, ca_key: Path, days: int = 2) -> tuple[Path, Path]:
    """Create a certificate for this name that a CA has signed. Returns its path, and that of its private key."""
    made, key, request, extensions = (folder / f"{name}.{kind}" for kind in ("pem", "key", "csr", "ext"))
    extensions.write_text(f"subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n")
    _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
    by = ["-CA", str(ca), "-CAkey", str(ca_key), "-CAcreateserial", "-extfile", str(extensions)]
    _openssl("x509", "-req", "-in", str(request), *by, "-days", str(days), "-out", str(made))
    return made, key


def encrypted(key: Path) -> Path:
    """Encrypt the private key with a password. Returns the path of the encrypted key."""
    made = key.with_suffix(".encrypted")
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:a-password", "-out", str(made))
    return made


#: A stand-in for openssl to which a certificate is as old as it will be in some days.
_LATER = """#!/bin/sh
for word; do
    shift
    [ "$former" != -checkend ] || case " $* " in *" $FILE "*) word=$((word + $DAYS * 86400)) ;; esac
    former=$word
    set -- "$@" "$word"
done
exec /usr/bin/openssl "$@"
"""


@contextlib.contextmanager
def later(lab: Lab, host: str, certificate: str, days: int) -> Iterator[None]:
    """Let openssl on a host report that a certificate is this many days older, for the duration of the context."""
    program = "/usr/local/bin/openssl"
    script = _LATER.replace("$FILE", certificate).replace("$DAYS", str(days))
    lab.run(host, "sh", "-c", 'printf %s "$1" > "$2" && chmod 755 "$2"', "-", script, program)
    try:
        yield
    finally:
        lab.run(host, "rm", program)

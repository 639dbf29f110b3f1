# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fixtures of attacks: ordinary accounts on this machine. The attacks on whole hosts are in the directory `hosts`."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Iterator

import pytest

from ansible_collections.gpumesh.cluster.tests.support.mlflow_program import MlflowServer


@pytest.fixture(scope="session")
def attacker() -> Iterator[pwd.struct_passwd]:
    """Create an ordinary account of this machine, which is removed after the tests, with everything that it runs."""
    name = f"gpumesh-attack{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", name], check=True, capture_output=True)
    try:
        yield pwd.getpwnam(name)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["pkill", "-KILL", "-u", name], check=True, capture_output=True)
        subprocess.run(["userdel", "--remove", "--force", name], check=False, capture_output=True)


@pytest.fixture(scope="session")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """Start MLflow, where one is installed. The attacks do not leave it weaker, as each of them shows."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        mlflow_server = MlflowServer(tmp_path_factory.mktemp("server"), monkeypatch)
    try:
        mlflow_server.await_start()
        yield mlflow_server
    finally:
        mlflow_server.stop()

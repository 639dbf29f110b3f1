# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the guide collect the host keys of machines behind one address, at the ports of the inventory."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.tests.publication.archive import BIN, ROOT
from ansible_collections.gpumesh.cluster.tests.publication.guides import console_lines
from ansible_collections.gpumesh.cluster.tests.support.ssh_server import SSHD_PATH, SshServer

LINES = console_lines(ROOT / "docs" / "guides" / "rented.md")
(COLLECT,) = (line for line in LINES if "ssh-keyscan" in line)
(SHOW,) = (line for line in LINES if line.startswith("ssh-keygen "))
(TRUST,) = (line for line in LINES if line.startswith("cat "))


@pytest.fixture(name="keys_by_port")
def _keys_by_port(tmp_path: Path) -> Iterator[dict[int, str]]:
    """Two servers at 127.0.0.1, and an inventory of them."""
    with ExitStack() as stack:
        keys, hosts = {}, {}
        for name in ("gpu-c1", "gpu-c2"):
            key, config = tmp_path / name, tmp_path / f"{name}.conf"
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
            config.write_text(f"HostKey {key}\nPidFile none\nUsePAM no\n")
            port = stack.enter_context(SshServer(config)).port
            keys[port] = Path(f"{key}.pub").read_text().split()[1]
            hosts[name] = {"ansible_host": "127.0.0.1", "ansible_port": port, "ansible_user": "root"}
        # A file of JSON is one of YAML.
        (tmp_path / "hosts.yml").write_text(json.dumps({"cluster": {"hosts": hosts}}))
        yield keys


@pytest.mark.skipif(SSHD_PATH is None, reason="there is no sshd here")
def test_each_machine_is_known_by_its_port(keys_by_port: dict[int, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    inventory = shlex.quote(str(tmp_path / "hosts.yml"))
    environment = {**os.environ, "HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_HOME": str(home)}

    def run(line: str) -> str:
        command = ["bash", "-c", line.replace("inventories/rented", inventory)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(COLLECT)
    assert all(f"[127.0.0.1]:{port} (ED25519)" in run(SHOW) for port in keys_by_port)
    run(TRUST)
    known = (home / ".ssh" / "known_hosts").read_text()
    assert {line.split()[0]: line.split()[2] for line in known.splitlines()} == {
        f"[127.0.0.1]:{port}": key for port, key in keys_by_port.items()
    }

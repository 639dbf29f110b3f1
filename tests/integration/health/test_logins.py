# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All members log in to all others at the same time, each of them an sshd with the settings that it comes with.

``GPUMESH_LOGIN_MEMBERS=40`` has more of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import (
    MODULES_DIRECTORY,
    NamespaceHost,
    SshTestbed,
    create_network,
)

MEMBER_COUNT = int(os.environ.get("GPUMESH_LOGIN_MEMBERS", "12"))
#: sshd begins to drop connections at random when ten wait; ours are to be far below.
MAX_CONNECTIONS = 7


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[SshTestbed]:
    with create_network() as namespace_network:
        farm = SshTestbed(namespace_network, MEMBER_COUNT, tmp_path, max_startups="10:30:100")
        key = (tmp_path / "host_key.pub").read_text()
        for member in farm.members:
            ssh_directory = Path("/etc/netns") / member.namespace / "ssh"
            ssh_directory.mkdir()
            (ssh_directory / "ssh_config").write_text(
                f"IdentityFile {tmp_path}/key\nIdentitiesOnly yes\nLogLevel ERROR\n"
            )
            (ssh_directory / "ssh_known_hosts").write_text("".join(f"{peer.address} {key}" for peer in farm.members))
        yield farm


def run_login_check(host: NamespaceHost, members: list[NamespaceHost]) -> dict[str, Any]:
    """Run the one check, as the module does."""
    peers = {peer.machine: peer.address for peer in members if peer is not host}
    options = {"machine": host.machine, "only": ["ssh_trust.login"], "ssh_peers": peers}
    module_command = host.build_command(sys.executable, str(MODULES_DIRECTORY / "node_health.py"))
    arguments = json.dumps({"ANSIBLE_MODULE_ARGS": options})
    completed = subprocess.run(module_command, input=arguments, capture_output=True, text=True, check=False)
    result: dict[str, Any] = json.loads(completed.stdout)
    check: dict[str, Any] = result["checks"][0]
    return check


class ConnectionCounter(threading.Thread):
    """The most connections to sshd that each member has had at once."""

    def __init__(self, members: list[NamespaceHost]) -> None:
        super().__init__(daemon=True)
        self.max_connections = dict.fromkeys((member.machine for member in members), 0)
        # Every process in a namespace shows its connections.
        self._tcp_tables = {member.machine: Path(f"/proc/{member.find_processes()[0]}/net/tcp") for member in members}
        self._stop_requested = threading.Event()

    def run(self) -> None:
        while not self._stop_requested.is_set():
            for machine, tcp_table in self._tcp_tables.items():
                lines = [line.split() for line in tcp_table.read_text().splitlines()[1:]]
                # Port 22 in the local address, established.
                connection_count = sum(1 for line in lines if line[1].endswith(":0016") and line[3] == "01")
                self.max_connections[machine] = max(self.max_connections[machine], connection_count)
            time.sleep(0.02)

    def end(self) -> None:
        self._stop_requested.set()
        self.join()


def test_no_login_fails_under_the_load_of_the_check(farm: SshTestbed) -> None:
    connection_counter = ConnectionCounter(farm.members)
    connection_counter.start()
    started_at = time.monotonic()
    try:
        with ThreadPoolExecutor(max_workers=MEMBER_COUNT) as pool:
            checks = list(pool.map(lambda member: run_login_check(member, farm.members), farm.members))
    finally:
        connection_counter.end()
    print(
        f"{time.monotonic() - started_at:.1f} s, at most {max(connection_counter.max_connections.values())} connections to one member"
    )
    assert [check["reason"] for check in checks if check["status"] != "pass"] == []
    assert {check["actual"] for check in checks} == {MEMBER_COUNT - 1}
    assert max(connection_counter.max_connections.values()) <= MAX_CONNECTIONS

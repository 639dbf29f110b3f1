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

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import MODULES, Farm, Host, network

MEMBERS = int(os.environ.get("GPUMESH_LOGIN_MEMBERS", "12"))
#: sshd begins to drop connections at random when ten wait; ours are to be far below.
A_FEW = 7


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with network() as made:
        farm = Farm(made, MEMBERS, tmp_path, startups="10:30:100")
        key = (tmp_path / "host_key.pub").read_text()
        for member in farm.members:
            settings = Path("/etc/netns") / member.namespace / "ssh"
            settings.mkdir()
            (settings / "ssh_config").write_text(f"IdentityFile {tmp_path}/key\nIdentitiesOnly yes\nLogLevel ERROR\n")
            (settings / "ssh_known_hosts").write_text("".join(f"{one.address} {key}" for one in farm.members))
        yield farm


def health(host: Host, members: list[Host]) -> dict[str, Any]:
    """Run the one check, as the module does."""
    peers = {peer.machine: peer.address for peer in members if peer is not host}
    options = {"machine": host.machine, "only": ["ssh_trust.login"], "ssh_peers": peers}
    argv = host.command(sys.executable, str(MODULES / "node_health.py"))
    arguments = json.dumps({"ANSIBLE_MODULE_ARGS": options})
    done = subprocess.run(argv, input=arguments, capture_output=True, text=True, check=False)
    result: dict[str, Any] = json.loads(done.stdout)
    check: dict[str, Any] = result["checks"][0]
    return check


class Watch(threading.Thread):
    """The most connections to sshd that each member has had at once."""

    def __init__(self, members: list[Host]) -> None:
        super().__init__(daemon=True)
        self.most = dict.fromkeys((member.machine for member in members), 0)
        # Every process in a namespace shows its connections.
        self._places = {member.machine: Path(f"/proc/{member.processes()[0]}/net/tcp") for member in members}
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            for machine, place in self._places.items():
                lines = [line.split() for line in place.read_text().splitlines()[1:]]
                # Port 22 in the local address, established.
                number = sum(1 for line in lines if line[1].endswith(":0016") and line[3] == "01")
                self.most[machine] = max(self.most[machine], number)
            time.sleep(0.02)

    def end(self) -> None:
        self._over.set()
        self.join()


def test_no_login_fails_by_the_weight_of_the_check(farm: Farm) -> None:
    watch = Watch(farm.members)
    watch.start()
    begin = time.monotonic()
    try:
        with ThreadPoolExecutor(max_workers=MEMBERS) as pool:
            checks = list(pool.map(lambda member: health(member, farm.members), farm.members))
    finally:
        watch.end()
    print(f"{time.monotonic() - begin:.1f} s, at most {max(watch.most.values())} connections to one member")
    assert [check["reason"] for check in checks if check["status"] != "pass"] == []
    assert {check["actual"] for check in checks} == {MEMBERS - 1}
    assert max(watch.most.values()) <= A_FEW

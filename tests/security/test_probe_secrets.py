# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The secret that the probes of a run share, looked for in all places where Ansible and the hosts could show it.

Who has it could make a listener answer, and send traffic in the name of a member, for as long as the run lasts.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Farm, network

TOKEN = "5ecre7ThatNobodyMaySee4711"
ROLE = {"ansible.builtin.import_role": {"name": "gpumesh.cluster.reachability"}}


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with network() as made:
        yield Farm(made, 2, tmp_path)


class Watch(threading.Thread):
    """A thread that searches all processes of the machine, repeatedly, and the files that an ordinary account can read."""

    def __init__(self, account: pwd.struct_passwd, stamp: Path) -> None:
        super().__init__(daemon=True)
        self.found: set[str] = set()
        self.cores: set[str] = set()
        self.looks = self.listeners = 0
        self._account = account
        self._stamp = stamp
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            seen = self._processes()
            self._files()
            self.listeners += seen
            self.looks += 1
            time.sleep(0.05)

    def end(self) -> None:
        self._over.set()
        self.join()

    def _processes(self) -> int:
        listeners = 0
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                for name in ("cmdline", "environ", "comm"):
                    if TOKEN.encode() in (folder / name).read_bytes():
                        self.found.add(f"{name} of {(folder / 'comm').read_text().strip()}")
                if (folder / "comm").read_text().strip() == "gpumesh-reach":
                    listeners += 1
                    limits = (folder / "limits").read_text().splitlines()
                    self.cores |= {" ".join(line.split()[4:6]) for line in limits if line.startswith("Max core file")}
        return listeners

    def _files(self) -> None:
        become = f"setpriv --reuid={self._account.pw_uid} --regid={self._account.pw_gid} --clear-groups"
        look = f"find /tmp /var/tmp /dev/shm /run -xdev -newer {self._stamp} -type f -readable -size -4096k"
        done = subprocess.run(
            [*become.split(), *look.split(), "-exec", "grep", "-lF", TOKEN, "{}", "+"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.found |= set(done.stdout.split())


@contextlib.contextmanager
def system_log() -> Iterator[list[bytes]]:
    """Collect what modules write to the log of the host, where nothing on this machine reads it already."""
    written: list[bytes] = []
    place = "/dev/log"
    if os.path.lexists(place):
        yield written
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(place)
        log.settimeout(0.2)
        over = threading.Event()

        def read() -> None:
            while not over.is_set():
                with contextlib.suppress(socket.timeout):
                    written.append(log.recv(1 << 20))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield written
        finally:
            over.set()
            reader.join()
            os.unlink(place)


def test_the_secret_of_a_run_is_seen_nowhere(farm: Farm, attacker: pwd.struct_passwd) -> None:
    stamp = Path("/tmp") / f"gpumesh-stamp-{os.getpid()}"
    stamp.touch()
    given = farm.folder / "given.json"
    given.touch(mode=0o600)
    # The token is set here, so that it is known: the role itself would create another one.
    given.write_text(json.dumps({"__reachability_token": TOKEN}))
    log = farm.folder / "ansible.log"
    farm.environment |= {
        # Modules and their arguments are files on the hosts without pipelining.
        "ANSIBLE_PIPELINING": "0",
        "ANSIBLE_LOG_PATH": str(log),
        "ANSIBLE_DIFF_ALWAYS": "1",
        "ANSIBLE_VERBOSITY": "3",
    }
    farm.arguments = ["-e", f"@{given}"]
    watch = Watch(attacker, stamp)
    watch.start()
    try:
        with system_log() as logged:
            done = farm.play([ROLE], reachability_members=farm.members_variable(), reachability_assert=True)
    finally:
        watch.end()
        stamp.unlink()
    assert done.returncode == 0, done.stdout
    assert watch.looks > 5 and watch.listeners > 0
    assert watch.found == set()
    assert watch.cores == {"0 0"}
    assert TOKEN not in done.stdout + done.stderr
    assert TOKEN not in log.read_text()
    assert "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER" in done.stdout
    assert not any(TOKEN.encode() in line for line in logged)

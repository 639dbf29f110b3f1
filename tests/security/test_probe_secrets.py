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

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import SshTestbed, create_network

RUN_TOKEN = "5ecre7ThatNobodyMaySee4711"
ROLE_TASK = {"ansible.builtin.import_role": {"name": "gpumesh.cluster.reachability"}}


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[SshTestbed]:
    with create_network() as namespace_network:
        yield SshTestbed(namespace_network, 2, tmp_path)


class SecretWatcher(threading.Thread):
    """A thread that searches all processes of the machine, repeatedly, and the files that an ordinary account can read."""

    def __init__(self, account: pwd.struct_passwd, stamp: Path) -> None:
        super().__init__(daemon=True)
        self.leaks: set[str] = set()
        self.core_limits: set[str] = set()
        self.look_count = self.listener_count = 0
        self._account = account
        self._stamp_path = stamp
        self._stop_requested = threading.Event()

    def run(self) -> None:
        while not self._stop_requested.is_set():
            listeners = self._search_processes()
            self._search_files()
            self.listener_count += listeners
            self.look_count += 1
            time.sleep(0.05)

    def end(self) -> None:
        self._stop_requested.set()
        self.join()

    def _search_processes(self) -> int:
        listeners = 0
        for process_directory in Path("/proc").iterdir():
            if not process_directory.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                for name in ("cmdline", "environ", "comm"):
                    if RUN_TOKEN.encode() in (process_directory / name).read_bytes():
                        self.leaks.add(f"{name} of {(process_directory / 'comm').read_text().strip()}")
                if (process_directory / "comm").read_text().strip() == "gpumesh-reach":
                    listeners += 1
                    limits = (process_directory / "limits").read_text().splitlines()
                    self.core_limits |= {
                        " ".join(line.split()[4:6]) for line in limits if line.startswith("Max core file")
                    }
        return listeners

    def _search_files(self) -> None:
        setpriv_command = f"setpriv --reuid={self._account.pw_uid} --regid={self._account.pw_gid} --clear-groups"
        find_command = (
            f"find /tmp /var/tmp /dev/shm /run -xdev -newer {self._stamp_path} -type f -readable -size -4096k"
        )
        completed = subprocess.run(
            [*setpriv_command.split(), *find_command.split(), "-exec", "grep", "-lF", RUN_TOKEN, "{}", "+"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.leaks |= set(completed.stdout.split())


@contextlib.contextmanager
def system_log() -> Iterator[list[bytes]]:
    """Collect what modules write to the log of the host, where nothing on this machine reads it already."""
    messages: list[bytes] = []
    socket_path = "/dev/log"
    if os.path.lexists(socket_path):
        yield messages
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(socket_path)
        log.settimeout(0.2)
        stop_requested = threading.Event()

        def read() -> None:
            while not stop_requested.is_set():
                with contextlib.suppress(socket.timeout):
                    messages.append(log.recv(1 << 20))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield messages
        finally:
            stop_requested.set()
            reader.join()
            os.unlink(socket_path)


def test_token_of_a_run_is_not_exposed(farm: SshTestbed, attacker: pwd.struct_passwd) -> None:
    stamp = Path("/tmp") / f"gpumesh-stamp-{os.getpid()}"
    stamp.touch()
    vars_file = farm.directory / "given.json"
    vars_file.touch(mode=0o600)
    # The token is set here, so that it is known: the role itself would create another one.
    vars_file.write_text(json.dumps({"__reachability_token": RUN_TOKEN}))
    log_path = farm.directory / "ansible.log"
    farm.environment |= {
        # Modules and their arguments are files on the hosts without pipelining.
        "ANSIBLE_PIPELINING": "0",
        "ANSIBLE_LOG_PATH": str(log_path),
        "ANSIBLE_DIFF_ALWAYS": "1",
        "ANSIBLE_VERBOSITY": "3",
    }
    farm.arguments = ["-e", f"@{vars_file}"]
    watcher = SecretWatcher(attacker, stamp)
    watcher.start()
    try:
        with system_log() as logged:
            completed = farm.run_play(
                [ROLE_TASK], reachability_members=farm.members_variable(), reachability_assert=True
            )
    finally:
        watcher.end()
        stamp.unlink()
    assert completed.returncode == 0, completed.stdout
    assert watcher.look_count > 5 and watcher.listener_count > 0
    assert watcher.leaks == set()
    assert watcher.core_limits == {"0 0"}
    assert RUN_TOKEN not in completed.stdout + completed.stderr
    assert RUN_TOKEN not in log_path.read_text()
    assert "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER" in completed.stdout
    assert not any(RUN_TOKEN.encode() in line for line in logged)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process of a user that has the name and the file name of a daemon is not taken for it, in pods either."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import preload, program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import ssh

LIBRARY = "/usr/local/lib/gpumesh/libgpumesh-pod-0123456789abcdef.so"
#: A program that listens, prints the port, and stays.
CODE = "import socket, sys, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(600)"
Start = Callable[[str], tuple[int, int]]


@pytest.fixture
def start(attacker: pwd.struct_passwd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Yield a function that starts a Python of the attacker under a name, and returns its process and listening port."""
    running: list[subprocess.Popen[str]] = []
    folder = Path(attacker.pw_dir)

    def begin(name: str) -> tuple[int, int]:
        shutil.copy(os.path.realpath(sys.executable), folder / name)
        process = subprocess.Popen(
            [folder / name, "-c", CODE],
            stdout=subprocess.PIPE,
            text=True,
            user=attacker.pw_uid,
            group=attacker.pw_gid,
            extra_groups=[],
            cwd="/",
            env={"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"},
        )
        running.append(process)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert Path(f"/proc/{process.pid}/comm").read_text(encoding="ascii").strip() == name
        return process.pid, port

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_a_step_of_slurm(start: Start) -> None:
    pid, _port = start("slurmstepd")
    assert not [left for left in program.find_job_leftovers(Tree()) if f"({pid})" in left]


def test_slurmd_without_the_library_of_a_pod(start: Start) -> None:
    start("slurmd")
    listed = [one for one in preload.find_uncovered_programs(Tree()) if one.executable_name == "slurmd"]
    assert listed and preload.judge_preload(LIBRARY, listed).status == "pass"


def test_the_port_of_sshd(start: Start) -> None:
    _pid, port = start("sshd")
    assert port not in ssh.read_ssh_access("/proc", os.getpid()).listening_ports


def test_a_setuid_program_that_is_started_as_sshd_with_a_socket(attacker: pwd.struct_passwd) -> None:
    """The program has the effective user and the name of the daemon, and the listening socket of whoever started it."""
    link = Path(attacker.pw_dir) / "sshd"
    link.unlink(missing_ok=True)
    link.symlink_to(shutil.which("su") or "/bin/su")
    with socket.create_server(("127.0.0.1", 0)) as listening, subprocess.Popen(
        [link],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        user=attacker.pw_uid,
        group=attacker.pw_gid,
        extra_groups=[],
        pass_fds=[listening.fileno()],
    ) as process:
        assert process.stderr is not None
        # The program asks for a password, and waits for it.
        assert process.stderr.read(1)
        ids = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "Uid:" in line)
        assert ids.split()[2] == "0" and Path(f"/proc/{process.pid}/comm").read_text().strip() == "sshd"
        assert listening.getsockname()[1] not in ssh.read_ssh_access("/proc", os.getpid()).listening_ports
        process.kill()

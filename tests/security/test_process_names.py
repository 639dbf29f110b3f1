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

LIBRARY_PATH = "/usr/local/lib/gpumesh/libgpumesh-pod-0123456789abcdef.so"
#: A program that listens, prints the port, and stays.
LISTEN_PROGRAM = "import socket, sys, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(600)"
StartProgram = Callable[[str], tuple[int, int]]


@pytest.fixture
def start(attacker: pwd.struct_passwd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartProgram]:
    """Yield a function that starts a Python of the attacker under a name, and returns its process and listening port."""
    processes: list[subprocess.Popen[str]] = []
    directory = Path(attacker.pw_dir)

    def start_program(name: str) -> tuple[int, int]:
        shutil.copy(os.path.realpath(sys.executable), directory / name)
        process = subprocess.Popen(
            [directory / name, "-c", LISTEN_PROGRAM],
            stdout=subprocess.PIPE,
            text=True,
            user=attacker.pw_uid,
            group=attacker.pw_gid,
            extra_groups=[],
            cwd="/",
            env={"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"},
        )
        processes.append(process)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert Path(f"/proc/{process.pid}/comm").read_text(encoding="ascii").strip() == name
        return process.pid, port

    yield start_program
    for process in processes:
        process.kill()
        process.communicate()


def test_process_named_slurmstepd(start: StartProgram) -> None:
    pid, _port = start("slurmstepd")
    assert not [process_text for process_text in program.find_job_leftovers(Tree()) if f"({pid})" in process_text]


def test_process_named_slurmd_without_pod_library(start: StartProgram) -> None:
    start("slurmd")
    pod_programs = [
        pod_program
        for pod_program in preload.find_uncovered_programs(Tree())
        if pod_program.executable_name == "slurmd"
    ]
    assert pod_programs and preload.judge_preload(LIBRARY_PATH, pod_programs).status == "pass"


def test_port_of_a_process_named_sshd(start: StartProgram) -> None:
    _pid, port = start("sshd")
    assert port not in ssh.read_ssh_access("/proc", os.getpid()).listening_ports


def test_setuid_program_started_as_sshd_with_a_socket(attacker: pwd.struct_passwd) -> None:
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

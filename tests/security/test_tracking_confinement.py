# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that the tracking server could reach if its program were the attacker's. It tries, in the running process,
with the launcher of the server. The scenario tracking does the same with MLflow, in a container without privileges.
"""

from __future__ import annotations

import os
import pwd
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from trials import TRIES_PROGRAM, find_denied

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import confine

TRIAL_PROGRAM = f"""
import os, resource, socket, subprocess, sys
{TRIES_PROGRAM}
own, other, held, port = sys.argv[1:]
tries("write", lambda: open(own + "/new", "w").write("x"))
tries("rename", lambda: (os.mkdir(own + "/a"), os.rename(own + "/new", own + "/a/new"), os.remove(own + "/a/new")))
tries("follow", lambda: open(own + "/link"))
tries("read", lambda: open(other + "/secret"))
tries("list", lambda: os.listdir(other))
tries("create", lambda: open(other + "/new", "w"))
tries("truncate", lambda: os.truncate(other + "/secret", 0))
tries("environment", lambda: open("/proc/self/environ"))
tries("temporary", lambda: open("/tmp/gpumesh-confined", "w"))
tries("shell", lambda: subprocess.run(["/bin/sh", "-c", "true"]))
tries("python", lambda: subprocess.run([sys.executable, "-c", "import json"], check=True))
tries("connect", lambda: socket.create_connection(("127.0.0.1", int(held)), 5))
tries("listen", lambda: socket.create_server(("127.0.0.1", 0)))
tries("serve", lambda: socket.create_server(("127.0.0.1", int(port))))
tries("signal", lambda: os.kill(os.getppid(), 0))
print("core", *resource.getrlimit(resource.RLIMIT_CORE))
"""
#: The version of Landlock from which on something is denied.
LANDLOCK_VERSIONS = {
    "follow": 1,
    "read": 1,
    "list": 1,
    "create": 1,
    "truncate": 3,
    "environment": 1,
    "temporary": 1,
    "shell": 1,
    "connect": 4,
    "listen": 4,
    "signal": 6,
}


def run_launcher(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", confine.__file__, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.skipif(
    not confine.landlock_version(), reason="not checked: this kernel has no Landlock, or does not allow it here"
)
def test_server_reaches_only_its_own_directory(tmp_path: Path) -> None:
    own_directory, other_directory = tmp_path / "own", tmp_path / "other"
    for directory in (own_directory, other_directory):
        directory.mkdir()
    (other_directory / "secret").write_text("secret")
    (own_directory / "link").symlink_to(other_directory / "secret")
    with socket.create_server(("127.0.0.1", 0)) as held_socket:
        with socket.create_server(("127.0.0.1", 0)) as free_socket:
            port = free_socket.getsockname()[1]
        command = [
            sys.executable,
            "-c",
            TRIAL_PROGRAM,
            str(own_directory),
            str(other_directory),
            str(held_socket.getsockname()[1]),
            str(port),
        ]
        completed = run_launcher(
            f"--write={own_directory}", f"--note={own_directory}/note", f"--port={port}", "--", *command
        )
    assert completed.returncode == 0, completed.stderr
    result_by_name = dict(line.split(maxsplit=1) for line in completed.stdout.splitlines())
    assert result_by_name.pop("core") == "0 0"
    expected_denials = {name for name, since in LANDLOCK_VERSIONS.items() if confine.landlock_version() >= since}
    assert find_denied(result_by_name) == expected_denials, result_by_name
    assert (other_directory / "secret").read_text() == ("secret" if "truncate" in expected_denials else "")
    assert os.listdir(other_directory) == ["secret"]
    assert (own_directory / "note").read_text() == confine.directory_identities([str(own_directory)])


def test_unconfined_start_needs_permission(tmp_path: Path) -> None:
    """The launcher asks the kernel in a way that no kernel answers, as where a filter of system calls denies Landlock."""
    unconfinable_launcher = tmp_path / "confine.py"
    unconfinable_launcher.write_text(Path(confine.__file__).read_text().replace("_VERSION = 1\n", "_VERSION = 64\n"))
    command = ["--", sys.executable, "-c", "print('served')"]
    refused, served = (
        subprocess.run(
            [sys.executable, "-I", str(unconfinable_launcher), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        for arguments in (command, ["--unconfined", *command])
    )
    assert refused.returncode == 1 and not refused.stdout and "tracking_unconfined is false" in refused.stderr
    assert (served.returncode, served.stdout) == (0, "served\n")


@pytest.mark.skipif(
    not confine.landlock_version(), reason="not checked: this kernel has no Landlock, or does not allow it here"
)
@pytest.mark.skipif(os.geteuid() != 0, reason="attacks need accounts")
def test_directory_of_another_user_is_rejected(tmp_path: Path, attacker: pwd.struct_passwd) -> None:
    """The user does so on a volume in which everybody can rename directories, before the server starts again."""
    own_directory, link, other_directory = tmp_path / "own", tmp_path / "link", tmp_path / "other"
    for directory in (own_directory, other_directory):
        directory.mkdir()
    link.symlink_to(own_directory)
    os.chown(other_directory, attacker.pw_uid, attacker.pw_gid)
    for path in (link, other_directory):
        completed = run_launcher(
            f"--write={own_directory}", f"--write={path}", "--", sys.executable, "-c", "print('served')"
        )
        assert (
            completed.returncode == 1
            and f"{path}: not a directory of this account" in completed.stderr
            and not completed.stdout
        )


def test_missing_directory_is_reported() -> None:
    if not confine.landlock_version():
        pytest.skip("not checked: this kernel has no Landlock, or does not allow it here")
    completed = run_launcher("--write=/nowhere", "--", sys.executable, "-c", "print('served')")
    assert completed.returncode == 1 and "/nowhere: not there" in completed.stderr and not completed.stdout


def test_memory_is_limited_and_server_is_killed_first() -> None:
    launcher = [sys.executable, "-I", confine.__file__, "--memory=512", "--unconfined", "--", sys.executable, "-c"]
    argv = [*launcher, "print(1, flush=True); input(); bytearray(600 << 20)"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"
        _stdout, failure = process.communicate("\n", timeout=120)
    assert process.returncode == 1 and "MemoryError" in failure
    # A host may allow less.
    argv = [*launcher, "print(1)"]
    line = f"ulimit -d {400 << 10} && exec {shlex.join(argv)}"
    assert subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=120).stdout == "1\n"

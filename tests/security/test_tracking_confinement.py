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
from trials import TRIES, denied

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import confine

TRIALS = f"""
import os, resource, socket, subprocess, sys
{TRIES}
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
DENIED = {
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


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", confine.__file__, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.skipif(
    not confine.landlock_version(), reason="not checked: this kernel has no Landlock, or does not allow it here"
)
def test_it_reaches_its_own_directory_and_nothing_else(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    (other / "secret").write_text("secret")
    (own / "link").symlink_to(other / "secret")
    with socket.create_server(("127.0.0.1", 0)) as held:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-c", TRIALS, str(own), str(other), str(held.getsockname()[1]), str(port)]
        done = launched(f"--write={own}", f"--note={own}/note", f"--port={port}", "--", *command)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert said.pop("core") == "0 0"
    wanted = {name for name, since in DENIED.items() if confine.landlock_version() >= since}
    assert denied(said) == wanted, said
    assert (other / "secret").read_text() == ("secret" if "truncate" in wanted else "")
    assert os.listdir(other) == ["secret"]
    assert (own / "note").read_text() == confine.directory_identities([str(own)])


def test_without_restrictions_it_starts_only_if_that_is_allowed(tmp_path: Path) -> None:
    """The launcher asks the kernel in a way that no kernel answers, as where a filter of system calls denies Landlock."""
    blind = tmp_path / "confine.py"
    blind.write_text(Path(confine.__file__).read_text().replace("_VERSION = 1\n", "_VERSION = 64\n"))
    command = ["--", sys.executable, "-c", "print('served')"]
    refused, served = (
        subprocess.run(
            [sys.executable, "-I", str(blind), *more], capture_output=True, text=True, check=False, timeout=120
        )
        for more in (command, ["--unconfined", *command])
    )
    assert refused.returncode == 1 and not refused.stdout and "tracking_unconfined is false" in refused.stderr
    assert (served.returncode, served.stdout) == (0, "served\n")


@pytest.mark.skipif(
    not confine.landlock_version(), reason="not checked: this kernel has no Landlock, or does not allow it here"
)
@pytest.mark.skipif(os.geteuid() != 0, reason="attacks need accounts")
def test_a_directory_that_another_user_has_put_in_its_place_is_refused(
    tmp_path: Path, attacker: pwd.struct_passwd
) -> None:
    """The user does so on a volume in which everybody can rename directories, before the server starts again."""
    own, link, other = tmp_path / "own", tmp_path / "link", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    link.symlink_to(own)
    os.chown(other, attacker.pw_uid, attacker.pw_gid)
    for path in (link, other):
        done = launched(f"--write={own}", f"--write={path}", "--", sys.executable, "-c", "print('served')")
        assert done.returncode == 1 and f"{path}: not a directory of this account" in done.stderr and not done.stdout


def test_a_directory_that_is_missing_is_named() -> None:
    if not confine.landlock_version():
        pytest.skip("not checked: this kernel has no Landlock, or does not allow it here")
    done = launched("--write=/nowhere", "--", sys.executable, "-c", "print('served')")
    assert done.returncode == 1 and "/nowhere: not there" in done.stderr and not done.stdout


def test_it_has_no_more_memory_than_it_may_and_ends_before_other_programs() -> None:
    launcher = [sys.executable, "-I", confine.__file__, "--memory=512", "--unconfined", "--", sys.executable, "-c"]
    argv = [*launcher, "print(1, flush=True); input(); bytearray(600 << 20)"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None and one.stdout.readline() == "1\n"
        assert Path(f"/proc/{one.pid}/oom_score_adj").read_text() == "1000\n"
        _said, failure = one.communicate("\n", timeout=120)
    assert one.returncode == 1 and "MemoryError" in failure
    # A host may allow less.
    argv = [*launcher, "print(1)"]
    line = f"ulimit -d {400 << 10} && exec {shlex.join(argv)}"
    assert subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=120).stdout == "1\n"

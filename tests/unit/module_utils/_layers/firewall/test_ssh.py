# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detection of SSH connections, with an artificial /proc. tests/integration has a real sshd."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.ssh import (
    SshAccess,
    SshConnection,
    read_ssh_access,
)

OWN_CONNECTION = SshConnection(22, "192.0.2.7")
#: Local port, remote address, state and inode.
SOCKETS = [
    ("0016", "00000000", "0A", 100),
    ("5708", "00000000", "0A", 101),
    ("4E20", "00000000", "0A", 102),
    ("0016", "070200C0", "01", 200),
    ("9C40", "080200C0", "01", 201),
    ("4E21", "00000000", "0A", 103),
    ("4E22", "00000000", "0A", 104),
]


@pytest.fixture(name="proc")
def _proc(tmp_path: Path) -> Path:
    if sys.byteorder != "little":
        pytest.skip("the table is recorded on a little-endian machine")
    (tmp_path / "net").mkdir()
    lines = [
        f"  0: 00000000:{port} {remote}:D1F2 {state} 0:0 0:0 0 0 0 {inode} 4" for port, remote, state, inode in SOCKETS
    ]
    (tmp_path / "net" / "tcp").write_text("\n".join(["header", *lines]) + "\n")
    write_process(tmp_path, 1, 0, "systemd", [102])
    write_process(tmp_path, 5, 1, "sshd", [100, 101], "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups")
    # A forwarding of a login, and an sshd that a user has started.
    write_process(tmp_path, 6, 5, "sshd", [103], "sshd: root@notty")
    write_process(tmp_path, 7, 1, "sshd", [104], "sshd: /usr/sbin/sshd -f mine [listener]", user=1000)
    write_process(tmp_path, 8, 5, "sshd-session", [200, 201], "sshd-session: root@notty")
    write_process(tmp_path, 9, 8, "python3", [])
    return tmp_path


def write_process(
    proc: Path, pid: int, parent: int, name: str, sockets: list[int], title: str = "", user: int = 0
) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "exe").symlink_to(f"/usr/sbin/{name}")
    (folder / "cmdline").write_text(title or name)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1")
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{user}\t{user}\t{user}\t{user}\n")
    for number, inode in enumerate(sockets):
        (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")


def test_sshd_ports_and_own_connection(proc: Path) -> None:
    assert read_ssh_access(str(proc), 9) == SshAccess((22, 0x5708), (OWN_CONNECTION,))


def test_other_ssh_server_is_detected_by_the_connection(proc: Path) -> None:
    (proc / "5" / "exe").unlink()
    (proc / "5" / "exe").symlink_to("/usr/sbin/dropbear (deleted)")
    assert read_ssh_access(str(proc), 9) == SshAccess((22,), (OWN_CONNECTION,))


def test_setuid_program_named_sshd_is_not_the_daemon(proc: Path) -> None:
    """The program has the effective user and the name, and the listening socket of whoever started it."""
    for ids, program in (("1000\t0\t0\t0", "su"), ("1000\t0\t0\t0", "sshd"), ("0\t0\t0\t0", "su")):
        (proc / "5" / "status").write_text(f"Name:\tsshd\nUid:\t{ids}\n")
        (proc / "5" / "exe").unlink()
        (proc / "5" / "exe").symlink_to(f"/usr/sbin/{program}")
        assert read_ssh_access(str(proc), 9) == SshAccess((22,), (OWN_CONNECTION,))


def test_process_without_login_has_no_connection(proc: Path) -> None:
    write_process(proc, 10, 1, "python3", [])
    assert read_ssh_access(str(proc), 10) == SshAccess((22, 0x5708), ())


def test_connections_above_the_login_are_ignored(proc: Path) -> None:
    """A service that PID 1 starts for each connection, and a web server in whose terminal Ansible was started."""
    lines = (proc / "net" / "tcp").read_text()
    more = [("5708", "090200C0", "01", 300), ("5708", "0A0200C0", "01", 301)]
    for port, remote, state, inode in more:
        lines += f"  0: 00000000:{port} {remote}:D1F2 {state} 0:0 0:0 0 0 0 {inode} 4\n"
    (proc / "net" / "tcp").write_text(lines)
    (proc / "1" / "fd" / "9").symlink_to("socket:[300]")
    (proc / "5" / "fd" / "9").symlink_to("socket:[301]")
    assert read_ssh_access(str(proc), 9).own_connections == (OWN_CONNECTION,)
    write_process(proc, 10, 1, "python3", [])
    assert read_ssh_access(str(proc), 10).own_connections == ()


def test_local_connection_needs_no_port(proc: Path) -> None:
    lines = (proc / "net" / "tcp").read_text()
    (proc / "net" / "tcp").write_text(lines.replace("00000000:0016 070200C0", "070200C0:0016 070200C0"))
    assert read_ssh_access(str(proc), 9) == SshAccess((22, 0x5708))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an SSH server would accept a user, compared with what a real one does."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust import server

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")
ROOT = server.Account(0, "/root", True, ["root"])
OURS = "127.0.0.0/8"
# The last two if the key was accepted, but lacks a forced command.
REFUSED = ("Permission denied", "closed by remote host", "Broken pipe")

needs_sshd = pytest.mark.skipif(SSHD is None, reason="there is no sshd here")


class Site:
    """A server with a configuration, and a key that it accepts."""

    def __init__(self, folder: Path, text: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.login = server.Login("localhost", "127.0.0.1", "127.0.0.1", self.port)
        self.key, self.known, self.config = folder / "key", folder / "known", folder / "sshd_config"
        for path in (self.key, folder / "host"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)])
        self.known.write_text(f"[127.0.0.1]:{self.port} {(folder / 'host.pub').read_text()}")
        (folder / ".ssh").mkdir()
        shutil.copyfile(f"{self.key}.pub", folder / ".ssh" / "authorized_keys")
        self.config.write_text(
            f"HostKey {folder}/host\nListenAddress 127.0.0.1\nPort {self.port}\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/.ssh/authorized_keys\n{text.format(port=self.port)}\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)

    def reasons(self, user: str = "root", account: server.Account = ROOT) -> list[str]:
        def asked(argv: list[str], **options: Any) -> Completed:
            return run([argv[0], "-f", str(self.config), *argv[1:]], **options)

        return server.refusals(user, account, server.look(asked, user, self.login), self.login)

    def accepts(self) -> bool:
        options = ["-oBatchMode=yes", f"-oUserKnownHostsFile={self.known}", f"-oPort={self.port}"]
        login = ["ssh", "-F", "none", *options, "-i", str(self.key), "root@127.0.0.1", "true"]
        with subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(self.config)], stderr=subprocess.DEVNULL) as daemon:
            try:
                end = time.monotonic() + 10
                while "Connection refused" in (done := run(login, check=False)).stderr:
                    assert time.monotonic() < end, done.stderr
                    time.sleep(0.1)
                assert done.rc == 0 or any(words in done.stderr for words in REFUSED), done.stderr
                return done.rc == 0
            finally:
                daemon.terminate()


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Callable[[str], Site]:
    return lambda text: Site(tmp_path, text)


@needs_sshd
@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("", ""),
        ("PermitRootLogin no", "PermitRootLogin no"),
        (f"PermitRootLogin no\nMatch Address {OURS}\nPermitRootLogin prohibit-password", ""),
        ("PermitRootLogin forced-commands-only", "PermitRootLogin forced-commands-only"),
        ("PubkeyAuthentication no", "PubkeyAuthentication"),
        ("Match User root\nPubkeyAuthentication no", "PubkeyAuthentication"),
        (f"Match Address {OURS}\nPubkeyAuthentication no", "PubkeyAuthentication"),
        ("Match LocalPort {port} LocalAddress 127.0.0.1\nAllowUsers admin", "AllowUsers"),
        ("Match LocalPort 1\nAllowUsers admin", ""),
        ("Match RDomain vrf1\nAllowUsers admin", ""),
        ("AllowUsers admin", "AllowUsers"),
        (f"AllowUsers admin r?ot@{OURS}", ""),
        ("AllowUsers root@10.0.0.0/8 root@n2", "AllowUsers"),
        ("AllowUsers root@10.0.0.0/8,127.0.*", ""),
        ("AllowUsers root@!127.0.0.1,*", "AllowUsers"),
        ("AllowUsers r[o]ot", "AllowUsers"),
        ("DenyUsers admin ro*", "DenyUsers"),
        # Without UseDNS, the server does not look for the name of a client.
        ("DenyUsers root@localhost", ""),
        ("UseDNS yes\nDenyUsers root@LOCAL*", "DenyUsers"),
        ("AllowGroups admin", "AllowGroups"),
        ("AllowGroups admin r*", ""),
        ("DenyGroups root", "DenyGroups"),
        ("DenyGroups roo", ""),
        ("AuthenticationMethods publickey,password", "AuthenticationMethods"),
        ("AuthenticationMethods publickey,password publickey", ""),
    ],
)
def test_the_verdict_is_what_the_server_does(site: Callable[[str], Site], text: str, setting: str) -> None:
    here = site(text)
    reasons = here.reasons()
    assert [setting in reason for reason in reasons] == [True] * bool(setting)
    assert here.accepts() == (not setting)


@needs_sshd
def test_only_root_needs_to_be_permitted_as_root(site: Callable[[str], Site]) -> None:
    here = site("PermitRootLogin no")
    assert here.reasons("alice", ROOT._replace(uid=1000)) == []
    # Another name for root.
    assert here.reasons("toor") != []


def test_other_files_of_authorized_keys_are_refused_and_all_reasons_are_given() -> None:
    found = server.parse("pubkeyauthentication no\npermitrootlogin no\nauthorizedkeysfile /etc/keys/%u .ssh/keys\n")
    reasons = server.refusals("root", ROOT, found, server.Login("n2", "fd00::2", "fd00::1", 22))
    for reason, setting in zip(reasons, ("PubkeyAuthentication", "PermitRootLogin", "AuthorizedKeysFile"), strict=True):
        assert setting in reason


@pytest.mark.parametrize(
    ("pattern", "here"), [("fd00::/64", True), ("fd00::2", True), ("fd00::*", True), ("10.*", False)]
)
def test_addresses_of_ipv6_match(pattern: str, here: bool) -> None:
    found = server.parse(
        f"pubkeyauthentication yes\nauthorizedkeysfile .ssh/authorized_keys\ndenyusers root@{pattern}\n"
    )
    reasons = server.refusals("root", ROOT, found, server.Login("n2", "fd00::2", "fd00::1", 22))
    assert bool(reasons) == here

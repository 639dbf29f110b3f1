# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an SSH server would accept a user, compared with what a real one does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust import server
from ansible_collections.gpumesh.cluster.tests.support.ssh_server import SSHD, SshServer

CONFIG = "sshd_config"
ROOT = server.Account(0, "/root", True, ["root"])
OURS = "127.0.0.0/8"
# The last two if the key was accepted, but lacks a forced command.
REFUSED = ("Permission denied", "closed by remote host", "Broken pipe")

needs_sshd = pytest.mark.skipif(SSHD is None, reason="there is no sshd here")


class Site:
    """A server with a configuration, and a key that it accepts."""

    def __init__(self, folder: Path, text: str, daemon: SshServer) -> None:
        self.port = daemon.port
        self.key, self.known, self.config = folder / "key", folder / "known", folder / CONFIG
        for path in (self.key, folder / "host"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)])
        self.known.write_text(f"[127.0.0.1]:{self.port} {(folder / 'host.pub').read_text()}")
        (folder / ".ssh").mkdir()
        shutil.copyfile(f"{self.key}.pub", folder / ".ssh" / "authorized_keys")
        self.config.write_text(
            f"HostKey {folder}/host\nListenAddress 127.0.0.1\nPort {self.port}\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/.ssh/authorized_keys\n{text.format(port=self.port, folder=folder)}\n"
        )

    def run(self, argv: list[str], **options: Any) -> Completed:
        return run([argv[0], "-f", str(self.config), *argv[1:]], **options)

    def refusals(
        self, user: str = "root", account: server.Account = ROOT, sources: Sequence[str] = ("127.0.0.1",)
    ) -> dict[str, list[str]]:
        logins = [server.Login("localhost", address, "127.0.0.1", self.port) for address in sources]
        answers = server.look(self.run, user, logins, server.criteria(self.run))
        return {
            login.peer_address: server.refusals(user, account, answer.server, login)
            for answer in answers
            for login in answer.logins
        }

    def reasons(self, user: str = "root", account: server.Account = ROOT) -> list[str]:
        return self.refusals(user, account)["127.0.0.1"]

    def accepts(self, source: str = "127.0.0.1") -> bool:
        options = ["-oBatchMode=yes", f"-oUserKnownHostsFile={self.known}", f"-oPort={self.port}", f"-b{source}"]
        login = ["ssh", "-F", "none", *options, "-i", str(self.key), "root@127.0.0.1", "true"]
        done = run(login, check=False, timeout=300)
        assert done.rc == 0 or any(words in done.stderr for words in REFUSED), done.stderr
        return done.rc == 0


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Iterator[Callable[[str], Site]]:
    with SshServer(tmp_path / CONFIG) as daemon:
        yield lambda text: Site(tmp_path, text, daemon)


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


SOURCES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@needs_sshd
@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("", []),
        ("Match Address 127.0.0.3\nAllowUsers admin", ["127.0.0.3"]),
        ("Match User root Address 127.0.0.0/30,!127.0.0.1\nPubkeyAuthentication no", ["127.0.0.2", "127.0.0.3"]),
        ('match  host="*.3,gone"\nPubkeyAuthentication no', ["127.0.0.3"]),
        ("Match LocalPort {port}\nInclude {folder}/more", ["127.0.0.2"]),
        ("LogLevel QUIET\nInclude {folder}/more", ["127.0.0.2"]),
        # What one line of the whole configuration says about several members.
        ("AllowUsers root@127.0.0.1 root@127.0.0.3", ["127.0.0.2"]),
        ("DenyUsers root@127.0.0.2/31", ["127.0.0.2", "127.0.0.3"]),
    ],
)
def test_members_that_the_server_treats_differently(
    tmp_path: Path, site: Callable[[str], Site], text: str, refused: list[str]
) -> None:
    (tmp_path / "more").write_text("Match Address 127.0.0.2\nPubkeyAuthentication no\n")
    here = site(text)
    found = here.refusals(sources=SOURCES)
    assert sorted(found) == sorted(SOURCES)
    assert [source for source in SOURCES if found[source]] == refused
    assert [source for source in SOURCES if not here.accepts(source)] == refused


def asked_about(matches: Sequence[str], use_dns: bool = False, members: int = 1000) -> tuple[list[str], int]:
    """The clients about which a server with these Match blocks is queried, and how many members the answers cover."""
    logins = [server.Login(f"n{n}", f"10.0.{n // 250}.{n % 250}", "10.9.0.1", 22) for n in range(members)]
    asked = []

    def sshd(argv: list[str], **_options: Any) -> Completed:
        if "-T" not in argv:
            return Completed(
                0, "", "".join(f"debug3: checking syntax for 'Match {text}' on line 7\r\n" for text in matches)
            )
        asked.append(argv[-1].split(",")[1])
        return Completed(0, f"pubkeyauthentication yes\nusedns {'yes' if use_dns else 'no'}\n", "")

    answers = server.look(sshd, "root", logins, server.criteria(sshd))
    return asked, sum(len(answer.logins) for answer in answers)


def test_one_question_is_enough_for_members_that_no_match_block_distinguishes() -> None:
    for matches in ([], ["User host", "LocalAddress 10.0.0.0/8", "all", "Invalid-User", "Address 10.0.0.0/8"]):
        assert asked_about(matches) == (["host=10.0.0.0"], 1000)
    names = "User address,host Address 10.9.0.0/16"
    assert asked_about([names], use_dns=True) == (["host=10.0.0.0", "host=n0"], 1000)


def test_one_question_for_each_kind_of_members() -> None:
    assert asked_about(["Address 10.0.1.0/24,10.0.3.7", "address=10.0.2.0/24"]) == (
        ["host=10.0.0.0", "host=10.0.1.0", "host=10.0.2.0"],
        1000,
    )
    assert asked_about(["invalid-user Host n5"], use_dns=True) == (["host=10.0.0.0", "host=n0", "host=n5"], 1000)
    asked, covered = asked_about([f"Address 10.0.0.{n}" for n in range(100)])
    assert len(asked) == server.QUERIES
    assert 1 <= covered < 1000


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

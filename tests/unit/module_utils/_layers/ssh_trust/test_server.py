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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import server
from ansible_collections.gpumesh.cluster.tests.support.ssh_server import SSHD_PATH, SshServer

CONFIG = "sshd_config"
ROOT = server.UserAccount(0, "/root", True, ["root"])
LOOPBACK_NETWORK = "127.0.0.0/8"
# The last two if the key was accepted, but lacks a forced command.
REFUSAL_MESSAGES = ("Permission denied", "closed by remote host", "Broken pipe")

needs_sshd = pytest.mark.skipif(SSHD_PATH is None, reason="there is no sshd here")


class SshdSite:
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

    def run(self, argv: list[str], **options: Any) -> CommandResult:
        return run([argv[0], "-f", str(self.config), *argv[1:]], **options)

    def refusals(
        self, user: str = "root", account: server.UserAccount = ROOT, sources: Sequence[str] = ("127.0.0.1",)
    ) -> dict[str, list[str]]:
        logins = [server.PeerLogin("localhost", address, "127.0.0.1", self.port) for address in sources]
        answers = server.query_server(self.run, user, logins, server.read_match_criteria(self.run))
        return {
            login.peer_address: server.explain_refusals(user, account, answer.settings, login)
            for answer in answers
            for login in answer.logins
        }

    def reasons(self, user: str = "root", account: server.UserAccount = ROOT) -> list[str]:
        return self.refusals(user, account)["127.0.0.1"]

    def accepts(self, source: str = "127.0.0.1") -> bool:
        options = ["-oBatchMode=yes", f"-oUserKnownHostsFile={self.known}", f"-oPort={self.port}", f"-b{source}"]
        login = ["ssh", "-F", "none", *options, "-i", str(self.key), "root@127.0.0.1", "true"]
        done = run(login, check=False, timeout=300)
        assert done.rc == 0 or any(words in done.stderr for words in REFUSAL_MESSAGES), done.stderr
        return done.rc == 0


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Iterator[Callable[[str], SshdSite]]:
    with SshServer(tmp_path / CONFIG) as daemon:
        yield lambda text: SshdSite(tmp_path, text, daemon)


@needs_sshd
@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("", ""),
        ("PermitRootLogin no", "PermitRootLogin no"),
        (f"PermitRootLogin no\nMatch Address {LOOPBACK_NETWORK}\nPermitRootLogin prohibit-password", ""),
        ("PermitRootLogin forced-commands-only", "PermitRootLogin forced-commands-only"),
        ("PubkeyAuthentication no", "PubkeyAuthentication"),
        ("Match User root\nPubkeyAuthentication no", "PubkeyAuthentication"),
        (f"Match Address {LOOPBACK_NETWORK}\nPubkeyAuthentication no", "PubkeyAuthentication"),
        ("Match LocalPort {port} LocalAddress 127.0.0.1\nAllowUsers admin", "AllowUsers"),
        ("Match LocalPort 1\nAllowUsers admin", ""),
        ("Match RDomain vrf1\nAllowUsers admin", ""),
        ("AllowUsers admin", "AllowUsers"),
        (f"AllowUsers admin r?ot@{LOOPBACK_NETWORK}", ""),
        ("AllowUsers root@10.0.0.0/8 root@n2", "AllowUsers"),
        ("AllowUsers root@10.0.0.0/8,127.0.*", ""),
        ("AllowUsers root@!127.0.0.1,*", "AllowUsers"),
        ("AllowUsers r[o]ot", "AllowUsers"),
        ("DenyUsers admin ro*", "DenyUsers"),
        # The server does not look up the name of a client without UseDNS.
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
def test_refusals_match_the_server(site: Callable[[str], SshdSite], text: str, setting: str) -> None:
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
def test_match_blocks_distinguish_members(
    tmp_path: Path, site: Callable[[str], SshdSite], text: str, refused: list[str]
) -> None:
    (tmp_path / "more").write_text("Match Address 127.0.0.2\nPubkeyAuthentication no\n")
    here = site(text)
    found = here.refusals(sources=SOURCES)
    assert sorted(found) == sorted(SOURCES)
    assert [source for source in SOURCES if found[source]] == refused
    assert [source for source in SOURCES if not here.accepts(source)] == refused


def query_members(matches: Sequence[str], use_dns: bool = False, members: int = 1000) -> tuple[list[str], int]:
    """The clients about which a server with these Match blocks is queried, and how many members the answers cover."""
    logins = [server.PeerLogin(f"n{n}", f"10.0.{n // 250}.{n % 250}", "10.9.0.1", 22) for n in range(members)]
    asked = []

    def sshd(argv: list[str], **_options: Any) -> CommandResult:
        if "-T" not in argv:
            return CommandResult(
                0, "", "".join(f"debug3: checking syntax for 'Match {text}' on line 7\r\n" for text in matches)
            )
        asked.append(argv[-1].split(",")[1])
        return CommandResult(0, f"pubkeyauthentication yes\nusedns {'yes' if use_dns else 'no'}\n", "")

    answers = server.query_server(sshd, "root", logins, server.read_match_criteria(sshd))
    return asked, sum(len(answer.logins) for answer in answers)


def test_undistinguished_members_need_one_query() -> None:
    for matches in ([], ["User host", "LocalAddress 10.0.0.0/8", "all", "Invalid-User", "Address 10.0.0.0/8"]):
        assert query_members(matches) == (["host=10.0.0.0"], 1000)
    names = "User address,host Address 10.9.0.0/16"
    assert query_members([names], use_dns=True) == (["host=10.0.0.0", "host=n0"], 1000)


def test_one_query_for_each_kind_of_members() -> None:
    assert query_members(["Address 10.0.1.0/24,10.0.3.7", "address=10.0.2.0/24"]) == (
        ["host=10.0.0.0", "host=10.0.1.0", "host=10.0.2.0"],
        1000,
    )
    assert query_members(["invalid-user Host n5"], use_dns=True) == (["host=10.0.0.0", "host=n0", "host=n5"], 1000)
    asked, covered = query_members([f"Address 10.0.0.{n}" for n in range(100)])
    assert len(asked) == server.MAX_QUERIES
    assert 1 <= covered < 1000


@needs_sshd
def test_permit_root_login_applies_only_to_root(site: Callable[[str], SshdSite]) -> None:
    here = site("PermitRootLogin no")
    assert here.reasons("alice", ROOT._replace(uid=1000)) == []
    # Another name for root.
    assert here.reasons("toor") != []


def test_other_authorized_keys_files_are_refused() -> None:
    found = server.parse_sshd_settings(
        "pubkeyauthentication no\npermitrootlogin no\nauthorizedkeysfile /etc/keys/%u .ssh/keys\n"
    )
    reasons = server.explain_refusals("root", ROOT, found, server.PeerLogin("n2", "fd00::2", "fd00::1", 22))
    for reason, setting in zip(reasons, ("PubkeyAuthentication", "PermitRootLogin", "AuthorizedKeysFile"), strict=True):
        assert setting in reason


@pytest.mark.parametrize(
    ("pattern", "here"), [("fd00::/64", True), ("fd00::2", True), ("fd00::*", True), ("10.*", False)]
)
def test_ipv6_addresses_match(pattern: str, here: bool) -> None:
    found = server.parse_sshd_settings(
        f"pubkeyauthentication yes\nauthorizedkeysfile .ssh/authorized_keys\ndenyusers root@{pattern}\n"
    )
    reasons = server.explain_refusals("root", ROOT, found, server.PeerLogin("n2", "fd00::2", "fd00::1", 22))
    assert bool(reasons) == here


@pytest.mark.parametrize("version", ["9.2", "10.6"])
def test_settings_are_read_from_all_versions_of_the_server(version: str) -> None:
    # Recorded on Debian 12 and 14 with the same configuration: from 10.1 on, names are not in lower case.
    sshd_output = (Path(__file__).parent / "fixtures" / f"sshd-{version}.txt").read_text("ascii")
    assert server.parse_sshd_settings(sshd_output) == server.SshdSettings(
        use_dns=True,
        public_key_login=False,
        root_login="forced-commands-only",
        authentication_methods=["any"],
        deny_users=["mallory"],
        allow_users=["root", "alice@10.0.0.*"],
        deny_groups=["guests"],
        allow_groups=["root", "gpu"],
        authorized_keys_files=[".ssh/authorized_keys", "/etc/ssh/keys/%u"],
        host_key_files=["/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_rsa_key"],
    )

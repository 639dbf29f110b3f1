# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of ssh and ssh-keygen about a connection, and the resulting keys. tests/integration/ssh has real servers."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import paramiko
import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh import (
    examine,
    keys,
    known_hosts,
    settings,
    silence,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.causes import (
    CAUSES,
    SilentHostError,
    adapt_to_awx,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.silence import (
    Question,
    explain_unreachable_host,
)

ROOT = Path(__file__).resolve().parents[5]


def query_ssh(*arguments: str, host: str = "gpu1") -> settings.SshSettings:
    return settings.query_settings(["-F", "none", *arguments], host)


def test_the_first_of_several_arguments_applies() -> None:
    found = query_ssh("-oUser=me", "-oPort=77", "-oUser=other", '-oIdentityFile="/a b/key"', host="you@gpu1")
    assert (found.host, found.port, found.user, found.known_hosts_name) == ("gpu1", 77, "me", "[gpu1]:77")
    assert (found.key_files, found.proxy_command, found.jump_hosts) == (("/a b/key",), None, "")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("HostKeyAlias=front", {"known_hosts_name": "front"}),
        ("StrictHostKeyChecking=off", {"strict_checking": "no"}),
        ("StrictHostKeyChecking=yes", {"strict_checking": "yes"}),
        ("StrictHostKeyChecking=accept-new", {"strict_checking": "accept-new"}),
        ("IdentitiesOnly=yes", {"identities_only": True}),
        ("IdentityAgent=none", {"agent_socket": ""}),
        ("IdentityAgent=/run/agent", {"agent_socket": "/run/agent"}),
        ("UserKnownHostsFile=/dev/null", {"known_hosts": ("/dev/null", "/k")}),
        ("ProxyCommand=nc -X 5 %h %p 100%%", {"proxy_command": "nc -X 5 gpu1 22 100%"}),
        ("ProxyCommand=none", {"proxy_command": None}),
    ],
)
def test_ssh_options_are_parsed(option: str, expected: dict[str, Any]) -> None:
    found = query_ssh("-o", option, "-oGlobalKnownHostsFile=/k")._asdict()
    assert {name: found[name] for name in expected} == expected


def test_the_last_of_several_jump_hosts_forwards() -> None:
    found = settings.query_settings(["-F", "/dev/null", "-J", "a@j1,b@j2:2222"], "gpu1")
    assert found.jump_hosts == "a@j1,b@j2:2222"
    assert found.proxy_command is not None and found.proxy_command.endswith(
        "-F /dev/null -J a@j1 -W '[gpu1]:22' -- ssh://b@j2:2222"
    )


def test_an_error_of_ssh_is_reported() -> None:
    with pytest.raises(SilentHostError, match="nosuch") as refused:
        query_ssh("-oNoSuch=1")
    assert refused.value.cause == "configuration"


def make_key(path: Path, passphrase: str = "") -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().split()[1]


def test_known_hosts_are_matched_in_the_same_way_as_by_ssh(tmp_path: Path) -> None:
    one, other = make_key(tmp_path / "one"), make_key(tmp_path / "other")
    file = tmp_path / "known"
    file.write_text(f"# a comment\n*.example.com,!b.example.com ssh-ed25519 {one}\n@revoked * ssh-ed25519 {other}\n")

    def verdict(name: str, key: str) -> str:
        return known_hosts.judge_key(known_hosts.find_entries(name, [str(file), "/nowhere"]), "ssh-ed25519", key)

    assert [verdict("a.example.com", key) for key in (one, other, "else")] == ["known", "revoked", "changed"]
    assert [verdict("b.example.com", key) for key in (one, other)] == ["unknown", "revoked"]
    assert known_hosts.find_entries("a.example.com", [str(file)])[0].line == 2
    subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=False, capture_output=True)
    assert verdict("b.example.com", other) == "revoked"
    # A host with a key of another type is not proven to be a different one.
    assert (
        known_hosts.judge_key([known_hosts.KnownHostEntry("f", 1, "", "ssh-rsa", "x")], "ssh-ed25519", one) == "unknown"
    )
    # Whether the host has a certificate of this authority cannot be seen.
    authority = known_hosts.KnownHostEntry("f", 1, "@cert-authority", "ssh-ed25519", "x")
    assert known_hosts.judge_key([authority], "ssh-ed25519", one) == "known"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    socket = tmp_path / "agent_socket"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as running:
        while not socket.exists():
            time.sleep(0.02)
        yield str(socket)
        running.kill()


def test_keys_are_offered_in_the_order_of_ssh(tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    for name in ("plain", "held", "stray", "readable"):
        make_key(tmp_path / name)
    make_key(tmp_path / "locked", "a passphrase")
    (tmp_path / "readable").chmod(0o644)
    (tmp_path / "damaged").write_text("no key")
    (tmp_path / "damaged").chmod(0o600)
    for name in ("stray", "held"):
        subprocess.run(["ssh-add", "-q", str(tmp_path / name)], check=True)
    files = [str(tmp_path / name) for name in ("plain", "held", "readable", "locked", "damaged", "missing", "default")]
    wanted = query_ssh(*(f"-oIdentityFile={file}" for file in files))
    with keys.load_agent_keys(wanted.agent_socket) as in_agent:
        found = keys.gather_keys(wanted, files[5], in_agent)
        alone = keys.gather_keys(wanted._replace(identities_only=True), "", in_agent)
    names = [re.sub(r".*/", "", offer.description) for offer in found.offers]
    assert names[0] == "held (agent)" and names[-1] == "plain" and len(names) == 3
    causes = [why.cause for why in found.unusable]
    assert causes == ["key_ignored", "key_encrypted", "key_ignored", "key_missing"]
    assert [re.sub(r".*/", "", offer.description) for offer in alone.offers] == ["held (agent)", "plain"]


def test_without_an_agent_only_key_files_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    for socket in ("", "/nowhere"):
        with keys.load_agent_keys(socket) as in_agent:
            assert in_agent == []


def test_without_paramiko_the_remedy_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "_HAS_PARAMIKO", False)
    why = examine.examine(Question("127.0.0.1"))
    assert why.cause == "not_checked" and "-m pip install 'paramiko>=" in why.remedy


def test_an_outdated_paramiko_is_reported(tmp_path: Path) -> None:
    (tmp_path / "paramiko.py").write_text("class PKey:\n    pass\n")
    code = (
        "from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh import examine, silence\n"
        "print(examine.examine(silence.Question('127.0.0.1', ('-F', 'none', '-p', '1'))).message)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert "3.2 or later" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("entry", "options", "cause"),
    [
        ("[gpu1]:2222 {one}", (), None),
        ("gpu1 {one}", (), None),
        ("gpu1 {other}", (), "host_key_unknown"),
        ("gpu2 {one}", (), "host_key_unknown"),
        ("[gpu1]:2222 {other}\ngpu1 {one}", (), "host_key_changed"),
        ("gpu1 {one}", ("-oHostKeyAlias=front",), "host_key_unknown"),
    ],
)
def test_a_host_key_that_is_known_without_the_port(
    tmp_path: Path, entry: str, options: tuple[str, ...], cause: str | None
) -> None:
    held = {name: f"ssh-ed25519 {make_key(tmp_path / name)}" for name in ("one", "other")}
    (tmp_path / "known").write_text(f"{entry.format(**held)}\n")
    files = (f"-oUserKnownHostsFile={tmp_path}/known", "-oGlobalKnownHostsFile=/dev/null")
    strict = ("-oStrictHostKeyChecking=yes", "-p", "2222")
    examination = examine.HostExamination(Question("gpu1", ("-F", "none", *files, *strict, *options)))

    class Server:
        def get_remote_server_key(self) -> paramiko.PKey:
            return paramiko.PKey.from_path(tmp_path / "one")

    refused = pytest.raises(SilentHostError) if cause else contextlib.nullcontext()
    with refused as why:
        examination._compare_host_key(cast(Any, Server()))
    assert why is None or why.value.cause == cause


def test_a_failing_examination_is_reported_as_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "_EXAMINE_PROGRAM", "no_such_program")
    why = explain_unreachable_host(Question("127.0.0.1"))
    assert why["cause"] == "not_checked" and "no_such_program" in why["message"]


def test_a_hanging_examination_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "_EXAMINE_PROGRAM", "timeit")
    monkeypatch.setattr(silence, "TIME_LIMIT", -4.9)
    assert explain_unreachable_host(Question("127.0.0.1"))["cause"] == "not_checked"


def test_the_examination_runs_in_a_separate_process() -> None:
    why = explain_unreachable_host(Question("127.0.0.1", ("-F", "none", "-p", "1")))
    assert (why["cause"], why["kind"]) == ("refused", "silent_host")


def test_the_guide_explains_each_cause() -> None:
    guide = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    part = guide[guide.index("### A host is unreachable") : guide.index("### No network is shared")]
    assert re.findall(r"^\| `([a-z_]+)`", part, re.MULTILINE) == list(CAUSES)
    folder = ROOT / "plugins" / "plugin_utils" / "_core" / "ssh"
    sources = "".join(path.read_text() for path in folder.glob("*.py") if path.stem != "causes")
    assert [cause for cause in CAUSES if f'"{cause}"' not in sources] == []


@pytest.mark.parametrize("cause", ["host_key_unknown", "host_key_changed", "no_key", "key_refused"])
def test_in_awx_keys_are_in_credentials(cause: str) -> None:
    error = SilentHostError(cause, "It does not answer.", "Run ssh-keygen -R 10.0.0.1.").to_result()
    adapted = adapt_to_awx(error)
    assert "credential" in adapted["remedy"] and "ssh-keygen" not in adapted["remedy"]
    assert {**adapted, "remedy": ""} == {**error, "remedy": ""}


def test_in_awx_other_remedies_stay() -> None:
    error = SilentHostError("refused", "It does not answer.", "Start its SSH server.").to_result()
    assert adapt_to_awx(error) == error

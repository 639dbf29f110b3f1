# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are silent for every reason that there is: real servers and links, one run of Ansible for all of them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh import examine
from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Host, Network, call, network

MUTE = "import socket, time; s = socket.create_server(('', 22)); time.sleep(600)"
CLOSING = "import socket\ns = socket.create_server(('', 22))\nwhile True: s.accept()[0].close()"
HTTP = "import http.server as h; h.HTTPServer(('', 22), h.BaseHTTPRequestHandler).serve_forever()"
#: The additional lines in each server's configuration.
SERVERS = {
    1: "",
    2: "MaxAuthTries 2",
    3: "PubkeyAuthentication no",
    4: "AuthenticationMethods publickey,publickey",
    5: "ForceCommand echo nobody works here; exit 1",
    10: "MaxStartups 1",
}
#: The server that allows a single login at a time.
CROWDED = 10
PROGRAMS = {6: MUTE, 7: CLOSING, 8: HTTP}
DROPPING = 9
NOBODY = "10.50.0.99"


class Place:
    """A controller and servers of every kind."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.folder = folder
        for name in ("key", "other", "third", "fourth", "host_key", "old_host_key", "readable"):
            self._make(name)
        self._make("locked", "a passphrase")
        (folder / "readable").chmod(0o644)
        self.controller = net.add("ctl")
        net.plug(self.controller, address="10.50.0.250/24")
        self.servers = {number: net.member(number) for number in range(1, CROWDED + 1)}
        Path("/run/sshd").mkdir(exist_ok=True)
        for number, more in SERVERS.items():
            self._serve(self.servers[number], more)
        self.programs = [
            subprocess.Popen(self.servers[number].command(sys.executable, "-c", program), stderr=subprocess.DEVNULL)
            for number, program in PROGRAMS.items()
        ]
        self.servers[DROPPING].nft("table inet f { chain in { type filter hook input priority 0; policy drop; }; }")
        for name, key in (("known", "host_key"), ("changed", "old_host_key")):
            public = " ".join((folder / f"{key}.pub").read_text().split()[:2])
            (folder / name).write_text("".join(f"{host.address} {public}\n" for host in self.servers.values()))
        (folder / "empty").touch()
        self._await()

    def _make(self, name: str, passphrase: str = "") -> None:
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(self.folder / name))

    def _serve(self, server: Host, more: str) -> None:
        configuration = self.folder / f"sshd_{server.machine}"
        configuration.write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nPermitRootLogin yes\nUseDNS no\nListenAddress 0.0.0.0\nMaxStartups 200\n{more}\n"
        )
        server.within("/usr/sbin/sshd", "-f", str(configuration))

    def _await(self) -> None:
        for number in (*SERVERS, *PROGRAMS):
            for _try in range(1000):
                argv = ["ip", "netns", "exec", self.controller.namespace, "nc", "-z", f"10.50.0.{number}", "22"]
                if subprocess.run(argv, check=False).returncode == 0:
                    break
                time.sleep(0.1)

    def host(self, number: int = 1, key: str = "key", known: str = "known", more: str = "", **others: Any) -> Any:
        """Return the variables of a host, which is reachable by default."""
        arguments = f"-o UserKnownHostsFile={self.folder / known} -o GlobalKnownHostsFile=none {more}"
        return {
            "ansible_host": f"10.50.0.{number}",
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / key),
            "ansible_ssh_common_args": arguments.strip(),
            "ansible_python_interpreter": "/usr/bin/python3",
            **others,
        }

    def run(self, hosts: dict[str, Any], callback: str = "ansible.posix.json", **more: Any) -> tuple[str, int]:
        """Run the first task of our plays on these hosts. Returns what it printed, and the exit status."""
        (self.folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        task = {"gpumesh.cluster.interface_info": None, "name": "Look", **more}
        (self.folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
        (self.folder / "ansible.cfg").touch()
        environment = {
            **{name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"},
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": callback,
            "ANSIBLE_FORKS": "40",
            "ANSIBLE_TIMEOUT": "12",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
        }
        argv = ["ip", "netns", "exec", self.controller.namespace, str(Path(sys.executable).parent / "ansible-playbook")]
        argv += ["-i", str(self.folder / "hosts.json"), str(self.folder / "play.json")]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr, done.returncode

    def examine(self, number: int, known: str = "known", password: bool = False) -> dict[str, Any]:
        """Run the examination alone."""
        arguments = ["-F", "none", "-i", f"{self.folder}/other", "-o", f"UserKnownHostsFile={self.folder / known}"]
        question = {"host": f"root@10.50.0.{number}", "arguments": arguments, "password": password}
        argv = ["ip", "netns", "exec", self.controller.namespace, sys.executable, "-m", examine.__name__]
        answer: dict[str, Any] = json.loads(call(*argv, stdin=json.dumps(question)))
        return answer

    def end(self) -> None:
        for program in self.programs:
            program.kill()
            program.wait()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with network() as made:
        place = Place(made, tmp_path_factory.mktemp("silent"))
        yield place
        place.end()


def inventory(place: Place) -> dict[str, Any]:
    """Return hosts that are named after the cause for which they are silent."""
    folder = place.folder
    wrong = " ".join(f"-o IdentityFile={folder}/{name}" for name in ("third", "fourth"))
    jump = shlex.join(
        ["ssh", "-i", f"{folder}/key", "-o", f"UserKnownHostsFile={folder}/known", "-W", "%h:%p", "root@10.50.0.1"]
    )
    through = f"-o {shlex.quote(f'ProxyCommand={jump}')}"
    broken = folder / "broken_ssh"
    # The program reads all of its input first: otherwise, Ansible would report a broken pipe instead of its message.
    broken.write_text("#!/bin/sh\ncat > /dev/null\necho 'mux_client: somebody else stands in the way' >&2\nexit 255\n")
    broken.chmod(0o755)
    hosts = {
        "fine": place.host(),
        "configuration": place.host(more="-o NoSuchOption=yes"),
        "name": place.host(ansible_host="gpu9.invalid"),
        "no_route": place.host(ansible_host=NOBODY),
        "no_answer": place.host(DROPPING),
        "refused": place.host(ansible_port=2222),
        "jump_host": place.host(ansible_host=NOBODY, more=through),
        "turned_away": place.host(7),
        "no_banner": place.host(6),
        "not_ssh": place.host(8),
        "host_key_unknown": place.host(known="empty"),
        "host_key_changed": place.host(known="changed"),
        "no_key": place.host(key="", ansible_ssh_private_key_file="", more="-o IdentityFile=/nowhere/key"),
        "key_missing": place.host(key="missing"),
        "key_ignored": place.host(key="readable"),
        "key_encrypted": place.host(key="locked"),
        "key_refused": place.host(key="other"),
        "too_many_keys": place.host(2, key="other", more=wrong),
        "second_factor": place.host(4),
        "password_wanted": place.host(3),
        "shell": place.host(5),
        "no_python": place.host(ansible_python_interpreter="/opt/none/python3"),
        "no_sudo": place.host(ansible_become=True, ansible_become_user="daemon", ansible_become_exe="/opt/none/sudo"),
        "answers": place.host(ansible_ssh_executable=str(broken)),
        "key_refused_behind_jump_host": place.host(2, key="other", more=through),
    }
    # Hosts with one address, port and user share a connection in Ansible: whoever comes late would use the key of
    # another.
    return {name: {**host, "ansible_control_path": f"%(directory)s/{name}"} for name, host in hosts.items()}


@pytest.fixture(scope="module")
def results(place: Place) -> dict[str, Any]:
    begin = time.monotonic()
    printed, _status = place.run(inventory(place), ignore_unreachable=True)
    print(f"{time.monotonic() - begin:.1f} s")
    found: dict[str, Any] = json.loads(printed[printed.index("{\n") : printed.rindex("}") + 1])
    hosts: dict[str, Any] = found["plays"][0]["tasks"][0]["hosts"]
    return hosts


def test_each_host_says_why_it_is_silent(results: dict[str, Any]) -> None:
    for host, result in results.items():
        print(f"{host}: {result.get('msg')}\n    Ansible: {' '.join(str(result.get('said')).split())[:200]}")
    causes = {host: result["error"]["cause"] for host, result in results.items() if "error" in result}
    assert causes == {host: host.removesuffix("_behind_jump_host") for host in results if host != "fine"}
    assert "interfaces" in results["fine"]
    assert all(results[host]["msg"].endswith(results[host]["error"]["remedy"]) for host in causes)


def test_those_that_ansible_reaches_have_failed_and_the_others_are_unreachable(results: dict[str, Any]) -> None:
    unreachable = {host for host, result in results.items() if result.get("unreachable")}
    assert results.keys() - unreachable == {"fine", "shell", "no_python", "no_sudo"}


def test_keys_users_and_fingerprints_are_named(place: Place, results: dict[str, Any]) -> None:
    error = results["key_refused"]["error"]
    assert (error["user"], error["keys"]) == ("root", [str(place.folder / "other")])
    fingerprint = call("ssh-keygen", "-lf", str(place.folder / "host_key.pub")).split()[1]
    assert fingerprint in results["host_key_changed"]["msg"]
    assert f"line 1 of {place.folder / 'changed'}" in results["host_key_changed"]["msg"]
    assert "somebody else stands in the way" in results["answers"]["msg"]
    assert "/usr/bin/python3" in results["no_python"]["error"]["remedy"]


def test_when_all_are_silent_it_is_said_too(place: Place) -> None:
    hosts = {name: value for name, value in inventory(place).items() if name in ("refused", "key_refused")}
    printed, status = place.run(hosts, "gpumesh.cluster.progress")
    assert status == 4
    assert "nothing listens on port 2222" in printed and "→ Start its SSH server" in printed, printed


def test_a_password_that_is_not_taken(place: Place) -> None:
    """The examination does not send the password: Ansible has done so."""
    assert place.examine(3, password=True)["cause"] == "password_refused"


def test_a_revoked_key(place: Place) -> None:
    public = (place.folder / "host_key.pub").read_text()
    (place.folder / "revoked").write_text(f"@revoked * {public}")
    assert place.examine(1, "revoked")["cause"] == "host_key_revoked"


def test_a_server_with_too_many_logins(place: Place) -> None:
    waiting = ["ip", "netns", "exec", place.controller.namespace, "nc", f"10.50.0.{CROWDED}", "22"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as login:
        assert login.stdout is not None and login.stdout.read(3) == b"SSH"
        error = place.examine(CROWDED)
        login.kill()
    assert error["cause"] == "turned_away"
    assert "Exceeded MaxStartups" in error["message"]

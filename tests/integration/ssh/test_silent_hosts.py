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
from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import (
    NamespaceHost,
    NamespaceNetwork,
    create_network,
    run_checked,
)

MUTE_PROGRAM = "import socket, time; s = socket.create_server(('', 22)); time.sleep(600)"
CLOSING_PROGRAM = "import socket\ns = socket.create_server(('', 22))\nwhile True: s.accept()[0].close()"
HTTP_PROGRAM = "import http.server as h; h.HTTPServer(('', 22), h.BaseHTTPRequestHandler).serve_forever()"
#: The additional lines in each server's configuration.
SSHD_OPTIONS = {
    1: "",
    2: "MaxAuthTries 2",
    3: "PubkeyAuthentication no",
    4: "AuthenticationMethods publickey,publickey",
    5: "ForceCommand echo nobody works here; exit 1",
    10: "MaxStartups 1",
}
#: The server that allows a single login at a time.
CROWDED_SERVER = 10
SERVER_PROGRAMS = {6: MUTE_PROGRAM, 7: CLOSING_PROGRAM, 8: HTTP_PROGRAM}
DROPPING_SERVER = 9
UNUSED_ADDRESS = "10.50.0.99"


class SilentServers:
    """A controller and servers of every kind."""

    def __init__(self, network: NamespaceNetwork, directory: Path) -> None:
        self.directory = directory
        for name in ("key", "other", "third", "fourth", "host_key", "old_host_key", "readable"):
            self._create_key(name)
        self._create_key("locked", "a passphrase")
        (directory / "readable").chmod(0o644)
        self.controller = network.add_host("ctl")
        network.connect_host(self.controller, address="10.50.0.250/24")
        self.servers = {number: network.add_member(number) for number in range(1, CROWDED_SERVER + 1)}
        Path("/run/sshd").mkdir(exist_ok=True)
        for number, extra_options in SSHD_OPTIONS.items():
            self._start_sshd(self.servers[number], extra_options)
        self.server_processes = [
            subprocess.Popen(
                self.servers[number].build_command(sys.executable, "-c", program), stderr=subprocess.DEVNULL
            )
            for number, program in SERVER_PROGRAMS.items()
        ]
        self.servers[DROPPING_SERVER].nft(
            "table inet f { chain in { type filter hook input priority 0; policy drop; }; }"
        )
        for name, key in (("known", "host_key"), ("changed", "old_host_key")):
            public = " ".join((directory / f"{key}.pub").read_text().split()[:2])
            (directory / name).write_text("".join(f"{host.address} {public}\n" for host in self.servers.values()))
        (directory / "empty").touch()
        self._await_servers()

    def _create_key(self, name: str, passphrase: str = "") -> None:
        run_checked("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(self.directory / name))

    def _start_sshd(self, server: NamespaceHost, extra_options: str) -> None:
        configuration = self.directory / f"sshd_{server.machine}"
        configuration.write_text(
            f"HostKey {self.directory}/host_key\nAuthorizedKeysFile {self.directory}/key.pub\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nPermitRootLogin yes\nUseDNS no\nListenAddress 0.0.0.0\nMaxStartups 200\n{extra_options}\n"
        )
        server.run_as_host("/usr/sbin/sshd", "-f", str(configuration))

    def _await_servers(self) -> None:
        for number in (*SSHD_OPTIONS, *SERVER_PROGRAMS):
            for _attempt in range(1000):
                argv = ["ip", "netns", "exec", self.controller.namespace, "nc", "-z", f"10.50.0.{number}", "22"]
                if subprocess.run(argv, check=False).returncode == 0:
                    break
                time.sleep(0.1)

    def host_variables(
        self,
        number: int = 1,
        key: str = "key",
        known_hosts: str = "known",
        ssh_options: str = "",
        **extra_variables: Any,
    ) -> Any:
        """Return the variables of a host, which is reachable by default."""
        arguments = f"-o UserKnownHostsFile={self.directory / known_hosts} -o GlobalKnownHostsFile=none {ssh_options}"
        return {
            "ansible_host": f"10.50.0.{number}",
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.directory / key),
            "ansible_ssh_common_args": arguments.strip(),
            "ansible_python_interpreter": "/usr/bin/python3",
            **extra_variables,
        }

    def run_first_task(
        self, hosts: dict[str, Any], callback: str = "ansible.posix.json", **task_options: Any
    ) -> tuple[str, int]:
        """Run the first task of our plays on these hosts. Returns what it printed, and the exit status."""
        (self.directory / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        task = {"gpumesh.cluster.interface_info": None, "name": "Look", **task_options}
        (self.directory / "play.json").write_text(
            json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}])
        )
        (self.directory / "ansible.cfg").touch()
        environment = {
            **{name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"},
            "ANSIBLE_CONFIG": str(self.directory / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": callback,
            "ANSIBLE_FORKS": "40",
            "ANSIBLE_TIMEOUT": "12",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_HOME": str(self.directory / "home"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.directory / "cp"),
        }
        argv = ["ip", "netns", "exec", self.controller.namespace, str(Path(sys.executable).parent / "ansible-playbook")]
        argv += ["-i", str(self.directory / "hosts.json"), str(self.directory / "play.json")]
        completed = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        return completed.stdout + completed.stderr, completed.returncode

    def examine_host(self, number: int, known_hosts: str = "known", password: bool = False) -> dict[str, Any]:
        """Run the examination alone."""
        arguments = [
            "-F",
            "none",
            "-i",
            f"{self.directory}/other",
            "-o",
            f"UserKnownHostsFile={self.directory / known_hosts}",
        ]
        question = {"host": f"root@10.50.0.{number}", "arguments": arguments, "password": password}
        argv = ["ip", "netns", "exec", self.controller.namespace, sys.executable, "-m", examine.__name__]
        answer: dict[str, Any] = json.loads(run_checked(*argv, stdin=json.dumps(question)))
        return answer

    def end(self) -> None:
        for program in self.server_processes:
            program.kill()
            program.wait()


@pytest.fixture(scope="module")
def silent_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SilentServers]:
    with create_network() as namespace_network:
        servers = SilentServers(namespace_network, tmp_path_factory.mktemp("silent"))
        yield servers
        servers.end()


def silent_inventory(silent_servers: SilentServers) -> dict[str, Any]:
    """Return hosts that are named after the cause for which they are silent."""
    directory = silent_servers.directory
    wrong_keys = " ".join(f"-o IdentityFile={directory}/{name}" for name in ("third", "fourth"))
    jump_command = shlex.join(
        [
            "ssh",
            "-i",
            f"{directory}/key",
            "-o",
            f"UserKnownHostsFile={directory}/known",
            "-W",
            "%h:%p",
            "root@10.50.0.1",
        ]
    )
    jump_options = f"-o {shlex.quote(f'ProxyCommand={jump_command}')}"
    broken_ssh = directory / "broken_ssh"
    # The program reads all of its input first: otherwise, Ansible would report a broken pipe instead of its message.
    broken_ssh.write_text(
        "#!/bin/sh\ncat > /dev/null\necho 'mux_client: somebody else stands in the way' >&2\nexit 255\n"
    )
    broken_ssh.chmod(0o755)
    hosts = {
        "fine": silent_servers.host_variables(),
        "configuration": silent_servers.host_variables(ssh_options="-o NoSuchOption=yes"),
        "name": silent_servers.host_variables(ansible_host="gpu9.invalid"),
        "no_route": silent_servers.host_variables(ansible_host=UNUSED_ADDRESS),
        "no_answer": silent_servers.host_variables(DROPPING_SERVER),
        "refused": silent_servers.host_variables(ansible_port=2222),
        "jump_host": silent_servers.host_variables(ansible_host=UNUSED_ADDRESS, ssh_options=jump_options),
        "turned_away": silent_servers.host_variables(7),
        "no_banner": silent_servers.host_variables(6),
        "not_ssh": silent_servers.host_variables(8),
        "host_key_unknown": silent_servers.host_variables(known_hosts="empty"),
        "host_key_changed": silent_servers.host_variables(known_hosts="changed"),
        "no_key": silent_servers.host_variables(
            key="", ansible_ssh_private_key_file="", ssh_options="-o IdentityFile=/nowhere/key"
        ),
        "key_missing": silent_servers.host_variables(key="missing"),
        "key_ignored": silent_servers.host_variables(key="readable"),
        "key_encrypted": silent_servers.host_variables(key="locked"),
        "key_refused": silent_servers.host_variables(key="other"),
        "too_many_keys": silent_servers.host_variables(2, key="other", ssh_options=wrong_keys),
        "second_factor": silent_servers.host_variables(4),
        "password_wanted": silent_servers.host_variables(3),
        "shell": silent_servers.host_variables(5),
        "no_python": silent_servers.host_variables(ansible_python_interpreter="/opt/none/python3"),
        "no_sudo": silent_servers.host_variables(
            ansible_become=True, ansible_become_user="daemon", ansible_become_exe="/opt/none/sudo"
        ),
        "answers": silent_servers.host_variables(ansible_ssh_executable=str(broken_ssh)),
        "key_refused_behind_jump_host": silent_servers.host_variables(2, key="other", ssh_options=jump_options),
    }
    # Hosts with one address, port and user share a connection in Ansible: whoever comes late would use the key of
    # another.
    return {name: {**host, "ansible_control_path": f"%(directory)s/{name}"} for name, host in hosts.items()}


@pytest.fixture(scope="module")
def results(silent_servers: SilentServers) -> dict[str, Any]:
    started_at = time.monotonic()
    output, _status = silent_servers.run_first_task(silent_inventory(silent_servers), ignore_unreachable=True)
    print(f"{time.monotonic() - started_at:.1f} s")
    playbook_result: dict[str, Any] = json.loads(output[output.index("{\n") : output.rindex("}") + 1])
    results_by_host: dict[str, Any] = playbook_result["plays"][0]["tasks"][0]["hosts"]
    return results_by_host


def test_each_host_reports_its_cause(results: dict[str, Any]) -> None:
    for host, result in results.items():
        print(f"{host}: {result.get('msg')}\n    Ansible: {' '.join(str(result.get('said')).split())[:200]}")
    causes = {host: result["error"]["cause"] for host, result in results.items() if "error" in result}
    assert causes == {host: host.removesuffix("_behind_jump_host") for host in results if host != "fine"}
    assert "interfaces" in results["fine"]
    assert all(results[host]["msg"].endswith(results[host]["error"]["remedy"]) for host in causes)


def test_hosts_reached_by_ansible_fail_and_others_are_unreachable(results: dict[str, Any]) -> None:
    unreachable = {host for host, result in results.items() if result.get("unreachable")}
    assert results.keys() - unreachable == {"fine", "shell", "no_python", "no_sudo"}


def test_keys_users_and_fingerprints_are_reported(silent_servers: SilentServers, results: dict[str, Any]) -> None:
    error = results["key_refused"]["error"]
    assert (error["user"], error["keys"]) == ("root", [str(silent_servers.directory / "other")])
    fingerprint = run_checked("ssh-keygen", "-lf", str(silent_servers.directory / "host_key.pub")).split()[1]
    assert fingerprint in results["host_key_changed"]["msg"]
    assert f"line 1 of {silent_servers.directory / 'changed'}" in results["host_key_changed"]["msg"]
    assert "somebody else stands in the way" in results["answers"]["msg"]
    assert "/usr/bin/python3" in results["no_python"]["error"]["remedy"]


def test_causes_are_reported_when_all_hosts_are_silent(silent_servers: SilentServers) -> None:
    hosts = {
        name: value for name, value in silent_inventory(silent_servers).items() if name in ("refused", "key_refused")
    }
    printed, status = silent_servers.run_first_task(hosts, "gpumesh.cluster.progress")
    assert status == 4
    assert "nothing listens on port 2222" in printed and "→ Start its SSH server" in printed, printed


def test_rejected_password(silent_servers: SilentServers) -> None:
    """The examination does not send the password: Ansible has done so."""
    assert silent_servers.examine_host(3, password=True)["cause"] == "password_refused"


def test_revoked_host_key(silent_servers: SilentServers) -> None:
    public = (silent_servers.directory / "host_key.pub").read_text()
    (silent_servers.directory / "revoked").write_text(f"@revoked * {public}")
    assert silent_servers.examine_host(1, "revoked")["cause"] == "host_key_revoked"


def test_server_with_too_many_logins(silent_servers: SilentServers) -> None:
    waiting = ["ip", "netns", "exec", silent_servers.controller.namespace, "nc", f"10.50.0.{CROWDED_SERVER}", "22"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as login:
        assert login.stdout is not None and login.stdout.read(3) == b"SSH"
        error = silent_servers.examine_host(CROWDED_SERVER)
        login.kill()
    assert error["cause"] == "turned_away"
    assert "Exceeded MaxStartups" in error["message"]

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as network namespaces, with real links, firewalls and routes between them, and the real module in them.

All is inside of namespaces of a random name, also the bridge that plays the switch: the machine's own network is not
touched. Needs root, iproute2 and nftables.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from namespaces import run_checked
from waiting import wait_until

from ansible_collections.gpumesh.cluster.tests.integration.reach.forked import ModuleHost, run_module

MODULES_DIRECTORY = Path(__file__).parents[3] / "plugins" / "modules"


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process group, as a user does who closes the terminal."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class NamespaceHost:
    """One namespace."""

    def __init__(self, network: NamespaceNetwork, machine: str, address: str = "") -> None:
        self.network = network
        self.machine = machine
        self.namespace = f"{network.name}-{machine}"
        self.address = address
        self.interface = "eth0"
        #: Arguments before python, such as those of a program that shifts the clock.
        self.wrapper: list[str] = []
        #: The content of /etc/hosts here, with the host's own name; None for that of the machine.
        self.hosts_file: str | None = None
        run_checked("ip", "netns", "add", self.namespace)
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments: str) -> str:
        return run_checked("ip", "-n", self.namespace, *arguments)

    def run(self, *argv: str, stdin: str | None = None) -> str:
        return run_checked("ip", "netns", "exec", self.namespace, *argv, stdin=stdin)

    def sysctl(self, name: str, value: str) -> None:
        self.run("sysctl", "-q", "-w", f"{name}={value}")

    def nft(self, rules: str) -> None:
        self.run("nft", "-f", "-", stdin=rules)

    def build_command(self, *argv: str) -> list[str]:
        """Return the command that runs another one on this host, with its name and its /etc/hosts."""
        named: list[str] = []
        if self._write_hosts_file():
            named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.machine]
        return ["ip", "netns", "exec", self.namespace, *named, *self.wrapper, *argv]

    def _write_hosts_file(self) -> str:
        """Write /etc/hosts of this host to where `ip netns exec` looks for it. Returns its path, or an empty text."""
        if self.hosts_file is None:
            return ""
        path = Path("/etc/netns", self.namespace, "hosts")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.hosts_file)
        return str(path)

    def run_as_host(self, *argv: str) -> str:
        """Run a command as on this host."""
        return run_checked(*self.build_command(*argv))

    def run_listener(self, **options: Any) -> dict[str, Any]:
        """Run the module reachability_listener here."""
        return self._run_module("reachability_listener", options)

    def run_probe(self, **options: Any) -> dict[str, Any]:
        """Run the module reachability here."""
        return self._run_module("reachability", options)

    def _run_module(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Run a module here, as Ansible does: its options on the standard input."""
        host_options = {"machine": self.machine, "address": self.address, "interface": self.interface}
        arguments = json.dumps({"ANSIBLE_MODULE_ARGS": {**host_options, **options}})
        if self.wrapper:
            argv = self.build_command(sys.executable, str(MODULES_DIRECTORY / f"{name}.py"))
            completed = subprocess.run(argv, input=arguments, capture_output=True, text=True, check=False, timeout=120)
            module_output = completed.stdout or completed.stderr
        else:
            hosts_path = self._write_hosts_file()
            module_output = run_module(
                ModuleHost(self.namespace, self.machine if hosts_path else "", hosts_path), name, arguments
            )
        result: dict[str, Any] = json.loads(module_output)
        return result

    def find_processes(self) -> list[int]:
        """Return the processes in the namespace."""
        return [int(number) for number in run_checked("ip", "netns", "pids", self.namespace).split()]

    def remove(self) -> None:
        for process in self.find_processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        run_checked("ip", "netns", "del", self.namespace)
        shutil.rmtree(Path("/etc/netns") / self.namespace, ignore_errors=True)


class NamespaceNetwork:
    """A switch, and hosts on it with the addresses 10.50.0.1, 10.50.0.2 and so on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: dict[str, NamespaceHost] = {}
        self.switch = self.add_host("sw")
        self.switch.ip("link", "add", "br0", "type", "bridge")
        self.switch.ip("link", "set", "br0", "up")

    def add_host(self, machine: str) -> NamespaceHost:
        """Add a namespace without a link."""
        host = NamespaceHost(self, machine)
        self.hosts[machine] = host
        return host

    def connect_host(self, host: NamespaceHost, interface: str = "eth0", address: str = "", mtu: int = 1500) -> None:
        """Connect a new interface of a host to the switch."""
        switch_port = f"{host.machine}{interface}"[-15:]
        self.switch.ip("link", "add", switch_port, "type", "veth", "peer", "name", interface, "netns", host.namespace)
        # The switch itself carries everything: what is too large is decided at the hosts.
        self.switch.ip("link", "set", switch_port, "mtu", "9000", "master", "br0", "up")
        host.ip("link", "set", interface, "mtu", str(mtu))
        if address:
            host.ip("addr", "add", address, "dev", interface)
        host.ip("link", "set", interface, "up")

    def add_member(self, number: int, **options: Any) -> NamespaceHost:
        """Add the host nNUMBER with the address 10.50.0.NUMBER/24."""
        host = self.add_host(f"n{number}")
        host.address = f"10.50.0.{number}"
        host.hosts_file = f"127.0.0.1 localhost\n{host.address} {host.machine}\n"
        self.connect_host(host, address=f"{host.address}/24", **options)
        return host


class SshTestbed:
    """Hosts with sshd, each in a namespace, and a controller beside them from which Ansible runs."""

    def __init__(
        self,
        network: NamespaceNetwork,
        member_count: int,
        directory: Path,
        max_startups: str = "200",
        wrapper: Sequence[str] = (),
    ) -> None:
        self.network = network
        self.directory = directory
        self._max_startups = max_startups
        #: Additional variables of the controller, such as ANSIBLE_SSH_ARGS.
        self.environment: dict[str, str] = {}
        #: Additional arguments of the command.
        self.arguments: list[str] = []
        run_checked("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key"))
        run_checked("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "host_key"))
        Path("/run/sshd").mkdir(exist_ok=True)
        self.controller = network.add_host("ctl")
        network.connect_host(self.controller, address="10.50.0.250/24")
        self.members = [network.add_member(index) for index in range(1, member_count + 1)]
        for member in self.members:
            member.wrapper = list(wrapper)
            self._start_sshd(member)
        self._await_sshd()

    def _start_sshd(self, member: NamespaceHost) -> None:
        configuration = self.directory / f"sshd_{member.machine}"
        configuration.write_text(
            f"HostKey {self.directory}/host_key\nAuthorizedKeysFile {self.directory}/key.pub\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nPermitRootLogin yes\nMaxStartups {self._max_startups}\nUseDNS no\nListenAddress 0.0.0.0\n"
            "Subsystem sftp internal-sftp\n"
        )
        member.run_as_host("/usr/sbin/sshd", "-f", str(configuration))

    def _await_sshd(self) -> None:
        """Wait until the last host responds."""
        last_address = self.members[-1].address
        for _attempt in range(1000):
            completed = subprocess.run(
                ["ip", "netns", "exec", self.controller.namespace, "nc", "-z", "-w", "1", last_address, "22"],
                check=False,
            )
            if completed.returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError(f"sshd at {last_address} does not answer")

    def write_inventory(self, dead_hosts: Sequence[NamespaceHost] = ()) -> Path:
        """Write the inventory for Ansible on the controller."""
        hosts = {
            host.machine: {"ansible_host": "10.50.0.99" if host in dead_hosts else host.address}
            for host in self.members
        }
        common_vars = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.directory / "key"),
            "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        path = self.directory / "hosts.json"
        path.write_text(json.dumps({"all": {"hosts": hosts, "vars": common_vars}}))
        return path

    def members_variable(self) -> list[dict[str, str]]:
        return describe_members(self.members)

    def run_play(
        self,
        tasks: Sequence[dict[str, Any]],
        forks: int = 25,
        dead_hosts: Sequence[NamespaceHost] = (),
        **variables: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a play of ``tasks`` on all members."""
        argv, environment = self._prepare_play(tasks, forks, dead_hosts, variables)
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    @contextmanager
    def start_play(self, tasks: Sequence[dict[str, Any]], **variables: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Run a play in the background, in a process group of its own, which is killed in the end."""
        argv, environment = self._prepare_play(tasks, 25, (), variables)
        with open(self.directory / "playing.log", "wb") as log:
            process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            kill_group(process)

    def kill_controller_processes(self) -> None:
        """End what is left of the controller, as when its machine is gone: the connections that ssh keeps open."""
        for process in self.controller.find_processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _prepare_play(
        self,
        tasks: Sequence[dict[str, Any]],
        forks: int,
        dead_hosts: Sequence[NamespaceHost],
        variables: dict[str, Any],
    ) -> tuple[list[str], dict[str, str]]:
        playbook_path = self.directory / "play.json"
        playbook_path.write_text(
            json.dumps([{"hosts": "all", "gather_facts": False, "tasks": list(tasks), "vars": variables}])
        )
        (self.directory / "ansible.cfg").touch()
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(self.directory / "ansible.cfg"),
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_FORKS": str(forks),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.directory / "cp"),
            "ANSIBLE_TIMEOUT": "30",
            "ANSIBLE_RETRIES": "0",
            "ANSIBLE_HOME": str(self.directory / "home"),
        }
        ansible_playbook = Path(sys.executable).parent / "ansible-playbook"
        argv = [
            "ip",
            "netns",
            "exec",
            self.controller.namespace,
            str(ansible_playbook),
            "-i",
            str(self.write_inventory(dead_hosts)),
            str(playbook_path),
            *self.arguments,
        ]
        return argv, {**environment, **self.environment}


@contextmanager
def create_network() -> Iterator[NamespaceNetwork]:
    """Create a network that is removed afterwards, with all that ran in it, also if this process is terminated."""
    created_network: NamespaceNetwork | None = None
    name = f"gmr{uuid4().hex[:6]}"
    former_handler = signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("told to end"))
    try:
        created_network = NamespaceNetwork(name)
        yield created_network
    finally:
        for host in list(created_network.hosts.values()) if created_network else []:
            host.remove()
        signal.signal(signal.SIGTERM, former_handler)


def describe_members(members: Sequence[NamespaceHost]) -> list[dict[str, str]]:
    """Return the members as the role passes them on."""
    return [{"machine": host.machine, "address": host.address, "interface": host.interface} for host in members]


def await_no_processes(*hosts: NamespaceHost) -> None:
    """Wait until nothing runs on these hosts any more."""
    for host in hosts:
        wait_until(f"nothing runs on {host.machine}", lambda host=host: not host.find_processes())


def measure_reachability(
    members: Sequence[NamespaceHost], unreachable_members: Sequence[NamespaceHost] = (), **options: Any
) -> dict[str, dict[str, Any]]:
    """Do a whole run, as the role does. ``unreachable_members`` cannot be reached over SSH, but are targets.

    Returns the results by phase and machine, as ``reach_verdicts.judge_reachability`` takes them.
    """
    run_options = {"run": uuid4().hex, "token": uuid4().hex, "ports": [22, 6817]}
    probe_options = {"timeout": 4, **options}
    reachable_members = [host for host in members if host not in unreachable_members]
    unreachable_result = {"unreachable": True, "msg": "Failed to connect to the host via ssh"}
    with ThreadPoolExecutor(max_workers=8) as pool:
        visitors_by_machine = {
            member.machine: [visitor.machine for visitor in reachable_members if visitor is not member]
            for member in reachable_members
        }
        listen_results = dict(
            zip(
                [host.machine for host in reachable_members],
                pool.map(
                    lambda host: host.run_listener(
                        peers=visitors_by_machine[host.machine], lifetime=300, **run_options
                    ),
                    reachable_members,
                ),
            )
        )
        ports_by_machine = {machine: result.get("ports", []) for machine, result in listen_results.items()}

        def probe(host: NamespaceHost) -> dict[str, Any]:
            peers = [
                {"machine": peer.machine, "address": peer.address, "ports": ports_by_machine.get(peer.machine, [])}
                for peer in members
                if peer is not host
            ]
            return host.run_probe(peers=peers, **run_options, **probe_options)

        probe_results = list(pool.map(probe, reachable_members))
        for host in reachable_members:
            host.run_listener(state="stopped", run=run_options["run"])
    return {
        "listen": {**listen_results, **{host.machine: unreachable_result for host in unreachable_members}},
        "probe": {host.machine: result for host, result in zip(reachable_members, probe_results)},
    }

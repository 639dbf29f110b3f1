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

from namespaces import call

from ansible_collections.gpumesh.cluster.tests.integration.reach.forked import Place, run_module

MODULES = Path(__file__).parents[3] / "plugins" / "modules"


def kill_group(running: subprocess.Popen[bytes]) -> None:
    """Kill a process group, as a user does who closes the terminal."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


class Host:
    """One namespace."""

    def __init__(self, network: Network, machine: str, address: str = "") -> None:
        self.network = network
        self.machine = machine
        self.namespace = f"{network.name}-{machine}"
        self.address = address
        self.interface = "eth0"
        #: Arguments before python, such as those of a program that shifts the clock.
        self.wrapper: list[str] = []
        #: The content of /etc/hosts here, with the host's own name; None for that of the machine.
        self.hosts_file: str | None = None
        call("ip", "netns", "add", self.namespace)
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments: str) -> str:
        return call("ip", "-n", self.namespace, *arguments)

    def run(self, *argv: str, stdin: str | None = None) -> str:
        return call("ip", "netns", "exec", self.namespace, *argv, stdin=stdin)

    def sysctl(self, name: str, value: str) -> None:
        self.run("sysctl", "-q", "-w", f"{name}={value}")

    def nft(self, rules: str) -> None:
        self.run("nft", "-f", "-", stdin=rules)

    def command(self, *argv: str) -> list[str]:
        """Return the command that runs another one on this host, with its name and its /etc/hosts."""
        named: list[str] = []
        if self._hosts():
            named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.machine]
        return ["ip", "netns", "exec", self.namespace, *named, *self.wrapper, *argv]

    def _hosts(self) -> str:
        """Write /etc/hosts of this host to where `ip netns exec` looks for it. Returns its path, or an empty text."""
        if self.hosts_file is None:
            return ""
        path = Path("/etc/netns", self.namespace, "hosts")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.hosts_file)
        return str(path)

    def within(self, *argv: str) -> str:
        """Run a command as on this host."""
        return call(*self.command(*argv))

    def listener(self, **options: Any) -> dict[str, Any]:
        """Run the module reachability_listener here."""
        return self._run_module("reachability_listener", options)

    def probe(self, **options: Any) -> dict[str, Any]:
        """Run the module reachability here."""
        return self._run_module("reachability", options)

    def _run_module(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Run a module here, as Ansible does: its options on the standard input."""
        own = {"machine": self.machine, "address": self.address, "interface": self.interface}
        arguments = json.dumps({"ANSIBLE_MODULE_ARGS": {**own, **options}})
        if self.wrapper:
            argv = self.command(sys.executable, str(MODULES / f"{name}.py"))
            done = subprocess.run(argv, input=arguments, capture_output=True, text=True, check=False, timeout=120)
            printed = done.stdout or done.stderr
        else:
            hosts = self._hosts()
            printed = run_module(Place(self.namespace, self.machine if hosts else "", hosts), name, arguments)
        result: dict[str, Any] = json.loads(printed)
        return result

    def processes(self) -> list[int]:
        """Return the processes in the namespace."""
        return [int(number) for number in call("ip", "netns", "pids", self.namespace).split()]

    def remove(self) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        call("ip", "netns", "del", self.namespace)
        shutil.rmtree(Path("/etc/netns") / self.namespace, ignore_errors=True)


class Network:
    """A switch, and hosts on it with the addresses 10.50.0.1, 10.50.0.2 and so on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: dict[str, Host] = {}
        self.switch = self.add("sw")
        self.switch.ip("link", "add", "br0", "type", "bridge")
        self.switch.ip("link", "set", "br0", "up")

    def add(self, machine: str) -> Host:
        """Add a namespace without a link."""
        host = Host(self, machine)
        self.hosts[machine] = host
        return host

    def plug(self, host: Host, interface: str = "eth0", address: str = "", mtu: int = 1500) -> None:
        """Connect a new interface of a host to the switch."""
        port = f"{host.machine}{interface}"[-15:]
        self.switch.ip("link", "add", port, "type", "veth", "peer", "name", interface, "netns", host.namespace)
        # The switch itself carries everything: what is too large is decided at the hosts.
        self.switch.ip("link", "set", port, "mtu", "9000", "master", "br0", "up")
        host.ip("link", "set", interface, "mtu", str(mtu))
        if address:
            host.ip("addr", "add", address, "dev", interface)
        host.ip("link", "set", interface, "up")

    def member(self, number: int, **options: Any) -> Host:
        """Add the host nNUMBER with the address 10.50.0.NUMBER/24."""
        host = self.add(f"n{number}")
        host.address = f"10.50.0.{number}"
        host.hosts_file = f"127.0.0.1 localhost\n{host.address} {host.machine}\n"
        self.plug(host, address=f"{host.address}/24", **options)
        return host


class Farm:
    """Hosts with sshd, each in a namespace, and a controller beside them from which Ansible runs."""

    def __init__(
        self, net: Network, number: int, folder: Path, startups: str = "200", wrapper: Sequence[str] = ()
    ) -> None:
        self.net = net
        self.folder = folder
        self._startups = startups
        #: Additional variables of the controller, such as ANSIBLE_SSH_ARGS.
        self.environment: dict[str, str] = {}
        #: Additional arguments of the command.
        self.arguments: list[str] = []
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key"))
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key"))
        Path("/run/sshd").mkdir(exist_ok=True)
        self.controller = net.add("ctl")
        net.plug(self.controller, address="10.50.0.250/24")
        self.members = [net.member(index) for index in range(1, number + 1)]
        for member in self.members:
            member.wrapper = list(wrapper)
            self._start(member)
        self._await()

    def _start(self, member: Host) -> None:
        configuration = self.folder / f"sshd_{member.machine}"
        configuration.write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nPermitRootLogin yes\nMaxStartups {self._startups}\nUseDNS no\nListenAddress 0.0.0.0\n"
            "Subsystem sftp internal-sftp\n"
        )
        member.within("/usr/sbin/sshd", "-f", str(configuration))

    def _await(self) -> None:
        """Wait until the last host responds."""
        last = self.members[-1].address
        for _try in range(1000):
            done = subprocess.run(
                ["ip", "netns", "exec", self.controller.namespace, "nc", "-z", "-w", "1", last, "22"], check=False
            )
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError(f"sshd at {last} does not answer")

    def inventory(self, dead: Sequence[Host] = ()) -> Path:
        """Write the inventory for Ansible on the controller."""
        hosts = {
            host.machine: {"ansible_host": "10.50.0.99" if host in dead else host.address} for host in self.members
        }
        common = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        path = self.folder / "hosts.json"
        path.write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
        return path

    def members_variable(self) -> list[dict[str, str]]:
        return record_of(self.members)

    def play(
        self, tasks: Sequence[dict[str, Any]], forks: int = 25, dead: Sequence[Host] = (), **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a play of ``tasks`` on all members."""
        argv, environment = self._prepare(tasks, forks, dead, variables)
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    @contextmanager
    def playing(self, tasks: Sequence[dict[str, Any]], **variables: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Run a play in the background, in a process group of its own, which is killed in the end."""
        argv, environment = self._prepare(tasks, 25, (), variables)
        with open(self.folder / "playing.log", "wb") as log:
            running = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield running
        finally:
            kill_group(running)

    def hang_up(self) -> None:
        """End what is left of the controller, as when its machine is gone: the connections that ssh keeps open."""
        for process in self.controller.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _prepare(
        self, tasks: Sequence[dict[str, Any]], forks: int, dead: Sequence[Host], variables: dict[str, Any]
    ) -> tuple[list[str], dict[str, str]]:
        book = self.folder / "play.json"
        book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": list(tasks), "vars": variables}]))
        (self.folder / "ansible.cfg").touch()
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_FORKS": str(forks),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
            "ANSIBLE_TIMEOUT": "30",
            "ANSIBLE_RETRIES": "0",
            "ANSIBLE_HOME": str(self.folder / "home"),
        }
        ansible = Path(sys.executable).parent / "ansible-playbook"
        argv = [
            "ip",
            "netns",
            "exec",
            self.controller.namespace,
            str(ansible),
            "-i",
            str(self.inventory(dead)),
            str(book),
            *self.arguments,
        ]
        return argv, {**environment, **self.environment}


@contextmanager
def network() -> Iterator[Network]:
    """Create a network that is removed afterwards, with all that ran in it, also if this process is terminated."""
    made: Network | None = None
    name = f"gmr{uuid4().hex[:6]}"
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("told to end"))
    try:
        made = Network(name)
        yield made
    finally:
        for host in list(made.hosts.values()) if made else []:
            host.remove()
        signal.signal(signal.SIGTERM, before)


def record_of(members: Sequence[Host]) -> list[dict[str, str]]:
    """Return the members as the role passes them on."""
    return [{"machine": host.machine, "address": host.address, "interface": host.interface} for host in members]


def await_none(*hosts: Host) -> None:
    """Wait until nothing runs on these hosts any more."""
    end = time.monotonic() + 120
    while left := [host.machine for host in hosts if host.processes()]:
        assert time.monotonic() < end, f"something still runs on {left}"
        time.sleep(0.1)


def measure(members: Sequence[Host], silent: Sequence[Host] = (), **options: Any) -> dict[str, dict[str, Any]]:
    """Do a whole run, as the role does. ``unreachable_members`` cannot be reached over SSH, but are targets.

    Returns the results by phase and machine, as ``reach_verdicts.judge_reachability`` takes them.
    """
    run = {"run": uuid4().hex, "token": uuid4().hex, "ports": [22, 6817]}
    probing = {"timeout": 4, **options}
    talking = [host for host in members if host not in silent]
    unreachable = {"unreachable": True, "msg": "Failed to connect to the host via ssh"}
    with ThreadPoolExecutor(max_workers=8) as pool:
        visitors = {one.machine: [two.machine for two in talking if two is not one] for one in talking}
        listening = dict(
            zip(
                [host.machine for host in talking],
                pool.map(lambda host: host.listener(peers=visitors[host.machine], lifetime=300, **run), talking),
            )
        )
        ports = {machine: result.get("ports", []) for machine, result in listening.items()}

        def probe(host: Host) -> dict[str, Any]:
            peers = [
                {"machine": peer.machine, "address": peer.address, "ports": ports.get(peer.machine, [])}
                for peer in members
                if peer is not host
            ]
            return host.probe(peers=peers, **run, **probing)

        probed = list(pool.map(probe, talking))
        for host in talking:
            host.listener(state="stopped", run=run["run"])
    return {
        "listen": {**listening, **{host.machine: unreachable for host in silent}},
        "probe": {host.machine: result for host, result in zip(talking, probed)},
    }

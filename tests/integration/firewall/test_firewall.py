# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's table in a real kernel: a member gets through, a stranger does not, and the host's rules stay."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from namespaces import create_joined_namespaces, run_checked

from ansible_collections.gpumesh.cluster.plugins.action import firewall
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.rules import TABLE_NAME
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play_action

ROOT = Path(__file__).resolve().parents[3]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
MEMBER, STRANGER, OUTSIDER, HOST_ADDRESS = "10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.1"
#: A program that does the work of the module in a namespace: the kernel's tables are its own there, /etc is not.
MODULE_PROGRAM = """
import json, os, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import rules, ssh, table
asked = json.load(sys.stdin)
host = table.FirewallHost(run, asked["check"], asked["folder"], "", asked["folder"])
try:
    if asked["given"] is None:
        result = table.ensure_absent(host, asked["cluster"])
    elif "admitted" in asked["given"]:
        result = table.admit_addresses(host, asked["given"]["admitted"], 900)
    else:
        reached = ssh.read_ssh_access("/proc", os.getpid())
        result = table.ensure_present(host, asked["cluster"], rules.parse_desired_firewall(asked["cluster"], asked["given"], reached))
except GpumeshError as error:
    sys.exit(str(error))
json.dump(result._asdict(), sys.stdout)
"""
LISTENER_PROGRAM = """
import socket, sys
listeners = [socket.create_server(("0.0.0.0", int(port))) for port in sys.argv[1:]]
print("ready", flush=True)
sys.stdin.read()
"""
CONNECT_PROGRAM = """
import socket, sys
try:
    socket.create_connection((sys.argv[2], int(sys.argv[3])), float(sys.argv[4]), source_address=(sys.argv[1], 0)).close()
    print("through")
except OSError as failure:
    print("closed")
"""
DATAGRAM_PROGRAM = """
import socket, sys
sender = socket.socket(type=socket.SOCK_DGRAM)
sender.bind((sys.argv[1], 0))
sender.connect((sys.argv[2], int(sys.argv[3])))
sender.settimeout(float(sys.argv[4]))
sender.send(b"x")
try:
    sender.recv(1)
except ConnectionRefusedError:
    print("through: nobody listens")
except TimeoutError:
    print("dropped")
"""
HOST_RULES = """
table inet filter {
    chain input { type filter hook input priority filter; policy accept; tcp dport 7777 drop; }
}
"""


class FirewallPair:
    """A host with the firewall, and a client that connects to it from three addresses."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        name = f"gmfw{uuid4().hex[:6]}"
        self.host, self.client = f"{name}h", f"{name}d"

    def run(self, namespace: str, *argv: str, stdin: str | None = None) -> str:
        return run_checked("ip", "netns", "exec", namespace, *argv, stdin=stdin)

    def apply(self, options: dict[str, Any] | None, check_mode: bool = False, cluster: str = "lab") -> dict[str, Any]:
        program_input = self.encode_input(options, check_mode, cluster)
        return dict(json.loads(self.run(self.host, sys.executable, "-c", MODULE_PROGRAM, stdin=program_input)))

    def encode_input(self, options: dict[str, Any] | None, check_mode: bool = False, cluster: str = "lab") -> str:
        return json.dumps({"given": options, "check": check_mode, "folder": str(self.directory), "cluster": cluster})

    def is_accepted(self, source: str, port: int) -> bool:
        """Return whether a connection is established, however busy the machine."""
        return self.can_connect(source, port, 60)

    def await_answer(self, source: str, port: int) -> bool:
        """Return whether a listener that has just been started responds within minutes."""
        deadline = time.monotonic() + 240
        while not self.can_connect(source, port, 5):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def is_dropped(self, source: str, port: int) -> bool:
        """Return whether the table has dropped packets, which it counts, and no connection was established."""
        before = self._count_drops()
        return not self.can_connect(source, port, 1.5) and self._count_drops() > before

    def is_datagram_accepted(self, source: str, port: int) -> bool:
        return self._send_datagram(source, port, 60).startswith("through")

    def is_datagram_dropped(self, source: str, port: int) -> bool:
        before = self._count_drops()
        return self._send_datagram(source, port, 1.5) == "dropped" and self._count_drops() > before

    def _send_datagram(self, source: str, port: int, timeout: float) -> str:
        return self.run(
            self.client, sys.executable, "-c", DATAGRAM_PROGRAM, source, HOST_ADDRESS, str(port), str(timeout)
        ).strip()

    def can_connect(self, source: str, port: int, timeout: float) -> bool:
        output = self.run(
            self.client, sys.executable, "-c", CONNECT_PROGRAM, source, HOST_ADDRESS, str(port), str(timeout)
        )
        return output.strip() == "through"

    def _count_drops(self) -> int:
        table_text = self.run(self.host, "nft", "list", "table", "inet", TABLE_NAME)
        return sum(int(count) for count in re.findall(r"counter packets (\d+) bytes \d+ drop", table_text))


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Iterator[FirewallPair]:
    new_pair = FirewallPair(tmp_path)
    listener = None
    with create_joined_namespaces(new_pair.host, new_pair.client):
        try:
            run_checked("ip", "-n", new_pair.host, "address", "add", f"{HOST_ADDRESS}/24", "dev", "eth0")
            for address in (MEMBER, STRANGER, OUTSIDER):
                run_checked("ip", "-n", new_pair.client, "address", "add", f"{address}/24", "dev", "eth0")
            for namespace in (new_pair.host, new_pair.client):
                run_checked("ip", "-n", namespace, "link", "set", "eth0", "up")
            listener = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    new_pair.host,
                    sys.executable,
                    "-c",
                    LISTENER_PROGRAM,
                    "22",
                    "2049",
                    "6818",
                    "7777",
                    "40000",
                    "8080",
                    "6820",
                    "15000",
                    "24999",
                    "25000",
                    "28999",
                    "17000",
                    "22222",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert listener.stdout is not None
            assert listener.stdout.readline() == b"ready\n"
            yield new_pair
        finally:
            if listener is not None:
                listener.communicate()


OPTIONS: dict[str, Any] = {"members": [MEMBER, HOST_ADDRESS], "tcp_ports": ["2049", "6817-6819", "32768-60999"]}


def test_members_are_accepted_and_strangers_dropped(pair: FirewallPair) -> None:
    assert all(pair.is_accepted(STRANGER, port) for port in (2049, 6818, 40000))
    assert pair.apply(OPTIONS)["changed"]
    assert all(pair.is_accepted(MEMBER, port) for port in (22, 2049, 6818, 40000, 8080))
    assert all(pair.is_dropped(STRANGER, port) for port in (2049, 6818, 40000))
    assert all(pair.is_accepted(STRANGER, port) for port in (22, 8080)), (
        "ports that are not the cluster's are left alone"
    )


def role_ports(**inventory: Any) -> list[str]:
    """Return the TCP ports that the role closes by default, with these variables in the inventory."""
    played = play_action(
        firewall.ActionModule,
        {"record": RECORD, "tcp_ports": []},
        {"gpumesh.cluster.firewall": [{"changed": False, "tools": True}]},
        {"inventory_hostname": "n1", **inventory},
    )
    ((_module, parameters),) = played.module_calls
    return list(parameters["tcp_ports"])


def test_ports_of_jobs_and_rest_interface_are_closed_by_default(pair: FirewallPair) -> None:
    ports = (6820, 15000, 17000, 24999, 25000, 28999)
    assert all(pair.is_accepted(STRANGER, port) for port in ports)
    pair.apply({**OPTIONS, "tcp_ports": role_ports()})
    assert all(pair.is_dropped(STRANGER, port) for port in ports)
    assert all(pair.is_accepted(MEMBER, port) for port in ports)
    assert pair.is_accepted(STRANGER, 8080)


def test_ports_set_by_the_inventory_are_closed(pair: FirewallPair) -> None:
    pair.apply({**OPTIONS, "tcp_ports": role_ports(job_environment_port_range=[16000, 17000], slurm_rest_port=8080)})
    assert all(pair.is_dropped(STRANGER, port) for port in (8080, 17000))
    assert all(pair.is_accepted(STRANGER, port) for port in (6820, 15000, 24999))


def test_second_run_changes_nothing_and_new_member_is_accepted(pair: FirewallPair) -> None:
    assert pair.apply(OPTIONS, check_mode=True)["changed"]
    assert "gpumesh" not in pair.run(pair.host, "nft", "list", "tables")
    assert pair.apply(OPTIONS)["changed"]
    assert not pair.apply(OPTIONS)["changed"]
    assert pair.is_dropped(STRANGER, 2049)
    assert pair.apply({**OPTIONS, "members": [MEMBER, HOST_ADDRESS, STRANGER]})["changed"]
    assert pair.is_accepted(STRANGER, 2049)


def test_manual_changes_are_reverted(pair: FirewallPair) -> None:
    pair.apply(OPTIONS)
    # Packets change the counters, and only them.
    assert pair.is_dropped(STRANGER, 2049)
    assert not pair.apply(OPTIONS)["changed"]
    pair.run(pair.host, "nft", "add", "element", "inet", TABLE_NAME, "member_lab_4", f"{{ {STRANGER} }}")
    assert pair.is_accepted(STRANGER, 2049)
    assert pair.apply(OPTIONS)["changed"]
    assert pair.is_dropped(STRANGER, 2049)
    pair.run(pair.host, "nft", "delete", "table", "inet", TABLE_NAME)
    assert pair.apply(OPTIONS)["changed"]
    assert pair.is_dropped(STRANGER, 2049)


def test_rules_of_the_host_are_not_changed(pair: FirewallPair) -> None:
    pair.run(pair.host, "nft", "--file", "-", stdin=HOST_RULES)
    before = pair.run(pair.host, "nft", "list", "table", "inet", "filter")
    pair.apply({**OPTIONS, "tcp_ports": ["2049", "7777"]})
    assert not pair.can_connect(MEMBER, 7777, 1.5), "what the host closes stays closed"
    assert pair.run(pair.host, "nft", "list", "table", "inet", "filter") == before
    pair.apply(None)
    assert pair.run(pair.host, "nft", "list", "table", "inet", "filter") == before


def test_established_connections_stay_open(pair: FirewallPair) -> None:
    hold_program = """
import socket, sys
peer = socket.create_connection((sys.argv[2], 2049), 30, source_address=(sys.argv[1], 0))
print("connected", flush=True)
sys.stdin.readline()
peer.sendall(b"x")
peer.shutdown(socket.SHUT_WR)
peer.settimeout(30)
print(peer.recv(1) == b"", flush=True)
"""
    connected_client = subprocess.Popen(
        ["ip", "netns", "exec", pair.client, sys.executable, "-c", hold_program, STRANGER, HOST_ADDRESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert connected_client.stdout is not None
    assert connected_client.stdout.readline() == "connected\n"
    pair.apply(OPTIONS)
    assert pair.is_dropped(STRANGER, 2049)
    established = pair.run(pair.host, "ss", "-Htn", "state", "established", "sport", "=", ":2049")
    assert STRANGER in established
    connected_client.kill()
    connected_client.communicate()


ACCEPT_PROGRAM = """
import socket
with socket.create_server(("0.0.0.0", 9000)) as listener:
    print("ready", flush=True)
    peer, _address = listener.accept()
    print("accepted", flush=True)
    input()
    peer.sendall(b"late")
    input()
"""
OUTGOING_PROGRAM = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 9000), 60)
print(peer.getsockname()[1], flush=True)
print(peer.recv(4).decode(), flush=True)
"""


def test_outgoing_connections_survive_the_first_table(pair: FirewallPair) -> None:
    """Connections are not tracked before, so that the next packet of an open one counts as new, to an ephemeral port."""

    def start_program(namespace: str, *arguments: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-c", *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read_line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def send_line(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    server = start_program(pair.client, ACCEPT_PROGRAM)
    assert read_line(server) == "ready"
    client = start_program(pair.host, OUTGOING_PROGRAM, STRANGER)
    try:
        assert 32768 <= int(read_line(client)) <= 60999
        assert read_line(server) == "accepted"
        pair.apply(OPTIONS)
        send_line(server)
        client.wait(240)
        assert read_line(client) == "late"
    finally:
        for process in (client, server):
            process.kill()
            process.communicate()


def test_joining_machines_are_accepted_until_the_table_is_reloaded(pair: FirewallPair) -> None:
    joining = {"admitted": [STRANGER, "2001:db8::7"]}
    assert not pair.apply(joining)["changed"]
    assert "gpumesh" not in pair.run(pair.host, "nft", "list", "tables")
    pair.apply(OPTIONS)
    assert pair.apply(joining, check_mode=True)["changed"]
    assert pair.is_dropped(STRANGER, 2049)
    assert pair.apply(joining)["changed"]
    assert pair.is_accepted(STRANGER, 2049)
    assert pair.is_dropped(OUTSIDER, 2049)
    # Nothing that a killed run leaves lasts, even if another run has extended it.
    pair.apply(joining)
    listed = pair.run(pair.host, "nft", "list", "set", "inet", TABLE_NAME, "joining_4")
    assert re.search(rf"{STRANGER} timeout 15m expires 14m", listed), listed
    # A run with the same members changes nothing, and one with others empties the set.
    assert not pair.apply(OPTIONS)["changed"]
    options = {**OPTIONS, "members": [*OPTIONS["members"], OUTSIDER]}
    assert pair.apply(options)["changed"]
    assert pair.is_dropped(STRANGER, 2049)
    assert not pair.apply(options)["changed"]


def test_concurrent_clusters_lose_no_rules(pair: FirewallPair) -> None:
    """A run waits for that of another cluster, which has read all parts and is about to load them."""
    pair.apply(OPTIONS)
    descriptor = os.open(pair.directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        argv = ["ip", "netns", "exec", pair.host, sys.executable, "-c", MODULE_PROGRAM]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdin is not None
            waiting.stdin.write(pair.encode_input(SECOND_CLUSTER, cluster="two"))
            waiting.stdin.close()
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(2)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            assert waiting.wait(240) == 0
    finally:
        os.close(descriptor)
    assert not pair.apply(SECOND_CLUSTER, cluster="two")["changed"]


SECOND_CLUSTER: dict[str, Any] = {
    "members": [STRANGER, HOST_ADDRESS],
    "tcp_ports": ["2049", "32768-60999"],
    "udp_ports": ["111"],
    "open_udp_ports": ["51821"],
}


def test_host_in_two_clusters_accepts_members_and_tunnels_of_both(pair: FirewallPair) -> None:
    lab = {**OPTIONS, "udp_ports": ["111", "32768-60999"]}
    pair.apply(lab)
    assert pair.is_datagram_dropped(STRANGER, 51821)
    pair.apply(SECOND_CLUSTER, cluster="two")
    assert all(pair.is_accepted(member, port) for member in (MEMBER, STRANGER) for port in (2049, 40000))
    assert pair.is_datagram_accepted(OUTSIDER, 51821)
    assert pair.is_datagram_dropped(OUTSIDER, 51822)
    assert all(pair.is_dropped(OUTSIDER, port) for port in (2049, 6818, 40000))
    assert not pair.apply(lab)["changed"]
    assert not pair.apply(SECOND_CLUSTER, cluster="two")["changed"]


def test_clusters_change_independently(pair: FirewallPair) -> None:
    pair.apply(OPTIONS)
    pair.apply({**SECOND_CLUSTER, "tcp_ports": ["8080"]}, cluster="two")
    assert pair.is_dropped(OUTSIDER, 8080)
    pair.apply({**SECOND_CLUSTER, "members": [HOST_ADDRESS, OUTSIDER]}, cluster="two")
    assert pair.is_dropped(STRANGER, 2049)
    assert all(pair.is_accepted(OUTSIDER, port) for port in (2049, 8080))
    assert pair.apply(None, check_mode=True, cluster="two")["changed"]
    assert pair.is_accepted(OUTSIDER, 2049)
    assert pair.apply(None, cluster="two")["changed"]
    assert pair.is_dropped(OUTSIDER, 2049)
    assert pair.is_accepted(MEMBER, 2049)
    assert not pair.apply(None, cluster="two")["changed"]
    assert not pair.apply(OPTIONS)["changed"]


def test_port_closed_by_one_cluster_stays_closed(pair: FirewallPair) -> None:
    pair.apply({**OPTIONS, "ssh_from": ["192.0.2.0/24"]})
    pair.apply(SECOND_CLUSTER, cluster="a.two-b")
    assert pair.is_dropped(OUTSIDER, 22)
    assert all(pair.is_accepted(member, 22) for member in (MEMBER, STRANGER))


@pytest.mark.parametrize("options", [OPTIONS, None])
def test_table_of_an_earlier_version_is_replaced(pair: FirewallPair, options: dict[str, Any] | None) -> None:
    former_table = (
        "table inet gpumesh_lab { chain input { type filter hook input priority -5; tcp dport 2049 drop; }; }"
    )
    (pair.directory / "gpumesh_lab.nft").write_text(former_table)
    pair.run(pair.host, "nft", "--file", str(pair.directory / "gpumesh_lab.nft"))
    assert pair.apply(options)["changed"]
    assert "gpumesh_lab" not in pair.run(pair.host, "nft", "list", "tables")
    assert not (pair.directory / "gpumesh_lab.nft").exists()
    assert pair.is_accepted(MEMBER, 2049)
    assert not pair.apply(options)["changed"]


def test_boot_file_has_the_rules_of_every_cluster(pair: FirewallPair) -> None:
    pair.apply(OPTIONS)
    pair.apply(SECOND_CLUSTER, cluster="two")
    listed = pair.run(pair.host, "nft", "--stateless", "list", "table", "inet", TABLE_NAME)
    pair.run(pair.host, "nft", "flush", "ruleset")
    pair.run(pair.host, "nft", "--file", str(pair.directory / f"{TABLE_NAME}.nft"))
    assert pair.run(pair.host, "nft", "--stateless", "list", "table", "inet", TABLE_NAME) == listed
    assert not pair.apply(OPTIONS)["changed"]


def test_removal_leaves_nothing_behind(pair: FirewallPair) -> None:
    pair.apply(OPTIONS)
    assert pair.apply(None, check_mode=True)["changed"]
    assert pair.is_dropped(STRANGER, 2049)
    assert pair.apply(None)["changed"]
    assert pair.is_accepted(STRANGER, 2049)
    assert list(pair.directory.iterdir()) == []
    assert not pair.apply(None)["changed"]


def test_removal_without_net_admin_changes_nothing(pair: FirewallPair) -> None:
    command = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-c", MODULE_PROGRAM]
    assert json.loads(pair.run(pair.host, *command, stdin=pair.encode_input(None)))["changed"] is False


def test_ssh_is_closed_only_on_request(pair: FirewallPair) -> None:
    pair.apply({**OPTIONS, "ssh_from": ["192.0.2.0/24"]})
    assert pair.is_accepted(MEMBER, 22)
    assert pair.is_dropped(STRANGER, 22)
    pair.apply({**OPTIONS, "ssh_from": [f"{STRANGER}/32"]})
    assert pair.is_accepted(STRANGER, 22)


#: The options with the port of the listener, and that of sshd, in closed ranges.
RANGE_OPTIONS: dict[str, Any] = {**OPTIONS, "tcp_ports": ["2049", "15000-28999", "32768-60999"]}


def test_ssh_port_stays_open_within_a_closed_range(pair: FirewallPair) -> None:
    pair.apply({**RANGE_OPTIONS, "ssh_port": 22222})
    assert all(pair.is_dropped(STRANGER, port) for port in (17000, 40000))
    assert pair.is_accepted(STRANGER, 22222)
    pair.apply({**RANGE_OPTIONS, "ssh_port": 22222, "ssh_from": ["192.0.2.0/24"]})
    assert pair.is_dropped(STRANGER, 22222)
    assert pair.is_accepted(MEMBER, 22222)


@pytest.fixture(name="login")
def _login(pair: FirewallPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Yield the command that logs in to the host from the stranger's address, at a port within a closed range."""
    directory = tmp_path_factory.mktemp("ssh")
    for key in ("key", "host_key"):
        run_checked("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / key))
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {"HostKey": directory / "host_key", "AuthorizedKeysFile": directory / "key.pub", "PidFile": "none"}
    options.update(Port=20022, ListenAddress="0.0.0.0", StrictModes="no", UsePAM="no", PermitRootLogin="yes")
    sshd_options = [f"-o{name}={value}" for name, value in options.items()]
    namespace_prefix = ["ip", "netns", "exec"]
    daemon = subprocess.Popen([*namespace_prefix, pair.host, "/usr/sbin/sshd", "-D", "-f", "/dev/null", *sshd_options])
    ssh_options = [
        "-oStrictHostKeyChecking=no",
        "-oUserKnownHostsFile=/dev/null",
        "-oLogLevel=ERROR",
        "-oBatchMode=yes",
    ]
    try:
        assert pair.await_answer(STRANGER, 20022)
        yield [
            "ssh",
            "-F",
            "none",
            "-i",
            str(directory / "key"),
            "-b",
            STRANGER,
            "-p",
            "20022",
            *ssh_options,
            f"root@{HOST_ADDRESS}",
        ]
    finally:
        daemon.terminate()
        daemon.wait()


def apply_over_ssh(pair: FirewallPair, login: list[str], options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Apply the table as Ansible does: the module is a process of the login."""
    command = shlex.join(
        ["env", f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}", sys.executable, "-c", MODULE_PROGRAM]
    )
    argv = ["ip", "netns", "exec", pair.client, *login, command]
    return subprocess.run(
        argv, input=pair.encode_input(options), capture_output=True, text=True, check=False, timeout=120
    )


def test_port_of_running_sshd_is_never_closed_by_a_range(pair: FirewallPair, login: list[str]) -> None:
    assert pair.apply(RANGE_OPTIONS)["changed"]
    assert pair.is_dropped(STRANGER, 17000)
    assert pair.is_accepted(STRANGER, 20022)
    # The module finds the same, however it arrives.
    completed = apply_over_ssh(pair, login, RANGE_OPTIONS)
    assert (completed.stderr, json.loads(completed.stdout)["changed"]) == ("", False)


def test_table_that_would_close_the_current_connection_is_rejected(pair: FirewallPair, login: list[str]) -> None:
    options = {**RANGE_OPTIONS, "ssh_port": 20022}
    completed = apply_over_ssh(pair, login, {**options, "ssh_from": ["192.0.2.0/24"]})
    assert completed.returncode == 1
    assert f"{STRANGER}/32" in completed.stderr
    assert list(pair.directory.iterdir()) == []
    for accepting_options in (
        {"ssh_from": [f"{STRANGER}/32"]},
        {"ssh_from": ["192.0.2.0/24"], "trusted": ["10.9.0.0/24"]},
    ):
        assert apply_over_ssh(pair, login, {**options, **accepting_options}).returncode == 0
        assert pair.is_accepted(STRANGER, 20022)
    # The port of SSH that is named is the only restricted one.
    assert apply_over_ssh(pair, login, {**RANGE_OPTIONS, "ssh_from": ["192.0.2.0/24"]}).returncode == 0
    assert pair.is_accepted(STRANGER, 20022)


def test_both_address_families_and_the_mesh_are_accepted(pair: FirewallPair) -> None:
    options = {
        **OPTIONS,
        "members": [MEMBER, "2001:db8::1"],
        "mesh_members": ["10.99.0.1", STRANGER],
        "mesh_interface": "gpumesh0",
        "trusted": ["198.51.100.0/24", "2001:db8:1::/48"],
        "udp_ports": ["32768-60999"],
        "open_udp_ports": ["51820"],
    }
    assert pair.apply(options)["changed"]
    assert not pair.apply(options)["changed"]
    assert pair.is_dropped(STRANGER, 2049), "an address of the mesh counts only on the interface of the mesh"


def test_listener_works_on_this_machine() -> None:
    """The tests above would prove nothing if the machine could not open such a socket at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname(), 5).close()

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
from namespaces import call, joined

from ansible_collections.gpumesh.cluster.plugins.action import firewall
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.rules import TABLE_NAME
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play

ROOT = Path(__file__).resolve().parents[3]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
MEMBER, STRANGER, OTHER, OWN = "10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.1"
#: A program that does the work of the module in a namespace: the kernel's tables are its own there, /etc is not.
PROGRAM = """
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
LISTENER = """
import socket, sys
listeners = [socket.create_server(("0.0.0.0", int(port))) for port in sys.argv[1:]]
print("ready", flush=True)
sys.stdin.read()
"""
DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[2], int(sys.argv[3])), float(sys.argv[4]), source_address=(sys.argv[1], 0)).close()
    print("through")
except OSError as failure:
    print("closed")
"""
SEND = """
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
HOSTS_OWN_RULES = """
table inet filter {
    chain input { type filter hook input priority filter; policy accept; tcp dport 7777 drop; }
}
"""


class Pair:
    """A host with the firewall, and a client that connects to it from three addresses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        name = f"gmfw{uuid4().hex[:6]}"
        self.host, self.dialler = f"{name}h", f"{name}d"

    def run(self, where: str, *argv: str, stdin: str | None = None) -> str:
        return call("ip", "netns", "exec", where, *argv, stdin=stdin)

    def apply(self, given: dict[str, Any] | None, check: bool = False, cluster: str = "lab") -> dict[str, Any]:
        asked = self.asked(given, check, cluster)
        return dict(json.loads(self.run(self.host, sys.executable, "-c", PROGRAM, stdin=asked)))

    def asked(self, given: dict[str, Any] | None, check: bool = False, cluster: str = "lab") -> str:
        return json.dumps({"given": given, "check": check, "folder": str(self.folder), "cluster": cluster})

    def through(self, source: str, port: int) -> bool:
        """Return whether a connection is established, however busy the machine."""
        return self.dials(source, port, 60)

    def answers(self, source: str, port: int) -> bool:
        """Return whether a listener that has just been started responds within minutes."""
        deadline = time.monotonic() + 240
        while not self.dials(source, port, 5):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def dropped(self, source: str, port: int) -> bool:
        """Return whether the table has dropped packets, which it counts, and no connection was established."""
        before = self._drops()
        return not self.dials(source, port, 1.5) and self._drops() > before

    def datagram_through(self, source: str, port: int) -> bool:
        return self._sends(source, port, 60).startswith("through")

    def datagram_dropped(self, source: str, port: int) -> bool:
        before = self._drops()
        return self._sends(source, port, 1.5) == "dropped" and self._drops() > before

    def _sends(self, source: str, port: int, patience: float) -> str:
        return self.run(self.dialler, sys.executable, "-c", SEND, source, OWN, str(port), str(patience)).strip()

    def dials(self, source: str, port: int, patience: float) -> bool:
        said = self.run(self.dialler, sys.executable, "-c", DIAL, source, OWN, str(port), str(patience))
        return said.strip() == "through"

    def _drops(self) -> int:
        shown = self.run(self.host, "nft", "list", "table", "inet", TABLE_NAME)
        return sum(int(count) for count in re.findall(r"counter packets (\d+) bytes \d+ drop", shown))


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    listener = None
    with joined(made.host, made.dialler):
        try:
            call("ip", "-n", made.host, "address", "add", f"{OWN}/24", "dev", "eth0")
            for address in (MEMBER, STRANGER, OTHER):
                call("ip", "-n", made.dialler, "address", "add", f"{address}/24", "dev", "eth0")
            for namespace in (made.host, made.dialler):
                call("ip", "-n", namespace, "link", "set", "eth0", "up")
            listener = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    made.host,
                    sys.executable,
                    "-c",
                    LISTENER,
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
            yield made
        finally:
            if listener is not None:
                listener.communicate()


GIVEN: dict[str, Any] = {"members": [MEMBER, OWN], "tcp_ports": ["2049", "6817-6819", "32768-60999"]}


def test_members_get_through_and_strangers_do_not(pair: Pair) -> None:
    assert all(pair.through(STRANGER, port) for port in (2049, 6818, 40000))
    assert pair.apply(GIVEN)["changed"]
    assert all(pair.through(MEMBER, port) for port in (22, 2049, 6818, 40000, 8080))
    assert all(pair.dropped(STRANGER, port) for port in (2049, 6818, 40000))
    assert all(pair.through(STRANGER, port) for port in (22, 8080)), "ports that are not the cluster's are left alone"


def role_ports(**inventory: Any) -> list[str]:
    """Return the TCP ports that the role closes by default, with these variables in the inventory."""
    played = play(
        firewall.ActionModule,
        {"record": RECORD, "tcp_ports": []},
        {"gpumesh.cluster.firewall": [{"changed": False, "tools": True}]},
        {"inventory_hostname": "n1", **inventory},
    )
    ((_module, parameters),) = played.ran
    return list(parameters["tcp_ports"])


def test_the_ports_of_jobs_and_of_the_rest_interface_are_closed_by_default(pair: Pair) -> None:
    ports = (6820, 15000, 17000, 24999, 25000, 28999)
    assert all(pair.through(STRANGER, port) for port in ports)
    pair.apply({**GIVEN, "tcp_ports": role_ports()})
    assert all(pair.dropped(STRANGER, port) for port in ports)
    assert all(pair.through(MEMBER, port) for port in ports)
    assert pair.through(STRANGER, 8080)


def test_the_ports_that_an_inventory_moves_are_closed(pair: Pair) -> None:
    pair.apply({**GIVEN, "tcp_ports": role_ports(job_environment_port_range=[16000, 17000], slurm_rest_port=8080)})
    assert all(pair.dropped(STRANGER, port) for port in (8080, 17000))
    assert all(pair.through(STRANGER, port) for port in (6820, 15000, 24999))


def test_a_second_run_changes_nothing_and_a_new_member_is_let_in(pair: Pair) -> None:
    assert pair.apply(GIVEN, check=True)["changed"]
    assert "gpumesh" not in pair.run(pair.host, "nft", "list", "tables")
    assert pair.apply(GIVEN)["changed"]
    assert not pair.apply(GIVEN)["changed"]
    assert pair.dropped(STRANGER, 2049)
    assert pair.apply({**GIVEN, "members": [MEMBER, OWN, STRANGER]})["changed"]
    assert pair.through(STRANGER, 2049)


def test_what_was_changed_by_hand_comes_back(pair: Pair) -> None:
    pair.apply(GIVEN)
    # Packets change the counters, and only them.
    assert pair.dropped(STRANGER, 2049)
    assert not pair.apply(GIVEN)["changed"]
    pair.run(pair.host, "nft", "add", "element", "inet", TABLE_NAME, "member_lab_4", f"{{ {STRANGER} }}")
    assert pair.through(STRANGER, 2049)
    assert pair.apply(GIVEN)["changed"]
    assert pair.dropped(STRANGER, 2049)
    pair.run(pair.host, "nft", "delete", "table", "inet", TABLE_NAME)
    assert pair.apply(GIVEN)["changed"]
    assert pair.dropped(STRANGER, 2049)


def test_the_hosts_own_rules_are_not_touched(pair: Pair) -> None:
    pair.run(pair.host, "nft", "--file", "-", stdin=HOSTS_OWN_RULES)
    before = pair.run(pair.host, "nft", "list", "table", "inet", "filter")
    pair.apply({**GIVEN, "tcp_ports": ["2049", "7777"]})
    assert not pair.dials(MEMBER, 7777, 1.5), "what the host closes stays closed"
    assert pair.run(pair.host, "nft", "list", "table", "inet", "filter") == before
    pair.apply(None)
    assert pair.run(pair.host, "nft", "list", "table", "inet", "filter") == before


def test_what_is_connected_stays_connected(pair: Pair) -> None:
    hold = """
import socket, sys
peer = socket.create_connection((sys.argv[2], 2049), 30, source_address=(sys.argv[1], 0))
print("connected", flush=True)
sys.stdin.readline()
peer.sendall(b"x")
peer.shutdown(socket.SHUT_WR)
peer.settimeout(30)
print(peer.recv(1) == b"", flush=True)
"""
    echo = subprocess.Popen(
        ["ip", "netns", "exec", pair.dialler, sys.executable, "-c", hold, STRANGER, OWN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert echo.stdout is not None
    assert echo.stdout.readline() == "connected\n"
    pair.apply(GIVEN)
    assert pair.dropped(STRANGER, 2049)
    state = pair.run(pair.host, "ss", "-Htn", "state", "established", "sport", "=", ":2049")
    assert STRANGER in state
    echo.kill()
    echo.communicate()


DIALLED = """
import socket
with socket.create_server(("0.0.0.0", 9000)) as listener:
    print("ready", flush=True)
    peer, _address = listener.accept()
    print("accepted", flush=True)
    input()
    peer.sendall(b"late")
    input()
"""
DIALS_OUT = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 9000), 60)
print(peer.getsockname()[1], flush=True)
print(peer.recv(4).decode(), flush=True)
"""


def test_what_the_host_has_opened_before_the_first_table_goes_on(pair: Pair) -> None:
    """Connections are not tracked before, so that the next packet of an open one counts as new, to an ephemeral port."""

    def start(where: str, *words: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", where, sys.executable, "-c", *words]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def say(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    dialled = start(pair.dialler, DIALLED)
    assert line(dialled) == "ready"
    dials_out = start(pair.host, DIALS_OUT, STRANGER)
    try:
        assert 32768 <= int(line(dials_out)) <= 60999
        assert line(dialled) == "accepted"
        pair.apply(GIVEN)
        say(dialled)
        dials_out.wait(240)
        assert line(dials_out) == "late"
    finally:
        for process in (dials_out, dialled):
            process.kill()
            process.communicate()


def test_machines_that_join_are_let_in_until_the_table_is_loaded_again(pair: Pair) -> None:
    joining = {"admitted": [STRANGER, "2001:db8::7"]}
    assert not pair.apply(joining)["changed"]
    assert "gpumesh" not in pair.run(pair.host, "nft", "list", "tables")
    pair.apply(GIVEN)
    assert pair.apply(joining, check=True)["changed"]
    assert pair.dropped(STRANGER, 2049)
    assert pair.apply(joining)["changed"]
    assert pair.through(STRANGER, 2049)
    assert pair.dropped(OTHER, 2049)
    # Nothing that a killed run leaves lasts, even if another run has extended it.
    pair.apply(joining)
    listed = pair.run(pair.host, "nft", "list", "set", "inet", TABLE_NAME, "joining_4")
    assert re.search(rf"{STRANGER} timeout 15m expires 14m", listed), listed
    # A run with the same members changes nothing, and one with others empties the set.
    assert not pair.apply(GIVEN)["changed"]
    given = {**GIVEN, "members": [*GIVEN["members"], OTHER]}
    assert pair.apply(given)["changed"]
    assert pair.dropped(STRANGER, 2049)
    assert not pair.apply(given)["changed"]


def test_two_clusters_at_once_lose_nothing(pair: Pair) -> None:
    """A run waits for that of another cluster, which has read all parts and is about to load them."""
    pair.apply(GIVEN)
    folder = os.open(pair.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        argv = ["ip", "netns", "exec", pair.host, sys.executable, "-c", PROGRAM]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdin is not None
            waiting.stdin.write(pair.asked(TWO, cluster="two"))
            waiting.stdin.close()
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(2)
            fcntl.flock(folder, fcntl.LOCK_UN)
            assert waiting.wait(240) == 0
    finally:
        os.close(folder)
    assert not pair.apply(TWO, cluster="two")["changed"]


TWO: dict[str, Any] = {
    "members": [STRANGER, OWN],
    "tcp_ports": ["2049", "32768-60999"],
    "udp_ports": ["111"],
    "open_udp_ports": ["51821"],
}


def test_a_host_in_two_clusters_lets_in_the_members_and_tunnels_of_both(pair: Pair) -> None:
    lab = {**GIVEN, "udp_ports": ["111", "32768-60999"]}
    pair.apply(lab)
    assert pair.datagram_dropped(STRANGER, 51821)
    pair.apply(TWO, cluster="two")
    assert all(pair.through(member, port) for member in (MEMBER, STRANGER) for port in (2049, 40000))
    assert pair.datagram_through(OTHER, 51821)
    assert pair.datagram_dropped(OTHER, 51822)
    assert all(pair.dropped(OTHER, port) for port in (2049, 6818, 40000))
    assert not pair.apply(lab)["changed"]
    assert not pair.apply(TWO, cluster="two")["changed"]


def test_a_cluster_leaves_and_changes_without_the_other_one(pair: Pair) -> None:
    pair.apply(GIVEN)
    pair.apply({**TWO, "tcp_ports": ["8080"]}, cluster="two")
    assert pair.dropped(OTHER, 8080)
    pair.apply({**TWO, "members": [OWN, OTHER]}, cluster="two")
    assert pair.dropped(STRANGER, 2049)
    assert all(pair.through(OTHER, port) for port in (2049, 8080))
    assert pair.apply(None, check=True, cluster="two")["changed"]
    assert pair.through(OTHER, 2049)
    assert pair.apply(None, cluster="two")["changed"]
    assert pair.dropped(OTHER, 2049)
    assert pair.through(MEMBER, 2049)
    assert not pair.apply(None, cluster="two")["changed"]
    assert not pair.apply(GIVEN)["changed"]


def test_what_one_cluster_closes_is_not_opened_by_another_one_that_leaves_it_alone(pair: Pair) -> None:
    pair.apply({**GIVEN, "ssh_from": ["192.0.2.0/24"]})
    pair.apply(TWO, cluster="a.two-b")
    assert pair.dropped(OTHER, 22)
    assert all(pair.through(member, 22) for member in (MEMBER, STRANGER))


@pytest.mark.parametrize("given", [GIVEN, None])
def test_the_table_of_an_earlier_version_is_replaced(pair: Pair, given: dict[str, Any] | None) -> None:
    former = "table inet gpumesh_lab { chain input { type filter hook input priority -5; tcp dport 2049 drop; }; }"
    (pair.folder / "gpumesh_lab.nft").write_text(former)
    pair.run(pair.host, "nft", "--file", str(pair.folder / "gpumesh_lab.nft"))
    assert pair.apply(given)["changed"]
    assert "gpumesh_lab" not in pair.run(pair.host, "nft", "list", "tables")
    assert not (pair.folder / "gpumesh_lab.nft").exists()
    assert pair.through(MEMBER, 2049)
    assert not pair.apply(given)["changed"]


def test_the_file_for_the_next_boot_has_every_part(pair: Pair) -> None:
    pair.apply(GIVEN)
    pair.apply(TWO, cluster="two")
    listed = pair.run(pair.host, "nft", "--stateless", "list", "table", "inet", TABLE_NAME)
    pair.run(pair.host, "nft", "flush", "ruleset")
    pair.run(pair.host, "nft", "--file", str(pair.folder / f"{TABLE_NAME}.nft"))
    assert pair.run(pair.host, "nft", "--stateless", "list", "table", "inet", TABLE_NAME) == listed
    assert not pair.apply(GIVEN)["changed"]


def test_leaving_takes_it_all_away(pair: Pair) -> None:
    pair.apply(GIVEN)
    assert pair.apply(None, check=True)["changed"]
    assert pair.dropped(STRANGER, 2049)
    assert pair.apply(None)["changed"]
    assert pair.through(STRANGER, 2049)
    assert list(pair.folder.iterdir()) == []
    assert not pair.apply(None)["changed"]


def test_a_host_that_may_not_have_a_table_has_none_to_take_away(pair: Pair) -> None:
    command = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-c", PROGRAM]
    assert json.loads(pair.run(pair.host, *command, stdin=pair.asked(None)))["changed"] is False


def test_ssh_is_closed_by_choice_only(pair: Pair) -> None:
    pair.apply({**GIVEN, "ssh_from": ["192.0.2.0/24"]})
    assert pair.through(MEMBER, 22)
    assert pair.dropped(STRANGER, 22)
    pair.apply({**GIVEN, "ssh_from": [f"{STRANGER}/32"]})
    assert pair.through(STRANGER, 22)


#: The options with the port of the listener, and that of sshd, in closed ranges.
RANGES: dict[str, Any] = {**GIVEN, "tcp_ports": ["2049", "15000-28999", "32768-60999"]}


def test_the_port_of_ssh_stays_open_within_a_closed_range(pair: Pair) -> None:
    pair.apply({**RANGES, "ssh_port": 22222})
    assert all(pair.dropped(STRANGER, port) for port in (17000, 40000))
    assert pair.through(STRANGER, 22222)
    pair.apply({**RANGES, "ssh_port": 22222, "ssh_from": ["192.0.2.0/24"]})
    assert pair.dropped(STRANGER, 22222)
    assert pair.through(MEMBER, 22222)


@pytest.fixture(name="login")
def _login(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Yield the command that logs in to the host from the stranger's address, at a port within a closed range."""
    folder = tmp_path_factory.mktemp("ssh")
    for key in ("key", "host_key"):
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {"HostKey": folder / "host_key", "AuthorizedKeysFile": folder / "key.pub", "PidFile": "none"}
    options.update(Port=20022, ListenAddress="0.0.0.0", StrictModes="no", UsePAM="no", PermitRootLogin="yes")
    words = [f"-o{name}={value}" for name, value in options.items()]
    inside = ["ip", "netns", "exec"]
    daemon = subprocess.Popen([*inside, pair.host, "/usr/sbin/sshd", "-D", "-f", "/dev/null", *words])
    known = ["-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR", "-oBatchMode=yes"]
    try:
        assert pair.answers(STRANGER, 20022)
        yield ["ssh", "-F", "none", "-i", str(folder / "key"), "-b", STRANGER, "-p", "20022", *known, f"root@{OWN}"]
    finally:
        daemon.terminate()
        daemon.wait()


def over_ssh(pair: Pair, login: list[str], given: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Apply the table as Ansible does: the module is a process of the login."""
    command = shlex.join(
        ["env", f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}", sys.executable, "-c", PROGRAM]
    )
    argv = ["ip", "netns", "exec", pair.dialler, *login, command]
    return subprocess.run(argv, input=pair.asked(given), capture_output=True, text=True, check=False, timeout=120)


def test_the_port_on_which_sshd_listens_is_never_closed_by_a_range(pair: Pair, login: list[str]) -> None:
    assert pair.apply(RANGES)["changed"]
    assert pair.dropped(STRANGER, 17000)
    assert pair.through(STRANGER, 20022)
    # The module finds the same, however it arrives.
    done = over_ssh(pair, login, RANGES)
    assert (done.stderr, json.loads(done.stdout)["changed"]) == ("", False)


def test_a_table_that_would_close_the_own_connection_is_refused(pair: Pair, login: list[str]) -> None:
    given = {**RANGES, "ssh_port": 20022}
    done = over_ssh(pair, login, {**given, "ssh_from": ["192.0.2.0/24"]})
    assert done.returncode == 1
    assert f"{STRANGER}/32" in done.stderr
    assert list(pair.folder.iterdir()) == []
    for accepting in ({"ssh_from": [f"{STRANGER}/32"]}, {"ssh_from": ["192.0.2.0/24"], "trusted": ["10.9.0.0/24"]}):
        assert over_ssh(pair, login, {**given, **accepting}).returncode == 0
        assert pair.through(STRANGER, 20022)
    # The port of SSH that is named is the only restricted one.
    assert over_ssh(pair, login, {**RANGES, "ssh_from": ["192.0.2.0/24"]}).returncode == 0
    assert pair.through(STRANGER, 20022)


def test_addresses_of_both_families_and_of_the_mesh_are_taken(pair: Pair) -> None:
    given = {
        **GIVEN,
        "members": [MEMBER, "2001:db8::1"],
        "mesh_members": ["10.99.0.1", STRANGER],
        "mesh_interface": "gpumesh0",
        "trusted": ["198.51.100.0/24", "2001:db8:1::/48"],
        "udp_ports": ["32768-60999"],
        "open_udp_ports": ["51820"],
    }
    assert pair.apply(given)["changed"]
    assert not pair.apply(given)["changed"]
    assert pair.dropped(STRANGER, 2049), "an address of the mesh counts only on the interface of the mesh"


def test_the_listener_answers_here_too() -> None:
    """The tests above would prove nothing if the machine could not open such a socket at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname(), 5).close()

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A WireGuard mesh between real hosts at two sites.

The tests run in the order of the file; each leaves the mesh as it found it.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import testinfra
from lab_hosts import BIN, ROOT, flatten_output, run_ansible
from testinfra.host import Host

INVENTORY = ROOT / ".lab" / "molecule-wireguard" / "hosts.yml"
MACHINES = ("w1", "w2", "w3", "w4")
PAIRS = tuple(permutations(MACHINES, 2))
ROUTER = "10.77.50.254"

#: Receives 1 MiB from each client, and replies with the number of bytes received.
SERVER = """
import socket, threading
listener = socket.create_server(("{address}", 2399))
def receive(caller):
    count = 0
    while count < 1 << 20:
        data = caller.recv(1 << 16)
        if not data:
            break
        count += len(data)
    caller.sendall(str(count).encode())
    caller.close()
while True:
    threading.Thread(target=receive, args=(listener.accept()[0],), daemon=True).start()
"""
CLIENT = """
import socket
peer = socket.create_connection(("{address}", 2399), 120)
peer.settimeout({patience})
peer.sendall(bytes(1 << 20))
print(peer.recv(100).decode())
"""
#: Seconds to allow on a busy machine for what usually takes a few.
PATIENCE = 900
#: Pings whose replies must arrive before a measurement, and after it: 3 s of them.
PINGS = 30


def mesh_address(machine: str) -> str:
    return f"10.99.0.{machine[1:]}"


@pytest.fixture(name="hosts", scope="module")
def _hosts() -> dict[str, Host]:
    return {
        name: testinfra.get_host(f"ansible://{name}", ansible_inventory=str(INVENTORY))
        for name in (*MACHINES, "router")
    }


def play(*arguments: str, check: bool = True, playbook: str = "gpumesh.cluster.mesh") -> str:
    """Run a playbook on the mesh. Returns its whole output."""
    run = run_ansible("ansible-playbook", "-i", str(INVENTORY), playbook, "-e", "cluster_name=wireguard", *arguments)
    assert not check or run.exit_status == 0, run.failure_report
    return run.output


def changed(output: str) -> dict[str, int]:
    """The number of changes by host."""
    return {name: int(count) for name, count in re.findall(r"^(\w+)\s+: ok=\d+\s+changed=(\d+)", output, re.MULTILINE)}


def module(machine: str, name: str, arguments: dict[str, Any]) -> str:
    """Run one module on one machine."""
    command = [str(BIN / "ansible"), "-i", str(INVENTORY), machine, "-m", name, "-a", json.dumps(arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def peers(host: Host) -> dict[str, str]:
    """The endpoints by public key."""
    lines = host.check_output("wg show gpumesh0 endpoints").splitlines()
    return dict(line.split("\t", 1) for line in lines)


def together(work: Callable[[tuple[str, str]], str], pairs: tuple[tuple[str, str], ...] = PAIRS) -> dict[str, str]:
    """Call the function for all pairs concurrently. Returns its results by pair."""
    with ThreadPoolExecutor(len(pairs)) as pool:
        return dict(zip((f"{a} to {b}" for a, b in pairs), pool.map(work, pairs), strict=True))


def transfers(hosts: dict[str, Host], patience: int = 300) -> dict[str, str]:
    """For every ordered pair, the bytes of 1 MiB that arrived, or the error message."""
    for name in MACHINES:
        code = SERVER.format(address=mesh_address(name))
        hosts[name].check_output("systemd-run --unit=receiver --collect python3 -c %s", code)
    for name in MACHINES:
        listening = "for i in $(seq 3000); do ss -Hltn sport = :2399 | grep -q . && exit; sleep 0.1; done; exit 1"
        hosts[name].check_output(listening)

    def send(pair: tuple[str, str]) -> str:
        code = CLIENT.format(address=mesh_address(pair[1]), patience=patience)
        done = hosts[pair[0]].run("python3 -c %s", code)
        return str((done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2])

    try:
        return together(send)
    finally:
        for name in MACHINES:
            hosts[name].run("systemctl stop receiver")


def wait_for_every_pair(hosts: dict[str, Host], pairs: tuple[tuple[str, str], ...] = PAIRS) -> None:
    """A member that has just started cannot reach those behind NAT: they reconnect when their next keepalive fails.

    WireGuard attempts a handshake for 90 s, and starts again with the next packet, so this can take three minutes even on
    an idle machine. Each pair waits for its own first reply: on a busy machine, there may never be a moment at which all
    of them answer within a few seconds.
    """

    def first_reply(pair: tuple[str, str]) -> str:
        once = f"ping -c 1 -W 10 {mesh_address(pair[1])}"
        done = hosts[pair[0]].run(f"timeout {PATIENCE} sh -c 'until {once}; do sleep 1; done >&2'")
        return "" if done.rc == 0 else done.stderr[-500:] + hosts[pair[0]].run("wg show gpumesh0").stdout

    silent = {pair: said for pair, said in together(first_reply, pairs).items() if said}
    assert not silent, silent


@contextmanager
def no_packet_lost(hosts: dict[str, Host], pairs: tuple[tuple[str, str], ...] = PAIRS) -> Iterator[None]:
    """Ping over each pair 10 times a second while the body runs; every single reply must arrive.

    What counts are the pings before the last one that was answered, since on a busy machine, others may be in flight.
    """
    folder = "/tmp/pings"
    wait_for_every_pair(hosts, pairs)
    for name in MACHINES:
        hosts[name].run(f"rm -rf {folder}; mkdir {folder}")

    def more_answers(pair: tuple[str, str]) -> str:
        a, b = pair
        wait = f'tail --lines=0 --follow {folder}/{b} | grep --max-count={PINGS} --count "bytes from"'
        assert hosts[a].check_output(f"timeout {PATIENCE} sh -c '{wait}'").strip() == str(PINGS)
        return hosts[a].check_output(f"cat {folder}/{b}")

    try:
        for a, b in pairs:
            # systemd-run returns before the shell opens the file.
            hosts[a].check_output(f"touch {folder}/{b}")
            command = f"exec ping -i 0.1 -W 30 {mesh_address(b)} >> {folder}/{b}"
            hosts[a].check_output(f"systemd-run --unit=ping-{b} --collect sh -c %s", command)
        together(more_answers, pairs)
        yield
        for pair, text in together(more_answers, pairs).items():
            answered = {int(number) for number in re.findall(r"bytes from .* icmp_seq=(\d+)", text)}
            lost = set(range(1, max(answered))) - answered
            assert not lost, f"{pair}: no answer to {sorted(lost)} of {max(answered)}"
    finally:
        for a, b in pairs:
            hosts[a].run(f"systemctl stop ping-{b}")


def test_every_pair_transfers_one_mebibyte_and_has_a_fresh_handshake(hosts: dict[str, Host]) -> None:
    wait_for_every_pair(hosts)
    begun = time.time()
    assert set(transfers(hosts).values()) == {str(1 << 20)}
    # Each tunnel has carried data since, and none is carried 180 s after a handshake.
    for name in MACHINES:
        for line in hosts[name].check_output("wg show gpumesh0 latest-handshakes").splitlines():
            assert begun - int(line.split("\t")[1]) < 180, f"{name}: {line}"


def test_members_behind_nat_are_known_by_their_router_and_relayed_to_each_other(hosts: dict[str, Host]) -> None:
    for name, other_site in (("w1", "10.77.50.13"), ("w3", "10.77.50.11")):
        found = [endpoint.split(":")[0] for endpoint in peers(hosts[name]).values()]
        assert {other_site, ROUTER} < set(found)
    for name in ("w2", "w4"):
        assert len(peers(hosts[name])) == 2
        assert hosts[name].check_output("wg show gpumesh0 persistent-keepalive").count("\t25") == 1
    # The relay forwards between its peers, but must not route anything else.
    assert hosts["w1"].file("/proc/sys/net/ipv4/conf/gpumesh0/forwarding").content_string.strip() == "1"
    assert hosts["w1"].file("/proc/sys/net/ipv4/conf/eth0/forwarding").content_string.strip() == "0"


def test_members_of_a_site_talk_over_its_own_network(hosts: dict[str, Host]) -> None:
    """Their packets use the LAN that was found, not the endpoint to which the other site connects."""
    for one, other, lan in (("w1", "w2", "10.77.51."), ("w3", "w4", "10.77.52.")):
        for name, peer in ((one, other), (other, one)):
            key = hosts[peer].check_output("wg show gpumesh0 public-key")
            assert peers(hosts[name])[key] == f"{lan}1{peer[1:]}:51820"


def test_no_private_key_is_anywhere_but_in_its_file(hosts: dict[str, Host]) -> None:
    output = play("-vvv", "--diff", playbook=str(Path(__file__).parents[1] / "converge.yml"))
    # A second run, of all playbooks, changes nothing.
    assert set(changed(output).values()) == {0}
    for name in MACHINES:
        secret = hosts[name].file("/etc/wireguard/gpumesh0.key")
        assert (secret.mode, secret.user) == (0o600, "root")
        key = secret.content_string.strip()
        assert len(key) == 44
        assert key not in output
        assert hosts[name].file("/etc/wireguard/gpumesh0.conf").mode == 0o600
        found = hosts[name].run("grep -rlF -- %s /etc /var/lib /var/log /root /tmp", key).stdout.split()
        assert found == ["/etc/wireguard/gpumesh0.key"]
        assert hosts[name].run("journalctl -q --grep %s", key.replace("+", "\\+")).stdout == ""


def test_what_is_changed_by_hand_comes_back_and_nothing_else_is_touched(hosts: dict[str, Host]) -> None:
    key = min(peers(hosts["w3"]))
    hosts["w3"].check_output(f"wg set gpumesh0 peer {key} remove")
    hosts["w3"].check_output("ip link set gpumesh0 mtu 1300")
    # A userspace tunnel that died is started again. Where the kernel runs WireGuard itself, there is none.
    died = int(hosts["w2"].run("pkill -x wireguard-go").rc == 0)
    assert changed(play()) == {"w1": 0, "w2": died, "w3": 1, "w4": 0}
    assert key in peers(hosts["w3"])
    assert hosts["w3"].file("/sys/class/net/gpumesh0/mtu").content_string.strip() == "1420"
    wait_for_every_pair(hosts, (("w2", "w1"),))


def test_a_mesh_without_a_way_is_refused_with_the_pair(hosts: dict[str, Host]) -> None:
    before = {name: hosts[name].check_output("wg show gpumesh0 allowed-ips | sort") for name in MACHINES}
    output = play("-e", '{"mesh_relays": ["w2"]}', check=False)
    assert "w2 (site a) and w4 (site b)" in flatten_output(output)
    assert set(changed(output).values()) == {0}
    after = {name: hosts[name].check_output("wg show gpumesh0 allowed-ips | sort") for name in MACHINES}
    assert after == before


def relay_between(hosts: dict[str, Host]) -> set[str]:
    """The members through which w2 and w4 send to each other."""
    public = {hosts[name].check_output("wg show gpumesh0 public-key"): name for name in MACHINES}
    ways = set()
    for name, other in (("w2", "w4"), ("w4", "w2")):
        for line in hosts[name].check_output("wg show gpumesh0 allowed-ips").splitlines():
            key, networks = line.split("\t")
            if f"{mesh_address(other)}/32" in networks.split():
                ways.add(public[key])
    return ways


def test_the_relay_is_the_manager_or_who_is_named(hosts: dict[str, Host]) -> None:
    """The next test leaves the relay to the manager again."""
    assert relay_between(hosts) == {"w1"}
    play("-e", '{"mesh_relays": ["w3"]}')
    assert relay_between(hosts) == {"w3"}
    wait_for_every_pair(hosts)


def test_a_change_of_keys_that_was_cut_off_is_finished_by_the_same_command(hosts: dict[str, Host]) -> None:
    """A member has a new key that is not in the record yet, and sessions with all others."""
    key = "/etc/wireguard/gpumesh0.key"
    hosts["w3"].check_output(f"umask 077 && wg genkey >{key} && wg set gpumesh0 private-key {key}")
    play("-e", "mesh_rotate_keys=true")
    assert relay_between(hosts) == {"w1"}
    wait_for_every_pair(hosts)
    assert set(changed(play()).values()) == {0}


def test_keys_are_changed_without_a_lost_packet(hosts: dict[str, Host]) -> None:
    before = {name: hosts[name].check_output("wg show gpumesh0 public-key") for name in MACHINES}
    with no_packet_lost(hosts):
        play("-e", "mesh_rotate_keys=true")
    after = {name: hosts[name].check_output("wg show gpumesh0 public-key") for name in MACHINES}
    # That nothing is left to do then is in the test of a change that was cut off.
    assert all(before[name] != after[name] for name in MACHINES)


def shared_keys(hosts: dict[str, Host]) -> dict[tuple[str, str], str]:
    """The preshared key that each member's running tunnel has for each of its peers, by member and public key."""
    return {
        (name, line.split("\t")[0]): line.split("\t")[1]
        for name in MACHINES
        for line in hosts[name].check_output("wg show gpumesh0 preshared-keys").splitlines()
    }


def test_pairs_take_a_shared_key_and_give_it_up_without_a_lost_packet(hosts: dict[str, Host]) -> None:
    public = {hosts[name].check_output("wg show gpumesh0 public-key"): name for name in MACHINES}
    on = ("-e", "mesh_preshared_keys=true")
    with no_packet_lost(hosts):
        output = play("-vvv", "--diff", *on)
    pairs: dict[frozenset[str], set[str]] = {}
    for (name, key), secret in shared_keys(hosts).items():
        pairs.setdefault(frozenset((name, public[key])), set()).add(secret)
    # w2 and w4 communicate through the relay, and have no tunnel to each other.
    assert len(pairs) == 5
    assert all(len(secrets) == 1 for secrets in pairs.values()), "the two ends have different keys"
    assert "(none)" not in set.union(*pairs.values())
    for pair, (secret,) in pairs.items():
        assert secret not in output
        for name in MACHINES:
            found = hosts[name].run("grep -rlF -- %s /etc /var/lib /var/log /root /tmp", secret).stdout.split()
            other = "".join(pair - {name})
            assert found == ([f"/etc/wireguard/gpumesh0.preshared/{other}"] if name in pair else [])
            assert hosts[name].run("journalctl -q --grep %s", secret.replace("+", "\\+")).stdout == ""
    # A run that should remove them but does not include the other ends keeps them, and all peers.
    before = {name: sorted(peers(hosts[name])) for name in MACHINES}
    assert changed(play("--limit", "w3")) == {"w3": 0}
    assert {name: sorted(peers(hosts[name])) for name in MACHINES} == before
    # Sessions that are established anew use them.
    start = int(hosts["w3"].check_output("date +%s"))
    hosts["w3"].check_output("systemctl restart wg-quick@gpumesh0")
    wait_for_every_pair(hosts)
    handshakes = hosts["w3"].check_output("wg show gpumesh0 latest-handshakes").splitlines()
    assert all(int(line.split("\t")[1]) >= start for line in handshakes)
    with no_packet_lost(hosts):
        assert all(count > 0 for count in changed(play()).values())
    assert set(shared_keys(hosts).values()) == {"(none)"}
    for name in MACHINES:
        assert hosts[name].run("ls -d /etc/wireguard/gpumesh0.preshared").rc != 0


def test_a_change_of_keys_without_all_members_is_refused() -> None:
    output = play("-e", "mesh_rotate_keys=true", "--limit", "w1,w2", check=False)
    assert "w3" in output and "w4" in output and "without --limit" in flatten_output(output)
    assert set(changed(output).values()) == {0}


def test_others_lose_no_packet_while_a_member_leaves_and_joins(hosts: dict[str, Host]) -> None:
    others = tuple(pair for pair in PAIRS if "w4" not in pair)
    with no_packet_lost(hosts, others):
        play("--limit", "w4", playbook=str(Path(__file__).parents[1] / "leave.yml"))
        member = {"cluster": "wireguard", "machine": "w4", "state": "absent"}
        module("w1", "gpumesh.cluster.cluster_member", member)
        play("--limit", "w1,w2,w3")
        assert all(len(peers(hosts[name])) == 2 for name in ("w1", "w3"))
        assert hosts["w4"].run("ip link show dev gpumesh0").rc != 0
        assert hosts["w4"].run("ls -A /etc/wireguard").stdout.strip() == ""
        assert not hosts["w4"].service("wg-quick@gpumesh0").is_enabled
        member_again = {"machine": "w4", "site": "b", "lan_address": "10.77.52.14"}
        joined = {"cluster": "wireguard", "members": [member_again]}
        module("w1", "gpumesh.cluster.cluster_member", joined)
        would = play("--check")
        assert changed(would)["w4"] > 0
        assert re.search(r"w2\s+│\s+w4\s+│\s+w1", would), would[-4000:]
        assert hosts["w4"].run("ls -A /etc/wireguard").stdout.strip() == ""
        play()
    wait_for_every_pair(hosts)
    assert set(transfers(hosts).values()) == {str(1 << 20)}


def test_a_path_that_swallows_large_packets_is_found_and_obeyed(hosts: dict[str, Host]) -> None:
    """The MTU of the router's uplink is reduced, and it sends no ICMP messages about it."""
    narrow = (
        "ip link set eth2 mtu 1400"
        " && nft add chain ip filter output '{ type filter hook output priority 0; }'"
        " && nft add rule ip filter output icmp type destination-unreachable drop"
    )
    assert hosts["router"].check_output("ip -o -4 address show dev eth2").split()[3] == f"{ROUTER}/24"
    for name in MACHINES:
        assert hosts[name].file("/sys/class/net/gpumesh0/mtu").content_string.strip() == "1420"
    hosts["router"].check_output(narrow)
    try:
        assert set(transfers(hosts, patience=10).values()) != {str(1 << 20)}, "the black hole does not swallow anything"
        play()
        for name in ("w2", "w4"):
            mtu = int(hosts[name].file("/sys/class/net/gpumesh0/mtu").content_string)
            assert 1400 - 60 - 8 <= mtu <= 1400 - 60
        assert set(transfers(hosts).values()) == {str(1 << 20)}
        assert set(changed(play()).values()) == {0}
    finally:
        hosts["router"].run("ip link set eth2 mtu 1500; systemctl restart nftables")
        run = play()
    # The next run detects that the path MTU has increased.
    assert {name for name, count in changed(run).items() if count} == {"w2", "w4"}
    for name in MACHINES:
        assert hosts[name].file("/sys/class/net/gpumesh0/mtu").content_string.strip() == "1420"


def test_a_firewall_that_is_switched_off_leaves_nothing_behind(hosts: dict[str, Host]) -> None:
    playbook = str(Path(__file__).parents[1] / "firewall.yml")
    on = ("-e", "firewall_enabled=true")
    play(*on, playbook=playbook)
    # Loading the host's own rules deletes all tables. Here one time right after the other, as a script does.
    load = " && ".join(f"systemctl {action} nftables" for action in ("stop", "start", "reload"))
    hosts["w1"].check_output(f"{load} && nft list table inet gpumesh-firewall")
    hosts["w3"].check_output("nft add table inet own")
    others = {}
    for name in MACHINES:
        tables = hosts[name].check_output("nft list tables").splitlines()
        assert "table inet gpumesh-firewall" in tables
        loaded = hosts[name].check_output("nft list table inet gpumesh-firewall")
        # Slurm's REST interface, and the rendezvous of jobs.
        assert "6817-6820, 15000-28999" in loaded
        assert hosts[name].service("gpumesh-firewall").is_enabled
        others[name] = [table for table in tables if table != "table inet gpumesh-firewall"]
    assert all(count > 0 for count in changed(play(playbook=playbook)).values())
    for name in MACHINES:
        assert hosts[name].check_output("nft list tables").splitlines() == others[name]
        left = "-name 'gpumesh-firewall*' -o -name nftables.service.d -o -path '/etc/gpumesh/firewall*'"
        assert hosts[name].run(f"find /etc /run {left}").stdout == ""
    hosts["w3"].check_output("nft delete table inet own")


def test_a_restart_of_every_host_brings_all_back(hosts: dict[str, Host]) -> None:
    names = [f"gpumesh-molecule-wireguard-{name}" for name in (*MACHINES, "router")]
    subprocess.run(["docker", "restart", "--time", "10", *names], check=True, stdout=subprocess.DEVNULL)
    wait = [str(BIN / "ansible"), "-i", str(INVENTORY), "all", "-m", "wait_for_connection", "-a", f"timeout={PATIENCE}"]
    subprocess.run(wait, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    wait_for_every_pair(hosts)
    assert set(changed(play()).values()) == {0}

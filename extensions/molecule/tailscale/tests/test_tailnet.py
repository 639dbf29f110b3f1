# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster over a tailnet, on real hosts with a real tailscaled and a Headscale server of their own.

The tests run in the order of the file. The last one leaves t3 outside the cluster; it joins again in
test_tailnet_pods.py.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, AnsibleRun, Lab

MEMBERS = ("t1", "t2", "t3")
STATE = ROOT / ".lab" / "molecule-tailscale"
#: Connects through a SOCKS5 proxy (RFC 1928) or directly, and prints the first data that the server sends.
DIAL = """
import socket, sys
address, port, proxy = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
peer = socket.create_connection(("127.0.0.2", proxy) if proxy else (address, port), 20)
if proxy:
    peer.sendall(bytes([5, 1, 0]))
    assert peer.recv(2) == bytes([5, 0])
    peer.sendall(bytes([5, 1, 0, 1]) + socket.inet_aton(address) + port.to_bytes(2, "big"))
    answer = peer.recv(10)
    assert answer[1] == 0, answer
print(peer.recv(100).decode())
"""


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return Lab("molecule-tailscale")


def with_key() -> tuple[str, ...]:
    """The arguments that let a host log in."""
    return ("-e", f"mesh_auth_key_file={STATE / 'auth.key'}")


def with_archive() -> tuple[str, ...]:
    """The arguments that install tailscale from an archive as its vendor publishes it."""
    return ("-e", f"mesh_tailscale_archive={STATE / 'tailscale.tgz'}")


def joined(lab: Lab, *arguments: str) -> None:
    """Join the container without TUN and without a service manager again. It was removed, so only a join adds it."""
    run = lab.run_playbook(
        "gpumesh.cluster.join", *with_key(), *with_archive(), "-e", "cluster_machines=t3", *arguments
    )
    assert run.exit_status == 0, run.failure_report


def removed(lab: Lab, *arguments: str) -> None:
    run = lab.run_playbook("gpumesh.cluster.remove", "-e", "cluster_machine=t3", *arguments)
    assert run.exit_status == 0, run.failure_report
    assert (STATE / "api.key").read_text().strip() not in run.output


def drift(lab: Lab) -> dict[str, dict[str, str]]:
    """What the playbook show reports about each member."""
    run = lab.run_playbook("gpumesh.cluster.show", "-e", "show_output=json")
    return {member["machine"]: member["drift"] for member in run.shown_clusters[0]["members"]}


def with_api_key() -> tuple[str, ...]:
    """The arguments with which devices are changed at the control server."""
    key = (STATE / "api.key").read_text().strip()
    return ("-e", f"mesh_api_key={key}", "-e", f"mesh_api_ca_path={STATE / 'cert.pem'}")


def mesh(lab: Lab, *arguments: str) -> AnsibleRun:
    run = lab.run_playbook("gpumesh.cluster.mesh", *arguments)
    assert run.exit_status == 0, run.failure_report
    return run


def status(lab: Lab, member: str) -> dict[str, Any]:
    """The status that tailscaled on the member reports; empty if it is not running."""
    text = lab.run(member, "tailscale", "status", "--json", check=False)
    return dict(json.loads(text)) if text.startswith("{") else {"BackendState": "", "Self": {}}


def ephemeral_key(lab: Lab) -> str:
    """A key for one login, whose device the control server removes as soon as it is offline."""
    argv = ("preauthkeys", "create", "--user", "1", "--ephemeral", "--expiration", "1h", "--output", "json")
    return str(json.loads(lab.run("headscale", "headscale", *argv))["key"])


def address(lab: Lab, member: str) -> str:
    """The member's address in the cluster record."""
    record = json.loads(lab.run("t1", "cat", "/var/lib/gpumesh/clusters/tailscale.json"))
    return next(str(one["mesh"]["address"]) for one in record["members"] if one["machine"] == member)


def nodes(lab: Lab) -> dict[str, str]:
    """The devices that the control server knows: ID by name."""
    listed = json.loads(lab.run("headscale", "headscale", "nodes", "list", "--output", "json")) or []
    return {str(node["given_name"]): str(node["id"]) for node in listed}


def dial(lab: Lab, member: str, target: str, port: int, proxy: int = 0) -> str:
    return lab.run(member, "python3", "-c", DIAL, target, str(port), str(proxy), check=False, timeout=120)


def await_ssh(lab: Lab, member: str, target: str, proxy: int = 0) -> None:
    """Wait until an SSH server greets the member."""
    lab.wait_until(f"{target} greets {member}", lambda: dial(lab, member, target, 22, proxy).startswith("SSH-2.0"))


def is_running(lab: Lab, member: str) -> bool:
    return bool(status(lab, member)["BackendState"] == "Running")


def is_clean(lab: Lab, member: str) -> bool:
    """Whether the member has kept nothing of its login."""
    return lab.run(member, "sh", "-c", "ls /var/lib/tailscale /var/lib/gpumesh/tailscale-login", check=False) == ""


def test_a_job_runs_on_both_nodes_over_the_tailnet(lab: Lab) -> None:
    shown = lab.run("t1", "scontrol", "show", "nodes", "--oneliner")
    for member in ("t1", "t2"):
        assert f"NodeAddr={address(lab, member)}" in shown or f"NodeAddr={member}" in shown, shown
        assert address(lab, member).startswith("100.64.")
        assert address(lab, member) in lab.run("t1", "getent", "hosts", member)
    output = lab.run("t1", "srun", "--nodes=2", "--ntasks-per-node=1", "printenv", "SLURMD_NODENAME", timeout=180)
    assert sorted(output.split()) == ["t1", "t2"]


def test_a_container_without_tun_is_a_member_and_no_node(lab: Lab) -> None:
    assert address(lab, "t3") in status(lab, "t3")["TailscaleIPs"]
    assert sorted(lab.run("t1", "sinfo", "--noheader", "--Node", "--format=%N").split()) == ["t1", "t2"]


def test_the_firewall_lets_members_in_and_nobody_else(lab: Lab) -> None:
    def reaches(member: str, target: str, port: int, seconds: int) -> bool:
        dialled = f"import socket; socket.create_connection(({target!r}, {port}), {seconds})"
        argv = ("python3", "-c", f"{dialled}; print('yes')")
        return "yes" in lab.run(member, *argv, check=False, timeout=120)

    # All hosts are on one LAN here, and Slurm's controller listens on it.
    lan = "10.77.60.11"
    assert reaches("t1", lan, 6817, 100)
    assert not reaches("headscale", lan, 6817, 3)
    assert reaches("headscale", lan, 22, 100)
    assert reaches("t2", address(lab, "t1"), 6817, 100)


def test_a_member_without_tun_is_dialled_and_dials_by_its_proxy(lab: Lab) -> None:
    assert status(lab, "t3")["TUN"] is False
    assert "tailscale0" not in lab.run("t3", "ip", "link")
    await_ssh(lab, "t1", address(lab, "t3"))
    await_ssh(lab, "t3", address(lab, "t1"), proxy=1055)
    # The documented limit: a program that does not support proxies cannot connect.
    assert dial(lab, "t3", address(lab, "t1"), 22) == ""


def test_other_members_cannot_use_the_proxy(lab: Lab) -> None:
    """It would give them access to the provider's network."""
    ask = (
        "import socket, sys; peer = socket.create_connection((sys.argv[1], 1055), 20); "
        "peer.sendall(bytes([5, 1, 0])); print(peer.recv(2))"
    )
    assert lab.run("t3", "python3", "-c", ask, "127.0.0.2").strip() == str(bytes([5, 0]))
    assert str(bytes([5, 0])) not in lab.run("t1", "python3", "-c", ask, address(lab, "t3"), check=False, timeout=60)


@contextmanager
def command_lines(lab: Lab, member: str) -> Iterator[list[str]]:
    """Yields the command lines of all processes, sampled many times a second."""
    watch = "rm -f /run/stop; while [ ! -e /run/stop ]; do cat /proc/[0-9]*/cmdline | tr '\\0' ' '; sleep 0.02; done"
    lab.run(member, "systemd-run", "--unit=watch", "--collect", "sh", "-c", f"({watch}) >/run/lines 2>/dev/null")
    seen: list[str] = []
    try:
        yield seen
    finally:
        lab.run(member, "touch", "/run/stop")
        seen.append(lab.run(member, "cat", "/run/lines"))
        lab.run(member, "rm", "/run/lines")


def test_an_expired_member_logs_in_again_under_its_own_name(lab: Lab) -> None:
    """It alone gets the key, in a run that also reports the way to every peer."""
    before, identity = address(lab, "t2"), nodes(lab)["t2"]
    lab.run("headscale", "headscale", "nodes", "expire", "--identifier", identity)
    lab.wait_until("t2 knows that its key has expired", lambda: status(lab, "t2")["BackendState"] == "NeedsLogin")
    expired = {"mesh": "it is not logged in to its tailnet (NeedsLogin)"}
    assert drift(lab) == {"t1": {}, "t2": expired, "t3": {}}

    key = (STATE / "auth.key").read_text().strip()
    with command_lines(lab, "t2") as lines:
        run = mesh(lab, "-vvv", "--diff", *with_key(), "-e", "mesh_report_paths=true")
    assert run.changed == {"t1": 0, "t2": 1, "t3": 0}
    assert is_running(lab, "t2")
    assert before in status(lab, "t2")["TailscaleIPs"]
    assert status(lab, "t2")["Self"]["DNSName"].startswith("t2.")
    assert nodes(lab)["t2"] == identity
    assert "--auth-key=file:" in lines[0], "nobody looked while it logged in"
    assert key not in lines[0]
    assert key not in run.output
    found = lab.run("t2", "grep", "-rlF", key, "/etc", "/root", "/run", "/tmp", "/var", check=False)
    assert found == ""
    # For a secret option, Ansible only shows that it was given.
    results = re.findall(r"^(?:ok|changed): \[(\w+)\] => \n((?:    .*\n)+)", run.output, re.MULTILINE)
    given = {text: {host for host, result in results if f" auth_key: {text}" in result} for text in ("null", "VALUE_")}
    assert given == {"null": set(MEMBERS), "VALUE_": {"t2"}}

    found_ways = ways(run)
    assert len(found_ways) == 6, run.failure_report
    # t3's network lets only TCP through, so its connections are relayed.
    assert {way for pair, way in found_ways.items() if "t3" in pair} == {"relayed"}

    def is_direct() -> bool:
        return found_ways["t1", "t2"] == found_ways["t2", "t1"] == "direct"

    def is_direct_now() -> bool:
        found_ways.update(ways(mesh(lab, "-e", "mesh_report_paths=true")))
        return is_direct()

    # On a busy machine, tailscaled may find the direct way only after the few packets of that run.
    lab.wait_until("t1 and t2 have the direct way", lambda: is_direct() or is_direct_now(), 900)


def ways(run: AnsibleRun) -> dict[tuple[str, str], str]:
    """The way from each member to each other one, as a run reports it."""
    rows = [[cell.strip() for cell in line.split("│") if cell.strip()] for line in run.output.splitlines()]
    return {(row[0], row[1]): row[2] for row in rows if len(row) == 4 and row[0] in MEMBERS}


#: Sends a byte twenty times a second to an echo of itself at another member, until /run/stop exists. Prints the longest
#: time without an answer.
ECHO = """
import os, socket, sys, threading, time
def echo(server):
    peer, _from = server.accept()
    while data := peer.recv(100):
        peer.sendall(data)
def ask(address):
    peer = socket.create_connection((address, 7007), 60)
    longest, last = 0, time.monotonic()
    open("/run/asking", "w").close()
    while not os.path.exists("/run/stop"):
        peer.sendall(b"x")
        assert peer.recv(1) == b"x"
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
        time.sleep(0.05)
    print("longest", longest)
if sys.argv[1] == "serve":
    server = socket.create_server((sys.argv[2], 7007))
    open("/run/serving", "w").close()
    echo(server)
else:
    ask(sys.argv[2])
"""


@contextmanager
def connection(lab: Lab, client: str, server: str) -> Iterator[None]:
    """While a connection over the tailnet carries packets, which nothing else may end."""
    script = ("systemd-run", "--unit=echo", "--collect", "--property=StandardOutput=file:/run/echo", "python3", "-c")
    lab.run(server, *script, ECHO, "serve", address(lab, server))
    lab.wait_until("the server listens", lambda: lab.run(server, "ls", "/run/serving", check=False) != "")
    lab.run(client, *script, ECHO, "ask", address(lab, server))
    lab.wait_until("the client asks", lambda: lab.run(client, "ls", "/run/asking", check=False) != "")
    try:
        yield
        lab.run(client, "touch", "/run/stop")
        lab.wait_until("the connection has ended", lambda: "longest" in lab.run(client, "cat", "/run/echo"))
    finally:
        for member in (client, server):
            lab.run(
                member,
                "sh",
                "-c",
                "systemctl stop echo; rm -f /run/stop /run/asking /run/serving /run/echo",
                check=False,
            )


def ends_soon(lab: Lab, *members: str) -> str:
    """Let the keys of these members end in ten days. Returns when."""
    end = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for member in members:
        lab.run("headscale", "headscale", "nodes", "expire", "--identifier", nodes(lab)[member], "--expiry", end)
    lab.wait_until("they know", lambda: all(status(lab, one)["Self"].get("KeyExpiry") == end for one in members))
    return end


def test_keys_that_end_soon_are_replaced_while_connections_go_on(lab: Lab) -> None:
    end, own = ends_soon(lab, "t2", "t3"), {member: status(lab, member)["Self"] for member in MEMBERS}
    (shown,) = lab.run_playbook("gpumesh.cluster.show", "-e", "show_output=json").shown_clusters
    assert {member["machine"]: member["key_expiry"] for member in shown["members"]} == {
        "t1": None,
        "t2": end,
        "t3": end,
    }
    assert any(f"The keys of t2, t3 in the tailnet expire on {end[:10]}" in problem for problem in shown["problems"])

    # Without a valid key, the administrator is told so, and nothing changes.
    refused = "hskey-auth-aaaaaaaaaaaa-" + "b" * 64
    key = f"{{{{ '{refused}' if inventory_hostname == 't2' else '' }}}}"
    run = mesh(lab, "-e", json.dumps({"mesh_auth_key": key}))
    assert set(run.changed.values()) == {0}
    for member, reason in (("t2", ""), ("t3", ", since no auth key is given")):
        told = f"{member}: The key of this host in its tailnet ends at {end}, and was not replaced{reason}. Until then"
        assert told in run.flat_output, run.failure_report
    assert (
        "auth-key not found" in run.flat_output
        and "Set mesh_auth_key_file" in run.flat_output
        and refused not in run.output
    )
    assert all(status(lab, member)["Self"]["PublicKey"] == own[member]["PublicKey"] for member in MEMBERS)

    # Until its former key is used again, the control server takes a host for offline.
    lab.wait_until("all members are online", lambda: all(status(lab, member)["Self"]["Online"] for member in MEMBERS))
    with connection(lab, "t1", "t2"):
        assert mesh(lab, *with_key()).changed == {"t1": 0, "t2": 1, "t3": 1}
    for member in ("t2", "t3"):

        def knows(member: str = member) -> bool:
            found = status(lab, member)["Self"]
            return bool(found) and found["PublicKey"] != own[member]["PublicKey"] and "KeyExpiry" not in found

        lab.wait_until(f"{member} knows of its new key", knows)
        found = status(lab, member)["Self"]
        assert (found["ID"], found["TailscaleIPs"]) == (own[member]["ID"], own[member]["TailscaleIPs"])
        await_ssh(lab, "t1", address(lab, member))
    assert set(mesh(lab, *with_key()).changed.values()) == {0}


def test_settings_and_tags_change_alone_and_once(lab: Lab) -> None:
    settings = {"mesh_advertise_routes": ["10.1.0.0/16"], "mesh_accept_routes": True, "mesh_tags": ["tag:rented"]}
    given = ("--limit", "t3", "-e", json.dumps(settings))
    # Tags are set at the control server.
    refused = lab.run_playbook("gpumesh.cluster.mesh", *given)
    assert refused.exit_status != 0
    assert "Give mesh_api_key" in refused.flat_output
    assert mesh(lab, *given, *with_api_key()).changed["t3"] > 0
    lab.wait_until("t3 has heard of its tags", lambda: status(lab, "t3")["Self"].get("Tags") == ["tag:rented"])
    prefs = json.loads(lab.run("t3", "tailscale", "debug", "prefs"))
    assert (prefs["AdvertiseRoutes"], prefs["RouteAll"]) == (["10.1.0.0/16"], True)
    assert mesh(lab, *given).changed["t3"] == 0


def test_the_device_of_a_machine_that_is_dead_is_deleted(lab: Lab) -> None:
    lab.kill("t3")
    try:
        # If the deletion fails, the machine stays in the record, and the same command can be run again.
        wrong = (*with_api_key(), "-e", "mesh_api_key=wrong")
        refused = lab.run_playbook("gpumesh.cluster.remove", "-e", "cluster_machine=t3", *wrong)
        assert refused.exit_status != 0
        assert "API key is valid" in refused.flat_output
        assert address(lab, "t3") and "t3" in nodes(lab)
        removed(lab, *with_api_key())
        assert sorted(nodes(lab)) == ["t1", "t2"]
    finally:
        lab.power_on("t3")
        lab.wait_until("t3 answers", lambda: lab.run("t3", "pgrep", "-x", "sshd", check=False) != "")
    # It is reachable again, and the removal is completed.
    removed(lab, *with_api_key())
    assert is_clean(lab, "t3")


def test_a_machine_whose_device_was_deleted_comes_back_under_its_own_name(lab: Lab) -> None:
    joined(lab, "-e", f"mesh_auth_key={ephemeral_key(lab)}")
    assert status(lab, "t3")["Self"]["DNSName"].startswith("t3.")
    assert sorted(nodes(lab)) == list(MEMBERS)
    assert address(lab, "t3") in status(lab, "t3")["TailscaleIPs"]


def test_the_device_of_an_ephemeral_key_goes_with_its_logout_and_its_name_is_free(lab: Lab) -> None:
    identity = nodes(lab)["t3"]
    lab.run("t3", "tailscale", "logout")
    lab.wait_until("the control server has forgotten t3", lambda: "t3" not in nodes(lab))
    mesh(lab, "--limit", "t3", *with_key())
    assert status(lab, "t3")["Self"]["DNSName"].startswith("t3.")
    assert nodes(lab)["t3"] != identity
    assert address(lab, "t3") in status(lab, "t3")["TailscaleIPs"]


def test_a_removal_whose_api_key_is_refused_is_completed_by_the_same_command(lab: Lab) -> None:
    identity = nodes(lab)["t3"]
    wrong = (*with_api_key(), "-e", "mesh_api_key=wrong")
    failed = lab.run_playbook("gpumesh.cluster.remove", "-e", "cluster_machine=t3", *wrong)
    assert failed.exit_status != 0
    assert nodes(lab)["t3"] == identity
    # It is logged out by now, and no longer in the record. Without the API, its device stays, and so does its identity.
    removed(lab)
    assert nodes(lab)["t3"] == identity
    assert status(lab, "t3")["BackendState"] == ""
    assert not is_clean(lab, "t3")

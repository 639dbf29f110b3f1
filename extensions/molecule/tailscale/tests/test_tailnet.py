# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster over a tailnet, on real hosts with a real tailscaled and a Headscale server of their own.

The tests run in the order of the file; each leaves the tailnet as it found it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, Lab, Run

MEMBERS = ("t1", "t2", "t3")
STATE = ROOT / ".lab" / "molecule-tailscale"
ALL = ("-e", "cluster_hosts=cluster:rented")
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
    run = lab.play("gpumesh.cluster.join", *ALL, *with_key(), *with_archive(), "-e", "cluster_machines=t3", *arguments)
    assert run.code == 0, run.output[-6000:]


def removed(lab: Lab, *arguments: str) -> None:
    run = lab.play("gpumesh.cluster.remove", *ALL, "-e", "cluster_machine=t3", *arguments)
    assert run.code == 0, run.output[-6000:]
    assert (STATE / "api.key").read_text().strip() not in run.output


def drift(lab: Lab, *arguments: str) -> dict[str, dict[str, str]]:
    """What the playbook show reports about each member."""
    run = lab.play("gpumesh.cluster.show", *arguments, "-e", "show_output=json")
    return {member["machine"]: member["drift"] for member in run.shown[0]["members"]}


def started(lab: Lab, member: str) -> dict[str, str]:
    """The start time of each service of the member."""
    names = ("tailscaled", "munge", "slurmctld", "slurmd", "slurmdbd", "mariadb", "ssh")
    shown = lab.run(member, "systemctl", "show", "--property=Id,ActiveEnterTimestampMonotonic", *names)
    found = [dict(line.split("=", 1) for line in unit.splitlines()) for unit in shown.strip().split("\n\n")]
    return {unit["Id"]: unit["ActiveEnterTimestampMonotonic"] for unit in found}


def with_api_key() -> tuple[str, ...]:
    """The arguments with which devices are changed at the control server."""
    key = (STATE / "api.key").read_text().strip()
    return ("-e", f"mesh_api_key={key}", "-e", f"mesh_api_ca_path={STATE / 'cert.pem'}")


def mesh(lab: Lab, *arguments: str) -> Run:
    run = lab.play("gpumesh.cluster.mesh", *ALL, *arguments)
    assert run.code == 0, run.output[-6000:]
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


def is_running(lab: Lab, member: str) -> bool:
    return bool(status(lab, member)["BackendState"] == "Running")


def test_a_job_runs_on_both_nodes_over_the_tailnet(lab: Lab) -> None:
    shown = lab.run("t1", "scontrol", "show", "nodes", "--oneliner")
    for member in ("t1", "t2"):
        assert f"NodeAddr={address(lab, member)}" in shown or f"NodeAddr={member}" in shown, shown
        assert address(lab, member).startswith("100.64.")
        assert address(lab, member) in lab.run("t1", "getent", "hosts", member)
    output = lab.run("t1", "srun", "--nodes=2", "--ntasks-per-node=1", "printenv", "SLURMD_NODENAME", timeout=180)
    assert sorted(output.split()) == ["t1", "t2"]


def test_a_container_without_tun_serves_no_volume(lab: Lab) -> None:
    volume = {"name": "data", "server": "t3", "path": "/srv/data", "mount_point": "/data"}
    served = ("-e", json.dumps({"storage_volumes": [volume]}))
    run = lab.play("gpumesh.cluster.site", *ALL, *with_key(), *with_archive(), *served)
    assert run.code != 0
    assert "t3 cannot be the manager or serve a volume. Nothing has been changed. Without /dev/net/tun" in run.words
    assert set(run.changed.values()) == {0}, run.changes


def test_a_container_without_tun_is_a_member_and_no_node(lab: Lab) -> None:
    run = lab.play("gpumesh.cluster.site", *ALL, *with_key(), *with_archive())
    assert run.code == 0, run.output[-6000:]
    assert "t3: in the mesh of cluster 'tailscale', but excluded from storage and Slurm." in run.words
    assert sorted(lab.run("t1", "sinfo", "--noheader", "--Node", "--format=%N").split()) == ["t1", "t2"]
    output = lab.run("t1", "srun", "--nodes=2", "--ntasks-per-node=1", "printenv", "SLURMD_NODENAME", timeout=180)
    assert sorted(output.split()) == ["t1", "t2"]


def test_a_second_site_needs_no_key_changes_nothing_and_restarts_nothing(lab: Lab) -> None:
    before = {member: started(lab, member) for member in ("t1", "t2")}
    assert before["t1"]["tailscaled.service"] != "0"
    run = lab.play("gpumesh.cluster.site", *ALL)
    assert run.code == 0, run.output[-6000:]
    assert "t3 is a userspace-only member" in run.words
    assert run.changed == dict.fromkeys(MEMBERS, 0), run.changes
    assert {member: started(lab, member) for member in ("t1", "t2")} == before
    assert drift(lab, *ALL) == {"t1": {}, "t2": {}, "t3": {}}


@pytest.fixture(name="reported", scope="module")
def _reported(lab: Lab) -> Run:
    """A run that has the key although all members are logged in, and reports the way to every peer."""
    return mesh(lab, "-vvv", *with_key(), "-e", "mesh_report_paths=true")


def test_a_member_that_is_logged_in_does_not_get_the_key(reported: Run) -> None:
    """For a secret option, Ansible only shows that it was given."""
    assert "auth_key" in reported.output
    assert "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER" not in reported.output


def test_a_container_without_tun_does_not_take_the_cluster_over(lab: Lab) -> None:
    run = lab.play("gpumesh.cluster.remove", *ALL, "-e", "cluster_machine=t1", "-e", "cluster_new_manager=t3")
    assert run.code != 0
    assert "t3 cannot be the manager or serve a volume. Nothing has been changed. Without /dev/net/tun" in run.words
    assert set(run.changed.values()) == {0}, run.changes


def test_the_way_to_every_peer_is_reported(reported: Run) -> None:
    ways = {}
    for line in reported.output.splitlines():
        cells = [cell.strip() for cell in line.split("│") if cell.strip()]
        if len(cells) == 4 and cells[0] in MEMBERS:
            ways[cells[0], cells[1]] = cells[2]
    assert len(ways) == 6, reported.output[-4000:]
    # t3's network lets only TCP through, so its connections are relayed.
    assert {way for pair, way in ways.items() if "t3" in pair} == {"relayed"}
    assert ways["t1", "t2"] == ways["t2", "t1"] == "direct"


def test_a_member_without_tun_is_dialled_and_dials_by_its_proxy(lab: Lab) -> None:
    assert status(lab, "t3")["TUN"] is False
    assert "tailscale0" not in lab.run("t3", "ip", "link")
    assert dial(lab, "t1", address(lab, "t3"), 22).startswith("SSH-2.0")
    assert dial(lab, "t3", address(lab, "t1"), 22, proxy=1055).startswith("SSH-2.0")
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


def test_settings_change_alone_and_once(lab: Lab) -> None:
    wish = json.dumps({"mesh_advertise_routes": ["10.1.0.0/16"], "mesh_accept_routes": True})
    assert mesh(lab, "--limit", "t2", "-e", wish).changed["t2"] == 1
    assert mesh(lab, "--limit", "t2", "-e", wish).changed["t2"] == 0
    prefs = json.loads(lab.run("t2", "tailscale", "debug", "prefs"))
    assert (prefs["AdvertiseRoutes"], prefs["RouteAll"]) == (["10.1.0.0/16"], True)
    back = json.dumps({"mesh_advertise_routes": [], "mesh_accept_routes": False})
    assert mesh(lab, "--limit", "t2", "-e", back).changed["t2"] == 1


def test_a_restart_of_a_member_brings_it_back_without_a_key(lab: Lab) -> None:
    before = address(lab, "t2")
    lab.stop("t2")
    lab.start("t2")
    lab.wait("t2 is in the tailnet again", lambda: is_running(lab, "t2"))
    assert before in status(lab, "t2")["TailscaleIPs"]
    assert mesh(lab, "--limit", "t2").changed["t2"] == 0


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
    before, identity = address(lab, "t2"), nodes(lab)["t2"]
    lab.run("headscale", "headscale", "nodes", "expire", "--identifier", identity)
    lab.wait("t2 knows that its key has expired", lambda: status(lab, "t2")["BackendState"] == "NeedsLogin")

    assert drift(lab)["t2"]["mesh"] == "it is not logged in to its tailnet (NeedsLogin)"
    refused = lab.play("gpumesh.cluster.mesh", *ALL, "--limit", "t2")
    assert refused.code != 0
    assert "mesh_auth_key" in refused.words

    key = (STATE / "auth.key").read_text().strip()
    with command_lines(lab, "t2") as lines:
        run = mesh(lab, "--limit", "t2", "-vvv", "--diff", *with_key())
    assert run.changed["t2"] == 1
    assert is_running(lab, "t2")
    assert before in status(lab, "t2")["TailscaleIPs"]
    assert status(lab, "t2")["Self"]["DNSName"].startswith("t2.")
    assert nodes(lab)["t2"] == identity
    assert "--auth-key=file:" in lines[0], "nobody looked while it logged in"
    assert key not in lines[0]
    assert key not in run.output
    found = lab.run("t2", "grep", "-rlF", key, "/etc", "/root", "/run", "/tmp", "/var", check=False)
    assert found == ""


def test_a_machine_that_left_comes_back_under_its_own_name(lab: Lab) -> None:
    identity = nodes(lab)["t3"]
    wrong = (*with_api_key(), "-e", "mesh_api_key=wrong")
    failed = lab.play("gpumesh.cluster.remove", *ALL, "-e", "cluster_machine=t3", *wrong)
    assert failed.code != 0
    assert nodes(lab)["t3"] == identity
    # It is logged out by now, and no longer in the record: the same command completes the removal.
    removed(lab, *with_api_key())
    assert "t3" not in nodes(lab)
    assert status(lab, "t3")["BackendState"] == ""
    assert lab.run("t3", "sh", "-c", "ls /var/lib/tailscale /var/lib/gpumesh/tailscale-login", check=False) == ""

    joined(lab, "-e", f"mesh_auth_key={ephemeral_key(lab)}")
    assert status(lab, "t3")["Self"]["DNSName"].startswith("t3.")
    assert nodes(lab)["t3"] != identity
    assert sorted(nodes(lab)) == list(MEMBERS)
    assert address(lab, "t3") in status(lab, "t3")["TailscaleIPs"]


def test_the_device_of_an_ephemeral_key_goes_with_its_logout_and_its_name_is_free(lab: Lab) -> None:
    identity = nodes(lab)["t3"]
    lab.run("t3", "tailscale", "logout")
    lab.wait("the control server has forgotten t3", lambda: "t3" not in nodes(lab))
    mesh(lab, "--limit", "t3", *with_key())
    assert status(lab, "t3")["Self"]["DNSName"].startswith("t3.")
    assert nodes(lab)["t3"] != identity
    assert address(lab, "t3") in status(lab, "t3")["TailscaleIPs"]


def test_without_the_api_it_comes_back_as_the_same_device(lab: Lab) -> None:
    identity = nodes(lab)["t3"]
    removed(lab)
    assert nodes(lab)["t3"] == identity
    joined(lab)
    assert nodes(lab)["t3"] == identity
    assert sorted(nodes(lab)) == list(MEMBERS)
    assert status(lab, "t3")["Self"]["DNSName"].startswith("t3.")


def test_tags_are_set_at_the_control_server(lab: Lab) -> None:
    wish = json.dumps({"mesh_tags": ["tag:rented"]})
    refused = lab.play("gpumesh.cluster.mesh", *ALL, "--limit", "t3", "-e", wish)
    assert refused.code != 0
    assert "Give mesh_api_key" in refused.words
    assert mesh(lab, "--limit", "t3", "-e", wish, *with_api_key()).changed["t3"] == 1
    lab.wait("t3 has heard of its tags", lambda: status(lab, "t3")["Self"].get("Tags") == ["tag:rented"])
    assert mesh(lab, "--limit", "t3", "-e", wish).changed["t3"] == 0


def test_the_device_of_a_machine_that_is_dead_is_deleted(lab: Lab) -> None:
    lab.stop("t3")
    try:
        # If the deletion fails, the machine stays in the record, and the same command can be run again.
        wrong = (*with_api_key(), "-e", "mesh_api_key=wrong")
        refused = lab.play("gpumesh.cluster.remove", *ALL, "-e", "cluster_machine=t3", *wrong)
        assert refused.code != 0
        assert "API key is valid" in refused.words
        assert address(lab, "t3") and "t3" in nodes(lab)
        removed(lab, *with_api_key())
        assert sorted(nodes(lab)) == ["t1", "t2"]
    finally:
        subprocess.run(["docker", "start", "gpumesh-molecule-tailscale-t3"], check=True, capture_output=True)
        lab.wait("t3 answers", lambda: lab.module("t3", "ansible.builtin.ping").code == 0)
    # It is reachable again, and the removal is completed.
    removed(lab, *with_api_key())
    assert lab.run("t3", "sh", "-c", "ls /var/lib/tailscale /var/lib/gpumesh/tailscale-login", check=False) == ""


def test_the_firewall_lets_members_in_and_nobody_else(lab: Lab) -> None:
    playbook = str(ROOT / "extensions" / "molecule" / "tailscale" / "firewall.yml")
    lan = "10.77.60.11"

    def reaches(member: str, target: str, port: int, seconds: int) -> bool:
        dialled = f"import socket; socket.create_connection(({target!r}, {port}), {seconds})"
        argv = ("python3", "-c", f"{dialled}; print('yes')")
        return "yes" in lab.run(member, *argv, check=False, timeout=120)

    # All hosts are on one LAN here, and Slurm's controller listens on it.
    assert reaches("headscale", lan, 6817, 20)
    on, own = ("-e", "firewall_enabled=true"), "table inet own { chain input { type filter hook input priority 0; }; }"
    lab.run("t1", "sh", "-c", "command -v nft >/dev/null || apt-get install --yes -q nftables")
    lab.run("t1", "sh", "-c", f"echo '{own}' | nft --file -")
    before = lab.run("t1", "nft", "--stateless", "list", "ruleset")
    units = lab.run("t1", "systemctl", "list-unit-files", "--no-legend")
    try:
        assert all(count > 0 for count in lab.play(playbook, *on).changed.values())
        assert lab.play(playbook, *on).changed == {"t1": 0, "t2": 0}
        assert not reaches("headscale", lan, 6817, 3)
        assert reaches("headscale", lan, 22, 20)
        assert reaches("t2", address(lab, "t1"), 6817, 20)
        output = lab.run("t1", "srun", "--nodes=2", "--ntasks-per-node=1", "printenv", "SLURMD_NODENAME", timeout=180)
        assert sorted(output.split()) == ["t1", "t2"]
        lab.stop("t2")
        lab.start("t2")
        lab.wait("the table is loaded at boot", lambda: "gpumesh-firewall" in lab.run("t2", "nft", "list", "tables"))
    finally:
        run = lab.play(playbook)
    assert all(count > 0 for count in run.changed.values()), run.output[-4000:]
    assert reaches("headscale", lan, 6817, 20)
    assert lab.run("t1", "nft", "--stateless", "list", "ruleset") == before
    assert lab.run("t1", "systemctl", "list-unit-files", "--no-legend") == units
    assert lab.play(playbook).changed == {"t1": 0, "t2": 0}
    lab.run("t1", "nft", "delete", "table", "inet", "own")

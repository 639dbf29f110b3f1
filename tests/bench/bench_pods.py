# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pod's mesh costs: throughput and latency of two containers in a tailnet, with TUN and through the library.

    python tests/bench/bench_pods.py [--seconds 5]

The same two containers, one after the other: first tailscaled runs in user space in each, and the programs have the library;
then it has an interface. Their control server, Headscale, runs in the first one. Takes Docker, the lab's image and root.
Times differ from machine to machine; compare them within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import preload
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.mesh import PROXY_ADDRESS, daemon_flags
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import BIN, ROOT, Lab

NAME, HOSTS, PORT = "bench-pods", ("b1", "b2"), 1055
SERVER = """
import socket, sys, threading
def serve(peer):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := peer.recv(1 << 20):
        if len(data) == 1:
            peer.sendall(data)
with socket.create_server((sys.argv[1], 7007)) as listener:
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
CLIENT = """
import json, socket, statistics, sys, time
def dial():
    peer = socket.create_connection((sys.argv[1], 7007), 30)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer
def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
def bounce():
    peer.sendall(b"x")
    peer.recv(1)
peer = dial()
trips = [timed(bounce) for _ in range(2000)]
dials = [timed(lambda: dial().close()) for _ in range(100)]
piece, sent, end = bytes(1 << 20), 0, time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    sent += peer.send(piece)
print(json.dumps({
    "Gbit/s": round(sent * 8 / float(sys.argv[2]) / 1e9, 3),
    "round trip, us": round(statistics.median(trips) * 1e6),
    "connection, us": round(statistics.median(dials) * 1e6),
}))
"""


def description() -> dict[str, object]:
    """The lab of two containers that may have an interface."""
    hosts = [
        {"name": host, "init": "sshd", "networks": [{"name": NAME, "ipv4_address": f"10.77.62.{place}"}]}
        for place, host in enumerate(HOSTS, start=11)
    ]
    networks = [{"name": NAME, "subnet": "10.77.62.0/24"}]
    return {"lab_name": NAME, "lab_prepared": True, "lab_networks": networks, "lab_hosts": hosts}


def lab_playbook(name: str, described: Path) -> None:
    """Start or remove the lab."""
    argv = [str(BIN / "ansible-playbook"), "-i", "localhost,", str(ROOT / "lab" / name)]
    subprocess.run(argv, env={**os.environ, "LAB": str(described)}, check=True, stdout=subprocess.DEVNULL)


def background(lab: Lab, host: str, command: str) -> None:
    """Start a command that goes on."""
    lab.run(host, "sh", "-c", f"{command} >/dev/null 2>&1 </dev/null & sleep 1")


def control(lab: Lab) -> str:
    """Start Headscale; a key to log in with."""
    settings = {
        "server_url": "http://10.77.62.11:8080",
        "listen_addr": "0.0.0.0:8080",
        "unix_socket": "/run/headscale.sock",
        "noise": {"private_key_path": "/root/noise.key"},
        "prefixes": {"v4": "100.64.0.0/10", "allocation": "sequential"},
        "derp": {
            "urls": [],
            "auto_update_enabled": False,
            "server": {
                "enabled": True,
                "region_id": 999,
                "region_code": "lab",
                "region_name": "lab",
                "stun_listen_addr": "0.0.0.0:3478",
                "private_key_path": "/root/derp.key",
                "automatically_add_embedded_derp_region": True,
                "ipv4": "10.77.62.11",
            },
        },
        "disable_check_updates": True,
        "database": {"type": "sqlite", "sqlite": {"path": "/root/db.sqlite"}},
        "dns": {"magic_dns": False, "override_local_dns": False, "base_domain": "tail.test"},
    }
    lab.run("b1", "sh", "-c", f"mkdir -p /etc/headscale && echo '{json.dumps(settings)}' > /etc/headscale/config.yaml")
    background(lab, "b1", "headscale serve")
    lab.wait("headscale answers", lambda: "ID" in lab.run("b1", "headscale", "users", "list", check=False))
    lab.run("b1", "headscale", "users", "create", "lab")
    made = lab.run("b1", "headscale", "preauthkeys", "create", "--user", "1", "--reusable", "--output", "json")
    return str(json.loads(made)["key"])


def join(lab: Lab, key: str, userspace: bool) -> list[str]:
    """Run tailscaled on both, in a new tailnet identity; their addresses."""
    flags = " ".join(daemon_flags({"interface": "tailscale0"}, userspace, PORT))
    addresses = []
    for host in HOSTS:
        lab.run(host, "sh", "-c", "pkill -x tailscaled; sleep 1; rm -rf /var/lib/tailscale; mkdir -p /run/tailscale")
        background(lab, host, f"tailscaled {flags}")
        lab.run(host, "tailscale", "up", "--login-server=http://10.77.62.11:8080", f"--auth-key={key}", "--timeout=60s")
        addresses.append(lab.run(host, "tailscale", "ip", "-4").strip())
    lab.wait("there is a way", lambda: "pong" in lab.run("b2", "tailscale", "ping", "--c=1", addresses[0], check=False))
    return addresses


def libraries(lab: Lab, addresses: list[str], folder: Path) -> None:
    """Compile the library for each, here, and put it there."""
    for host, address in zip(HOSTS, addresses):
        given = {"address": address, "subnet": "100.64.0.0/10", "interface": "tailscale0", "proxy_port": PORT}
        given |= {"proxy_address": PROXY_ADDRESS, "api_socket": "/run/tailscale/tailscaled.sock", "source": ""}
        source = str(ROOT / "roles" / "mesh" / "files" / "gpumesh-pod.c")
        made = folder / host / "pod.so"
        made.parent.mkdir()
        options = preload.library_of(given).definitions
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", *options, "-o", str(made), source, "-ldl"], check=True)
        lab.copy(made.parent, host, "/opt/pod")


def measure(lab: Lab, addresses: list[str], seconds: float, library: str) -> dict[str, float]:
    """Of one stream from the second to the first."""
    environment = f"LD_PRELOAD={library} " if library else ""
    lab.run("b1", "sh", "-c", "pkill -f 'listener[.]accept' || true")
    background(lab, "b1", f'{environment}python3 -c "$(cat /opt/bench/server.py)" {addresses[0]}')
    time.sleep(1)
    command = f"{environment}python3 /opt/bench/client.py {addresses[0]} {seconds}"
    return dict(json.loads(lab.run("b2", "sh", "-c", command, timeout=120)))


def main() -> None:
    """Measure both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of the throughput (default: 5)")
    seconds = parser.parse_args().seconds
    built = subprocess.run(
        [str(ROOT / "lab" / "tailnet")], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    lab = Lab(NAME)
    with tempfile.TemporaryDirectory(prefix="gpumesh-bench-") as name:
        folder = Path(name)
        described = folder / "lab.yml"
        described.write_text(yaml.safe_dump(description()))
        programs = folder / "bench"
        programs.mkdir()
        (programs / "server.py").write_text(SERVER)
        (programs / "client.py").write_text(CLIENT)
        lab_playbook("up.yml", described)
        try:
            for host in HOSTS:
                lab.copy(Path(built), host, "/opt/tailnet")
                lab.run(host, "sh", "-c", "ln -s /opt/tailnet/* /usr/local/sbin/")
                lab.copy(programs, host, "/opt/bench")
            key = control(lab)
            # First, since tailscaled leaves rules behind for its interface.
            addresses = join(lab, key, True)
            libraries(lab, addresses, folder)
            as_pods = measure(lab, addresses, seconds, "/opt/pod/pod.so")
            with_tun = measure(lab, join(lab, key, False), seconds, "")
        finally:
            lab_playbook("down.yml", described)
    print(f"{'':18} {'with TUN':>10} {'pods':>10} {'ratio':>7}")
    for what, value in with_tun.items():
        print(f"{what:18} {value:>10} {as_pods[what]:>10} {as_pods[what] / value:>7.2f}")


if __name__ == "__main__":
    main()

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of a pod's mesh: throughput and latency of two hosts in a tailnet, with TUN and through the library.

    python tests/bench/bench_pods.py [--seconds 5]
    molecule converge -s tailscale && python tests/bench/bench_pods.py --cluster

With --cluster, it uses the pods of the scenario tailscale instead, and makes them nodes first. It times `sbcast` of 1
GB to them, and 200 jobs while a pod is killed and comes back after 30 s, and exits 1 if a byte or a job is lost.

Otherwise, it uses two network namespaces of this machine. First tailscaled has an interface in each, then it runs in
user space, and the programs use the library. Their control server, Headscale, runs in the first one. The baseline is
the same without a tailnet. Requires root. Times differ from machine to machine; compare them within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import preload
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh import PROXY_ADDRESS, daemon_flags
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT
from ansible_collections.gpumesh.cluster.tests.support.namespaces import joined

#: Addresses by namespace.
HOSTS = {"gpumesh-pods-1": "10.77.62.11", "gpumesh-pods-2": "10.77.62.12"}
FIRST, SECOND = HOSTS
PORT = 1055
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


def inside(host: str, *argv: str, check: bool = True) -> str:
    """Run a command in the namespace. Returns its stdout."""
    command = ["ip", "netns", "exec", host, *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def running(host: str, *argv: str, library: str = "") -> Iterator[None]:
    """Run a program in the namespace for the duration of the context."""
    command = ["ip", "netns", "exec", host, *(["env", f"LD_PRELOAD={library}"] if library else []), *argv]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def pair() -> Iterator[None]:
    """Create two namespaces with a cable between them."""
    with joined(FIRST, SECOND):
        for host, address in HOSTS.items():
            inside(host, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            inside(host, "ip", "link", "set", "eth0", "up")
            # Tailscaled considers the network to be down without a default route.
            (other,) = set(HOSTS.values()) - {address}
            inside(host, "ip", "route", "add", "default", "via", other)
        yield


def until(what: str, say: list[str], word: str, host: str) -> None:
    """Wait until the output of a command contains the word. Raises AssertionError after a minute."""
    end = time.monotonic() + 60
    while word not in inside(host, *say, check=False):
        assert time.monotonic() < end, what
        time.sleep(0.5)


def certificate(folder: Path) -> None:
    """Create a certificate that all Go programs trust.

    Without TLS there is no relay, for which tailscaled keeps looking.
    """
    names = f"subjectAltName=IP:{HOSTS[FIRST]}"
    made = [
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=bench",
    ]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", *made, "-addext", names, *files], check=True, capture_output=True)
    os.environ["SSL_CERT_FILE"] = str(folder / "cert.pem")


@contextmanager
def control(folder: Path, headscale: str) -> Iterator[str]:
    """Run Headscale. Yields a key to log in with."""
    certificate(folder)
    derp = {
        "enabled": True,
        "region_id": 999,
        "region_code": "lab",
        "region_name": "lab",
        "stun_listen_addr": "0.0.0.0:3478",
        "private_key_path": str(folder / "derp.key"),
        "automatically_add_embedded_derp_region": True,
        "ipv4": HOSTS[FIRST],
    }
    settings = {
        "server_url": f"https://{HOSTS[FIRST]}",
        "listen_addr": "0.0.0.0:443",
        "tls_cert_path": str(folder / "cert.pem"),
        "tls_key_path": str(folder / "key.pem"),
        "unix_socket": str(folder / "headscale.sock"),
        "noise": {"private_key_path": str(folder / "noise.key")},
        "prefixes": {"v4": "100.64.0.0/10", "allocation": "sequential"},
        "derp": {"urls": [], "auto_update_enabled": False, "server": derp},
        "disable_check_updates": True,
        "database": {"type": "sqlite", "sqlite": {"path": str(folder / "db.sqlite")}},
        "dns": {"magic_dns": False, "override_local_dns": False, "base_domain": "tail.test"},
    }
    (folder / "config.yaml").write_text(json.dumps(settings))
    command = [headscale, "--config", str(folder / "config.yaml")]
    with running(FIRST, *command, "serve"):
        until("headscale does not answer", [*command, "users", "list"], "ID", FIRST)
        inside(FIRST, *command, "users", "create", "lab")
        made = inside(FIRST, *command, "preauthkeys", "create", "--user", "1", "--reusable", "--output", "json")
        yield str(json.loads(made)["key"])


@contextmanager
def tailnet(folder: Path, programs: Path, key: str, userspace: bool) -> Iterator[dict[str, str]]:
    """Run tailscaled in both namespaces. Yields their addresses."""
    addresses = {}
    with ExitStack() as stack:
        for host in HOSTS:
            state = folder / host
            state.mkdir(parents=True)
            flags = daemon_flags({"interface": "tailscale0"}, userspace, PORT)
            where = [f"--socket={state}/socket"]
            argv = [
                str(programs / "tailscaled"),
                f"--statedir={state}",
                f"--state={state}/state",
                "--port=41641",
                *where,
                *flags,
            ]
            stack.enter_context(running(host, *argv))
            ask = [str(programs / "tailscale"), *where]
            until("tailscaled does not answer", [*ask, "debug", "prefs"], "{", host)
            server = f"--login-server=https://{HOSTS[FIRST]}"
            more = ["--netfilter-mode=off", "--accept-dns=false", "--timeout=60s"]
            inside(host, *ask, "up", server, f"--auth-key={key}", f"--hostname={host}", *more)
            addresses[host] = inside(host, *ask, "ip", "-4").strip()
        until("there is no way", [*ask, "ping", "--c=1", addresses[FIRST]], "pong", SECOND)
        yield addresses


def library(folder: Path, host: str, address: str) -> str:
    """Compile the library for a host."""
    given = {"address": address, "subnet": "100.64.0.0/10", "interface": "tailscale0", "proxy_port": PORT}
    given |= {"proxy_address": PROXY_ADDRESS, "api_socket": str(folder / host / "socket"), "source": ""}
    source, made = ROOT / "roles" / "mesh" / "files" / "gpumesh-pod.c", folder / host / "pod.so"
    options = preload.make_library(given).compiler_definitions
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", *options, "-o", str(made), str(source), "-ldl"], check=True)
    return str(made)


def measure(address: str, seconds: float, libraries: dict[str, str] | None = None) -> dict[str, float]:
    """Measure latency and throughput of one stream from the second host to the first."""
    own = libraries or dict.fromkeys(HOSTS, "")
    with running(FIRST, "/usr/bin/python3", "-c", SERVER, address, library=own[FIRST]):
        time.sleep(2)
        variables = ["env", f"LD_PRELOAD={own[SECOND]}"] if own[SECOND] else []
        return dict(json.loads(inside(SECOND, *variables, "/usr/bin/python3", "-c", CLIENT, address, str(seconds))))


def measure_cluster() -> None:
    """Give the pods of the scenario many jobs and a large file, and print the times."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import pods_lab  # noqa: PLC0415 - which imports its neighbours by name, as in tests

    if set(pods_lab.nodes()) != set(pods_lab.NODES):
        pods_lab.join_pods()
    pods_lab.await_all_idle()
    for what, work in (
        ("a file of 1 GB, s", lambda: pods_lab.broadcast(1_000_000_000)),
        ("200 jobs, s", lambda: pods_lab.run_jobs_while_a_pod_dies(200)),
    ):
        begun = time.monotonic()
        work()
        print(f"{what:18}{time.monotonic() - begun:>12.0f}", flush=True)


def main() -> None:
    """Measure all variants, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="duration of each throughput measurement (default: 5)"
    )
    parser.add_argument("--cluster", action="store_true", help="use the pods of the scenario tailscale")
    given = parser.parse_args()
    if given.cluster:
        measure_cluster()
        return
    seconds = given.seconds
    built = subprocess.run(
        [str(ROOT / "lab" / "tailnet")], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    programs = Path(built)
    os.environ["TS_NO_LOGS_NO_SUPPORT"] = "true"
    with tempfile.TemporaryDirectory(prefix="gpumesh-bench-") as name, pair():
        folder = Path(name)
        found = {"cable": measure(HOSTS[FIRST], seconds)}
        with control(folder, str(programs / "headscale")) as key:
            with tailnet(folder / "pods", programs, key, True) as addresses:
                made = {host: library(folder / "pods", host, address) for host, address in addresses.items()}
                found["pods"] = measure(addresses[FIRST], seconds, made)
            with tailnet(folder / "tun", programs, key, False) as addresses:
                found["with TUN"] = measure(addresses[FIRST], seconds)
    print(f"{'':18}" + "".join(f"{column:>12}" for column in found) + f"{'pods/TUN':>12}")
    for what in found["pods"]:
        values = "".join(f"{column[what]:>12}" for column in found.values())
        print(f"{what:18}{values}{found['pods'][what] / found['with TUN'][what]:>12.2f}")


if __name__ == "__main__":
    main()

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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import preload
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh import PROXY_ADDRESS, daemon_flags
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT
from ansible_collections.gpumesh.cluster.tests.support.namespaces import create_joined_namespaces

#: Addresses by namespace.
ADDRESS_BY_NAMESPACE = {"gpumesh-pods-1": "10.77.62.11", "gpumesh-pods-2": "10.77.62.12"}
FIRST_HOST, SECOND_HOST = ADDRESS_BY_NAMESPACE
PROXY_PORT = 1055
SERVER_PROGRAM = """
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
CLIENT_PROGRAM = """
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


def run_in_namespace(host: str, *argv: str, check: bool = True) -> str:
    """Run a command in the namespace. Returns its stdout."""
    command = ["ip", "netns", "exec", host, *argv]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert not check or completed.returncode == 0, f"{command}: {completed.stdout}{completed.stderr}"
    return completed.stdout


@contextmanager
def run_in_background(host: str, *argv: str, library: str = "") -> Iterator[None]:
    """Run a program in the namespace for the duration of the context."""
    command = ["ip", "netns", "exec", host, *(["env", f"LD_PRELOAD={library}"] if library else []), *argv]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def create_namespaces() -> Iterator[None]:
    """Create two namespaces with a cable between them."""
    with create_joined_namespaces(FIRST_HOST, SECOND_HOST):
        for host, address in ADDRESS_BY_NAMESPACE.items():
            run_in_namespace(host, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            run_in_namespace(host, "ip", "link", "set", "eth0", "up")
            # Tailscaled considers the network to be down without a default route.
            (gateway,) = set(ADDRESS_BY_NAMESPACE.values()) - {address}
            run_in_namespace(host, "ip", "route", "add", "default", "via", gateway)
        yield


def wait_for_output(description: str, command: list[str], expected_text: str, host: str) -> None:
    """Wait until the output of a command contains the word. Raises AssertionError after a minute."""
    deadline = time.monotonic() + 60
    while expected_text not in run_in_namespace(host, *command, check=False):
        assert time.monotonic() < deadline, description
        time.sleep(0.5)


def create_certificate(directory: Path, address: str) -> None:
    """Create a certificate for the address that all Go programs started from here trust.

    Without TLS there is no relay, for which tailscaled keeps looking.
    """
    alternative_names = f"subjectAltName=IP:{address}"
    request_options = [
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
    file_options = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    subprocess.run(
        ["openssl", "req", *request_options, "-addext", alternative_names, *file_options],
        check=True,
        capture_output=True,
    )
    os.environ["SSL_CERT_FILE"] = str(directory / "cert.pem")


def headscale_settings(directory: Path, address: str) -> dict[str, Any]:
    """Return the settings of a control server and relay at the address, whose certificate is in the directory."""
    relay_settings = {
        "enabled": True,
        "region_id": 999,
        "region_code": "lab",
        "region_name": "lab",
        "stun_listen_addr": "0.0.0.0:3478",
        "private_key_path": str(directory / "derp.key"),
        "automatically_add_embedded_derp_region": True,
        "ipv4": address,
    }
    return {
        "server_url": f"https://{address}",
        "listen_addr": f"{address}:443",
        "tls_cert_path": str(directory / "cert.pem"),
        "tls_key_path": str(directory / "key.pem"),
        "unix_socket": str(directory / "headscale.sock"),
        "noise": {"private_key_path": str(directory / "noise.key")},
        "prefixes": {"v4": "100.64.0.0/10", "allocation": "sequential"},
        "derp": {"urls": [], "auto_update_enabled": False, "server": relay_settings},
        "disable_check_updates": True,
        "database": {"type": "sqlite", "sqlite": {"path": str(directory / "db.sqlite")}},
        "dns": {"magic_dns": False, "override_local_dns": False, "base_domain": "tail.test"},
    }


@contextmanager
def run_headscale(directory: Path, headscale: str) -> Iterator[str]:
    """Run Headscale. Yields a key to log in with."""
    create_certificate(directory, ADDRESS_BY_NAMESPACE[FIRST_HOST])
    settings = headscale_settings(directory, ADDRESS_BY_NAMESPACE[FIRST_HOST])
    (directory / "config.yaml").write_text(json.dumps(settings))
    command = [headscale, "--config", str(directory / "config.yaml")]
    with run_in_background(FIRST_HOST, *command, "serve"):
        wait_for_output("headscale does not answer", [*command, "users", "list"], "ID", FIRST_HOST)
        run_in_namespace(FIRST_HOST, *command, "users", "create", "lab")
        key_output = run_in_namespace(
            FIRST_HOST, *command, "preauthkeys", "create", "--user", "1", "--reusable", "--output", "json"
        )
        yield str(json.loads(key_output)["key"])


@contextmanager
def run_tailscaled(directory: Path, program_directory: Path, key: str, userspace: bool) -> Iterator[dict[str, str]]:
    """Run tailscaled in both namespaces. Yields their addresses."""
    addresses = {}
    with ExitStack() as stack:
        for host in ADDRESS_BY_NAMESPACE:
            state_directory = directory / host
            state_directory.mkdir(parents=True)
            flags = daemon_flags({"interface": "tailscale0"}, userspace, PROXY_PORT)
            socket_option = [f"--socket={state_directory}/socket"]
            argv = [
                str(program_directory / "tailscaled"),
                f"--statedir={state_directory}",
                f"--state={state_directory}/state",
                "--port=41641",
                *socket_option,
                *flags,
            ]
            stack.enter_context(run_in_background(host, *argv))
            client_command = [str(program_directory / "tailscale"), *socket_option]
            wait_for_output("tailscaled does not answer", [*client_command, "debug", "prefs"], "{", host)
            server = f"--login-server=https://{ADDRESS_BY_NAMESPACE[FIRST_HOST]}"
            up_options = ["--netfilter-mode=off", "--accept-dns=false", "--timeout=60s"]
            run_in_namespace(
                host, *client_command, "up", server, f"--auth-key={key}", f"--hostname={host}", *up_options
            )
            addresses[host] = run_in_namespace(host, *client_command, "ip", "-4").strip()
        wait_for_output(
            "there is no way", [*client_command, "ping", "--c=1", addresses[FIRST_HOST]], "pong", SECOND_HOST
        )
        yield addresses


def compile_library(directory: Path, host: str, address: str) -> str:
    """Compile the library for a host."""
    mesh_options = {"address": address, "subnet": "100.64.0.0/10", "interface": "tailscale0", "proxy_port": PROXY_PORT}
    mesh_options |= {"proxy_address": PROXY_ADDRESS, "api_socket": str(directory / host / "socket"), "source": ""}
    source, library_path = ROOT / "roles" / "mesh" / "files" / "gpumesh-pod.c", directory / host / "pod.so"
    macro_flags = preload.make_library(mesh_options).compiler_definitions
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", *macro_flags, "-o", str(library_path), str(source), "-ldl"], check=True
    )
    return str(library_path)


def measure_stream(address: str, seconds: float, libraries: dict[str, str] | None = None) -> dict[str, float]:
    """Measure latency and throughput of one stream from the second host to the first."""
    library_by_host = libraries or dict.fromkeys(ADDRESS_BY_NAMESPACE, "")
    with run_in_background(
        FIRST_HOST, "/usr/bin/python3", "-c", SERVER_PROGRAM, address, library=library_by_host[FIRST_HOST]
    ):
        time.sleep(2)
        variables = ["env", f"LD_PRELOAD={library_by_host[SECOND_HOST]}"] if library_by_host[SECOND_HOST] else []
        return dict(
            json.loads(
                run_in_namespace(
                    SECOND_HOST, *variables, "/usr/bin/python3", "-c", CLIENT_PROGRAM, address, str(seconds)
                )
            )
        )


def measure_cluster() -> None:
    """Give the pods of the scenario many jobs and a large file, and print the times."""
    import pods_lab  # noqa: PLC0415 - which imports its neighbours by name, as in tests

    if set(pods_lab.node_states()) != set(pods_lab.NODES):
        pods_lab.join_pods()
    pods_lab.await_all_idle()
    for description, work in (
        ("a file of 1 GB, s", lambda: pods_lab.broadcast_file(1_000_000_000)),
        ("200 jobs, s", lambda: pods_lab.run_jobs_while_pod_dies(200)),
    ):
        started_at = time.monotonic()
        work()
        print(f"{description:18}{time.monotonic() - started_at:>12.0f}", flush=True)


def main() -> None:
    """Measure all variants, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="duration of each throughput measurement (default: 5)"
    )
    parser.add_argument("--cluster", action="store_true", help="use the pods of the scenario tailscale")
    arguments = parser.parse_args()
    if arguments.cluster:
        measure_cluster()
        return
    seconds = arguments.seconds
    tailnet_directory = subprocess.run(
        [str(ROOT / "lab" / "tailnet")], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    program_directory = Path(tailnet_directory)
    os.environ["TS_NO_LOGS_NO_SUPPORT"] = "true"
    with tempfile.TemporaryDirectory(prefix="gpumesh-bench-") as directory_name, create_namespaces():
        directory = Path(directory_name)
        results_by_variant = {"cable": measure_stream(ADDRESS_BY_NAMESPACE[FIRST_HOST], seconds)}
        with run_headscale(directory, str(program_directory / "headscale")) as key:
            with run_tailscaled(directory / "pods", program_directory, key, True) as addresses:
                library_by_host = {
                    host: compile_library(directory / "pods", host, address) for host, address in addresses.items()
                }
                results_by_variant["pods"] = measure_stream(addresses[FIRST_HOST], seconds, library_by_host)
            with run_tailscaled(directory / "tun", program_directory, key, False) as addresses:
                results_by_variant["with TUN"] = measure_stream(addresses[FIRST_HOST], seconds)
    print(f"{'':18}" + "".join(f"{column:>12}" for column in results_by_variant) + f"{'pods/TUN':>12}")
    for measurement in results_by_variant["pods"]:
        values = "".join(f"{column[measurement]:>12}" for column in results_by_variant.values())
        print(
            f"{measurement:18}{values}{results_by_variant['pods'][measurement] / results_by_variant['with TUN'][measurement]:>12.2f}"
        )


if __name__ == "__main__":
    main()

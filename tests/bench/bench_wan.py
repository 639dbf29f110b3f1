# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mesh and a volume between two sites: WireGuard or Tailscale over a path with an emulated delay.

    molecule converge -s kernel && python tests/bench/bench_wan.py
    python tests/bench/bench_wan.py --mesh tailscale       the same through a tailnet that is made for it

The hosts of the scenario kernel have their own kernels, and so their own netem, WireGuard and NFS. v1 and v3 stand for
two sites: each delays what it sends by half of the round trip, 0, 20 and 80 ms in turns. Prints tables, for docs:

the mesh      the round trip, and the throughput from v1 to v3 of one and of four connections, without and with the mesh
the volume    that v1 serves and v3 mounts through WireGuard: a large file, and small ones. The server has them in memory
DDP           what an exchange of gradients would take with these figures: computed, not measured

Requires root. It takes some minutes. The processes of User-mode Linux limit the throughput, so compare the rows only with
each other. Exits 1 if a round trip is shorter than the delay that should be emulated.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from bench_pods import create_certificate, headscale_settings
from kernel_hosts import KernelLab
from lab_hosts import ROOT

#: The emulated round trips in milliseconds.
DELAYS_MS = (0, 20, 80)
SERVER, CLIENT = "v1", "v3"
INTERFACE, SERVER_PORT = "vec0", 7007
#: Their other ends on this machine, and how many packets each holds for its host by default. That host may be waiting for
#: a processor for longer.
TAPS, TAP_QUEUE = ("gmkern-v1", "gmkern-v3"), 1000
DIRECT_ADDRESS, WIREGUARD_ADDRESS, BRIDGE_ADDRESS = "10.79.0.11", "10.99.0.1", "10.79.0.1"
#: The subnet of the WireGuard mesh, through which Tailscale must not send, and the port of tailscaled.
WIREGUARD_SUBNET, TAILSCALE_PORT = "10.99.0.0/16", 41641
#: Packets that netem holds: enough for 1 Gbit/s during the longest delay, and for more of the large ones.
QUEUE_LIMIT = 20_000
SERVER_UNIT, TAILSCALE_UNIT = "gpumesh-bench-server", "gpumesh-bench-tailscaled"
#: Where the hosts have the programs of Tailscale and their state, for the duration of a measurement.
HOST_DIRECTORY = "/var/tmp/gpumesh-bench"
TAILSCALE = f"{HOST_DIRECTORY}/tailscale --socket={HOST_DIRECTORY}/socket"
#: Of the example in docs/guides/rented.md: 124 million parameters in float32, and buckets of 25 MiB.
GRADIENT_BYTES, BUCKET_COUNT = 124_000_000 * 4, 20
#: It sends without end on a connection that begins with "s", and returns each byte on one that begins with "p".
SERVER_PROGRAM = """
import contextlib, socket, sys, threading
def serve(peer):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    piece, kind = bytes(1 << 18), peer.recv(1)
    with contextlib.suppress(OSError), peer:
        while kind == b"s":
            peer.sendall(piece)
        while data := peer.recv(1):
            peer.sendall(data)
with socket.create_server(("0.0.0.0", int(sys.argv[1]))) as listener:
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
#: It counts what arrives, not what is sent, which may still be in a buffer, and not before the windows have grown.
CLIENT_PROGRAM = """
import json, socket, statistics, sys, threading, time
def dial(kind):
    peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(kind)
    return peer
def bounce():
    begin = time.perf_counter()
    ping.sendall(b"x")
    ping.recv(1)
    return (time.perf_counter() - begin) * 1e3
def receive(peer, begin, end, counts):
    while (now := time.monotonic()) < end:
        size = len(peer.recv(1 << 18))
        if now >= begin:
            counts.append(size)
def throughput(number):
    peers = [dial(b"s") for _ in range(number)]
    seconds = float(sys.argv[3])
    begin = time.monotonic() + float(sys.argv[4])
    counts = []
    threads = [threading.Thread(target=receive, args=(peer, begin, begin + seconds, counts)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for peer in peers:
        peer.close()
    return sum(counts) * 8 / seconds / 1e9
ping = dial(b"p")
bounce()
trip = statistics.median(bounce() for _ in range(15))
print(json.dumps([trip, throughput(1), throughput(4)]))
"""
#: It also reads with a larger read-ahead than the kernel's 128 KiB, and in four threads, as gpumesh-train --stage copies
#: files.
STORAGE_PROGRAM = """
import concurrent.futures, json, os, pathlib, shutil, sys, time
folder, mebibytes, files = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
def write():
    piece = os.urandom(1 << 20)
    with open(folder / "large", "wb") as file:
        for _ in range(mebibytes):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
def read():
    with open(folder / "large", "rb") as file:
        while file.read(1 << 20):
            pass
def read_part(number):
    size = mebibytes // 4
    with open(folder / "large", "rb") as file:
        file.seek(number * size << 20)
        for _ in range(size):
            file.read(1 << 20)
def read_parts():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(read_part, range(4)))
def read_further_ahead():
    device = folder.stat().st_dev
    setting = pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    previous = setting.read_text()
    setting.write_text("16384")
    try:
        read()
    finally:
        setting.write_text(previous)
def create():
    for number in range(files):
        (folder / str(number)).write_bytes(bytes(4096))
def open_all():
    for number in range(files):
        (folder / str(number)).read_bytes()
def forget():
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir()
wrote = timed(write)
forget()
got = timed(read)
forget()
got_parts = timed(read_parts)
forget()
got_ahead = timed(read_further_ahead)
made = timed(create)
forget()
opened = timed(open_all)
shutil.rmtree(folder)
speeds = [mebibytes * 1.048576 / seconds for seconds in (wrote, got, got_ahead, got_parts)]
print(json.dumps([*speeds, made / files * 1e3, opened / files * 1e3]))
"""


class PathFigures(NamedTuple):
    """A path between the sites: the round trip, and the throughput of one and of four connections."""

    round_trip_ms: float
    single_gbps: float
    quadruple_gbps: float


class VolumeFigures(NamedTuple):
    """The volume as the other site sees it: MB/s of a large file, and milliseconds for each small one."""

    write_mbps: float
    read_mbps: float
    ahead_read_mbps: float
    parallel_read_mbps: float
    create_ms: float
    open_ms: float


def exchange_seconds(node_count: int, gbps: float, round_trip_ms: float) -> float:
    """Return the time of a ring all-reduce of all gradients: their transfer, and the latency of each bucket's messages."""
    transfer_seconds = 2 * (node_count - 1) / node_count * GRADIENT_BYTES * 8 / (gbps * 1e9)
    return transfer_seconds + BUCKET_COUNT * 2 * (node_count - 1) * round_trip_ms / 2 / 1e3


@contextmanager
def emulate_delay(lab: KernelLab, delay_ms: int) -> Iterator[None]:
    """Delay what each of both sites sends by half of the round trip, and drop nothing of it."""
    netem = f"tc qdisc replace dev {INTERFACE} root netem delay {delay_ms / 2:g}ms limit {QUEUE_LIMIT}"
    try:
        set_tap_queues(QUEUE_LIMIT)
        for host in (SERVER, CLIENT) if delay_ms else ():
            lab.run_shell(host, f"modprobe sch_netem && {netem}")
        yield
    finally:
        for host in (SERVER, CLIENT):
            # It fails where there is none.
            lab.ssh(host, f"tc qdisc delete dev {INTERFACE} root")
        set_tap_queues(TAP_QUEUE)


def set_tap_queues(length: int) -> None:
    for tap in TAPS:
        subprocess.run(["ip", "link", "set", tap, "txqueuelen", str(length)], check=True)


@contextmanager
def run_unit(lab: KernelLab, host: str, unit: str, command: str, *options: str) -> Iterator[None]:
    """Run a command as a service on the host for the duration of the context."""
    lab.run_shell(host, f"systemd-run --quiet --collect --unit={unit} {shlex.join(options)} {command}")
    try:
        yield
    finally:
        lab.ssh(host, f"systemctl stop {unit}")


def measure_path(lab: KernelLab, address: str, delay_ms: int, seconds: float) -> PathFigures:
    """Measure the path from the client to an address of the server.

    A window that has left slow start early, since the round trips of these hosts vary, takes the longer to grow, the
    longer they are. And without the flush, it would leave it at the window of the last connection, which had another delay.
    """
    for host in (SERVER, CLIENT):
        lab.run_shell(host, "ip tcp_metrics flush all")
    times = [str(seconds), str(2 + delay_ms / 4)]
    program = shlex.join(["python3", "-c", CLIENT_PROGRAM, address, str(SERVER_PORT), *times])
    return PathFigures(*json.loads(lab.run_shell(CLIENT, program)))


def measure_volume(lab: KernelLab) -> VolumeFigures:
    program = shlex.join(["python3", "-c", STORAGE_PROGRAM, "/data/bench-wan", "32", "50"])
    return VolumeFigures(*json.loads(lab.run_shell(CLIENT, program)))


# --- Tailscale


def copy_files(lab: KernelLab, host: str, *paths: Path) -> None:
    """Copy files to the directory of the measurement on the host."""
    folder = lab.inventory.parent
    options = ["-i", str(folder / "id_ed25519"), "-o", f"UserKnownHostsFile={folder / 'known_hosts'}"]
    options += ["-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
    lab.run_shell(host, f"mkdir -p {HOST_DIRECTORY}")
    target = f"root@10.79.0.1{host[1:]}:{HOST_DIRECTORY}/"
    subprocess.run(["scp", "-q", *options, *map(str, paths), target], check=True, timeout=300)


@contextmanager
def run_control_server(directory: Path, headscale: str) -> Iterator[str]:
    """Run Headscale on this machine, at its address on the bridge of the hosts. Yields a key to log in with."""
    create_certificate(directory, BRIDGE_ADDRESS)
    config_path = directory / "config.yaml"
    config_path.write_text(json.dumps(headscale_settings(directory, BRIDGE_ADDRESS)))
    command = [headscale, "--config", str(config_path)]
    with subprocess.Popen([*command, "serve"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 60
            while subprocess.run([*command, "users", "create", "lab"], capture_output=True, check=False).returncode:
                assert time.monotonic() < deadline and server.poll() is None, "headscale does not answer"
                time.sleep(0.5)
            key_command = [*command, "preauthkeys", "create", "--user", "1", "--reusable", "--output", "json"]
            yield str(json.loads(subprocess.run(key_command, check=True, capture_output=True).stdout)["key"])
        finally:
            server.terminate()


@contextmanager
def join_tailnet(lab: KernelLab, host: str, key: str) -> Iterator[None]:
    """Log the host in to the tailnet for the duration of the context."""
    # Tailscaled considers the network to be down without a default route.
    lab.run_shell(host, f"modprobe tun && ip route replace default via {BRIDGE_ADDRESS}")
    # It would use either path, and the other mesh would encrypt everything once more. Before tailscaled's own rules.
    rule = f"pref 100 ipproto udp sport {TAILSCALE_PORT} to {WIREGUARD_SUBNET} prohibit"
    lab.run_shell(host, f"ip rule add {rule}")
    daemon = f"{HOST_DIRECTORY}/tailscaled --statedir={HOST_DIRECTORY} --socket={HOST_DIRECTORY}/socket"
    daemon += f" --tun=tailscale0 --port={TAILSCALE_PORT}"
    variables = [f"--setenv=SSL_CERT_FILE={HOST_DIRECTORY}/cert.pem", "--setenv=TS_NO_LOGS_NO_SUPPORT=true"]
    try:
        with run_unit(lab, host, TAILSCALE_UNIT, daemon, *variables):
            lab.wait_until(
                f"tailscaled answers on {host}", lambda: lab.ssh(host, f"{TAILSCALE} debug prefs").returncode == 0, 120
            )
            flags = f"--auth-key={key} --hostname={host} --netfilter-mode=off --accept-dns=false --timeout=120s"
            lab.run_shell(host, f"{TAILSCALE} up --login-server=https://{BRIDGE_ADDRESS} {flags}")
            yield
    finally:
        lab.ssh(host, f"ip route delete default; ip rule delete {rule}; rm -rf {HOST_DIRECTORY}")


@contextmanager
def run_tailnet(lab: KernelLab) -> Iterator[str]:
    """Connect both sites by Tailscale. Yields the address of the server."""
    tailnet = subprocess.run([str(ROOT / "lab" / "tailnet")], stdout=subprocess.PIPE, text=True, check=True)
    programs = Path(tailnet.stdout.strip())
    os.environ["TS_NO_LOGS_NO_SUPPORT"] = "true"
    with tempfile.TemporaryDirectory(prefix="gpumesh-bench-") as name:
        directory = Path(name)
        with run_control_server(directory, str(programs / "headscale")) as key:
            for host in (SERVER, CLIENT):
                copy_files(lab, host, programs / "tailscale", programs / "tailscaled", directory / "cert.pem")
            with join_tailnet(lab, SERVER, key), join_tailnet(lab, CLIENT, key):
                address = lab.run_shell(SERVER, f"{TAILSCALE} ip -4").strip()
                # By default it pings until the path is direct.
                pong = lab.run_shell(CLIENT, f"{TAILSCALE} ping {address}")
                assert f"via {DIRECT_ADDRESS}:" in pong, pong
                yield address


# --- Tables


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table as the guides have them."""
    for row in (columns, ["---"] * len(columns), *rows):
        print(f"| {' | '.join(row)} |" if row[0] != "---" else f"|{'|'.join(row)}|")
    print(flush=True)


def main() -> int:
    """Measure, and print the tables. Returns 1 if the delay is not emulated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", choices=["wireguard", "tailscale"], default="wireguard")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="duration of each throughput measurement (default: 4)"
    )
    arguments = parser.parse_args()
    if arguments.mesh == "wireguard":
        return measure(KernelLab("molecule-kernel"), {"WireGuard": WIREGUARD_ADDRESS}, arguments.seconds)
    lab = KernelLab("molecule-kernel")
    with run_tailnet(lab) as address:
        return measure(lab, {"Tailscale": address}, arguments.seconds)


def measure(lab: KernelLab, mesh: dict[str, str], seconds: float) -> int:
    """Measure the path without and with the mesh, whose address is in ``mesh`` by its name."""
    addresses = {"no mesh": DIRECT_ADDRESS, **mesh}
    paths: dict[tuple[int, str], PathFigures] = {}
    volumes: dict[int, VolumeFigures] = {}
    server = shlex.join(["python3", "-c", SERVER_PROGRAM, str(SERVER_PORT)])
    with run_unit(lab, SERVER, SERVER_UNIT, server):
        listening = f"ss -Hltn sport = :{SERVER_PORT} | grep -q ."
        lab.wait_until("the server listens", lambda: lab.ssh(SERVER, listening).returncode == 0)
        for delay_ms in DELAYS_MS:
            with emulate_delay(lab, delay_ms):
                for name, address in addresses.items():
                    paths[delay_ms, name] = measure_path(lab, address, delay_ms, seconds)
                    print(f"{delay_ms} ms, {name}: {paths[delay_ms, name]}", file=sys.stderr, flush=True)
                if "WireGuard" in mesh:
                    volumes[delay_ms] = measure_volume(lab)
    print_table(
        ["emulated round trip", "path", "measured round trip", "one connection", "four connections"],
        [
            [
                f"{delay_ms} ms",
                name,
                f"{path.round_trip_ms:.1f} ms",
                f"{path.single_gbps:.3f} Gbit/s",
                f"{path.quadruple_gbps:.3f} Gbit/s",
            ]
            for (delay_ms, name), path in paths.items()
        ],
    )
    if volumes:
        print_table(
            [
                "emulated round trip",
                "write",
                "read",
                "read, 16 MiB ahead",
                "four reads at once",
                "create a file of 4 KiB",
                "open and read one",
            ],
            [
                [
                    f"{delay_ms} ms",
                    f"{volume.write_mbps:.1f} MB/s",
                    f"{volume.read_mbps:.1f} MB/s",
                    f"{volume.ahead_read_mbps:.1f} MB/s",
                    f"{volume.parallel_read_mbps:.1f} MB/s",
                    f"{volume.create_ms:.0f} ms",
                    f"{volume.open_ms:.0f} ms",
                ]
                for delay_ms, volume in volumes.items()
            ],
        )
    print(f"Computed from these: an exchange of {GRADIENT_BYTES / 1e6:.0f} MB of gradients by two nodes")
    for (delay_ms, name), path in paths.items():
        exchange = exchange_seconds(2, path.quadruple_gbps, path.round_trip_ms)
        print(f"  {delay_ms} ms, {name}, four connections: {exchange:.1f} s")
    short = [key for key, path in paths.items() if path.round_trip_ms < key[0]]
    if short:
        print(f"shorter than the delay to be emulated: {short}", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())

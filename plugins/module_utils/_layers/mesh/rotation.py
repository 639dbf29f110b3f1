# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replace a member's key without losing a packet, however slow the controller is.

What a member sends through a session of its old key still arrives after it has changed its key, but it can no longer
send through that session: WireGuard queues up to 128 packets for each peer until there is a new session, which requires
that the peer knows the new key. So the peers must learn it right after the change: earlier, they would drop what still
arrives through the old session; much later, the queue would overflow.

Therefore each host first *prepares* its next key, and is then *armed* with the next keys of its peers: a process in the
background waits for their announcement. Then one member after the other *switches*: it asks its peers whether they are
ready, announces the change, and changes its key; each peer replaces the key a moment later, and starts a handshake. If
two members switched at once, peers with queued packets would be replaced. The announcements are sent inside the tunnel,
so they can only come from members.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import signal
import socket
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.background import run_in_background
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.interface import (
    WireguardHost,
    read_running_interface,
    trigger_handshakes,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.keys import ensure_key
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.preshared import add_preshared_keys
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import (
    SESSION_SECONDS,
    DesiredInterface,
    DesiredPeer,
    RunningPeer,
    parse_dump,
    preshared_arguments,
    render_peers,
)

READY, GO, ACK = "ready", "go", "ack"

#: Seconds between the announcement and the replacement: long enough for the member to have changed its key.
_REPLACE_DELAY = 0.3
#: Seconds that a member waits for its peers to be ready: for those with a session, and for those that may be down; the
#: interval of its queries; and the time that it waits for new sessions.
_READY_SECONDS, _IDLE_READY_SECONDS, _QUERY_INTERVAL, _SESSION_WAIT = 15.0, 2.0, 0.25, 15.0
#: The number of times that an announcement is sent, since a datagram may get lost.
_ANNOUNCEMENT_COUNT = 3
#: Seconds after which an armed process gives up, and after which the kernel ends it in any case.
_ARMED_SECONDS = 3600.0
_LIFETIME_SECONDS = 3660


class SwitchResult(NamedTuple):
    """The result of a switch. ``late_peers``: machines that had a session before the change, but not yet after it."""

    public_key: str
    late_peers: Tuple[str, ...]


def announcement_port(listen_port: int) -> int:
    """The UDP port, inside the tunnel, on which an armed host listens: the one after WireGuard's own."""
    return listen_port + 1 if listen_port < 65535 else listen_port - 1


def build_message(step: str, public_key: str) -> bytes:
    """An announcement about the member that has this next key."""
    return json.dumps({"step": step, "key": public_key}).encode("ascii")


def parse_message(message_bytes: bytes) -> Tuple[str, str]:
    """The step and key; both empty for anything else."""
    try:
        message_fields = parse_json(message_bytes.decode("ascii"))
        return str(message_fields["step"]), str(message_fields["key"])
    except (ValueError, LookupError, TypeError):
        return "", ""


def next_key_path(host: WireguardHost, interface_name: str) -> str:
    """The path of the next private key."""
    return f"{host.key_path(interface_name)}.next"


def prepare_key(host: WireguardHost, interface_name: str) -> Tuple[bool, Optional[str]]:
    """Generate the next key, or find the one that an earlier run left. Returns (changed, its public half)."""
    state = ensure_key(next_key_path(host, interface_name), host.run_command, host.check_mode)
    return state.key_changed, state.public_key


class AnnouncementHandler:
    """The handling of announcements on an armed host. It has neither a socket nor a clock."""

    def __init__(self, armed: Sequence[DesiredPeer]) -> None:
        self._armed_peers = {peer.public_key: peer for peer in armed}
        self._replace_times: Dict[str, float] = {}

    @property
    def all_replaced(self) -> bool:
        """Whether every peer has been replaced."""
        return not self._armed_peers

    def handle_message(self, message_bytes: bytes, source: str, current_time: float) -> Optional[bytes]:
        """Process an announcement. Returns the reply, or None. Only the member itself may announce its key."""
        step, key = parse_message(message_bytes)
        peer = self._armed_peers.get(key)
        if peer is None or not any(
            ipaddress.ip_address(source) in ipaddress.ip_network(peer_network) for peer_network in peer.allowed_ips
        ):
            return None
        if step == GO:
            self._replace_times.setdefault(key, current_time + _REPLACE_DELAY)
        return build_message(ACK, key) if step == READY else None

    def take_due_peers(self, current_time: float) -> List[DesiredPeer]:
        """The peers to replace now, each once."""
        due_keys = [key for key, replace_time in self._replace_times.items() if replace_time <= current_time]
        for key in due_keys:
            del self._replace_times[key]
        return [self._armed_peers.pop(key) for key in due_keys]

    def seconds_until_due(self, current_time: float, deadline: float) -> float:
        """The seconds until something is due."""
        return max(0.0, min([deadline, *self._replace_times.values()]) - current_time)


def replace_peer(host: WireguardHost, interface_name: str, peer: DesiredPeer) -> None:
    """Transfer the addresses and the current endpoint of the peer that has them to ``peer``, and start a handshake."""
    dump = parse_dump(host.run_command(["wg", "show", interface_name, "dump"]).stdout)
    networks = set(peer.allowed_ips)
    former_peers = [
        former_peer
        for former_peer in dump.peers_by_key.values()
        if networks & set(former_peer.allowed_ips) and former_peer.public_key != peer.public_key
    ]
    learned_endpoint = next((former_peer.endpoint for former_peer in former_peers if former_peer.endpoint), None)
    successor = peer._replace(endpoint=learned_endpoint)
    options = preshared_arguments([successor])
    if options:
        host.run_command(["wg", "set", interface_name, *options])
    # The new peer comes before the old one, so that the addresses always have an owner.
    host.run_command(["wg", "addconf", interface_name, "/dev/stdin"], stdin=render_peers([successor]))
    for former_peer in former_peers:
        host.run_command(["wg", "set", interface_name, "peer", former_peer.public_key, "remove"])
    trigger_handshakes([successor])


def arm_host(host: WireguardHost, desired_interface: DesiredInterface) -> bool:
    """Start the process that replaces the peers of the interface (with their next keys) when they announce it."""
    if host.check_mode:
        return True
    interface_name = desired_interface.interface
    running_interface = read_running_interface(host, interface_name)
    if running_interface is None:
        raise HostStateError(
            f"The interface {interface_name} is not up, so the keys of its peers cannot be changed.",
            "Run the mesh playbook without mesh_rotate_keys first.",
        )
    keyed_interface = add_preshared_keys(host.preshared_path(interface_name), desired_interface)
    awaited_peers = [
        peer for peer in keyed_interface.peers if peer.public_key not in running_interface.wg_dump.peers_by_key
    ]
    disarm_host(interface_name)
    listener = _open_listener(desired_interface)
    run_in_background(
        lambda: _await_announcements(host, interface_name, listener, AnnouncementHandler(awaited_peers)),
        [listener.fileno()],
        _LIFETIME_SECONDS,
    )
    listener.close()
    return True


def disarm_host(interface_name: str) -> None:
    """Stop the process that an earlier run armed."""
    path = _pid_path(interface_name)
    pid_text = (read_text(path) or "").strip()
    # The start time identifies the process: its ID alone may belong to another one by now.
    pid, _space, started = pid_text.partition(" ")
    if pid.isdecimal() and started and _process_start_time(int(pid)) == started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGTERM)
    remove_file(path)


def switch_key(host: WireguardHost, desired_interface: DesiredInterface) -> SwitchResult:
    """Change this host's key to the prepared one, in step with its peers.

    Raises HostStateError, with nothing changed.
    """
    interface_name = desired_interface.interface
    prepared = read_text(next_key_path(host, interface_name))
    if prepared is None:
        raise HostStateError("There is no next key to switch to.", "Generate it first: step=prepare.")
    public_key = str(host.run_command(["wg", "pubkey"], stdin=prepared).stdout).strip()
    running_interface = read_running_interface(host, interface_name)
    if running_interface is None:
        raise HostStateError(
            f"The interface {interface_name} is not up.", "Run the mesh playbook without mesh_rotate_keys."
        )
    peers_by_key = running_interface.wg_dump.peers_by_key
    live_keys = {
        peer_key for peer_key, peer in peers_by_key.items() if time.time() - peer.latest_handshake < SESSION_SECONDS
    }
    own_address = str(ipaddress.ip_interface(desired_interface.address).ip)
    with _open_udp_socket(own_address) as udp_socket:
        udp_socket.bind((own_address, 0))
        peer_port = announcement_port(desired_interface.listen_port)
        ready_keys = _query_peers(udp_socket, peer_port, public_key, peers_by_key, live_keys)
        if not live_keys <= ready_keys:
            silent_machines = sorted(
                _machine_of(peers_by_key[peer_key], desired_interface) for peer_key in live_keys - ready_keys
            )
            raise HostStateError(
                f"{', '.join(silent_machines)} did not answer on UDP port {peer_port} inside the tunnel, and would not receive the "
                "new key in time. The key has not been changed.",
                "Allow that port on the mesh interface in the members' firewalls, and run this again.",
                peers=silent_machines,
            )
        for _time in range(_ANNOUNCEMENT_COUNT):
            for peer_key in ready_keys:
                _send_to_peer(udp_socket, peer_port, build_message(GO, public_key), peers_by_key[peer_key])
    before = parse_dump(host.run_command(["wg", "show", interface_name, "dump"]).stdout).peers_by_key
    # The file is replaced first: if this process ends here, the next run loads its content.
    os.replace(next_key_path(host, interface_name), host.key_path(interface_name))
    host.run_command(["wg", "set", interface_name, "private-key", host.key_path(interface_name)])
    late_keys = _await_sessions(
        host.run_command, interface_name, {peer_key: before[peer_key] for peer_key in ready_keys}
    )
    return SwitchResult(
        public_key, tuple(sorted(_machine_of(before[peer_key], desired_interface) for peer_key in late_keys))
    )


def _machine_of(peer: RunningPeer, desired_interface: DesiredInterface) -> str:
    """The name of a running peer. Its key may have changed since the announcement, but its addresses stay."""
    for desired_peer in desired_interface.peers:
        if desired_peer.public_key == peer.public_key or set(desired_peer.allowed_ips) & set(peer.allowed_ips):
            return desired_peer.machine
    return peer.public_key


def _query_peers(
    udp_socket: socket.socket,
    peer_port: int,
    public_key: str,
    peers_by_key: Dict[str, RunningPeer],
    live_keys: Set[str],
) -> Set[str]:
    """Ask the peers whether they are ready. Returns those that are.

    A peer with a session is waited for long. One without may be down, or only idle: it gets a short time to reply.
    """
    ready_keys: Set[str] = set()
    start = time.monotonic()
    while len(ready_keys) < len(peers_by_key):
        waited = time.monotonic() - start
        if waited > _READY_SECONDS or (waited > _IDLE_READY_SECONDS and live_keys <= ready_keys):
            break
        for peer_key, running_peer in peers_by_key.items():
            if peer_key not in ready_keys:
                _send_to_peer(udp_socket, peer_port, build_message(READY, public_key), running_peer)
        next_query_at = time.monotonic() + _QUERY_INTERVAL
        while len(ready_keys) < len(peers_by_key):
            remaining_seconds = next_query_at - time.monotonic()
            if remaining_seconds <= 0 or not select.select([udp_socket], [], [], remaining_seconds)[0]:
                break
            reply_bytes, source = udp_socket.recvfrom(1024)
            if parse_message(reply_bytes) == (ACK, public_key):
                ready_keys |= {
                    peer_key
                    for peer_key, running_peer in peers_by_key.items()
                    if _is_allowed_ip(str(source[0]), running_peer)
                }
    return ready_keys


def _await_sessions(run: Runner, interface_name: str, before: Dict[str, RunningPeer]) -> Set[str]:
    """Wait for a new session with each peer. Returns those that still have none."""
    deadline = time.monotonic() + _SESSION_WAIT
    waiting_keys = set(before)
    while waiting_keys and time.monotonic() < deadline:
        time.sleep(0.1)
        live = parse_dump(run(["wg", "show", interface_name, "dump"]).stdout).peers_by_key
        waiting_keys = {
            key for key in waiting_keys if key in live and live[key].latest_handshake <= before[key].latest_handshake
        }
    return waiting_keys


def _send_to_peer(announcer: socket.socket, port: int, message_bytes: bytes, peer: RunningPeer) -> None:
    """Send to every address behind the peer, since only the record shows which of them is its own."""
    for network in peer.allowed_ips:
        # No route or a full queue: the next attempt, or the deadline, handles it.
        with contextlib.suppress(OSError):
            announcer.sendto(message_bytes, (str(ipaddress.ip_network(network).network_address), port))


def _is_allowed_ip(address: str, peer: RunningPeer) -> bool:
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(network) for network in peer.allowed_ips)


def _open_udp_socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)


def _open_listener(desired_interface: DesiredInterface) -> socket.socket:
    own_address = str(ipaddress.ip_interface(desired_interface.address).ip)
    listening_port = announcement_port(desired_interface.listen_port)
    udp_listener = _open_udp_socket(own_address)
    deadline = time.monotonic() + 2
    while not _try_bind(udp_listener, own_address, listening_port):
        # A process that was just stopped may use the port for a moment longer.
        if time.monotonic() > deadline:
            udp_listener.close()
            raise HostStateError(
                f"Cannot listen on UDP port {listening_port} of {own_address}.",
                "Free it while the keys are rotated.",
                port=listening_port,
            )
        time.sleep(0.1)
    return udp_listener


def _try_bind(listener: socket.socket, address: str, port: int) -> bool:
    try:
        listener.bind((address, port))
    except OSError:
        return False
    return True


def _await_announcements(
    host: WireguardHost, interface_name: str, udp_listener: socket.socket, announcement_handler: AnnouncementHandler
) -> None:
    """Handle announcements for an hour at most, while a file names this process."""
    write_atomic(_pid_path(interface_name), f"{os.getpid()} {_process_start_time(os.getpid())}\n", 0o644)
    _handle_announcements(host, interface_name, udp_listener, announcement_handler)
    remove_file(_pid_path(interface_name))


def _handle_announcements(
    host: WireguardHost, interface_name: str, udp_listener: socket.socket, announcement_handler: AnnouncementHandler
) -> None:
    deadline = time.monotonic() + _ARMED_SECONDS
    while not announcement_handler.all_replaced and time.monotonic() < deadline:
        if select.select([udp_listener], [], [], announcement_handler.seconds_until_due(time.monotonic(), deadline))[0]:
            message_bytes, source = udp_listener.recvfrom(1024)
            reply_bytes = announcement_handler.handle_message(message_bytes, str(source[0]), time.monotonic())
            if reply_bytes is not None:
                with contextlib.suppress(OSError):
                    udp_listener.sendto(reply_bytes, source)
        for peer in announcement_handler.take_due_peers(time.monotonic()):
            # The next run of the role corrects what fails here.
            with contextlib.suppress(CommandError):
                replace_peer(host, interface_name, peer)


def _pid_path(interface_name: str) -> str:
    return f"/run/gpumesh-{interface_name}.rotation"


def _process_start_time(pid: int) -> str:
    """Return the time when the process started, in clock ticks; '' if it does not exist."""
    stat = read_text(f"/proc/{pid}/stat") if os.path.exists(f"/proc/{pid}") else None
    return stat.rpartition(")")[2].split()[19] if stat else ""

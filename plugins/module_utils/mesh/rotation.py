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
from typing import Dict, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.interface import Host, read_runtime, start_handshakes
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.keys import ensure_key
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.preshared import equip
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import (
    SESSION_SECONDS,
    Desired,
    Peer,
    RuntimePeer,
    parse_dump,
    preshared_options,
    render_peers,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

READY, GO, ACK = "ready", "go", "ack"

#: Seconds between the announcement and the replacement: long enough for the member to have changed its key.
_GRACE = 0.3
#: Seconds that a member waits for its peers to be ready: for those with a session, and for those that may be down; the
#: interval of its queries; and the time that it waits for new sessions.
_ASK_FOR, _ASK_IDLE_FOR, _ASK_EVERY, _SETTLE_FOR = 15.0, 2.0, 0.25, 15.0
#: How often an announcement is sent, since a datagram may get lost.
_GO_TIMES = 3
#: Seconds after which an armed process gives up.
_PATIENCE = 3600.0


class Switched(NamedTuple):
    """``late``: public keys of peers that had a session before the change, but not yet after it."""

    public_key: str
    late: Tuple[str, ...]


def announcement_port(listen_port: int) -> int:
    """The UDP port, inside the tunnel, on which an armed host listens: the one after WireGuard's own."""
    return listen_port + 1 if listen_port < 65535 else listen_port - 1


def message(step: str, public_key: str) -> bytes:
    """An announcement about the member that has this next key."""
    return json.dumps({"step": step, "key": public_key}).encode("ascii")


def parse_message(data: bytes) -> Tuple[str, str]:
    """The step and key; both empty for anything else."""
    try:
        content = from_json(data.decode("ascii"))
        return str(content["step"]), str(content["key"])
    except (ValueError, LookupError, TypeError):
        return "", ""


def next_key_path(host: Host, interface: str) -> str:
    """The path of the next private key."""
    return f"{host.key_path(interface)}.next"


def prepare(host: Host, interface: str) -> Tuple[bool, Optional[str]]:
    """Generate the next key, or find the one that an earlier run left. Returns (changed, its public half)."""
    state = ensure_key(next_key_path(host, interface), host.run, host.check_mode)
    return state.changed, state.public_key


class Watch:
    """How an armed host handles announcements. It has neither a socket nor a clock."""

    def __init__(self, armed: Sequence[Peer]) -> None:
        self._armed = {peer.public_key: peer for peer in armed}
        self._due: Dict[str, float] = {}

    @property
    def done(self) -> bool:
        """Whether every peer has been replaced."""
        return not self._armed

    def receive(self, data: bytes, source: str, now: float) -> Optional[bytes]:
        """Process an announcement. Returns the reply, or None. Only the member itself may announce its key."""
        step, key = parse_message(data)
        peer = self._armed.get(key)
        if peer is None or not any(ipaddress.ip_address(source) in ipaddress.ip_network(n) for n in peer.allowed_ips):
            return None
        if step == GO:
            self._due.setdefault(key, now + _GRACE)
        return message(ACK, key) if step == READY else None

    def due(self, now: float) -> List[Peer]:
        """The peers to replace now, each once."""
        ripe = [key for key, when in self._due.items() if when <= now]
        for key in ripe:
            del self._due[key]
        return [self._armed.pop(key) for key in ripe]

    def wait(self, now: float, deadline: float) -> float:
        """The seconds until something is due."""
        return max(0.0, min([deadline, *self._due.values()]) - now)


def replace(host: Host, interface: str, peer: Peer) -> None:
    """Transfer the addresses and the current endpoint of the peer that has them to ``peer``, and start a handshake."""
    dump = parse_dump(host.run(["wg", "show", interface, "dump"]).stdout)
    networks = set(peer.allowed_ips)
    old = [one for one in dump.peers.values() if networks & set(one.allowed_ips) and one.public_key != peer.public_key]
    learned = next((one.endpoint for one in old if one.endpoint), None)
    successor = peer._replace(endpoint=learned)
    options = preshared_options([successor])
    if options:
        host.run(["wg", "set", interface, *options])
    # New before old, so that the addresses always have an owner.
    host.run(["wg", "addconf", interface, "/dev/stdin"], stdin=render_peers([successor]))
    for one in old:
        host.run(["wg", "set", interface, "peer", one.public_key, "remove"])
    start_handshakes([successor])


def arm(host: Host, desired: Desired) -> bool:
    """Start the process that replaces the peers of ``desired`` (with their next keys) when they announce it."""
    if host.check_mode:
        return True
    interface = desired.interface
    runtime = read_runtime(host, interface)
    if runtime is None:
        raise HostStateError(
            f"The interface {interface} is not up, so the keys of its peers cannot be changed.",
            "Run the mesh playbook without mesh_rotate_keys first.",
        )
    equipped = equip(host.preshared_path(interface), desired)
    waiting = [peer for peer in equipped.peers if peer.public_key not in runtime.dump.peers]
    disarm(interface)
    listener = _listen(desired)
    if os.fork() == 0:
        _detach(host, interface, listener, Watch(waiting))
    listener.close()
    return True


def disarm(interface: str) -> None:
    """Stop the process that an earlier run armed."""
    path = _pid_path(interface)
    text = (read_text(path) or "").strip()
    # Only this very process: its number alone may belong to another one by now.
    pid, _space, started = text.partition(" ")
    if pid.isdecimal() and started and _started(int(pid)) == started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGTERM)
    remove_file(path)


def switch(host: Host, desired: Desired) -> Switched:
    """Change this host's key to the prepared one, in step with its peers.

    Raises HostStateError, with nothing changed.
    """
    interface = desired.interface
    prepared = read_text(next_key_path(host, interface))
    if prepared is None:
        raise HostStateError("There is no next key to switch to.", "Generate it first: step=prepare.")
    public_key = str(host.run(["wg", "pubkey"], stdin=prepared).stdout).strip()
    runtime = read_runtime(host, interface)
    if runtime is None:
        raise HostStateError(f"The interface {interface} is not up.", "Run the mesh playbook without mesh_rotate_keys.")
    peers = runtime.dump.peers
    alive = {key for key, peer in peers.items() if time.time() - peer.latest_handshake < SESSION_SECONDS}
    own = str(ipaddress.ip_interface(desired.address).ip)
    with _socket(own) as announcer:
        announcer.bind((own, 0))
        port = announcement_port(desired.listen_port)
        ready = _ask(announcer, port, public_key, peers, alive)
        if not alive <= ready:
            silent = sorted(_machine_of(peers[key], desired) for key in alive - ready)
            raise HostStateError(
                f"{', '.join(silent)} did not answer on UDP port {port} inside the tunnel, and would not receive the "
                "new key in time. The key has not been changed.",
                "Allow that port on the mesh interface in the members' firewalls, and run this again.",
                peers=silent,
            )
        for _time in range(_GO_TIMES):
            for key in ready:
                _send(announcer, port, message(GO, public_key), peers[key])
    before = parse_dump(host.run(["wg", "show", interface, "dump"]).stdout).peers
    # The file first: if this process ends here, the next run loads its content.
    os.replace(next_key_path(host, interface), host.key_path(interface))
    host.run(["wg", "set", interface, "private-key", host.key_path(interface)])
    late = _settle(host.run, interface, {key: before[key] for key in ready})
    return Switched(public_key, tuple(sorted(_machine_of(before[key], desired) for key in late)))


def _machine_of(peer: RuntimePeer, desired: Desired) -> str:
    """The name of a running peer. Its key may have changed since the announcement, but its addresses stay."""
    for wanted in desired.peers:
        if wanted.public_key == peer.public_key or set(wanted.allowed_ips) & set(peer.allowed_ips):
            return wanted.machine
    return peer.public_key


def _ask(
    announcer: socket.socket, port: int, public_key: str, peers: Dict[str, RuntimePeer], alive: Set[str]
) -> Set[str]:
    """Ask the peers whether they are ready. Returns those that are.

    A peer with a session is waited for long. One without may be down, or only idle: it gets a short time to reply.
    """
    ready: Set[str] = set()
    start = time.monotonic()
    while len(ready) < len(peers):
        waited = time.monotonic() - start
        if waited > _ASK_FOR or (waited > _ASK_IDLE_FOR and alive <= ready):
            break
        for key, peer in peers.items():
            if key not in ready:
                _send(announcer, port, message(READY, public_key), peer)
        again = time.monotonic() + _ASK_EVERY
        while len(ready) < len(peers):
            left = again - time.monotonic()
            if left <= 0 or not select.select([announcer], [], [], left)[0]:
                break
            data, source = announcer.recvfrom(1024)
            if parse_message(data) == (ACK, public_key):
                ready |= {key for key, peer in peers.items() if _is_behind(str(source[0]), peer)}
    return ready


def _settle(run: Runner, interface: str, before: Dict[str, RuntimePeer]) -> Set[str]:
    """Wait for a new session with each peer. Returns those that still have none."""
    end = time.monotonic() + _SETTLE_FOR
    waiting = set(before)
    while waiting and time.monotonic() < end:
        time.sleep(0.1)
        live = parse_dump(run(["wg", "show", interface, "dump"]).stdout).peers
        waiting = {key for key in waiting if key in live and live[key].latest_handshake <= before[key].latest_handshake}
    return waiting


def _send(announcer: socket.socket, port: int, data: bytes, peer: RuntimePeer) -> None:
    """Send to every address behind the peer, since only the record shows which of them is its own."""
    for network in peer.allowed_ips:
        # No route or a full queue: the next attempt, or the deadline, handles it.
        with contextlib.suppress(OSError):
            announcer.sendto(data, (str(ipaddress.ip_network(network).network_address), port))


def _is_behind(address: str, peer: RuntimePeer) -> bool:
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(network) for network in peer.allowed_ips)


def _socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)


def _listen(desired: Desired) -> socket.socket:
    own = str(ipaddress.ip_interface(desired.address).ip)
    port = announcement_port(desired.listen_port)
    listener = _socket(own)
    end = time.monotonic() + 2
    while not _bound(listener, own, port):
        # A process that was just stopped may hold it for a moment.
        if time.monotonic() > end:
            listener.close()
            raise HostStateError(
                f"Cannot listen on UDP port {port} of {own}.", "Free it while the keys are rotated.", port=port
            )
        time.sleep(0.1)
    return listener


def _bound(listener: socket.socket, address: str, port: int) -> bool:
    try:
        listener.bind((address, port))
    except OSError:
        return False
    return True


def _detach(host: Host, interface: str, listener: socket.socket, watch: Watch) -> NoReturn:
    """Become the process in the background: out of the module's session, without its open files, for an hour at most."""
    status = 1
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        os.closerange(3, listener.fileno())
        os.closerange(listener.fileno() + 1, 1024)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        write_atomic(_pid_path(interface), f"{os.getpid()} {_started(os.getpid())}\n", 0o644)
        _serve(host, interface, listener, watch)
        remove_file(_pid_path(interface))
        status = 0
    finally:
        # Not sys.exit, since the rest of the module belongs to the parent.
        os._exit(status)


def _serve(host: Host, interface: str, listener: socket.socket, watch: Watch) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not watch.done and time.monotonic() < deadline:
        if select.select([listener], [], [], watch.wait(time.monotonic(), deadline))[0]:
            data, source = listener.recvfrom(1024)
            answer = watch.receive(data, str(source[0]), time.monotonic())
            if answer is not None:
                with contextlib.suppress(OSError):
                    listener.sendto(answer, source)
        for peer in watch.due(time.monotonic()):
            # The next run of the role corrects what fails here.
            with contextlib.suppress(CommandError):
                replace(host, interface, peer)


def _pid_path(interface: str) -> str:
    return f"/run/gpumesh-{interface}.rotation"


def _started(pid: int) -> str:
    """When the process started, in clock ticks; '' if it does not exist."""
    stat = read_text(f"/proc/{pid}/stat") if os.path.exists(f"/proc/{pid}") else None
    return stat.rpartition(")")[2].split()[19] if stat else ""

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A WireGuard interface of this host: read it, bring it to the desired state, remove it."""

from __future__ import annotations

import contextlib
import glob
import ipaddress
import os
import socket
import threading
import time
from typing import Any, Container, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import Places, starts_at_boot
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import (
    names_in,
    read_text,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import preshared
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.keys import KeyState, ensure_key, read_public_key
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.knock import knock
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.path_mtu import (
    Probe,
    echo,
    path_mtus,
    tunnel_mtu,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import (
    IPV6_SETTINGS,
    UNSHARED,
    Desired,
    Peer,
    PeerChanges,
    Plan,
    Runtime,
    Written,
    check_interface_name,
    forwarding_settings,
    is_ours,
    join_endpoint,
    parse_conf,
    parse_dump,
    parse_link,
    parse_routes,
    peer_changes,
    plan,
    preshared_options,
    redact,
    render_conf,
    render_peers,
    split_endpoint,
    written_mtu,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import values

DIRECTORY = "/etc/wireguard"

#: A link with this name is created and removed immediately, to find out whether the kernel supports WireGuard.
_PROBE = "gpumesh-probe"
_TUN = "/dev/net/tun"
#: The maximum number of peers per command, so that even a large change stays far below the kernel's limit.
_CHUNK = 500

#: The number of names that are resolved at the same time, and the seconds that all of them may take together.
_RESOLVED_AT_ONCE = 32
_RESOLVE_FOR = 10.0


class Host(NamedTuple):
    """Where the work is done: a runner for commands, whether it may change anything, and the folders of the files."""

    run: Runner
    check_mode: bool
    directory: str = DIRECTORY
    probe: Probe = echo
    places: Places = Places()

    def conf_path(self, interface: str) -> str:
        """The path of the configuration that wg-quick reads."""
        return os.path.join(self.directory, f"{interface}.conf")

    def preshared_path(self, interface: str) -> str:
        """The path of the folder with the preshared keys."""
        return preshared.folder_of(self.directory, interface)

    def key_path(self, interface: str) -> str:
        """The path of the private key."""
        return os.path.join(self.directory, f"{interface}.key")


class Result(NamedTuple):
    """What was done, or would be in check mode. ``before`` and ``after`` are for the diff and contain no secrets."""

    changed: bool
    #: Whether wg(8) is installed.
    tools: bool
    #: ``kernel``, ``userspace``, or ``missing`` if this host cannot run either yet.
    implementation: str = "missing"
    public_key: Optional[str] = None
    interface_up: bool = False
    #: Whether a service brings the interface up at boot.
    boot: bool = False
    #: Bytes; 0 if only the key was handled.
    mtu: int = 0
    peers: PeerChanges = PeerChanges([], [], [])
    #: Per public key: machine, latest_handshake (seconds since 1970, 0 for never), endpoint, received, sent (bytes).
    handshakes: Mapping[str, Mapping[str, Any]] = {}
    warnings: Tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    #: The other interfaces that supervisord runs here; only if this one was removed.
    others: Tuple[str, ...] = ()
    #: Whether the configuration of this name is somebody else's, which is not removed.
    foreign: bool = False


def present(
    host: Host,
    interface: str,
    desired: Optional[Desired],
    probe_mtu: bool = False,
    expected_key: Optional[str] = None,
    preshared_keys: Optional[Mapping[str, str]] = None,
    preshared_without: Container[str] = (),
) -> Result:
    """Create the key, and with ``desired``, also the configuration and the running interface.

    With ``probe_mtu``, the desired MTU is lowered to what the paths to the endpoints carry. With ``expected_key``, a
    host that has another key is not configured, since its peers could not know it. ``preshared_keys``, by machine, are
    stored; those shared with the machines in ``preshared_without`` are removed. An interface that is down stays down:
    its service brings it up from the configuration. Raises GpumeshError.
    """
    check_interface_name(interface)
    tools = find("wg") is not None
    runtime = read_runtime(host, interface) if tools else None
    implementation = _implementation(host, runtime)
    if not tools:
        if not host.check_mode and desired is not None and expected_key is None:
            raise HostStateError("wg is not installed.", "Install the package wireguard-tools.")
        return _without_tools(host, desired, implementation)
    if runtime is not None and not _is_our_interface(host, interface, runtime):
        raise HostStateError(
            f"The WireGuard interface {interface} is up, but {host.conf_path(interface)} does not exist: something "
            "else set it up, such as systemd-networkd, and its peers would be lost.",
            f"Choose another mesh_interface, or delete that tunnel if it is not needed (ip link delete {interface}).",
            interface=interface,
        )
    key = ensure_key(host.key_path(interface), host.run, host.check_mode)
    if desired is None or (expected_key is not None and expected_key != key.public_key):
        return Result(
            key.changed,
            tools,
            implementation,
            key.public_key,
            interface_up=runtime is not None,
            boot=_starts_at_boot(host, interface),
            handshakes=_handshakes(runtime, {}),
        )
    folder = host.preshared_path(interface)
    taken = preshared.store(folder, preshared_keys or {}, host.check_mode)
    equipped = preshared.equip(folder, desired, preshared_without)
    result = _configure(host, equipped, key, runtime, implementation, probe_mtu)
    if not host.check_mode:
        preshared.prune(folder, [peer.machine for peer in equipped.peers if peer.preshared not in (None, UNSHARED)])
    return result._replace(changed=True) if taken else result


def absent(host: Host, interface: str) -> Result:
    """Remove the interface, its configuration and its key.

    A configuration that is not ours, and an interface that something else has set up, are left alone.
    """
    check_interface_name(interface)
    text = read_text(host.conf_path(interface)) or ""
    foreign = bool(text) and not is_ours(text)
    conf = "" if foreign else text
    runtime = read_runtime(host, interface) if find("wg") and not foreign else None
    if runtime is not None and not _is_our_interface(host, interface, runtime):
        runtime = None
    changed = conf != "" or runtime is not None or os.path.exists(host.key_path(interface))
    if not host.check_mode:
        if runtime is not None:
            # Deleting a TUN device ends wireguard-go too.
            host.run(["ip", "link", "delete", "dev", interface])
        if not foreign:
            remove_file(host.conf_path(interface))
        remove_file(host.key_path(interface))
        remove_file(f"{host.key_path(interface)}.next")
        preshared.prune(host.preshared_path(interface), [])
    old = {key: peer.machine for key, peer in parse_conf(conf).items()}
    gone = PeerChanges([], sorted(old.values()), [])
    others = _others(host.places, interface)
    return Result(changed, find("wg") is not None, peers=gone, before=redact(conf), others=others, foreign=foreign)


def _others(places: Places, interface: str) -> Tuple[str, ...]:
    """The other interfaces that supervisord runs, such as those of other clusters."""
    start, _at, end = os.path.basename(places.program("wg-quick@")).partition("@")
    names = names_in(places.supervisor_programs)
    found = [name[len(start) + 1 : -len(end)] for name in names if name.startswith(f"{start}@") and name.endswith(end)]
    return tuple(name for name in found if name != interface)


def read_runtime(host: Host, interface: str) -> Optional[Runtime]:
    """The running interface; None if there is none. Refuses an interface of another kind with that name."""
    shown = host.run(["ip", "-j", "-d", "address", "show", "dev", interface], check=False)
    if shown.rc != 0:
        return None
    link = parse_link(shown.stdout)
    if link.kind not in ("wireguard", "tun"):
        raise HostStateError(
            f"The interface {interface} exists and is not a WireGuard interface ({link.kind or 'a network card'}).",
            "Choose another mesh_interface.",
            interface=interface,
        )
    dump = parse_dump(host.run(["wg", "show", interface, "dump"]).stdout)
    routes = parse_routes(
        host.run(["ip", "-j", "-4", "route", "show", "dev", interface]).stdout,
        host.run(["ip", "-j", "-6", "route", "show", "dev", interface], check=False).stdout,
    )
    address = link.addresses[0] if link.addresses else ""
    return Runtime(dump, link, routes, _forwards(interface, address))


def resolve(endpoints: Iterable[str], seconds: float = _RESOLVE_FOR) -> Dict[str, Tuple[str, ...]]:
    """The ``address:port`` forms of each endpoint, in the resolver's order; () if it has none.

    All are resolved at once, within ``seconds`` in total. A name without an answer by then has no address.
    """
    wanted = sorted(set(endpoints))
    found: Dict[str, Tuple[str, ...]] = {}
    left = iter(wanted)
    taking = threading.Lock()

    def work() -> None:
        while True:
            with taking:
                endpoint = next(left, None)
            if endpoint is None:
                return
            found[endpoint] = _addresses_of(endpoint)

    # getaddrinfo cannot be interrupted. A daemon thread that still waits does not keep the module from ending.
    workers = [threading.Thread(target=work, daemon=True) for _worker in wanted[:_RESOLVED_AT_ONCE]]
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0.0))
    answered = dict(found)
    return {endpoint: answered.get(endpoint, ()) for endpoint in wanted}


def _addresses_of(endpoint: str) -> Tuple[str, ...]:
    name, port = split_endpoint(endpoint)
    try:
        answers = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ()
    dialled = []
    for answer in answers:
        # A name server's answer is checked like a user's input.
        with contextlib.suppress(ValueError):
            dialled.append(join_endpoint(values.address(str(answer[4][0])), port))
    return tuple(dialled)


def _configure(
    host: Host,
    desired: Desired,
    key: KeyState,
    runtime: Optional[Runtime],
    implementation: str,
    probe_mtu: bool,
) -> Result:
    """Bring configuration and running interface to the desired state."""
    interface = desired.interface
    old_conf = _read_conf(host, interface)
    written = parse_conf(old_conf)
    resolved = resolve({peer.endpoint for peer in desired.peers if peer.endpoint})
    warnings = [f"{name} does not resolve now; its peer is not contacted." for name in resolved if not resolved[name]]
    if probe_mtu:
        desired = _measured(host, desired, written, resolved, written_mtu(old_conf))
    steps = Plan()
    if runtime is None:
        _refuse_taken_port(host, desired)
    else:
        steps = plan(desired, runtime, key.public_key, written, resolved, int(time.time()))
    new_conf = render_conf(desired, host.key_path(interface))
    if not host.check_mode:
        if steps.needed:
            _apply(host, desired, steps)
            runtime = read_runtime(host, interface)
        # Last: if this is interrupted, the next run still sees the change, such as a moved endpoint.
        if new_conf != old_conf:
            write_atomic(host.conf_path(interface), new_conf)
    old_names = {public_key: peer.machine for public_key, peer in written.items()}
    names = {**old_names, **{peer.public_key: peer.machine for peer in desired.peers}}
    before, after = _live_lines(steps, names, desired)
    return Result(
        key.changed or new_conf != old_conf or steps.needed,
        True,
        implementation,
        key.public_key,
        runtime is not None,
        _starts_at_boot(host, interface),
        desired.mtu,
        peer_changes(desired, old_names, [peer.public_key for peer in steps.set_peers], steps.drop_peers),
        _handshakes(runtime, names),
        tuple(warnings),
        redact(old_conf) + before,
        new_conf + after,
    )


def _measured(
    host: Host,
    desired: Desired,
    written: Mapping[str, Written],
    resolved: Mapping[str, Tuple[str, ...]],
    former: Optional[int],
) -> Desired:
    """``desired`` with the MTU lowered to what the paths carry. ``former``: the one that was written before.

    Earlier results are only confirmed, and measured again if they no longer hold. An endpoint that does not answer,
    because it is down or by configuration, keeps its earlier result, and is measured again by the next run.

    With less than IPv6 needs, the kernel would remove the address of an IPv6 mesh. On a narrower path, WireGuard's own
    packets have to be fragmented.
    """
    paths = {peer.endpoint: peer.path_mtu for peer in written.values() if peer.endpoint and peer.path_mtu is not None}
    address_of = {endpoint: split_endpoint(dial[0])[0] for endpoint, dial in resolved.items() if dial}
    if not host.check_mode:
        known = dict.fromkeys(address_of.values(), 0)
        for endpoint, address in address_of.items():
            known[address] = max(known[address], paths.get(endpoint) or 0)
        found = path_mtus(known, desired.mtu, host.probe)
        paths.update({endpoint: found[address] or known[address] for endpoint, address in address_of.items()})
    limits = [tunnel_mtu(paths[endpoint], address) for endpoint, address in address_of.items() if paths.get(endpoint)]
    if former and any(paths.get(endpoint) for endpoint in resolved if endpoint not in address_of):
        # A name server that is silent for a moment makes no path wider.
        limits.append(former)
    least = values.SMALLEST_IPV6_MTU if ":" in desired.address else 0
    return desired._replace(
        mtu=max(min([desired.mtu, *limits]), least),
        peers=tuple(
            peer._replace(path_mtu=paths.get(peer.endpoint) if peer.endpoint else None) for peer in desired.peers
        ),
    )


def _apply(host: Host, desired: Desired, steps: Plan) -> None:
    """Carry out the plan on the running interface.

    `wg syncconf` is not used: it sets the port and the addresses of every peer again, for which wireguard-go closes and
    reopens its socket, and the kernel empties each peer's list for a moment, so packets of other peers are lost.
    ``addconf`` and ``set`` affect only the peers that differ.
    """
    _apply_link(host, desired, steps)
    _apply_peers(host.run, desired.interface, steps)
    for network in steps.add_routes:
        host.run(["ip", "route", "replace", network, "dev", desired.interface])
    for network in steps.drop_routes:
        host.run(["ip", "route", "delete", network, "dev", desired.interface])
    start_handshakes(steps.set_peers)


def _apply_link(host: Host, desired: Desired, steps: Plan) -> None:
    """Set the key, the port, and the settings of ip(8)."""
    run, interface = host.run, desired.interface
    if steps.load_key:
        run(["wg", "set", interface, "private-key", host.key_path(interface)])
    if steps.listen_port is not None:
        run(["wg", "set", interface, "listen-port", str(steps.listen_port)])
    if steps.mtu is not None:
        run(["ip", "link", "set", "dev", interface, "mtu", str(steps.mtu)])
    if steps.set_up:
        run(["ip", "link", "set", "dev", interface, "up"])
    # The old address is removed first: it may be in the same network, whose route must belong to the new one.
    for address in steps.drop_addresses:
        run(["ip", "address", "delete", address, "dev", interface])
    for address in steps.add_addresses:
        run(["ip", "address", "add", address, "dev", interface])
    if steps.start_forwarding:
        kept = kept_routes() if ":" in desired.address else []
        _set_kernel([*kept, *forwarding_settings(desired.address, interface)])


def _apply_peers(run: Runner, interface: str, steps: Plan) -> None:
    """Add new peers before old ones are removed, so that an address that moves, as with a new key, always has an owner."""
    shared = preshared_options(steps.set_peers)
    for start in range(0, len(shared), 4 * _CHUNK):
        run(["wg", "set", interface, *shared[start : start + 4 * _CHUNK]])
    if steps.set_peers:
        run(["wg", "addconf", interface, "/dev/stdin"], stdin=render_peers(steps.set_peers))
    for start in range(0, len(steps.drop_peers), _CHUNK):
        argv = ["wg", "set", interface]
        for key in steps.drop_peers[start : start + _CHUNK]:
            argv += ["peer", key, "remove"]
        run(argv)


def _set_kernel(settings: Iterable[Tuple[str, str]]) -> None:
    """Write settings below /proc/sys. Raises HostStateError if that is not allowed, as in some containers."""
    for path, value in settings:
        try:
            with open(path, "w", encoding="ascii") as stream:
                stream.write(value)
        except OSError as failure:
            raise HostStateError(
                f"This host cannot relay: {path} cannot be set to {value}: {failure.strerror}.",
                "Set it when the container is started, or name another member in mesh_relays.",
                path=path,
            ) from failure


def kept_routes(folder: str = IPV6_SETTINGS) -> List[Tuple[str, str]]:
    """The kernel's settings, as path and value, with which a relay of an IPv6 mesh keeps its other IPv6 routes.

    A host that forwards IPv6 drops the routes that it has learned from router advertisements, such as its default
    route, and accepts no more, unless accept_ra is 2. It is set where advertisements are accepted so far.
    """
    settings = []
    for accepts in sorted(glob.glob(os.path.join(folder, "*", "accept_ra"))):
        forwards = os.path.join(os.path.dirname(accepts), "forwarding")
        if ((read_text(forwards) or "").strip(), (read_text(accepts) or "").strip()) == ("0", "1"):
            settings.append((accepts, "2"))
    return settings


def _forwards(interface: str, address: str) -> bool:
    """Whether the kernel has all settings of a relay."""
    return all((read_text(path) or "").strip() == value for path, value in forwarding_settings(address, interface))


def start_handshakes(peers: Sequence[Peer]) -> None:
    """Send an empty datagram to each peer that has an endpoint, so that handshakes are made now, and not at first use.

    After a change of keys, this releases the packets that both sides hold back until then.
    """
    dialled = [peer.allowed_ips[0] for peer in peers if peer.endpoint and peer.allowed_ips]
    knock(str(ipaddress.ip_network(network).network_address) for network in dialled)


def _read_conf(host: Host, interface: str) -> str:
    """Our configuration, or '' if there is none. A configuration that is not ours is refused."""
    path = host.conf_path(interface)
    conf = read_text(path) or ""
    if conf and not is_ours(conf):
        raise HostStateError(
            f"{path} was not written by this collection.",
            "Choose another mesh_interface, or move the file away if that tunnel is not needed.",
            path=path,
        )
    return conf


def _is_our_interface(host: Host, interface: str, runtime: Runtime) -> bool:
    """Whether we have set up the running interface: our configuration exists, or it has our key.

    An interface with neither a key nor peers is unused, such as one that a killed wg-quick leaves behind.
    """
    if _read_conf(host, interface):
        return True
    if runtime.dump.public_key is None:
        return not runtime.dump.peers
    return runtime.dump.public_key == read_public_key(host.key_path(interface), host.run)


def _refuse_taken_port(host: Host, desired: Desired) -> None:
    """Two tunnels cannot share a port. Reported here, since wg-quick would only fail later, in a service's log."""
    for line in host.run(["wg", "show", "all", "listen-port"], check=False).stdout.splitlines():
        name, _tab, port = line.partition("\t")
        if name != desired.interface and port.strip() == str(desired.listen_port):
            raise HostStateError(
                f"UDP port {desired.listen_port} is already used by the WireGuard interface {name}.",
                "Choose another mesh_port.",
                port=desired.listen_port,
                interface=name,
            )


def _implementation(host: Host, runtime: Optional[Runtime]) -> str:
    """The implementation that runs the interface, or would run it."""
    if runtime is not None:
        return "kernel" if runtime.link.kind == "wireguard" else "userspace"
    if _kernel_has_wireguard(host):
        return "kernel"
    if not os.path.exists(_TUN):
        raise HostStateError(
            f"The kernel does not support WireGuard, and a userspace WireGuard needs {_TUN}.",
            f"Give the container the device {_TUN} (docker run --device {_TUN}), or load the kernel module wireguard.",
        )
    return "userspace" if find("wireguard-go") else "missing"


def _starts_at_boot(host: Host, interface: str) -> bool:
    return starts_at_boot(f"wg-quick@{interface}", runs_systemd(), host.places)


def _kernel_has_wireguard(host: Host) -> bool:
    """Whether the kernel can create a WireGuard link. It is tried, since a module on disk may not be loadable here."""
    if os.path.isdir("/sys/module/wireguard"):
        return True
    if host.check_mode:
        return find("modprobe") is not None and host.run(["modprobe", "-n", "-q", "wireguard"], check=False).rc == 0
    made = host.run(["ip", "link", "add", "dev", _PROBE, "type", "wireguard"], check=False)
    if made.rc == 0:
        host.run(["ip", "link", "delete", "dev", _PROBE])
    return made.rc == 0


def _without_tools(host: Host, desired: Optional[Desired], implementation: str) -> Result:
    """The result on a host without wg(8): what to install, and in check mode, that everything would be created."""
    added = sorted(peer.machine for peer in desired.peers) if desired else []
    mtu = desired.mtu if desired else 0
    return Result(host.check_mode, False, implementation, mtu=mtu, peers=PeerChanges(added, [], []))


def _handshakes(runtime: Optional[Runtime], names: Dict[str, str]) -> Dict[str, Dict[str, Any]]:
    if runtime is None:
        return {}
    return {
        key: {
            "machine": names.get(key),
            "latest_handshake": peer.latest_handshake,
            "endpoint": peer.endpoint,
            "received": peer.received,
            "sent": peer.sent,
        }
        for key, peer in runtime.dump.peers.items()
    }


def _live_lines(steps: Plan, names: Dict[str, str], desired: Desired) -> Tuple[str, str]:
    """The differences in the running interface, as comment lines below the two configurations."""
    after = [f"# running: peer {peer.machine} set" for peer in steps.set_peers]
    before = [f"# running: peer {names.get(key, key)} has the key {key}" for key in steps.drop_peers]
    after += ["# running: key loaded"] if steps.load_key else []
    after += [f"# running: port {desired.listen_port}"] if steps.listen_port is not None else []
    after += [f"# running: MTU {desired.mtu}"] if steps.mtu is not None else []
    after += ["# running: up"] if steps.set_up else []
    after += ["# running: forwarding"] if steps.start_forwarding else []
    before += [f"# running: address {address}" for address in steps.drop_addresses]
    after += [f"# running: address {address}" for address in steps.add_addresses]
    before += [f"# running: route {network}" for network in steps.drop_routes]
    after += [f"# running: route {network}" for network in steps.add_routes]
    return "".join(f"{line}\n" for line in before), "".join(f"{line}\n" for line in after)

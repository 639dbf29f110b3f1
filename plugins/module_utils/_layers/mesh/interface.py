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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    list_names,
    read_text,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import ServicePaths, starts_at_boot
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import preshared
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.handshake_trigger import trigger_handshake
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.keys import (
    KeyState,
    ensure_key,
    read_public_key,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.path_mtu import (
    MtuProbe,
    find_path_mtus,
    probe_by_echo,
    tunnel_mtu,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import (
    IPV6_CONF_DIRECTORY,
    NO_PRESHARED_KEY,
    ConfPeer,
    DesiredInterface,
    DesiredPeer,
    InterfacePlan,
    PeerChanges,
    RunningInterface,
    check_interface_name,
    compare_peers,
    forwarding_settings,
    is_managed,
    join_endpoint,
    parse_conf,
    parse_dump,
    parse_link,
    parse_mtu,
    parse_routes,
    plan_interface,
    preshared_arguments,
    redact_secrets,
    render_conf,
    render_peers,
    split_endpoint,
)

DIRECTORY = "/etc/wireguard"

#: A link with this name is created and removed immediately, to find out whether the kernel supports WireGuard.
_PROBE_LINK = "gpumesh-probe"
_TUN_DEVICE = "/dev/net/tun"
#: The maximum number of peers per command, so that even a large change stays far below the kernel's limit.
_MAX_PEERS_PER_COMMAND = 500

#: The number of names that are resolved concurrently, and the seconds that all of them may take together.
_CONCURRENT_LOOKUPS = 32
_RESOLVE_SECONDS = 10.0


class WireguardHost(NamedTuple):
    """The host to work on: a runner for commands, whether it may change anything, and the directories of the files."""

    run_command: Runner
    check_mode: bool
    config_directory: str = DIRECTORY
    mtu_probe: MtuProbe = probe_by_echo
    service_paths: ServicePaths = ServicePaths()

    def conf_path(self, interface: str) -> str:
        """The path of the configuration that wg-quick reads."""
        return os.path.join(self.config_directory, f"{interface}.conf")

    def preshared_path(self, interface_name: str) -> str:
        """Return the path of the directory with the preshared keys."""
        return preshared.keys_directory(self.config_directory, interface_name)

    def key_path(self, interface_name: str) -> str:
        """The path of the private key."""
        return os.path.join(self.config_directory, f"{interface_name}.key")


class WireguardResult(NamedTuple):
    """The changes made, or to be made in check mode. ``diff_before`` and ``diff_after`` contain no secrets."""

    changed: bool
    #: Whether wg(8) is installed.
    tools_installed: bool
    #: ``kernel``, ``userspace``, or ``missing`` if this host cannot run either yet.
    implementation: str = "missing"
    public_key: Optional[str] = None
    interface_up: bool = False
    #: Whether a service brings the interface up at boot.
    starts_at_boot: bool = False
    #: Bytes; 0 if only the key was handled.
    mtu: int = 0
    peer_changes: PeerChanges = PeerChanges([], [], [])
    #: Per public key: machine, latest_handshake (seconds since 1970, 0 for never), endpoint, received, sent (bytes).
    handshakes: Mapping[str, Mapping[str, Any]] = {}
    warnings: Tuple[str, ...] = ()
    diff_before: str = ""
    diff_after: str = ""
    #: Other interfaces that supervisord runs here; only if this one was removed.
    other_interfaces: Tuple[str, ...] = ()
    #: Whether the configuration of this name is not ours, so that it is not removed.
    foreign_conf: bool = False


def ensure_interface(
    host: WireguardHost,
    interface_name: str,
    desired_interface: Optional[DesiredInterface],
    probe_mtu: bool = False,
    expected_key: Optional[str] = None,
    preshared_keys: Optional[Mapping[str, str]] = None,
    preshared_without: Container[str] = (),
) -> WireguardResult:
    """Create the key, and with ``desired_interface``, also the configuration and the running interface.

    With ``probe_mtu``, the desired MTU is lowered to what the paths to the endpoints carry. With ``expected_key``, a
    host that has another key is not configured, since its peers could not know it. ``preshared_keys``, by machine, are
    stored; those shared with the machines in ``preshared_without`` are removed. An interface that is down stays down:
    its service brings it up from the configuration. Raises GpumeshError.
    """
    check_interface_name(interface_name)
    tools_installed = find_program("wg") is not None
    running_interface = read_running_interface(host, interface_name) if tools_installed else None
    wg_implementation = _detect_implementation(host, running_interface)
    if not tools_installed:
        if not host.check_mode and desired_interface is not None and expected_key is None:
            raise HostStateError("wg is not installed.", "Install the package wireguard-tools.")
        return _result_without_tools(host, desired_interface, wg_implementation)
    if running_interface is not None and not _is_our_interface(host, interface_name, running_interface):
        raise HostStateError(
            f"The WireGuard interface {interface_name} is up, but {host.conf_path(interface_name)} does not exist: something "
            "else set it up, such as systemd-networkd, and its peers would be lost.",
            f"Choose another mesh_interface, or delete that tunnel if it is not needed (ip link delete {interface_name}).",
            interface=interface_name,
        )
    key_state = ensure_key(host.key_path(interface_name), host.run_command, host.check_mode)
    if desired_interface is None or (expected_key is not None and expected_key != key_state.public_key):
        return WireguardResult(
            key_state.key_changed,
            tools_installed,
            wg_implementation,
            key_state.public_key,
            interface_up=running_interface is not None,
            starts_at_boot=_starts_at_boot(host, interface_name),
            handshakes=_describe_handshakes(running_interface, {}),
        )
    keys_directory = host.preshared_path(interface_name)
    changed_keys = preshared.store_keys(keys_directory, preshared_keys or {}, host.check_mode)
    keyed_interface = preshared.add_preshared_keys(keys_directory, desired_interface, preshared_without)
    result = _configure_interface(host, keyed_interface, key_state, running_interface, wg_implementation, probe_mtu)
    removed_keys = preshared.remove_other_keys(
        keys_directory,
        [peer.machine for peer in keyed_interface.peers if peer.preshared_key not in (None, NO_PRESHARED_KEY)],
        host.check_mode,
    )
    return result._replace(changed=True) if changed_keys or removed_keys else result


def remove_interface(host: WireguardHost, interface_name: str) -> WireguardResult:
    """Remove the interface, its configuration and its key.

    A configuration that is not ours, and an interface that something else has set up, are left alone.
    """
    check_interface_name(interface_name)
    conf_text = read_text(host.conf_path(interface_name)) or ""
    is_foreign = bool(conf_text) and not is_managed(conf_text)
    our_conf = "" if is_foreign else conf_text
    running_interface = read_running_interface(host, interface_name) if find_program("wg") and not is_foreign else None
    if running_interface is not None and not _is_our_interface(host, interface_name, running_interface):
        running_interface = None
    has_changed = our_conf != "" or running_interface is not None or os.path.exists(host.key_path(interface_name))
    if not host.check_mode:
        if running_interface is not None:
            # Deleting a TUN device ends wireguard-go too.
            host.run_command(["ip", "link", "delete", "dev", interface_name])
        if not is_foreign:
            remove_file(host.conf_path(interface_name))
        remove_file(host.key_path(interface_name))
        remove_file(f"{host.key_path(interface_name)}.next")
        preshared.remove_other_keys(host.preshared_path(interface_name), [])
    old_machines = {key: peer.machine for key, peer in parse_conf(our_conf).items()}
    removed_peers = PeerChanges([], sorted(old_machines.values()), [])
    other_interfaces = _list_other_interfaces(host.service_paths, interface_name)
    return WireguardResult(
        has_changed,
        find_program("wg") is not None,
        peer_changes=removed_peers,
        diff_before=redact_secrets(our_conf),
        other_interfaces=other_interfaces,
        foreign_conf=is_foreign,
    )


def _list_other_interfaces(service_paths: ServicePaths, interface_name: str) -> Tuple[str, ...]:
    """The other interfaces that supervisord runs, such as those of other clusters."""
    start, _at, name_suffix = os.path.basename(service_paths.program_path("wg-quick@")).partition("@")
    names = list_names(service_paths.supervisor_programs)
    interface_names = [
        name[len(start) + 1 : -len(name_suffix)]
        for name in names
        if name.startswith(f"{start}@") and name.endswith(name_suffix)
    ]
    return tuple(name for name in interface_names if name != interface_name)


def read_running_interface(host: WireguardHost, interface_name: str) -> Optional[RunningInterface]:
    """The running interface; None if there is none. Refuses an interface of another kind with that name."""
    link_output = host.run_command(["ip", "-j", "-d", "address", "show", "dev", interface_name], check=False)
    if link_output.rc != 0:
        return None
    interface_link = parse_link(link_output.stdout)
    if interface_link.link_kind not in ("wireguard", "tun"):
        raise HostStateError(
            f"The interface {interface_name} exists and is not a WireGuard interface ({interface_link.link_kind or 'a network card'}).",
            "Choose another mesh_interface.",
            interface=interface_name,
        )
    dump = parse_dump(host.run_command(["wg", "show", interface_name, "dump"]).stdout)
    routes = parse_routes(
        host.run_command(["ip", "-j", "-4", "route", "show", "dev", interface_name]).stdout,
        host.run_command(["ip", "-j", "-6", "route", "show", "dev", interface_name], check=False).stdout,
    )
    address = interface_link.addresses[0] if interface_link.addresses else ""
    return RunningInterface(dump, interface_link, routes, _is_forwarding(interface_name, address))


def resolve_endpoints(endpoints: Iterable[str], time_limit: float = _RESOLVE_SECONDS) -> Dict[str, Tuple[str, ...]]:
    """The ``address:port`` forms of each endpoint, in the resolver's order; () if it has none.

    All are resolved at once, within ``time_limit`` in total. A name without an answer by then has no address.
    """
    pending_endpoints = sorted(set(endpoints))
    resolved_addresses: Dict[str, Tuple[str, ...]] = {}
    endpoint_queue = iter(pending_endpoints)
    queue_lock = threading.Lock()

    def resolve_queued() -> None:
        while True:
            with queue_lock:
                endpoint = next(endpoint_queue, None)
            if endpoint is None:
                return
            resolved_addresses[endpoint] = _look_up_endpoint(endpoint)

    # getaddrinfo cannot be interrupted. A daemon thread that still waits does not keep the module from ending.
    workers = [
        threading.Thread(target=resolve_queued, daemon=True) for _worker in pending_endpoints[:_CONCURRENT_LOOKUPS]
    ]
    deadline = time.monotonic() + time_limit
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0.0))
    finished_lookups = dict(resolved_addresses)
    return {endpoint: finished_lookups.get(endpoint, ()) for endpoint in pending_endpoints}


def _look_up_endpoint(endpoint: str) -> Tuple[str, ...]:
    name, port = split_endpoint(endpoint)
    try:
        address_infos = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ()
    peer_endpoints = []
    for address_info in address_infos:
        # A name server's answer is checked like a user's input.
        with contextlib.suppress(ValueError):
            peer_endpoints.append(join_endpoint(values.address(str(address_info[4][0])), port))
    return tuple(peer_endpoints)


def _configure_interface(
    host: WireguardHost,
    desired_interface: DesiredInterface,
    key_state: KeyState,
    running_interface: Optional[RunningInterface],
    wg_implementation: str,
    probe_mtu: bool,
) -> WireguardResult:
    """Bring configuration and running interface to the desired state."""
    interface_name = desired_interface.interface
    old_conf = _read_conf(host, interface_name)
    conf_peers = parse_conf(old_conf)
    resolved_endpoints = resolve_endpoints({peer.endpoint for peer in desired_interface.peers if peer.endpoint})
    dns_warnings = [
        f"{name} does not resolve now; its peer is not contacted."
        for name in resolved_endpoints
        if not resolved_endpoints[name]
    ]
    if probe_mtu:
        desired_interface = _lower_mtu(host, desired_interface, conf_peers, resolved_endpoints, parse_mtu(old_conf))
    interface_plan = InterfacePlan()
    if running_interface is None:
        _refuse_taken_port(host, desired_interface)
    else:
        interface_plan = plan_interface(
            desired_interface, running_interface, key_state.public_key, conf_peers, resolved_endpoints, int(time.time())
        )
    new_conf = render_conf(desired_interface, host.key_path(interface_name))
    if not host.check_mode:
        if interface_plan.has_steps:
            _apply_plan(host, desired_interface, interface_plan)
            running_interface = read_running_interface(host, interface_name)
        # The file is written last, so that the next run still sees the change if this one is interrupted.
        if new_conf != old_conf:
            write_atomic(host.conf_path(interface_name), new_conf)
    old_names = {public_key: peer.machine for public_key, peer in conf_peers.items()}
    machine_names = {**old_names, **{peer.public_key: peer.machine for peer in desired_interface.peers}}
    running_before, running_after = _diff_lines(interface_plan, machine_names, desired_interface)
    return WireguardResult(
        key_state.key_changed or new_conf != old_conf or interface_plan.has_steps,
        True,
        wg_implementation,
        key_state.public_key,
        running_interface is not None,
        _starts_at_boot(host, interface_name),
        desired_interface.mtu,
        compare_peers(
            desired_interface,
            old_names,
            [peer.public_key for peer in interface_plan.set_peers],
            interface_plan.drop_peers,
        ),
        _describe_handshakes(running_interface, machine_names),
        tuple(dns_warnings),
        redact_secrets(old_conf) + running_before,
        new_conf + running_after,
    )


def _lower_mtu(
    host: WireguardHost,
    desired_interface: DesiredInterface,
    conf_peers: Mapping[str, ConfPeer],
    resolved_endpoints: Mapping[str, Tuple[str, ...]],
    former_mtu: Optional[int],
) -> DesiredInterface:
    """Return the desired interface with its MTU lowered to what the paths carry. ``former_mtu``: the one on disk.

    Earlier results are only confirmed, and measured again if they no longer hold. An endpoint that does not answer,
    because it is down or by configuration, keeps its earlier result, and is measured again by the next run.

    With less than IPv6 needs, the kernel would remove the address of an IPv6 mesh. On a narrower path, WireGuard's own
    packets have to be fragmented.
    """
    path_mtu_by_endpoint = {
        peer.endpoint: peer.path_mtu for peer in conf_peers.values() if peer.endpoint and peer.path_mtu is not None
    }
    address_by_endpoint = {
        peer_endpoint: split_endpoint(dial_endpoints[0])[0]
        for peer_endpoint, dial_endpoints in resolved_endpoints.items()
        if dial_endpoints
    }
    known_mtus = dict.fromkeys(address_by_endpoint.values(), 0)
    for peer_endpoint, address in address_by_endpoint.items():
        known_mtus[address] = max(known_mtus[address], path_mtu_by_endpoint.get(peer_endpoint) or 0)
    measured_mtus = find_path_mtus(known_mtus, desired_interface.mtu, host.mtu_probe)
    path_mtu_by_endpoint.update(
        {
            peer_endpoint: measured_mtus[address] or known_mtus[address]
            for peer_endpoint, address in address_by_endpoint.items()
        }
    )
    limits = [
        tunnel_mtu(path_mtu_by_endpoint[peer_endpoint], address)
        for peer_endpoint, address in address_by_endpoint.items()
        if path_mtu_by_endpoint.get(peer_endpoint)
    ]
    if former_mtu and any(
        path_mtu_by_endpoint.get(peer_endpoint)
        for peer_endpoint in resolved_endpoints
        if peer_endpoint not in address_by_endpoint
    ):
        # No path has become wider because a name server does not respond for a moment.
        limits.append(former_mtu)
    minimum_mtu = values.SMALLEST_IPV6_MTU if ":" in desired_interface.address else 0
    return desired_interface._replace(
        mtu=max(min([desired_interface.mtu, *limits]), minimum_mtu),
        peers=tuple(
            peer._replace(path_mtu=path_mtu_by_endpoint.get(peer.endpoint) if peer.endpoint else None)
            for peer in desired_interface.peers
        ),
    )


def _apply_plan(host: WireguardHost, desired_interface: DesiredInterface, interface_plan: InterfacePlan) -> None:
    """Carry out the plan on the running interface.

    `wg syncconf` is not used: it sets the port and the addresses of every peer again, for which wireguard-go closes and
    reopens its socket, and the kernel empties each peer's list for a moment, so packets of other peers are lost.
    ``addconf`` and ``set`` affect only the peers that differ.
    """
    _apply_link(host, desired_interface, interface_plan)
    _apply_peers(host.run_command, desired_interface.interface, interface_plan)
    for network in interface_plan.add_routes:
        host.run_command(["ip", "route", "replace", network, "dev", desired_interface.interface])
    for network in interface_plan.drop_routes:
        host.run_command(["ip", "route", "delete", network, "dev", desired_interface.interface])
    trigger_handshakes(interface_plan.set_peers)


def _apply_link(host: WireguardHost, desired_interface: DesiredInterface, interface_plan: InterfacePlan) -> None:
    """Set the key, the port, and the settings of ip(8)."""
    run_command, interface_name = host.run_command, desired_interface.interface
    if interface_plan.load_key:
        run_command(["wg", "set", interface_name, "private-key", host.key_path(interface_name)])
    if interface_plan.listen_port is not None:
        run_command(["wg", "set", interface_name, "listen-port", str(interface_plan.listen_port)])
    if interface_plan.mtu is not None:
        run_command(["ip", "link", "set", "dev", interface_name, "mtu", str(interface_plan.mtu)])
    if interface_plan.set_up:
        run_command(["ip", "link", "set", "dev", interface_name, "up"])
    # The old address is removed first: it may be in the same network, whose route must belong to the new one.
    for address in interface_plan.drop_addresses:
        run_command(["ip", "address", "delete", address, "dev", interface_name])
    for address in interface_plan.add_addresses:
        run_command(["ip", "address", "add", address, "dev", interface_name])
    if interface_plan.start_forwarding:
        accept_ra_settings = route_keeping_settings() if ":" in desired_interface.address else []
        _write_kernel_settings([*accept_ra_settings, *forwarding_settings(desired_interface.address, interface_name)])


def _apply_peers(run_command: Runner, interface_name: str, interface_plan: InterfacePlan) -> None:
    """Add new peers before old ones are removed, so that an address that moves to another key always has an owner."""
    wg_options = preshared_arguments(interface_plan.set_peers)
    for start in range(0, len(wg_options), 4 * _MAX_PEERS_PER_COMMAND):
        run_command(["wg", "set", interface_name, *wg_options[start : start + 4 * _MAX_PEERS_PER_COMMAND]])
    if interface_plan.set_peers:
        run_command(["wg", "addconf", interface_name, "/dev/stdin"], stdin=render_peers(interface_plan.set_peers))
    for start in range(0, len(interface_plan.drop_peers), _MAX_PEERS_PER_COMMAND):
        wg_arguments = ["wg", "set", interface_name]
        for key in interface_plan.drop_peers[start : start + _MAX_PEERS_PER_COMMAND]:
            wg_arguments += ["peer", key, "remove"]
        run_command(wg_arguments)


def _write_kernel_settings(settings: Iterable[Tuple[str, str]]) -> None:
    """Write settings below /proc/sys. Raises HostStateError if that is not allowed, as in some containers."""
    for setting_path, setting_text in settings:
        try:
            with open(setting_path, "w", encoding="ascii") as stream:
                stream.write(setting_text)
        except OSError as failure:
            raise HostStateError(
                f"This host cannot relay: {setting_path} cannot be set to {setting_text}: {failure.strerror}.",
                "Set it when the container is started, or name another member in mesh_relays.",
                path=setting_path,
            ) from failure


def route_keeping_settings(ipv6_directory: str = IPV6_CONF_DIRECTORY) -> List[Tuple[str, str]]:
    """The kernel's settings, as path and value, with which a relay of an IPv6 mesh keeps its other IPv6 routes.

    A host that forwards IPv6 drops the routes that it has learned from router advertisements, such as its default
    route, and accepts no more, unless accept_ra is 2. It is set where advertisements are accepted so far.
    """
    settings = []
    for accept_ra_path in sorted(glob.glob(os.path.join(ipv6_directory, "*", "accept_ra"))):
        forwarding_path = os.path.join(os.path.dirname(accept_ra_path), "forwarding")
        if ((read_text(forwarding_path) or "").strip(), (read_text(accept_ra_path) or "").strip()) == ("0", "1"):
            settings.append((accept_ra_path, "2"))
    return settings


def _is_forwarding(interface_name: str, address: str) -> bool:
    """Whether the kernel has all settings of a relay."""
    return all(
        (read_text(path) or "").strip() == expected_text
        for path, expected_text in forwarding_settings(address, interface_name)
    )


def trigger_handshakes(peers: Sequence[DesiredPeer]) -> None:
    """Send an empty datagram to each peer that has an endpoint, so that handshakes are made now, and not at first use.

    After a change of keys, this releases the packets that both sides hold back until then.
    """
    peer_networks = [peer.allowed_ips[0] for peer in peers if peer.endpoint and peer.allowed_ips]
    trigger_handshake(str(ipaddress.ip_network(network).network_address) for network in peer_networks)


def _read_conf(host: WireguardHost, interface_name: str) -> str:
    """Return our configuration, or '' if there is none. A configuration that is not ours is refused."""
    path = host.conf_path(interface_name)
    conf = read_text(path) or ""
    if conf and not is_managed(conf):
        raise HostStateError(
            f"{path} was not written by this collection.",
            "Choose another mesh_interface, or move the file away if that tunnel is not needed.",
            path=path,
        )
    return conf


def _is_our_interface(host: WireguardHost, interface_name: str, running_interface: RunningInterface) -> bool:
    """Whether we have set up the running interface: our configuration exists, or it has our key.

    An interface with neither a key nor peers is unused, such as one that a killed wg-quick leaves behind.
    """
    if _read_conf(host, interface_name):
        return True
    if running_interface.wg_dump.public_key is None:
        return not running_interface.wg_dump.peers_by_key
    return running_interface.wg_dump.public_key == read_public_key(host.key_path(interface_name), host.run_command)


def _refuse_taken_port(host: WireguardHost, desired_interface: DesiredInterface) -> None:
    """Raise HostStateError if another tunnel uses the port: wg-quick would only fail later, in a service's log."""
    for line in host.run_command(["wg", "show", "all", "listen-port"], check=False).stdout.splitlines():
        name, _tab, port = line.partition("\t")
        if name != desired_interface.interface and port.strip() == str(desired_interface.listen_port):
            raise HostStateError(
                f"UDP port {desired_interface.listen_port} is already used by the WireGuard interface {name}.",
                "Choose another mesh_port.",
                port=desired_interface.listen_port,
                interface=name,
            )


def _detect_implementation(host: WireguardHost, running_interface: Optional[RunningInterface]) -> str:
    """The implementation that runs the interface, or would run it."""
    if running_interface is not None:
        return "kernel" if running_interface.interface_link.link_kind == "wireguard" else "userspace"
    if _kernel_supports_wireguard(host):
        return "kernel"
    if not os.path.exists(_TUN_DEVICE):
        raise HostStateError(
            f"The kernel does not support WireGuard, and a userspace WireGuard needs {_TUN_DEVICE}.",
            f"Give the container the device {_TUN_DEVICE} (docker run --device {_TUN_DEVICE}), or load the kernel module wireguard.",
        )
    return "userspace" if find_program("wireguard-go") else "missing"


def _starts_at_boot(host: WireguardHost, interface_name: str) -> bool:
    return starts_at_boot(f"wg-quick@{interface_name}", runs_systemd(), host.service_paths)


def _kernel_supports_wireguard(host: WireguardHost) -> bool:
    """Whether the kernel can create a WireGuard link. It is tried, since a module on disk may not be loadable here."""
    if os.path.isdir("/sys/module/wireguard"):
        return True
    if host.check_mode:
        return (
            find_program("modprobe") is not None
            and host.run_command(["modprobe", "-n", "-q", "wireguard"], check=False).rc == 0
        )
    probe_result = host.run_command(["ip", "link", "add", "dev", _PROBE_LINK, "type", "wireguard"], check=False)
    if probe_result.rc == 0:
        host.run_command(["ip", "link", "delete", "dev", _PROBE_LINK])
    return probe_result.rc == 0


def _result_without_tools(
    host: WireguardHost, desired_interface: Optional[DesiredInterface], wg_implementation: str
) -> WireguardResult:
    """The result on a host without wg(8): what to install, and in check mode, that everything would be created."""
    added = sorted(peer.machine for peer in desired_interface.peers) if desired_interface else []
    mtu = desired_interface.mtu if desired_interface else 0
    return WireguardResult(host.check_mode, False, wg_implementation, mtu=mtu, peer_changes=PeerChanges(added, [], []))


def _describe_handshakes(
    running_interface: Optional[RunningInterface], names: Dict[str, str]
) -> Dict[str, Dict[str, Any]]:
    if running_interface is None:
        return {}
    return {
        key: {
            "machine": names.get(key),
            "latest_handshake": peer.latest_handshake,
            "endpoint": peer.endpoint,
            "received": peer.received_bytes,
            "sent": peer.sent_bytes,
        }
        for key, peer in running_interface.wg_dump.peers_by_key.items()
    }


def _diff_lines(
    interface_plan: InterfacePlan, names: Dict[str, str], desired_interface: DesiredInterface
) -> Tuple[str, str]:
    """The differences in the running interface, as comment lines below the two configurations."""
    added_lines = [f"# running: peer {peer.machine} set" for peer in interface_plan.set_peers]
    removed_lines = [f"# running: peer {names.get(key, key)} has the key {key}" for key in interface_plan.drop_peers]
    added_lines += ["# running: key loaded"] if interface_plan.load_key else []
    added_lines += (
        [f"# running: port {desired_interface.listen_port}"] if interface_plan.listen_port is not None else []
    )
    added_lines += [f"# running: MTU {desired_interface.mtu}"] if interface_plan.mtu is not None else []
    added_lines += ["# running: up"] if interface_plan.set_up else []
    added_lines += ["# running: forwarding"] if interface_plan.start_forwarding else []
    removed_lines += [f"# running: address {address}" for address in interface_plan.drop_addresses]
    added_lines += [f"# running: address {address}" for address in interface_plan.add_addresses]
    removed_lines += [f"# running: route {network}" for network in interface_plan.drop_routes]
    added_lines += [f"# running: route {network}" for network in interface_plan.add_routes]
    return "".join(f"{line}\n" for line in removed_lines), "".join(f"{line}\n" for line in added_lines)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The firewall of a member as text for nft(8): a table of its own, beside the host's other rules.

A packet has to pass every table, so this one cannot open what the host's own rules close. It closes the ports of the
clusters' services to everyone except the members, and leaves all other ports alone.

There is one table for all clusters of a host, to which each contributes a part: whatever one cluster accepts, such as
its members and tunnels, is accepted before another one closes its ports.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.ssh import NO_SSH_ACCESS, SshAccess

MANAGED_HEADER = "# Managed by gpumesh.cluster: edits are replaced at the next run."

#: The name of the table, its files and its unit. No cluster's name with the former prefix ``gpumesh_`` is equal to it.
TABLE_NAME = "gpumesh-firewall"

#: The unit that loads the host's own rules, which deletes all other tables when it does.
HOST_RULES_UNIT = "nftables.service"

#: The target that starts the table's unit at boot.
BOOT_TARGET = "sysinit.target"

#: The table without the parts of the clusters. Declared first, so that deleting it cannot fail.
TABLE_FRAME = f"""{MANAGED_HEADER}
table inet {TABLE_NAME}
delete table inet {TABLE_NAME}
table inet {TABLE_NAME} {{
\tset joining_4 {{
\t\ttype ipv4_addr
\t\tflags timeout
\t}}
\tset joining_6 {{
\t\ttype ipv6_addr
\t\tflags timeout
\t}}
\tchain accepted {{
\t}}
\tchain closed {{
\t}}
\tchain input {{
\t\ttype filter hook input priority filter - 5; policy accept;
\t\tiifname "lo" accept
\t\tct state established,related accept
\t\tip saddr @joining_4 accept
\t\tip6 saddr @joining_6 accept
\t\tjump accepted
\t\tjump closed
\t}}
}}
"""

#: A packet that opens a TCP connection. Only these are dropped: the kernel may not have tracked connections before the
#: table was loaded, and would then take the next packet of an open one for the first.
_OPENING_MATCH = "tcp flags & (fin | syn | rst | ack) == syn"

_PORT_PATTERN = re.compile(r"[0-9]{1,5}")
_CLUSTER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}\Z", re.IGNORECASE)


class DesiredFirewall(NamedTuple):
    """The contents of the table for a cluster. All texts are checked."""

    cluster: str
    #: Addresses of members, accepted on every interface.
    member_addresses: Tuple[str, ...]
    #: Addresses that are accepted only on the mesh's interface.
    mesh_members: Tuple[str, ...]
    mesh_interface: str
    #: Networks that are treated as members.
    trusted_networks: Tuple[str, ...]
    #: Port or range, ``111`` or ``6817-6819``.
    tcp_ports: Tuple[str, ...]
    udp_ports: Tuple[str, ...]
    #: UDP ports that stay open to everyone: the endpoints of tunnels.
    open_udp_ports: Tuple[str, ...]
    #: The TCP port of SSH.
    ssh_port: str
    #: Networks from which SSH is allowed, besides the members; if empty, SSH is not restricted.
    ssh_networks: Tuple[str, ...]


def check_cluster_name(cluster: str) -> str:
    """Return the name of a cluster, which becomes part of the names of files and sets. Raises InputError."""
    if not _CLUSTER_NAME.match(cluster):
        raise InputError(f"'{cluster}' is an invalid cluster name.", "Use letters, digits, '-', '_' and '.'.")
    return cluster


def parse_desired_firewall(
    cluster: str, parameters: Mapping[str, Any], ssh_access: SshAccess = NO_SSH_ACCESS
) -> DesiredFirewall:
    """Check and normalise the parameters of a module. ``ssh_access``: how the host is reached by SSH.

    Raises InputError, also for a table that would close the connection over which the module runs.
    """
    mesh_interface = str(parameters.get("mesh_interface") or "")
    mesh_members = _parse_addresses(parameters.get("mesh_members") or ())
    if mesh_members:
        try:
            values.interface_name(mesh_interface)
        except ValueError as failure:
            raise InputError(f"{failure}.", "Set mesh_interface with mesh_members.") from failure
    member_addresses = _parse_addresses(parameters.get("members") or ())
    if not member_addresses and not mesh_members:
        raise InputError(
            "A firewall without members would lock out the cluster itself.", "Set the addresses of the members."
        )
    ssh_networks = _parse_networks(parameters.get("ssh_from") or ())
    ssh_port = int(parameters.get("ssh_port") or 22)
    desired = DesiredFirewall(
        check_cluster_name(cluster),
        member_addresses,
        mesh_members,
        mesh_interface,
        _parse_networks(parameters.get("trusted") or ()),
        # The ports of SSH are removed from the ranges: only ssh_from restricts SSH.
        _merge_ports(parameters.get("tcp_ports") or (), [ssh_port, *ssh_access.listening_ports]),
        _merge_ports(parameters.get("udp_ports") or ()),
        _merge_ports(parameters.get("open_udp_ports") or ()),
        _merge_ports([ssh_port])[0],
        ssh_networks,
    )
    _refuse_lockout(
        desired, [connection.peer_address for connection in ssh_access.own_connections if connection.port == ssh_port]
    )
    return desired


def _refuse_lockout(desired: DesiredFirewall, peer_addresses: Iterable[str]) -> None:
    """Refuse a table that drops new connections from where the module's own connection comes. Raises InputError."""
    if not desired.ssh_networks:
        return
    accepted_networks = [
        ipaddress.ip_network(network_text)
        for network_text in (
            *desired.member_addresses,
            *desired.mesh_members,
            *desired.trusted_networks,
            *desired.ssh_networks,
        )
    ]
    for peer in peer_addresses:
        address = ipaddress.ip_address(peer)
        if not address.is_loopback and not any(address in network for network in accepted_networks):
            raise InputError(
                f"SSH would be closed to {peer}, from which this host is being reached: it is neither a member nor in "
                f"firewall_trusted or firewall_ssh_from ({', '.join(desired.ssh_networks)}). Nothing was changed.",
                f"Add {address}/{address.max_prefixlen}, or its network, to firewall_ssh_from.",
                address=peer,
            )


def parse_ephemeral_range(range_text: str) -> str:
    """Parse /proc/sys/net/ipv4/ip_local_port_range into ``32768-60999``. Raises InputError."""
    range_ends = range_text.split()
    if len(range_ends) != 2 or not all(range_end.isdecimal() for range_end in range_ends):
        raise InputError(f"'{range_text.strip()}' is an invalid range of ephemeral ports.")
    return "-".join(range_ends)


def render_cluster_rules(desired: DesiredFirewall) -> str:
    """Return the part of a cluster, as text for nft after ``TABLE_FRAME``."""
    cluster = desired.cluster
    accept_rules = [f"udp dport {{ {', '.join(desired.open_udp_ports)} }}"] if desired.open_udp_ports else []
    accept_rules += _match_sources(f"member_{cluster}", desired.member_addresses)
    mesh_rules = _match_sources(f"mesh_{cluster}", desired.mesh_members)
    accept_rules += [f'iifname "{desired.mesh_interface}" {rule}' for rule in mesh_rules]
    accept_rules += _match_sources(f"trusted_{cluster}", desired.trusted_networks)
    drop_rules = []
    if desired.ssh_networks:
        ssh_match = f"tcp dport {desired.ssh_port}"
        accept_rules += [f"{ssh_match} {rule}" for rule in _match_sources(f"ssh_{cluster}", desired.ssh_networks)]
        drop_rules.append(f"{ssh_match} {_OPENING_MATCH}")
    if desired.tcp_ports:
        drop_rules.append(f"tcp dport {{ {', '.join(desired.tcp_ports)} }} {_OPENING_MATCH}")
    if desired.udp_ports:
        drop_rules.append(f"udp dport {{ {', '.join(desired.udp_ports)} }}")
    table_lines = [
        MANAGED_HEADER,
        f"table inet {TABLE_NAME} {{",
        *_render_sets(f"member_{cluster}", desired.member_addresses),
        *_render_sets(f"mesh_{cluster}", desired.mesh_members),
        *_render_sets(f"trusted_{cluster}", desired.trusted_networks),
        *_render_sets(f"ssh_{cluster}", desired.ssh_networks),
        "\tchain accepted {",
        *(f"\t\t{rule} accept" for rule in accept_rules),
        "\t}",
        "\tchain closed {",
        *(f"\t\t{rule} counter drop" for rule in drop_rules),
        "\t}",
        "}",
    ]
    return "\n".join([*table_lines, ""])


def render_admission(addresses: Iterable[str], seconds: int) -> str:
    """Return the text for nft that accepts these addresses for a limited time, or until the table is loaded again."""
    command_lines = []
    for version, elements in _group_by_version(_parse_addresses(addresses)).items():
        if elements:
            # Adding an existing element does not extend its time, and deleting a missing one fails.
            set_element, joined_elements = f"element inet {TABLE_NAME} joining_{version}", ", ".join(elements)
            command_lines += [
                f"add {set_element} {{ {joined_elements} }}",
                f"delete {set_element} {{ {joined_elements} }}",
            ]
            command_lines.append(
                f"add {set_element} {{ {', '.join(f'{element} timeout {seconds}s' for element in elements)} }}"
            )
    return "\n".join([*command_lines, ""])


def render_main(rules_directory: str) -> str:
    """Return the file that loads the table with all parts in the directory, in one transaction."""
    return f'{TABLE_FRAME}include "{rules_directory}/*.nft"\n'


def render_unit(rules_path: str, nft_path: str) -> str:
    """Return the systemd unit that loads the table at boot."""
    return f"""{MANAGED_HEADER}
[Unit]
Description=Firewall of the gpumesh clusters of this host
DefaultDependencies=no
Wants=network-pre.target
Before=network-pre.target shutdown.target
After={HOST_RULES_UNIT} local-fs.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={nft_path} --file {rules_path}
ExecStop=-{nft_path} delete table inet {TABLE_NAME}

[Install]
WantedBy={BOOT_TARGET}
"""


def render_drop_in(rules_path: str, nft_path: str) -> str:
    """Return the drop-in of ``HOST_RULES_UNIT`` that loads the table again whenever the host's own rules are loaded.

    A unit of its own that follows this one would come too late: systemd does not pass on a reload to a unit that is
    just being started, and starts none that was started five times in ten seconds. A failure is not one of the host's
    own rules.
    """
    return f"""{MANAGED_HEADER}
[Service]
ExecStartPost=-{nft_path} --file {rules_path}
ExecReload=-{nft_path} --file {rules_path}
"""


def _render_sets(set_name: str, networks: Sequence[str]) -> List[str]:
    """Return a set for each of IPv4 and IPv6 that has elements."""
    set_lines = []
    for version, elements in _group_by_version(networks).items():
        if elements:
            set_lines += [
                f"\tset {set_name}_{version} {{",
                f"\t\ttype ipv{version}_addr",
                "\t\tflags interval",
                "\t\tauto-merge",
                f"\t\telements = {{ {', '.join(elements)} }}",
                "\t}",
            ]
    return set_lines


def _match_sources(name: str, networks: Sequence[str]) -> List[str]:
    """Return the matches of packets whose source is in the set."""
    families = {4: "ip", 6: "ip6"}
    return [
        f"{families[version]} saddr @{name}_{version}"
        for version, elements in _group_by_version(networks).items()
        if elements
    ]


def _group_by_version(networks: Sequence[str]) -> Dict[int, List[str]]:
    return {
        version: [network for network in networks if ipaddress.ip_network(network).version == version]
        for version in (4, 6)
    }


def _parse_addresses(address_texts: Iterable[str]) -> Tuple[str, ...]:
    addresses = set()
    for address_text in address_texts:
        try:
            # The zone of an address, as in fe80::1%eth0, may be any text.
            addresses.add(ipaddress.ip_address(address_text if "%" not in address_text else ""))
        except ValueError as failure:
            raise InputError(
                f"'{address_text}' is an invalid address.", "Write it as 10.99.0.2.", address=address_text
            ) from failure
    return tuple(str(address) for address in sorted(addresses, key=lambda address: (address.version, int(address))))


def _parse_networks(network_texts: Iterable[str]) -> Tuple[str, ...]:
    networks = set()
    for network_text in network_texts:
        try:
            networks.add(ipaddress.ip_network(network_text if "%" not in network_text else ""))
        except ValueError as failure:
            raise InputError(
                f"'{network_text}' is an invalid subnet.", "Write it as 10.1.0.0/16.", network=network_text
            ) from failure
    return tuple(
        str(network)
        for network in sorted(networks, key=lambda network: (network.version, int(network[0]), network.prefixlen))
    )


def _merge_ports(port_texts: Iterable[Any], excluded_ports: Iterable[int] = ()) -> Tuple[str, ...]:
    """Sort and merge ports, since nft rejects overlapping ranges. Raises InputError."""
    port_spans: List[Tuple[int, int]] = []
    for port_text in port_texts:
        first, _dash, last = str(port_text).partition("-")
        if not _PORT_PATTERN.fullmatch(first) or (last and not _PORT_PATTERN.fullmatch(last)):
            raise InputError(
                f"'{port_text}' is an invalid port.", "Write it as 2049 or 6817-6819.", port=str(port_text)
            )
        low, high = int(first), int(last or first)
        if not 0 < low <= high < 65536:
            raise InputError(
                f"'{port_text}' is an invalid range of ports.", "Ports range from 1 to 65535.", port=str(port_text)
            )
        port_spans.append((low, high))
    merged_spans: List[Tuple[int, int]] = []
    for low, high in sorted(port_spans):
        if merged_spans and low <= merged_spans[-1][1] + 1:
            merged_spans[-1] = (merged_spans[-1][0], max(high, merged_spans[-1][1]))
        else:
            merged_spans.append((low, high))
    for port in excluded_ports:
        split_spans = [
            part for low, high in merged_spans for part in ((low, min(high, port - 1)), (max(low, port + 1), high))
        ]
        merged_spans = [(low, high) for low, high in split_spans if low <= high]
    return tuple(f"{low}-{high}" if high > low else str(low) for low, high in merged_spans)

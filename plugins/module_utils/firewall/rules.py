# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The firewall of a member as text for nft(8): a table of its own, beside the host's other rules.

A packet has to pass every table, so this one cannot open what the host's own rules close. It closes the ports of the
clusters' services to everyone except the members, and leaves all other ports alone.

There is one table for all clusters of a host, to which each contributes a part: whatever one cluster accepts, such as its
members and tunnels, is accepted before another one closes its ports.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall.ssh import NOT_REACHED, Reached
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import values

MARK = "# Managed by gpumesh.cluster: edits are replaced at the next run."

#: The table, and the name of its files and its unit. No cluster's name makes the same one out of the former ``gpumesh_``.
TABLE = "gpumesh-firewall"

#: The unit that loads the host's own rules, which deletes all other tables when it does.
OWN_RULES = "nftables.service"

#: What starts the table's unit at boot.
WANTED_BY = "sysinit.target"

#: The table without the parts of the clusters. Declared first, so that deleting it cannot fail.
FRAME = f"""{MARK}
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
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
_OPENING = "tcp flags & (fin | syn | rst | ack) == syn"

_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}\Z", re.IGNORECASE)


class Desired(NamedTuple):
    """What a cluster wants in the table. All texts are checked."""

    cluster: str
    #: Addresses of members, accepted on every interface.
    members: Tuple[str, ...]
    #: Addresses that are accepted only on the mesh's interface.
    mesh_members: Tuple[str, ...]
    mesh_interface: str
    #: Networks that are treated as members.
    trusted: Tuple[str, ...]
    #: Port or range, ``111`` or ``6817-6819``.
    tcp_ports: Tuple[str, ...]
    udp_ports: Tuple[str, ...]
    #: UDP ports that stay open to everyone: the endpoints of tunnels.
    open_udp_ports: Tuple[str, ...]
    #: The TCP port of SSH.
    ssh_port: str
    #: Networks from which SSH is allowed, besides the members; if empty, SSH is not restricted.
    ssh_from: Tuple[str, ...]


def checked_name(cluster: str) -> str:
    """The name of a cluster, which becomes part of the names of files and sets. Raises InputError."""
    if not _NAME.match(cluster):
        raise InputError(f"'{cluster}' is an invalid cluster name.", "Use letters, digits, '-', '_' and '.'.")
    return cluster


def make_desired(cluster: str, given: Mapping[str, Any], reached: Reached = NOT_REACHED) -> Desired:
    """Check and normalise the parameters of a module. ``reached``: how the host is reached by SSH.

    Raises InputError, also for a table that would close the connection over which the module runs.
    """
    interface = str(given.get("mesh_interface") or "")
    mesh_members = _addresses(given.get("mesh_members") or ())
    if mesh_members:
        try:
            values.interface_name(interface)
        except ValueError as failure:
            raise InputError(f"{failure}.", "Set mesh_interface with mesh_members.") from failure
    members = _addresses(given.get("members") or ())
    if not members and not mesh_members:
        raise InputError(
            "A firewall without members would lock out the cluster itself.", "Set the addresses of the members."
        )
    ssh_from = _networks(given.get("ssh_from") or ())
    ssh_port = int(given.get("ssh_port") or 22)
    desired = Desired(
        checked_name(cluster),
        members,
        mesh_members,
        interface,
        _networks(given.get("trusted") or ()),
        # Whatever the ranges contain: only ssh_from restricts SSH.
        _ports(given.get("tcp_ports") or (), [ssh_port, *reached.ports]),
        _ports(given.get("udp_ports") or ()),
        _ports(given.get("open_udp_ports") or ()),
        _ports([ssh_port])[0],
        ssh_from,
    )
    _refuse_lockout(desired, [one.peer for one in reached.own if one.port == ssh_port])
    return desired


def _refuse_lockout(desired: Desired, peers: Iterable[str]) -> None:
    """Refuse a table that drops new connections from where the module's own connection comes. Raises InputError."""
    if not desired.ssh_from:
        return
    accepted = [
        ipaddress.ip_network(one)
        for one in (*desired.members, *desired.mesh_members, *desired.trusted, *desired.ssh_from)
    ]
    for peer in peers:
        address = ipaddress.ip_address(peer)
        if not address.is_loopback and not any(address in network for network in accepted):
            raise InputError(
                f"SSH would be closed to {peer}, from which this host is being reached: it is neither a member nor in "
                f"firewall_trusted or firewall_ssh_from ({', '.join(desired.ssh_from)}). Nothing was changed.",
                f"Add {address}/{address.max_prefixlen}, or its network, to firewall_ssh_from.",
                address=peer,
            )


def ephemeral_range(text: str) -> str:
    """The range in /proc/sys/net/ipv4/ip_local_port_range, ``32768-60999``. Raises InputError."""
    ends = text.split()
    if len(ends) != 2 or not all(end.isdecimal() for end in ends):
        raise InputError(f"'{text.strip()}' is an invalid range of ephemeral ports.")
    return "-".join(ends)


def render_part(desired: Desired) -> str:
    """The part of a cluster, as text for nft after ``FRAME``."""
    cluster = desired.cluster
    accepted = [f"udp dport {{ {', '.join(desired.open_udp_ports)} }}"] if desired.open_udp_ports else []
    accepted += _from(f"member_{cluster}", desired.members)
    mesh = _from(f"mesh_{cluster}", desired.mesh_members)
    accepted += [f'iifname "{desired.mesh_interface}" {rule}' for rule in mesh]
    accepted += _from(f"trusted_{cluster}", desired.trusted)
    closed = []
    if desired.ssh_from:
        ssh = f"tcp dport {desired.ssh_port}"
        accepted += [f"{ssh} {rule}" for rule in _from(f"ssh_{cluster}", desired.ssh_from)]
        closed.append(f"{ssh} {_OPENING}")
    if desired.tcp_ports:
        closed.append(f"tcp dport {{ {', '.join(desired.tcp_ports)} }} {_OPENING}")
    if desired.udp_ports:
        closed.append(f"udp dport {{ {', '.join(desired.udp_ports)} }}")
    lines = [
        MARK,
        f"table inet {TABLE} {{",
        *_sets(f"member_{cluster}", desired.members),
        *_sets(f"mesh_{cluster}", desired.mesh_members),
        *_sets(f"trusted_{cluster}", desired.trusted),
        *_sets(f"ssh_{cluster}", desired.ssh_from),
        "\tchain accepted {",
        *(f"\t\t{rule} accept" for rule in accepted),
        "\t}",
        "\tchain closed {",
        *(f"\t\t{rule} counter drop" for rule in closed),
        "\t}",
        "}",
    ]
    return "\n".join([*lines, ""])


def render_admission(addresses: Iterable[str], seconds: int) -> str:
    """The text for nft that accepts these addresses for a limited time, or until the table is loaded again."""
    lines = []
    for version, elements in _by_version(_addresses(addresses)).items():
        if elements:
            # Adding what is in a set already does not extend its time, and deleting what is not in it fails.
            name, listed = f"element inet {TABLE} joining_{version}", ", ".join(elements)
            lines += [f"add {name} {{ {listed} }}", f"delete {name} {{ {listed} }}"]
            lines.append(f"add {name} {{ {', '.join(f'{one} timeout {seconds}s' for one in elements)} }}")
    return "\n".join([*lines, ""])


def render_main(parts: str) -> str:
    """The file that loads the table with all parts in this folder. It replaces nothing else, in one transaction."""
    return f'{FRAME}include "{parts}/*.nft"\n'


def render_unit(path: str, nft: str) -> str:
    """The systemd unit that loads the table at boot."""
    return f"""{MARK}
[Unit]
Description=Firewall of the gpumesh clusters of this host
DefaultDependencies=no
Wants=network-pre.target
Before=network-pre.target shutdown.target
After={OWN_RULES} local-fs.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={nft} --file {path}
ExecStop=-{nft} delete table inet {TABLE}

[Install]
WantedBy={WANTED_BY}
"""


def render_drop_in(path: str, nft: str) -> str:
    """The addition to ``OWN_RULES`` that loads the table again whenever the host's own rules are loaded.

    A unit of its own that follows this one would come too late: systemd does not pass on a reload to a unit that is
    just being started, and starts none that was started five times in ten seconds. A failure is not one of the host's
    own rules.
    """
    return f"""{MARK}
[Service]
ExecStartPost=-{nft} --file {path}
ExecReload=-{nft} --file {path}
"""


def _sets(name: str, texts: Sequence[str]) -> List[str]:
    """A set for each of IPv4 and IPv6 that has elements."""
    lines = []
    for version, elements in _by_version(texts).items():
        if elements:
            lines += [
                f"\tset {name}_{version} {{",
                f"\t\ttype ipv{version}_addr",
                "\t\tflags interval",
                "\t\tauto-merge",
                f"\t\telements = {{ {', '.join(elements)} }}",
                "\t}",
            ]
    return lines


def _from(name: str, texts: Sequence[str]) -> List[str]:
    """The match of a packet whose source is in the set."""
    families = {4: "ip", 6: "ip6"}
    return [f"{families[version]} saddr @{name}_{version}" for version, found in _by_version(texts).items() if found]


def _by_version(texts: Sequence[str]) -> Dict[int, List[str]]:
    return {version: [value for value in texts if ipaddress.ip_network(value).version == version] for version in (4, 6)}


def _addresses(texts: Iterable[str]) -> Tuple[str, ...]:
    found = set()
    for value in texts:
        try:
            # The zone of an address, as in fe80::1%eth0, may be any text.
            found.add(ipaddress.ip_address(value if "%" not in value else ""))
        except ValueError as failure:
            raise InputError(f"'{value}' is an invalid address.", "Write it as 10.99.0.2.", address=value) from failure
    return tuple(str(one) for one in sorted(found, key=lambda one: (one.version, int(one))))


def _networks(texts: Iterable[str]) -> Tuple[str, ...]:
    found = set()
    for value in texts:
        try:
            found.add(ipaddress.ip_network(value if "%" not in value else ""))
        except ValueError as failure:
            raise InputError(f"'{value}' is an invalid subnet.", "Write it as 10.1.0.0/16.", network=value) from failure
    return tuple(str(one) for one in sorted(found, key=lambda one: (one.version, int(one[0]), one.prefixlen)))


def _ports(texts: Iterable[Any], without: Iterable[int] = ()) -> Tuple[str, ...]:
    """Sort and merge ports, since nft rejects overlapping ranges. Raises InputError."""
    spans: List[Tuple[int, int]] = []
    for value in texts:
        first, _dash, last = str(value).partition("-")
        if not _PORT.fullmatch(first) or (last and not _PORT.fullmatch(last)):
            raise InputError(f"'{value}' is an invalid port.", "Write it as 2049 or 6817-6819.", port=str(value))
        low, high = int(first), int(last or first)
        if not 0 < low <= high < 65536:
            raise InputError(
                f"'{value}' is an invalid range of ports.", "Ports range from 1 to 65535.", port=str(value)
            )
        spans.append((low, high))
    merged: List[Tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    for port in without:
        parts = [part for low, high in merged for part in ((low, min(high, port - 1)), (max(low, port + 1), high))]
        merged = [(low, high) for low, high in parts if low <= high]
    return tuple(f"{low}-{high}" if high > low else str(low) for low, high in merged)

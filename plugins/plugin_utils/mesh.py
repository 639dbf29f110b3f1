# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired mesh of each member, derived on the controller from the cluster record. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.topology import (
    plan_for,
    read_mesh,
    refuse_without_way,
    relayed_pairs,
    with_keys,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import values

#: The registered results of hosts, by host.
Results = Mapping[str, Mapping[str, Any]]
#: The address of the proxy in userspace mode. The daemon forwards connections of other members to 127.0.0.1: on that
#: address, all members could use the proxy to reach the provider's network.
PROXY_ADDRESS = "127.0.0.2"


# --- the settings ------------------------------------------------------------------------------------------------


def wanted_settings(record: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings of the mesh that differ from the record. Raises InputError while the mesh is in use."""
    mesh = record["mesh"]
    given = {**given, "subnet": _normal_subnet(given["subnet"])}
    wanted = {name: value for name, value in given.items() if value and value != mesh.get(name)}
    users = enrolled(record)
    # Only the MTU may change at any time.
    if set(wanted) - {"mtu"} and users:
        raise InputError(
            f"The mesh of cluster {record['name']} is in use by {', '.join(users)} with {_in_words(mesh)}; "
            f"{_in_words(wanted)} would cut them off.",
            "Omit these settings to keep the mesh, or delete the cluster and create it with the new ones.",
            machines=users,
        )
    return wanted


def _normal_subnet(given: str) -> str:
    """The subnet in the form of the record. An invalid one is returned as it is, and refused by what writes the record."""
    try:
        return values.subnet(given)
    except ValueError:
        return given


def refuse_rotation(record: Mapping[str, Any], backend: str, present: Container[str]) -> None:
    """Refuse to rotate keys that are not ours, or without all members in the play. Raises InputError."""
    if backend != "wireguard":
        raise InputError(
            f"mesh_rotate_keys has no keys to rotate: the mesh of cluster {record['name']} is '{backend}'. Nothing has "
            "been changed.",
            "The keys of a tailnet are renewed at its control server. Omit mesh_rotate_keys.",
        )
    missing = sorted(machine for machine in machines(record) if machine not in present)
    if missing:
        raise InputError(
            f"Not in this play, or unreachable: {', '.join(missing)}. They would not receive the new keys, and would lose "
            "their tunnels.",
            "Run this without --limit when all members are up.",
            machines=missing,
        )


def refuse_unconnected(record: Mapping[str, Any], relays: Sequence[str]) -> None:
    """Refuse a WireGuard mesh in which two members have no path to each other. Raises InputError."""
    if record["mesh"]["backend"] == "wireguard":
        refuse_without_way(read_mesh(record, relays))


def machines(record: Mapping[str, Any]) -> list[str]:
    """The members."""
    return [str(member["machine"]) for member in record["members"]]


def enrolled(record: Mapping[str, Any]) -> list[str]:
    """The members that are already connected to the mesh: with a key, or with an address in a tailnet."""
    end = "address" if record["mesh"]["backend"] == "tailscale" else "public_key"
    return [str(member["machine"]) for member in record["members"] if (member.get("mesh") or {}).get(end)]


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


# --- WireGuard ---------------------------------------------------------------------------------------------------


def tunnel(record: Mapping[str, Any], machine: str, relays: Sequence[str]) -> dict[str, Any]:
    """The options of the module wireguard that give a member the state in the record. Raises InputError."""
    plan = plan_for(read_mesh(record, relays), machine)
    return {
        **_interface(record),
        "address": plan["address"],
        "peers": plan["peers"],
        "public_key": plan["public_key"],
        "forward": plan["relay"],
        "mtu": plan["mtu"],
        "probe_mtu": record["mesh"]["mtu"] is None,
    }


def rotation(
    record: Mapping[str, Any], machine: str, relays: Sequence[str], step: str, prepared: Results
) -> dict[str, Any]:
    """The options of the module wireguard_rotation. ``prepared``: its results on all members from the first step."""
    options = {"interface": record["mesh"]["interface"], "step": step}
    if step == "prepare":
        return options
    if step == "arm":
        record = with_keys(record, {name: str(found.get("next_public_key") or "") for name, found in prepared.items()})
    plan = plan_for(read_mesh(record, relays), machine)
    return {**options, **_interface(record), "address": plan["address"], "peers": plan["peers"]}


def pairs(record: Mapping[str, Any], machine: str, relays: Sequence[str], present: Container[str]) -> list[str]:
    """The peers of a member among the hosts in the play, which can receive the key that the two share."""
    return [
        peer["machine"] for peer in plan_for(read_mesh(record, relays), machine)["peers"] if peer["machine"] in present
    ]


def shared_keys(machine: str, made: Results) -> dict[str, str]:
    """The preshared keys of a member, by peer. ``made``: the results of the module wireguard_preshared, by host.

    Without those of peers that have no result: they have failed meanwhile, so they do not receive the key.
    """
    results = {host: found["preshared_keys"] for host, found in made.items() if found.get("preshared_keys") is not None}
    own = {peer: key for peer, key in results.get(machine, {}).items() if peer in results}
    return {**own, **{host: keys[machine] for host, keys in results.items() if machine in keys}}


def _interface(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"interface": record["mesh"]["interface"], "listen_port": record["mesh"]["port"]}


def key_registration(record: Mapping[str, Any], machine: str, public_key: str | None) -> dict[str, Any] | None:
    """The parameters of the module cluster_member that update a member's key in the record; None if it is up to date."""
    if not public_key or public_key == (_member(record, machine).get("mesh") or {}).get("public_key"):
        return None
    return {"machine": machine, "mesh": {"public_key": public_key}}


def relayed(record: Mapping[str, Any], relays: Sequence[str]) -> list[dict[str, str]]:
    """Every relayed pair of members, as ``a``, ``b`` and ``relay``; empty if the mesh is not WireGuard."""
    return relayed_pairs(read_mesh(record, relays)) if record["mesh"]["backend"] == "wireguard" else []


# --- Tailscale ---------------------------------------------------------------------------------------------------


def tailnet_name(machine: str) -> str:
    """The default name of a machine in its tailnet: the first label, without characters that are not allowed there."""
    return re.sub(r"[^a-z0-9-]", "-", machine.partition(".")[0].lower())


def tailnet_peers(record: Mapping[str, Any], machine: str) -> list[str]:
    """The addresses of the other members."""
    return [
        str(member["mesh"]["address"])
        for member in record["members"]
        if member["machine"] != machine and member.get("mesh")
    ]


def daemon_flags(settings: Mapping[str, Any], userspace: bool, proxy_port: int) -> list[str]:
    """The options with which tailscaled provides the mesh's interface, or else a proxy for the host's programs."""
    if not userspace:
        return [f"--tun={settings['interface']}"]
    proxy = f"{PROXY_ADDRESS}:{proxy_port}"
    return ["--tun=userspace-networking", f"--socks5-server={proxy}", f"--outbound-http-proxy-listen={proxy}"]


def address_in(addresses: Sequence[str], subnet: str) -> str | None:
    """The first of a host's addresses that is in the subnet of the mesh, or None."""
    network = values.network(subnet)
    return next((one for one in addresses if ipaddress.ip_address(one) in network), None)


def address_registration(
    record: Mapping[str, Any], machine: str, addresses: Sequence[str], pod: bool = False
) -> dict[str, Any] | None:
    """The parameters of the module cluster_member for a member's address; None if the record is up to date.

    ``pod``: it will be a node without an interface of the tailnet. Raises InputError if the control server assigned
    addresses outside of the mesh's subnet.
    """
    member = _member(record, machine)
    if not member or not addresses:
        return None
    subnet = str(record["mesh"]["subnet"])
    address = address_in(addresses, subnet)
    if address is None:
        raise InputError(
            f"{machine} has {', '.join(addresses)} in its tailnet, but none of them is in the mesh's subnet {subnet}.",
            "Set mesh_subnet to the range of the control server.",
            machine=machine,
        )
    known = member.get("mesh") or {}
    if known.get("address") == address and bool(known.get("userspace")) == pod:
        return None
    # The value is omitted for members that were never pods.
    userspace = {"userspace": pod} if pod or known.get("userspace") else {}
    return {"machine": machine, "mesh": {"address": address, **userspace}}


def has_end(record: Mapping[str, Any], machine: str) -> bool:
    """Whether the record has the member's mesh address."""
    return bool(_member(record, machine).get("mesh"))


def preload(record: Mapping[str, Any], machine: str, proxy_port: int) -> dict[str, Any]:
    """The options of the module mesh_preload on a pod: the settings of its library. Raises InputError."""
    subnet = ipaddress.ip_network(str(record["mesh"]["subnet"]))
    return {
        "address": str(_member(record, machine)["mesh"]["address"]),
        "subnet": str(subnet),
        "interface": str(record["mesh"]["interface"]),
        "proxy_address": PROXY_ADDRESS,
        "proxy_port": proxy_port,
    }


def device_address(members: Iterable[Mapping[str, Any]], machine: str) -> str:
    """The current or former address of a machine in its tailnet, according to the record; '' if it had none."""
    found = (
        str(member["mesh"]["address"]) for member in members if member["machine"] == machine and member.get("mesh")
    )
    return next(found, "")


def path_rows(record: Mapping[str, Any], results: Results) -> list[dict[str, str]]:
    """How each member reaches each other one: ``from``, ``to``, ``path``, ``by``. ``results``: those of the module."""
    names = {member["mesh"]["address"]: str(member["machine"]) for member in record["members"] if member.get("mesh")}
    return [
        {"from": host, "to": names.get(address, address), "path": way["path"], "by": way["endpoint"] or way["relay"]}
        for host, found in results.items()
        for address, way in (found.get("peers") or {}).items()
    ]


def _member(record: Mapping[str, Any], machine: str) -> Mapping[str, Any]:
    return next((member for member in record["members"] if member["machine"] == machine), {})

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired mesh of each member, derived on the controller from the cluster record. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.topology import (
    check_connectivity,
    list_relayed_pairs,
    plan_tunnel,
    read_mesh,
    replace_public_keys,
)

#: The registered results of hosts, by host.
ResultsByHost = Mapping[str, Mapping[str, Any]]
#: The address of the proxy in userspace mode. The daemon forwards connections of other members to 127.0.0.1: on that
#: address, all members could use the proxy to reach the provider's network.
PROXY_ADDRESS = "127.0.0.2"


# --- the settings ------------------------------------------------------------------------------------------------

#: The options of the role that are settings of the mesh in the record.
SETTING_OPTIONS = ("mesh_backend", "mesh_subnet", "mesh_port", "mesh_interface", "mesh_mtu")


def select_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the options, by their names in the record."""
    return {name.removeprefix("mesh_"): options[name] for name in SETTING_OPTIONS}


def changed_settings(record: Mapping[str, Any], given_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings of the mesh that differ from the record.

    Raises InputError while the mesh is in use.
    """
    mesh = record["mesh"]
    given_settings = {**given_settings, "subnet": _normalize_subnet(given_settings["subnet"])}
    new_settings = {name: value for name, value in given_settings.items() if value and value != mesh.get(name)}
    connected_machines = enrolled_machines(record)
    # Only the MTU may change at any time.
    if set(new_settings) - {"mtu"} and connected_machines:
        raise InputError(
            f"The mesh of cluster {record['name']} is in use by {', '.join(connected_machines)} with {_format_settings(mesh)}; "
            f"{_format_settings(new_settings)} would cut them off.",
            "Omit these settings to keep the mesh, or delete the cluster and create it with the new ones.",
            machines=connected_machines,
        )
    return new_settings


def _normalize_subnet(given_subnet: str) -> str:
    """Normalize a subnet as in the record.

    An invalid one is returned as it is, and refused by whatever writes the record.
    """
    try:
        return values.subnet(given_subnet)
    except ValueError:
        return given_subnet


def refuse_rotation(record: Mapping[str, Any], backend: str, present_machines: Container[str]) -> None:
    """Refuse to rotate keys that are not ours, or without all members in the play. Raises InputError."""
    if backend != "wireguard":
        raise InputError(
            f"mesh_rotate_keys has no keys to rotate: the mesh of cluster {record['name']} is '{backend}'. Nothing has "
            "been changed.",
            "The keys of a tailnet are renewed at its control server. Omit mesh_rotate_keys.",
        )
    missing_machines = sorted(machine for machine in member_machines(record) if machine not in present_machines)
    if missing_machines:
        raise InputError(
            f"Not in this play, or unreachable: {', '.join(missing_machines)}. They would not receive the new keys, and would lose "
            "their tunnels.",
            "Run this without --limit when all members are up.",
            machines=missing_machines,
        )


def refuse_unconnected(record: Mapping[str, Any], relays: Sequence[str]) -> None:
    """Refuse a WireGuard mesh in which two members have no path to each other. Raises InputError."""
    if record["mesh"]["backend"] == "wireguard":
        check_connectivity(read_mesh(record, relays))


def member_machines(record: Mapping[str, Any]) -> list[str]:
    """Return the machine names of the members."""
    return [str(member["machine"]) for member in record["members"]]


def enrolled_machines(record: Mapping[str, Any]) -> list[str]:
    """The members that are already connected to the mesh: with a key, or with an address in a tailnet."""
    enrolment_key = "address" if record["mesh"]["backend"] == "tailscale" else "public_key"
    return [str(member["machine"]) for member in record["members"] if (member.get("mesh") or {}).get(enrolment_key)]


def _format_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


# --- WireGuard ---------------------------------------------------------------------------------------------------


def rotation_options(
    record: Mapping[str, Any], machine: str, relays: Sequence[str], step: str, prepared_results: ResultsByHost
) -> dict[str, Any]:
    """Return the options of the module wireguard_rotation.

    ``prepared_results``: its results on all members from the first step.
    """
    step_options = {"interface": record["mesh"]["interface"], "step": step}
    if step == "prepare":
        return step_options
    if step == "arm":
        record = replace_public_keys(
            record,
            {
                name: str(prepared_result.get("next_public_key") or "")
                for name, prepared_result in prepared_results.items()
            },
        )
    member_plan = plan_tunnel(read_mesh(record, relays), machine)
    return {
        **step_options,
        **_interface_options(record),
        "address": member_plan["address"],
        "peers": member_plan["peers"],
    }


def key_sharing_peers(
    record: Mapping[str, Any], machine: str, relays: Sequence[str], present_machines: Container[str]
) -> list[str]:
    """Return the peers of a member among the hosts in the play, which can receive the key that the two share."""
    return [
        peer["machine"]
        for peer in plan_tunnel(read_mesh(record, relays), machine)["peers"]
        if peer["machine"] in present_machines
    ]


def preshared_keys(machine: str, results_by_host: ResultsByHost) -> dict[str, str]:
    """Return the preshared keys of a member, by peer.

    ``results_by_host``: the results of the module wireguard_preshared. Peers without a result are left out: they have
    failed meanwhile, so they do not receive the key.
    """
    keys_by_host = {
        host: host_result["preshared_keys"]
        for host, host_result in results_by_host.items()
        if host_result.get("preshared_keys") is not None
    }
    own_keys = {peer: key for peer, key in keys_by_host.get(machine, {}).items() if peer in keys_by_host}
    return {
        **own_keys,
        **{host: peer_keys[machine] for host, peer_keys in keys_by_host.items() if machine in peer_keys},
    }


def _interface_options(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"interface": record["mesh"]["interface"], "listen_port": record["mesh"]["port"]}


def key_registration(record: Mapping[str, Any], machine: str, public_key: str | None) -> dict[str, Any] | None:
    """Return the parameters of the module cluster_member that update a member's key in the record.

    Returns None if the record is up to date.
    """
    if not public_key or public_key == (_find_member(record, machine).get("mesh") or {}).get("public_key"):
        return None
    return {"machine": machine, "mesh": {"public_key": public_key}}


def relayed_member_pairs(record: Mapping[str, Any], relays: Sequence[str]) -> list[dict[str, str]]:
    """Every relayed pair of members, as ``a``, ``b`` and ``relay``; empty if the mesh is not WireGuard."""
    return list_relayed_pairs(read_mesh(record, relays)) if record["mesh"]["backend"] == "wireguard" else []


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
    proxy_address = f"{PROXY_ADDRESS}:{proxy_port}"
    return [
        "--tun=userspace-networking",
        f"--socks5-server={proxy_address}",
        f"--outbound-http-proxy-listen={proxy_address}",
    ]


def find_tailnet_address(addresses: Sequence[str], subnet: str) -> str | None:
    """Return the first of a host's addresses that is in the subnet of the mesh, or None."""
    mesh_network = values.parse_network(subnet)
    return next((address for address in addresses if ipaddress.ip_address(address) in mesh_network), None)


def address_registration(
    record: Mapping[str, Any], machine: str, tailnet_addresses: Sequence[str], is_pod: bool = False
) -> dict[str, Any] | None:
    """Return the parameters of the module cluster_member for a member's address; None if the record is up to date.

    ``is_pod``: it will be a node without an interface of the tailnet. Raises InputError if the control server assigned
    addresses outside of the mesh's subnet.
    """
    member = _find_member(record, machine)
    if not member or not tailnet_addresses:
        return None
    subnet = str(record["mesh"]["subnet"])
    tailnet_address = find_tailnet_address(tailnet_addresses, subnet)
    if tailnet_address is None:
        raise InputError(
            f"{machine} has {', '.join(tailnet_addresses)} in its tailnet, but none of them is in the mesh's subnet {subnet}.",
            "Set mesh_subnet to the range of the control server.",
            machine=machine,
        )
    recorded_mesh = member.get("mesh") or {}
    if recorded_mesh.get("address") == tailnet_address and bool(recorded_mesh.get("userspace")) == is_pod:
        return None
    # The value is omitted for members that were never pods.
    userspace_field = {"userspace": is_pod} if is_pod or recorded_mesh.get("userspace") else {}
    return {"machine": machine, "mesh": {"address": tailnet_address, **userspace_field}}


def has_mesh_address(record: Mapping[str, Any], machine: str) -> bool:
    """Whether the record has the member's mesh address."""
    return bool(_find_member(record, machine).get("mesh"))


def preload_options(record: Mapping[str, Any], machine: str, proxy_port: int) -> dict[str, Any]:
    """The options of the module mesh_preload on a pod: the settings of its library. Raises InputError."""
    subnet = ipaddress.ip_network(str(record["mesh"]["subnet"]))
    return {
        "address": str(_find_member(record, machine)["mesh"]["address"]),
        "subnet": str(subnet),
        "interface": str(record["mesh"]["interface"]),
        "proxy_address": PROXY_ADDRESS,
        "proxy_port": proxy_port,
    }


def find_device_address(members: Iterable[Mapping[str, Any]], machine: str) -> str:
    """The current or former address of a machine in its tailnet, according to the record; '' if it had none."""
    mesh_addresses = (
        str(member["mesh"]["address"]) for member in members if member["machine"] == machine and member.get("mesh")
    )
    return next(mesh_addresses, "")


def build_path_rows(record: Mapping[str, Any], results: ResultsByHost) -> list[dict[str, str]]:
    """List how each member reaches each other one: ``from``, ``to``, ``path``, ``by``.

    ``results``: those of the module, by host.
    """
    machine_by_address = {
        member["mesh"]["address"]: str(member["machine"]) for member in record["members"] if member.get("mesh")
    }
    return [
        {
            "from": host,
            "to": machine_by_address.get(address, address),
            "path": peer_path["path"],
            "by": peer_path["endpoint"] or peer_path["relay"],
        }
        for host, host_result in results.items()
        for address, peer_path in (host_result.get("peers") or {}).items()
    ]


def _find_member(record: Mapping[str, Any], machine: str) -> Mapping[str, Any]:
    return next((member for member in record["members"] if member["machine"] == machine), {})

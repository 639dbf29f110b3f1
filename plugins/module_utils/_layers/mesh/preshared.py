# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preshared keys of pairs of hosts: one key for each pair, in a file of root's at both ends.

The machine whose name sorts first generates the key. The other one adopts it, and both use it from then on. If one of
them does not receive the change, both keep the current key.
"""

from __future__ import annotations

import base64
import os
from typing import Collection, Container, Dict, Iterable, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    list_names,
    read_text,
    remove_empty_directory,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import (
    NO_PRESHARED_KEY,
    DesiredInterface,
    DesiredPeer,
    PresharedKey,
    check_public_key,
    compute_digest,
)


def keys_directory(directory: str, interface: str) -> str:
    """Return the directory of the keys of an interface."""
    return os.path.join(directory, f"{interface}.preshared")


def generate_keys(
    key_directory: str, own_machine: str, peer_machines: Iterable[str], renew: bool = False
) -> Dict[str, str]:
    """The key for each of the ``peer_machines`` for which ``own_machine`` generates it: the current or a new one.

    Writes nothing.
    """
    return {
        peer: (None if renew else read_text(_key_path(key_directory, peer)))
        or base64.b64encode(os.urandom(32)).decode("ascii") + "\n"
        for peer in peer_machines
        if own_machine < peer
    }


def store_keys(key_directory: str, keys: Mapping[str, str], check_mode: bool) -> List[str]:
    """Store these keys, by peer. Returns the peers whose key has changed. Raises InputError, which shows no key."""
    changed_peers = []
    for peer_machine, preshared_key in sorted(keys.items()):
        try:
            check_public_key(preshared_key.strip(), peer_machine)
        except InputError:
            raise InputError(f"The preshared key for {peer_machine} is not 32 bytes in base64.") from None
        if (read_text(_key_path(key_directory, peer_machine)) or "").strip() == preshared_key.strip():
            continue
        changed_peers.append(peer_machine)
        if not check_mode:
            os.makedirs(key_directory, mode=0o700, exist_ok=True)
            write_atomic(_key_path(key_directory, peer_machine), preshared_key.strip() + "\n", 0o600)
    return changed_peers


def add_preshared_keys(key_directory: str, desired: DesiredInterface, without: Container[str] = ()) -> DesiredInterface:
    """Return the interface with the preshared keys on disk, and without one for the machines in ``without``."""
    return desired._replace(
        peers=tuple(
            peer._replace(preshared_key=NO_PRESHARED_KEY)
            if peer.machine in without
            else _add_preshared_key(key_directory, peer)
            for peer in desired.peers
        )
    )


def remove_other_keys(key_directory: str, keep: Collection[str], check_mode: bool = False) -> List[str]:
    """Remove the keys of all peers but these. Returns those that were, or would be, removed."""
    other_names = [name for name in list_names(key_directory) if name not in keep]
    if not check_mode:
        for name in other_names:
            remove_file(os.path.join(key_directory, name))
        remove_empty_directory(key_directory)
    return other_names


def _add_preshared_key(key_directory: str, peer: DesiredPeer) -> DesiredPeer:
    key = read_text(_key_path(key_directory, peer.machine))
    return (
        peer
        if key is None
        else peer._replace(preshared_key=PresharedKey(_key_path(key_directory, peer.machine), compute_digest(key)))
    )


def _key_path(key_directory: str, peer: str) -> str:
    if "/" in peer or peer in ("", ".", ".."):
        raise InputError(f"'{peer}' cannot be the name of a machine.", "Use the names of the inventory.")
    return os.path.join(key_directory, peer)

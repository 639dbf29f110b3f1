# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preshared keys of pairs of hosts: one key for each pair, in a file of root's at both ends.

The end whose name sorts first generates the key. The other end takes it, and both use it from then on. If one end does
not receive the change, both keep the current key.
"""

from __future__ import annotations

import base64
import os
from typing import Collection, Container, Dict, Iterable, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import (
    names_in,
    read_text,
    remove_empty,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import (
    UNSHARED,
    Desired,
    Peer,
    Preshared,
    check_public_key,
    digest,
)


def folder_of(directory: str, interface: str) -> str:
    """The folder of the keys of an interface."""
    return os.path.join(directory, f"{interface}.preshared")


def offer(folder: str, machine: str, peers: Iterable[str], renew: bool = False) -> Dict[str, str]:
    """The key for each of the ``peers`` for which ``machine`` generates it: the current or a new one.

    Writes nothing.
    """
    return {
        peer: (None if renew else read_text(_path(folder, peer)))
        or base64.b64encode(os.urandom(32)).decode("ascii") + "\n"
        for peer in peers
        if machine < peer
    }


def store(folder: str, keys: Mapping[str, str], check_mode: bool) -> List[str]:
    """Store these keys, by peer. Returns the peers whose key has changed. Raises InputError, which shows no key."""
    changed = []
    for peer, key in sorted(keys.items()):
        try:
            check_public_key(key.strip(), peer)
        except InputError:
            raise InputError(f"The preshared key for {peer} is not 32 bytes in base64.") from None
        if (read_text(_path(folder, peer)) or "").strip() == key.strip():
            continue
        changed.append(peer)
        if not check_mode:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            write_atomic(_path(folder, peer), key.strip() + "\n", 0o600)
    return changed


def equip(folder: str, desired: Desired, without: Container[str] = ()) -> Desired:
    """``desired`` with the preshared keys on disk, and without one for the machines in ``without``."""
    return desired._replace(
        peers=tuple(
            peer._replace(preshared=UNSHARED) if peer.machine in without else _equipped(folder, peer)
            for peer in desired.peers
        )
    )


def prune(folder: str, keep: Collection[str]) -> None:
    """Remove the keys of all peers but these."""
    for name in names_in(folder):
        if name not in keep:
            remove_file(os.path.join(folder, name))
    remove_empty(folder)


def _equipped(folder: str, peer: Peer) -> Peer:
    key = read_text(_path(folder, peer.machine))
    return peer if key is None else peer._replace(preshared=Preshared(_path(folder, peer.machine), digest(key)))


def _path(folder: str, peer: str) -> str:
    if "/" in peer or peer in ("", ".", ".."):
        raise InputError(f"'{peer}' cannot be the name of a machine.", "Use the names of the inventory.")
    return os.path.join(folder, peer)

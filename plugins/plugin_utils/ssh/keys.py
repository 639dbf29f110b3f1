# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys that ssh would offer to a host, from the agent and from files, and why others are excluded.

Runs in a separate process, as described in examine.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.causes import SilentHostError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.settings import Settings

try:
    import paramiko
    from cryptography.exceptions import UnsupportedAlgorithm
    from paramiko.pkey import UnknownKeyType
except ImportError:
    # examine.py has reported a missing paramiko before anything here is called.
    pass


class Offer(NamedTuple):
    """A key, and its description for people."""

    words: str
    key: paramiko.PKey


class Keys(NamedTuple):
    """The keys in the order in which ssh offers them, and for each key that it cannot use, the reason."""

    offers: list[Offer]
    unusable: list[SilentHostError]


@contextmanager
def of_agent(socket: str) -> Iterator[list[paramiko.AgentKey]]:
    """The agent's keys that sign without user interaction, within this context. A key on a token waits for a touch."""
    if not os.path.exists(socket):
        yield []
        return
    os.environ["SSH_AUTH_SOCK"] = socket
    agent = paramiko.Agent()
    try:
        yield [key for key in agent.get_keys() if not key.get_name().startswith("sk-")]
    finally:
        agent.close()


def gather(settings: Settings, given: str, in_agent: Sequence[paramiko.AgentKey]) -> Keys:
    """``given``: the file that the inventory names, which must exist."""
    keys = Keys([], [])
    wanted = {}
    for file in settings.keys:
        public = _public(file)
        if public:
            wanted[public] = file
    for key in in_agent:
        file = wanted.pop(key.get_base64(), "")
        if file or not settings.only_these_keys:
            keys.offers.append(Offer(f"{file or key.comment or key.get_name()} (agent)", key))
    # As with ssh, the agent's keys that are named by files come before its others.
    keys.offers.sort(key=lambda offer: offer.words not in [f"{file} (agent)" for file in settings.keys])
    held = {offer.words for offer in keys.offers}
    for file in settings.keys:
        if f"{file} (agent)" not in held:
            _load(file, file == given, keys)
    return keys


def _public(file: str) -> str:
    """The public half of a key file in base64, if it is beside it."""
    try:
        with open(f"{file}.pub", encoding="utf-8") as opened:
            return opened.read().split()[1]
    except (OSError, UnicodeDecodeError, IndexError):
        return ""


def _load(file: str, given: bool, keys: Keys) -> None:
    if not os.path.exists(file):
        if given:
            keys.unusable.append(
                SilentHostError(
                    "key_missing",
                    f"The private key {file} in the inventory does not exist.",
                    "Set ansible_ssh_private_key_file to the path of an existing key.",
                )
            )
        return
    status = os.stat(file)
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        keys.unusable.append(
            SilentHostError(
                "key_ignored",
                f"The private key {file} is ignored by ssh, since others can read it (mode {status.st_mode & 0o777:04o}).",
                f"chmod 600 {file}",
            )
        )
        return
    try:
        keys.offers.append(Offer(file, paramiko.PKey.from_path(file)))
    except (TypeError, paramiko.PasswordRequiredException):
        # cryptography's message for a key that needs a passphrase.
        keys.unusable.append(
            SilentHostError(
                "key_encrypted",
                f"The private key {file} has a passphrase and is not in an agent.",
                f"Start an agent and add the key before you run Ansible: eval $(ssh-agent); ssh-add {file}",
            )
        )
    except (OSError, ValueError, UnsupportedAlgorithm, paramiko.SSHException, UnknownKeyType) as failure:
        keys.unusable.append(
            SilentHostError(
                "key_ignored",
                f"The private key {file} cannot be used: {failure}.",
                "Set ansible_ssh_private_key_file to another file.",
            )
        )

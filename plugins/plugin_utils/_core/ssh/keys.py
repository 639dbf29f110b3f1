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

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.causes import SilentHostError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.settings import SshSettings

try:
    import paramiko
    from cryptography.exceptions import UnsupportedAlgorithm
    from paramiko.pkey import UnknownKeyType
except ImportError:
    # examine.py has reported a missing paramiko before anything here is called.
    pass


class OfferedKey(NamedTuple):
    """A key, and its description for messages."""

    description: str
    key: paramiko.PKey


class CandidateKeys(NamedTuple):
    """The keys in the order in which ssh offers them, and the reason for each key that it cannot use."""

    offers: list[OfferedKey]
    unusable: list[SilentHostError]


@contextmanager
def load_agent_keys(socket_path: str) -> Iterator[list[paramiko.AgentKey]]:
    """Yield the agent's keys that sign without user interaction. Keys on a token (sk-) wait for a touch."""
    if not os.path.exists(socket_path):
        yield []
        return
    os.environ["SSH_AUTH_SOCK"] = socket_path
    agent = paramiko.Agent()
    try:
        yield [key for key in agent.get_keys() if not key.get_name().startswith("sk-")]
    finally:
        agent.close()


def gather_keys(settings: SshSettings, required_file: str, agent_keys: Sequence[paramiko.AgentKey]) -> CandidateKeys:
    """Collect the keys. ``required_file``: the file that the inventory names, which must exist."""
    candidate_keys = CandidateKeys([], [])
    files_by_public_key = {}
    for key_file in settings.key_files:
        public_key = _read_public_half(key_file)
        if public_key:
            files_by_public_key[public_key] = key_file
    for key in agent_keys:
        key_file = files_by_public_key.pop(key.get_base64(), "")
        if key_file or not settings.identities_only:
            candidate_keys.offers.append(OfferedKey(f"{key_file or key.comment or key.get_name()} (agent)", key))
    # The agent's keys that are named by files come before its others, as with ssh.
    candidate_keys.offers.sort(
        key=lambda offer: offer.description not in [f"{key_file} (agent)" for key_file in settings.key_files]
    )
    offered_descriptions = {offer.description for offer in candidate_keys.offers}
    for key_file in settings.key_files:
        if f"{key_file} (agent)" not in offered_descriptions:
            _load_key_file(key_file, key_file == required_file, candidate_keys)
    return candidate_keys


def _read_public_half(key_file: str) -> str:
    """Return the public half of a key file in base64; empty if there is no .pub file beside it."""
    try:
        with open(f"{key_file}.pub", encoding="utf-8") as stream:
            return stream.read().split()[1]
    except (OSError, UnicodeDecodeError, IndexError):
        return ""


def _load_key_file(key_file: str, required: bool, candidate_keys: CandidateKeys) -> None:
    if not os.path.exists(key_file):
        if required:
            candidate_keys.unusable.append(
                SilentHostError(
                    "key_missing",
                    f"The private key {key_file} in the inventory does not exist.",
                    "Set ansible_ssh_private_key_file to the path of an existing key.",
                )
            )
        return
    file_status = os.stat(key_file)
    if file_status.st_uid == os.getuid() and file_status.st_mode & 0o077:
        candidate_keys.unusable.append(
            SilentHostError(
                "key_ignored",
                f"The private key {key_file} is ignored by ssh, since others can read it (mode {file_status.st_mode & 0o777:04o}).",
                f"chmod 600 {key_file}",
            )
        )
        return
    try:
        candidate_keys.offers.append(OfferedKey(key_file, paramiko.PKey.from_path(key_file)))
    except (TypeError, paramiko.PasswordRequiredException):
        # cryptography raises TypeError for a key that needs a passphrase.
        candidate_keys.unusable.append(
            SilentHostError(
                "key_encrypted",
                f"The private key {key_file} has a passphrase and is not in an agent.",
                f"Start an agent and add the key before you run Ansible: eval $(ssh-agent); ssh-add {key_file}",
            )
        )
    except (OSError, ValueError, UnsupportedAlgorithm, paramiko.SSHException, UnknownKeyType) as failure:
        candidate_keys.unusable.append(
            SilentHostError(
                "key_ignored",
                f"The private key {key_file} cannot be used: {failure}.",
                "Set ansible_ssh_private_key_file to another file.",
            )
        )

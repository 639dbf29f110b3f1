# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which downloads can be verified.

What is downloaded runs as root on all members, so it must be what was chosen, even if the network is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

_CHECKSUM = re.compile(r"sha(256|384|512):[0-9a-fA-F]{64,128}\Z")


class Download(NamedTuple):
    """A download that an option of a role causes."""

    option: str
    checksum: str
    #: The subject of the sentence, if it is not the downloaded address itself.
    prefix: str
    #: The file to which the checksum belongs.
    of: str
    #: What else can be given.
    instead: str
    #: Whether the option can also be a path on the controller.
    local: bool = True


_PATH = "or the path of an archive on the machine that runs Ansible"
#: The downloads by role.
DOWNLOADS = {
    "mesh": (
        Download("mesh_tailscale_archive", "mesh_tailscale_checksum", "", "the archive that you trust,", _PATH),
        Download(
            "mesh_tailscale_repository",
            "mesh_tailscale_repository_checksum",
            "the key of ",
            "the file RELEASE.noarmor.gpg that you trust,",
            "or mesh_tailscale_binaries",
            local=False,
        ),
    ),
    "check": (
        Download(
            "check_collective_source", "check_collective_source_checksum", "", "the archive that you trust,", _PATH
        ),
    ),
}


def unverified(role: str, machine: str, option: Callable[[str], Any]) -> list[str]:
    """Why the downloads of a role cannot be verified, one sentence per option. ``option`` returns the value of one."""
    return [
        _refusal(one, machine, str(option(one.option))) for one in DOWNLOADS.get(role, ()) if not _sure(one, option)
    ]


def _sure(one: Download, option: Callable[[str], Any]) -> bool:
    address = str(option(one.option) or "")
    if not address or (one.local and "://" not in address):
        return True
    return address.startswith("https://") and bool(_CHECKSUM.match(str(option(one.checksum) or "")))


def _refusal(one: Download, machine: str, address: str) -> str:
    return (
        f"{machine}: {one.prefix}{one.option} {address} cannot be verified, and nothing has been changed. Give an https "
        f"URL and {one.checksum}=sha256:... of {one.of} {one.instead}."
    )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which downloads can be verified. What is fetched runs as root on every member, so it must be what was chosen, whoever is
on the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

_CHECKSUM = re.compile(r"sha(256|384|512):[0-9a-fA-F]{64,128}\Z")


class Download(NamedTuple):
    """Something that an option of a role has fetched."""

    option: str
    checksum: str
    #: What the sentence is about, when it is not the address itself that is fetched.
    prefix: str
    #: Of which file the checksum is.
    of: str
    #: What else can be given.
    instead: str
    #: Whether the option can also be a path on the controller.
    local: bool = True


_PATH = "or the path of an archive on the machine that runs Ansible"
#: By role.
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
    """Why what a role would fetch cannot be verified, a sentence for each option; ``option`` gives the value of one."""
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

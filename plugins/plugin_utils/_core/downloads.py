# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verification of downloads.

Downloads run as root on all members, so they must be what was chosen, even if the network is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_CHECKSUM = re.compile(r"sha(256|384|512):[0-9a-fA-F]{64,128}\Z")


class RoleDownload(NamedTuple):
    """A download that an option of a role causes."""

    option_name: str
    checksum_option: str
    #: The subject of the sentence, if it is not the downloaded address itself.
    subject_prefix: str
    #: The file to which the checksum belongs.
    checksum_subject: str
    #: The alternative to a verified download.
    alternative: str
    #: Whether the option can also be a path on the controller.
    allows_local_path: bool = True


_LOCAL_ARCHIVE = "or the path of an archive on the machine that runs Ansible"
#: The downloads by role.
DOWNLOADS_BY_ROLE = {
    "mesh": (
        RoleDownload(
            "mesh_tailscale_archive", "mesh_tailscale_checksum", "", "the archive that you trust,", _LOCAL_ARCHIVE
        ),
        RoleDownload(
            "mesh_tailscale_repository",
            "mesh_tailscale_repository_checksum",
            "the key of ",
            "the file RELEASE.noarmor.gpg that you trust,",
            "or mesh_tailscale_binaries",
            allows_local_path=False,
        ),
    ),
    "check": (
        RoleDownload(
            "check_collective_source",
            "check_collective_source_checksum",
            "",
            "the archive that you trust,",
            _LOCAL_ARCHIVE,
        ),
    ),
}


def download_options(role: str) -> list[str]:
    """Return the options that ``describe_unverified`` reads."""
    return [
        option_name
        for download in DOWNLOADS_BY_ROLE.get(role, ())
        for option_name in (download.option_name, download.checksum_option)
    ]


def describe_unverified(role: str, machine: str, options: Mapping[str, Any]) -> list[str]:
    """Explain why the downloads of a role cannot be verified, one sentence per option.

    ``options``: those of ``download_options``, if they are set.
    """
    return [
        _describe_refusal(download, machine, str(options[download.option_name]))
        for download in DOWNLOADS_BY_ROLE.get(role, ())
        if not _is_verifiable(download, options)
    ]


def _is_verifiable(download: RoleDownload, options: Mapping[str, Any]) -> bool:
    address = str(options.get(download.option_name) or "")
    if not address or (download.allows_local_path and "://" not in address):
        return True
    return address.startswith("https://") and bool(_CHECKSUM.match(str(options.get(download.checksum_option) or "")))


def _describe_refusal(download: RoleDownload, machine: str, address: str) -> str:
    return (
        f"{machine}: {download.subject_prefix}{download.option_name} {address} cannot be verified, and nothing has been changed. Give an https "
        f"URL and {download.checksum_option}=sha256:... of {download.checksum_subject} {download.alternative}."
    )

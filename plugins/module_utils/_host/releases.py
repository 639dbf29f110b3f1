# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The releases of distributions on which the collection runs, and which one a host has.

A host is judged by os-release(5): what is based on a release of Debian or Ubuntu names that release by UBUNTU_CODENAME,
DEBIAN_CODENAME or its own VERSION_CODENAME, and has its packages.
"""

from __future__ import annotations

import shlex
from typing import Dict, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

_OS_RELEASE_PATHS = ("etc/os-release", "usr/lib/os-release")
#: The distributions with the packages of Debian or Ubuntu. ``ID_LIKE`` of those that are based on them has one of these.
_DEBIAN, _UBUNTU = "debian", "ubuntu"
_CODENAME_FIELDS = ("UBUNTU_CODENAME", "DEBIAN_CODENAME", "VERSION_CODENAME")


#: Debian's driver needs the components contrib, non-free and non-free-firmware.
_DEBIAN_DRIVER_COMMAND = "apt-get install linux-headers-$(dpkg --print-architecture) nvidia-driver"
_UBUNTU_DRIVER_COMMAND = "apt-get install ubuntu-drivers-common && ubuntu-drivers install"


class Release(NamedTuple):
    """A release. ``driver_command``: the command that installs NVIDIA's driver from its packages."""

    codename: str
    name: str
    driver_command: str


RELEASES = (
    Release("bookworm", "Debian 12", _DEBIAN_DRIVER_COMMAND),
    Release("trixie", "Debian 13", _DEBIAN_DRIVER_COMMAND),
    Release("forky", "Debian 14", _DEBIAN_DRIVER_COMMAND),
    Release("jammy", "Ubuntu 22.04", _UBUNTU_DRIVER_COMMAND),
    Release("noble", "Ubuntu 24.04", _UBUNTU_DRIVER_COMMAND),
    Release("resolute", "Ubuntu 26.04", _UBUNTU_DRIVER_COMMAND),
)
_RELEASE_BY_CODENAME = {release.codename: release for release in RELEASES}


class HostRelease(NamedTuple):
    """What a host says it runs, in its own words, and the release with its packages: None for an unsupported one."""

    description: str
    release: Optional[Release]
    has_apt: bool


def parse_os_release(text: str) -> Dict[str, str]:
    """Parse the text of /etc/os-release: assignments of a shell. A line that is none is left out."""
    fields = {}
    for line in text.splitlines():
        name, assignment, quoted_value = line.strip().partition("=")
        if not assignment or name.startswith("#"):
            continue
        try:
            values = shlex.split(quoted_value)
        except ValueError:
            continue
        fields[name.strip()] = values[0] if values else ""
    return fields


def identify_release(fields: Dict[str, str]) -> HostRelease:
    """Find the release of a host from the fields of its os-release."""
    distribution_names = _distribution_names(fields)
    description = fields.get("PRETTY_NAME") or " ".join(
        filter(None, (fields.get("NAME") or fields.get("ID"), fields.get("VERSION_ID")))
    )
    has_apt = bool({_DEBIAN, _UBUNTU} & set(distribution_names))
    codenames = [fields[field].lower() for field in _CODENAME_FIELDS if fields.get(field)]
    # A codename of somebody else's release may be the same word.
    releases = [_RELEASE_BY_CODENAME[codename] for codename in codenames if codename in _RELEASE_BY_CODENAME]
    if has_apt and not releases and distribution_names[0] in (_DEBIAN, _UBUNTU):
        version_name = f"{distribution_names[0]} {fields.get('VERSION_ID', '')}"
        releases = [release for release in RELEASES if release.name.lower() == version_name]
    return HostRelease(description or "an unknown system", releases[0] if has_apt and releases else None, has_apt)


def read_release(tree: Tree) -> HostRelease:
    """Return the release of this host."""
    return identify_release(_read_fields(tree))


def read_codename(tree: Tree) -> str:
    """Return the name of the release by which package repositories call what this host has; empty if it has none."""
    fields = _read_fields(tree)
    release = identify_release(fields).release
    return release.codename if release else fields.get("VERSION_CODENAME", "")


def explain_unsupported(host_release: HostRelease) -> str:
    """Explain why the release of a host is not supported, and what to do; empty if it is supported."""
    if host_release.release is not None:
        return ""
    requirements = "" if host_release.has_apt else ", since packages are installed with apt and by Debian's names"
    return (
        f"{host_release.description} is not supported{requirements}. Use {list_names()}, or what is based on one of "
        "them; or set cluster_unsupported_release=true to try it: it has to have Python 3.8, systemd or supervisord, "
        "and Slurm 22.05 or newer."
    )


def list_names() -> str:
    """Return the names of the supported releases, by distribution: Debian 12, 13 or 14, Ubuntu ..."""
    versions_by_distribution: Dict[str, List[str]] = {}
    for release in RELEASES:
        distribution, version = release.name.split(" ")
        versions_by_distribution.setdefault(distribution, []).append(version)
    return ", ".join(
        f"{distribution} {', '.join(versions[:-1])} or {versions[-1]}"
        for distribution, versions in versions_by_distribution.items()
    )


def _read_fields(tree: Tree) -> Dict[str, str]:
    return parse_os_release(next(filter(None, (tree.read(path) for path in _OS_RELEASE_PATHS)), ""))


def _distribution_names(fields: Dict[str, str]) -> List[str]:
    return [fields.get("ID", "").lower(), *fields.get("ID_LIKE", "").lower().split()]

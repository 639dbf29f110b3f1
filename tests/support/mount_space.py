# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount namespaces that are private to a test and removed with it. Requires root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

#: A script after which files written below /etc stay in the namespace. Its argument is the fstab, and no systemd mounts
#: at first use.
_HOST_SCRIPT = """
mount -t tmpfs none /mnt && mkdir /mnt/data /mnt/upper /mnt/work
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work none /etc
printf '%s' "$1" >/etc/fstab
[ ! -d /run/systemd ] || mount -t tmpfs none /run/systemd
{commands}
mount -t tmpfs {source} /mnt/data && echo ready
read -r _
"""


@contextmanager
def create_mount_namespace(*command: str) -> Iterator[list[str]]:
    """Create a mount namespace with ``command``, which prints ``ready`` and runs until its stdin is closed.

    Yields the arguments that start a command in this namespace.
    """
    with subprocess.Popen(
        ["unshare", "--mount", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            yield ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"]
        finally:
            assert holder.stdin is not None
            holder.stdin.close()


@contextmanager
def host_with_mount(source: str, fstab: str, commands: str = "") -> Iterator[list[str]]:
    """Create the namespace of a host with this fstab, where a tmpfs called ``source`` is mounted at /mnt/data.

    ``commands`` are run before the mount. Yields the same as ``create_mount_namespace``.
    """
    with create_mount_namespace(
        "sh", "-c", _HOST_SCRIPT.format(source=source, commands=commands), "sh", fstab
    ) as prefix:
        yield prefix

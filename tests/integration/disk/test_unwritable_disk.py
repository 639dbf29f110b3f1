# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules on a host whose /etc is full or read-only, on real file systems of a mount namespace."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.support.module_runs import read_result, start_module, write_programs
from ansible_collections.gpumesh.cluster.tests.support.mount_space import create_mount_namespace

KEY = base64.b64encode(bytes(range(64))).decode()
#: The daemons are never started. Directories take no space on a full tmpfs, but a file of any size does.
MAKE_SCRIPT = """
mount -t tmpfs -o size=64k none /mnt && mkdir /mnt/upper /mnt/work
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work none /etc
case $1 in
full) head -c 64k /dev/zero >/mnt/fill 2>/dev/null ;;
read-only) mount -o remount,ro /etc ;;
esac
echo ready
read -r _
"""
MUNGE_OPTIONS = {"cluster": "lab", "cluster_id": "0" * 32, "content": KEY, "user": "root", "start": False}
FIREWALL_OPTIONS = {"cluster": "lab", "members": ["10.0.0.1", "10.0.0.2"]}
DAEMON_OPTIONS = {"name": "gone", "command": "/bin/false", "drop_in": "[Service]\n"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture(name="host", params=["full", "read-only"])
def _host(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """Create the host. Yields the message of its kernel, and the arguments that start a command there."""
    kernel_message = {"full": "No space left on device", "read-only": "Read-only file system"}[request.param]
    with create_mount_namespace("--net", "sh", "-c", MAKE_SCRIPT, "sh", request.param) as prefix:
        yield kernel_message, prefix


@pytest.fixture(name="programs")
def _programs(tmp_path: Path) -> Path:
    """Create the programs of a host that has everything that the modules need."""
    scripts = {
        "munged": "exit 0",
        "supervisord": "exit 0",
        "supervisorctl": "exit 0",
        "systemctl": "echo LoadState=loaded",
        "nft": '[ "$1" = --check ] || { echo "No such file or directory" >&2; exit 1; }',
    }
    return write_programs(tmp_path / "bin", scripts)


@pytest.mark.parametrize(
    ("module", "options", "path"),
    [
        ("munge", MUNGE_OPTIONS, "/etc/munge/munge.key"),
        ("firewall", FIREWALL_OPTIONS, "/etc/gpumesh/firewall/lab.nft"),
        ("daemon", DAEMON_OPTIONS, "/etc/"),
    ],
)
def test_path_and_reason_are_reported(
    tmp_path: Path, host: tuple[str, list[str]], programs: Path, module: str, options: dict[str, Any], path: str
) -> None:
    kernel_message, prefix = host
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    arguments = {**options, "folder": str(tmp_path / "gpumesh" / "clusters")} if module == "munge" else options
    result = read_result(start_module(module, arguments, environment, prefix))
    assert result["failed"]
    assert result["error"]["kind"] == "host_state"
    assert kernel_message in result["msg"]
    # A full file system takes the directories, and a read-only one not even the first.
    first_directory = "/".join(path.split("/")[:3])
    assert (path if "space" in kernel_message else first_directory) in result["msg"]

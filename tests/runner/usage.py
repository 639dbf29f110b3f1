# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Seconds of processor that commands take, with everything that they start and the containers of their labs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_DOCKER_SOCKET = "/var/run/docker.sock"
_LAB_LABEL = "gpumesh.lab"
#: Seconds between two questions to the engine for the containers that there are.
_LIST_INTERVAL = 10.0
#: The columns of the first line of /proc/stat, in proc(5), that are not processor time in use: idle, iowait, and guest
#: and guest_nice, which user and nice contain.
_IDLE_COLUMNS = (3, 4, 8, 9)


class ReadingCounter:
    """The sum of a reading that starts again from 0 when its source is created again, as when a container is restarted."""

    def __init__(self) -> None:
        self._total_seconds = 0.0
        self._last_reading = 0.0

    def add_reading(self, reading: float) -> None:
        """Add a ``reading``, in seconds."""
        self._total_seconds += reading - self._last_reading if reading >= self._last_reading else reading
        self._last_reading = reading

    @property
    def seconds(self) -> float:
        """The sum of all that was counted."""
        return self._total_seconds


class CommandGroup:
    """A control group for a command, so that what it leaves in the background counts as well.

    Where none can be created, ``read_seconds`` returns what the caller knows of the command's own children.
    """

    def __init__(self, name: str) -> None:
        parent_group = _CGROUP_ROOT / "cpuacct" if (_CGROUP_ROOT / "cpuacct").is_dir() else _CGROUP_ROOT
        self._group_path: Path | None = parent_group / f"gpumesh-{os.getpid()}-{name.replace('/', '-')}"
        try:
            self._group_path.mkdir()
        except OSError:
            self._group_path = None

    def add(self, process_id: int) -> None:
        """Move a process that has just started into the group, and so all that it starts from now on."""
        if self._group_path:
            with contextlib.suppress(OSError):
                (self._group_path / "cgroup.procs").write_text(str(process_id))

    def read_seconds(self, fallback_seconds: float) -> float:
        """Return the seconds of processor so far, or ``fallback_seconds`` without a group."""
        reading = read_usage(self._group_path) if self._group_path else None
        return max(fallback_seconds, reading or 0.0)

    def close(self) -> None:
        """Remove the group if nothing runs in it any more."""
        if self._group_path:
            with contextlib.suppress(OSError):
                self._group_path.rmdir()


class LabUsage:
    """The processor time of the containers of each lab, read again and again while they exist."""

    def __init__(self) -> None:
        self._lab_by_container: dict[str, str] = {}
        self._running_containers: dict[str, str] = {}
        self._counter_by_container: dict[str, ReadingCounter] = {}
        self._listed_at = float("-inf")

    def read_counters(self) -> None:
        """Read all counters. The caller does so every second or so: what a container did after the last reading is
        lost.
        """
        if time.monotonic() - self._listed_at >= _LIST_INTERVAL:
            self._listed_at = time.monotonic()
            self._running_containers = list_containers()
            self._lab_by_container.update(self._running_containers)
        for container in self._running_containers:
            for path in (_CGROUP_ROOT / "cpuacct/docker" / container, *_unified_paths(container)):
                reading = read_usage(path)
                if reading is not None:
                    self._counter_by_container.setdefault(container, ReadingCounter()).add_reading(reading)
                    break

    def seconds_of(self, lab: str) -> float:
        """Return what the containers of ``lab`` have taken so far."""
        return sum(
            counter.seconds for key, counter in self._counter_by_container.items() if self._lab_by_container[key] == lab
        )


def read_usage(group: Path) -> float | None:
    """Return the seconds of processor of a control group of either version, or None if there is no such group."""
    with contextlib.suppress(OSError, ValueError):
        return int((group / "cpuacct.usage").read_text()) / 1e9
    with contextlib.suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(maxsplit=1) for line in (group / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6
    return None


def machine_seconds() -> float:
    """Return the seconds of processor that everything on this machine has taken since it started."""
    columns = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    used_ticks = sum(value for index, value in enumerate(columns) if index not in _IDLE_COLUMNS)
    return used_ticks / os.sysconf("SC_CLK_TCK")


def list_containers() -> dict[str, str]:
    """Return the lab of each running container that belongs to one, by the container's ID."""
    connection = http.client.HTTPConnection("localhost", timeout=5)
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(5)
        connection.sock.connect(_DOCKER_SOCKET)
        connection.request("GET", f"/containers/json?filters=%7B%22label%22%3A%5B%22{_LAB_LABEL}%22%5D%7D")
        containers = json.loads(connection.getresponse().read())
        return {container["Id"]: container["Labels"][_LAB_LABEL] for container in containers}
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()


def _unified_paths(container: str) -> tuple[Path, Path]:
    return _CGROUP_ROOT / "docker" / container, _CGROUP_ROOT / "system.slice" / f"docker-{container}.scope"

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

_CGROUP = Path("/sys/fs/cgroup")
_DOCKER_SOCKET = "/var/run/docker.sock"
_LAB_LABEL = "gpumesh.lab"
#: Seconds between two questions to the engine for the containers that there are.
_LIST_INTERVAL = 10.0
#: The columns of the first line of /proc/stat, in proc(5), that are not processor time in use: idle, iowait, and guest
#: and guest_nice, which user and nice contain.
_IDLE_COLUMNS = (3, 4, 8, 9)


class Counter:
    """The sum of a reading that starts again from 0 when its source is created again, as when a container is restarted."""

    def __init__(self) -> None:
        self._total = 0.0
        self._last = 0.0

    def take(self, reading: float) -> None:
        """Add a ``reading``, in seconds."""
        self._total += reading - self._last if reading >= self._last else reading
        self._last = reading

    @property
    def seconds(self) -> float:
        """The sum of all that was counted."""
        return self._total


class CommandGroup:
    """A control group for a command, so that what it leaves in the background counts as well.

    Where none can be created, ``read_seconds`` returns what the caller knows of the command's own children.
    """

    def __init__(self, name: str) -> None:
        base = _CGROUP / "cpuacct" if (_CGROUP / "cpuacct").is_dir() else _CGROUP
        self._path: Path | None = base / f"gpumesh-{os.getpid()}-{name.replace('/', '-')}"
        try:
            self._path.mkdir()
        except OSError:
            self._path = None

    def add(self, process: int) -> None:
        """Move a process that has just started into the group, and so all that it starts from now on."""
        if self._path:
            with contextlib.suppress(OSError):
                (self._path / "cgroup.procs").write_text(str(process))

    def seconds(self, own: float) -> float:
        """Return the seconds of processor so far, or ``fallback_seconds`` without a group."""
        reading = read_usage(self._path) if self._path else None
        return max(own, reading or 0.0)

    def close(self) -> None:
        """Remove the group if nothing runs in it any more."""
        if self._path:
            with contextlib.suppress(OSError):
                self._path.rmdir()


class Labs:
    """The processor time of the containers of each lab, read again and again while they exist."""

    def __init__(self) -> None:
        self._lab_of: dict[str, str] = {}
        self._running: dict[str, str] = {}
        self._counters: dict[str, Counter] = {}
        self._listed = float("-inf")

    def read(self) -> None:
        """Read all counters. The caller does so every second or so: what a container did after the last reading is
        lost.
        """
        if time.monotonic() - self._listed >= _LIST_INTERVAL:
            self._listed = time.monotonic()
            self._running = list_containers()
            self._lab_of.update(self._running)
        for container in self._running:
            for path in (_CGROUP / "cpuacct/docker" / container, *_unified_paths(container)):
                reading = read_usage(path)
                if reading is not None:
                    self._counters.setdefault(container, Counter()).take(reading)
                    break

    def seconds(self, lab: str) -> float:
        """Return what the containers of ``lab`` have taken so far."""
        return sum(counter.seconds for key, counter in self._counters.items() if self._lab_of[key] == lab)


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
    used = sum(value for index, value in enumerate(columns) if index not in _IDLE_COLUMNS)
    return used / os.sysconf("SC_CLK_TCK")


def list_containers() -> dict[str, str]:
    """Return the lab of each running container that belongs to one, by the container's ID."""
    connection = http.client.HTTPConnection("localhost", timeout=5)
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(5)
        connection.sock.connect(_DOCKER_SOCKET)
        connection.request("GET", f"/containers/json?filters=%7B%22label%22%3A%5B%22{_LAB_LABEL}%22%5D%7D")
        found = json.loads(connection.getresponse().read())
        return {container["Id"]: container["Labels"][_LAB_LABEL] for container in found}
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()


def _unified_paths(container: str) -> tuple[Path, Path]:
    return _CGROUP / "docker" / container, _CGROUP / "system.slice" / f"docker-{container}.scope"

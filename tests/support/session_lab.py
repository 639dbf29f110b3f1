# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions on the machines of the scenario `session`, or of a similar lab, and what remains of them."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lab_hosts import ROOT, Lab

MANAGER = "gpu1"
#: The addresses of the machines, by name. Sessions run in their partition.
HOSTS = {"gpu1": "10.79.91.11", "gpu2": "10.79.91.12", "gpu3": "10.79.91.13"}
PARTITION = "machines"
LAB = Lab("molecule-session")
SCENARIO = ROOT / "extensions" / "molecule" / "work"
#: Seconds until nothing may be left of a session that has ended, on a machine that is not busy.
CLEANUP_TIMEOUT = 60.0
FIRST_IMAGE, SECOND_IMAGE = ("docker-archive:/mnt/shared/one.tar", "docker-archive:/mnt/shared/two.tar")
#: An image in a registry on the manager, as in images.yml.
REGISTRY_IMAGE = f"{HOSTS[MANAGER]}:5001/pulled:1"
#: The commands of converge.yml that a restart of the host reverts: containers cannot mount /proc if parts of it are
#: covered, and cannot use FUSE if only root may.
UNCOVER_SCRIPT = """
findmnt --raw --noheadings --output=TARGET --submounts /proc | grep -vx /proc | sort -r |
    while read -r cover; do umount --lazy "$cover"; done
chmod 0666 /dev/fuse
"""
#: A script that prints everything that a session leaves on a host, one line each.
_LEFTOVERS_SCRIPT = r"""
ls /run/netns 2>/dev/null | grep '^gms'
ip -o link | grep -o 'gms[0-9a-f]*'
ip route | grep '^10\.192\.'
ls /run/gpumesh/session /var/lib/gpumesh/session 2>/dev/null | grep '^[0-9]'
findmnt --raw --noheadings --output=TARGET | grep gpumesh/session/
pgrep -u alice,bob -a | grep -v 'catatonit -P\|podman pause\|systemd\|sd-pam\|gpumesh-session start\|runuser\|su '
true
"""


def use_lab(name: str, network_prefix: str) -> None:
    """Use the hosts of the lab with this name. ``network``: the first three octets of their addresses."""
    lab = Lab(name)
    LAB.name, LAB.inventory = lab.name, lab.inventory
    HOSTS.update({host: f"{network_prefix}.{address.rpartition('.')[2]}" for host, address in HOSTS.items()})


def power_on(host: str) -> None:
    """Start a host that was stopped, and prepare it for containers again."""
    LAB.start(host)
    LAB.run(host, "sh", "-c", UNCOVER_SCRIPT)


def make_role(name: str, image: str = FIRST_IMAGE, **role_options: Any) -> dict[str, Any]:
    """Return a role whose container uses the host's programs."""
    return {"name": name, "image": image, "memory": "256M", "mounts": ["/usr:/usr:ro"], **role_options}


#: Roles with two sizes and images.
DEMO_ROLES = [make_role("main", cpus=2, memory="512M"), make_role("sub", SECOND_IMAGE, replicas=3)]


def run_as(user: str, *argv: str, host: str = MANAGER, check: bool = True, timeout: float = 300) -> str:
    """Run a command as a logged-in user. Returns its stdout, and its stderr as well with ``check=False``."""
    line = shlex.join(argv) + ("" if check else " 2>&1")
    return LAB.run(host, "su", "-", user, "-c", line, check=check, timeout=timeout)


def start_session(
    user: str, roles: Sequence[Mapping[str, Any]], *options: str, check: bool = True, **session_options: Any
) -> str:
    """Start a session, by default with the name demo. Returns the output."""
    return run_as(
        user, "gpumesh-session", "start", write_session_file(user, roles, **session_options), *options, check=check
    )


def write_session_file(user: str, roles: Sequence[Mapping[str, Any]], **session_options: Any) -> str:
    """Write a session file on the manager, by default with the name demo. Returns its path."""
    document = {"session_name": "demo", "session_roles": roles, "session_partition": PARTITION, **session_options}
    path = f"/tmp/{user}-{document['session_name']}.json"
    LAB.run(MANAGER, "sh", "-c", 'printf %s "$1" > "$2"', "sh", json.dumps(document), path)
    return path


def find_containers(user: str, name: str = "demo") -> dict[str, tuple[str, str]]:
    """Return the address and node of each container, by name."""
    container_lines = run_as(user, "gpumesh-session", "show", name).splitlines()[1:]
    containers = [line.split() for line in container_lines if not line.startswith("log ")]
    return {container: (address, node) for container, address, node in containers}


def find_job_id(user: str, name: str = "demo") -> int:
    match = re.search(r": job (\d+)", run_as(user, "gpumesh-session", "show", name))
    assert match
    return int(match.group(1))


def run_in_containers(user: str, *argv: str, name: str = "demo", check: bool = True) -> dict[str, list[str]]:
    """Run a command in each container. Returns the lines that it prints, by container."""
    lines_by_container: dict[str, list[str]] = {}
    for line in run_as(user, "gpumesh-session", "run", name, "--", *argv, check=check).splitlines():
        container, _colon, text = line.partition(": ")
        lines_by_container.setdefault(container, []).append(text)
    return lines_by_container


def run_in_container(user: str, container: str, *argv: str, name: str = "demo", check: bool = True) -> str:
    return run_as(user, "gpumesh-session", "enter", name, container, "--", *argv, check=check)


def find_leftovers(host: str) -> list[str]:
    """Return everything that sessions have left on a host."""
    return LAB.run(host, "bash", "-c", _LEFTOVERS_SCRIPT).split("\n")[:-1]


def await_cleanup(seconds: float = CLEANUP_TIMEOUT) -> dict[str, list[str]]:
    """Return what sessions have left on each host after the time limit; nothing as soon as nothing is left."""
    deadline = time.monotonic() + seconds
    while True:
        leftovers_by_host = {host: find_leftovers(host) for host in HOSTS}
        if not any(leftovers_by_host.values()) or time.monotonic() > deadline:
            return leftovers_by_host
        time.sleep(1.0)


def assert_clean(seconds: float = CLEANUP_TIMEOUT) -> None:
    """Wait until no session has left anything. Raises AssertionError after the time limit."""
    leftovers_by_host = {host: leftovers for host, leftovers in await_cleanup(seconds).items() if leftovers}
    assert not leftovers_by_host, f"after {seconds:.0f} s, this is left: {leftovers_by_host}"

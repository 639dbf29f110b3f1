# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The secrets of a member as programs could print them, and what the processes of hosts show while playbooks run."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lab_hosts import Lab, Run

#: A program that notes every command line and environment until a file stops it. The pauses leave the processor to the
#: watched programs; for the same reason, processes that have not changed for long are read less often.
_WATCH = """
import os, time
seen, settled = set(), {}
end, look = time.time() + 3600, 0
while time.time() < end and not os.path.exists("/root/enough"):
    time.sleep(0.005)
    look += 1
    present = [name for name in os.listdir("/proc") if name.isdigit()]
    settled = {name: settled.get(name, 0) for name in present}
    for name in present:
        settled[name] += 1
        if settled[name] > 200 and look % 100:
            continue
        for kind in ("cmdline", "environ"):
            try:
                found = open(f"/proc/{name}/{kind}", "rb").read()
            except OSError:
                continue
            if found not in seen:
                seen.add(found)
                settled[name] = 0
open("/root/seen", "wb").write(b"\\n".join(seen))
"""


class Rotation(NamedTuple):
    """Playbooks that have replaced the keys, with all the output that there is. ``site`` is among the ``runs``."""

    site: Run
    runs: list[Run]
    #: The keys of the first member, before and after.
    former: tuple[bytes, str]
    keys: tuple[bytes, str]
    #: All secrets, before and after. Later tests remove a member, whose keys go with it.
    secrets: set[str]
    #: Where the report and the cached facts are.
    folder: Path


def keys(lab: Lab, host: str) -> tuple[bytes, str]:
    """Return the keys that are rotated: munge's and that of the tunnel."""
    return lab.read(host, "/etc/munge/munge.key"), lab.run(host, "wg", "show", "all", "private-key")


def secrets(lab: Lab, host: str) -> set[str]:
    """Return each secret of the host, in every form that a program could print."""
    munge = lab.read(host, "/etc/munge/munge.key")
    tokens = lab.run(host, "sh", "-c", "cat /var/lib/slurm/slurmctld/jwt_hs256.key 2>/dev/null; true").strip()
    keys = lab.run(host, "sh", "-c", "wg show all private-key; wg show all preshared-keys")
    signing = lab.run(host, "sh", "-c", "cat /etc/gpumesh/ssh/*/SIGNING /etc/gpumesh/ssh/*/root")
    told = {word for word in re.findall(r"[A-Za-z0-9+/]{43}=", keys) if word not in public_keys(lab, host)}
    told |= {form for word in told for form in (base64.b64encode(word.encode()).decode(), word.encode().hex()[:64])}
    told |= {base64.b64encode(munge).decode()[:64], base64.urlsafe_b64encode(munge).decode()[:64]}
    told |= {munge.hex()[:64], repr(munge)[2:40]}
    # All OpenSSH keys of a kind begin with the same line.
    told |= {line for line in signing.splitlines() if len(line) == 70 and not line.startswith("b3BlbnNzaC1r")}
    told |= {tokens} - {""}
    assert len(told) >= 6
    return told


def of_all(lab: Lab, hosts: Sequence[str]) -> set[str]:
    return set().union(*(secrets(lab, host) for host in hosts))


def public_keys(lab: Lab, host: str) -> str:
    return lab.run(host, "sh", "-c", "wg show all public-key; wg show all peers")


@contextmanager
def watched(lab: Lab, hosts: Sequence[str]) -> Iterator[None]:
    """Watch the processes of the hosts, and write what they show to /root/seen there."""
    watchers = [
        threading.Thread(target=lab.run, args=(host, "python3", "-c", _WATCH), kwargs={"timeout": 3900})
        for host in hosts
    ]
    for watcher in watchers:
        watcher.start()
    try:
        yield
    finally:
        for host, watcher in zip(hosts, watchers, strict=True):
            lab.run(host, "touch", "/root/enough")
            watcher.join()


def rotate(lab: Lab, members: Sequence[str], folder: Path, *group: str) -> Rotation:
    """Replace all keys, and print all facts and variables of every host, as a curious user would.

    ``members`` are watched, and ``group_options`` choose the hosts.
    """
    facts = folder / "facts.yml"
    facts.write_text(
        "- hosts: \"{{ cluster_hosts | default('cluster') }}\"\n"
        "  tasks:\n"
        "    - {gpumesh.cluster.cluster_info: {}, register: known}\n"
        "    - {gpumesh.cluster.interface_info: {}, register: seen}\n"
        '    - {ansible.builtin.debug: {var: "hostvars[inventory_hostname]"}}\n',
        encoding="utf-8",
    )
    former, before = keys(lab, members[0]), of_all(lab, members)
    rotating = ("-e", "mesh_rotate_keys=true", "-e", "munge_rotate_key=true")
    report = ("-e", f"check_report_dir={folder / 'report'}")
    with watched(lab, members):
        site = lab.play("gpumesh.cluster.site", "-vvv", "--diff", *group, *rotating, *report)
        shown = lab.play("gpumesh.cluster.show", "-vvv", *group, "-e", "show_output=json")
        told = lab.play(str(facts), "-vvv", *group)
    return Rotation(site, [site, shown, told], former, keys(lab, members[0]), before | of_all(lab, members), folder)

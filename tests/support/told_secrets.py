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

from lab_hosts import AnsibleRun, Lab

#: A program that notes every command line and environment until a file stops it. The pauses leave the processor to the
#: watched programs; for the same reason, processes that have not changed for long are read less often.
_WATCH_PROGRAM = """
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


class KeyRotation(NamedTuple):
    """Playbooks that have replaced the keys, with all the output that there is. ``site`` is among the ``runs``."""

    site: AnsibleRun
    runs: list[AnsibleRun]
    #: The keys of the first member, before and after.
    former_keys: tuple[bytes, str]
    current_keys: tuple[bytes, str]
    #: All secrets, before and after. Later tests remove a member, whose keys go with it.
    secrets: set[str]
    #: Where the report and the cached facts are.
    directory: Path


def read_rotated_keys(lab: Lab, host: str) -> tuple[bytes, str]:
    """Return the keys that are rotated: munge's and that of the tunnel."""
    return lab.read(host, "/etc/munge/munge.key"), lab.run(host, "wg", "show", "all", "private-key")


def find_secrets(lab: Lab, host: str) -> set[str]:
    """Return each secret of the host, in every form that a program could print."""
    munge_key = lab.read(host, "/etc/munge/munge.key")
    token_key = lab.run(host, "sh", "-c", "cat /var/lib/slurm/slurmctld/jwt_hs256.key 2>/dev/null; true").strip()
    wireguard_keys = lab.run(host, "sh", "-c", "wg show all private-key; wg show all preshared-keys")
    ssh_keys = lab.run(host, "sh", "-c", "cat /etc/gpumesh/ssh/*/SIGNING /etc/gpumesh/ssh/*/root")
    secret_forms = {
        key for key in re.findall(r"[A-Za-z0-9+/]{43}=", wireguard_keys) if key not in read_public_keys(lab, host)
    }
    secret_forms |= {
        encoded_key
        for key in secret_forms
        for encoded_key in (base64.b64encode(key.encode()).decode(), key.encode().hex()[:64])
    }
    secret_forms |= {base64.b64encode(munge_key).decode()[:64], base64.urlsafe_b64encode(munge_key).decode()[:64]}
    secret_forms |= {munge_key.hex()[:64], repr(munge_key)[2:40]}
    # All OpenSSH keys of a kind begin with the same line.
    secret_forms |= {line for line in ssh_keys.splitlines() if len(line) == 70 and not line.startswith("b3BlbnNzaC1r")}
    secret_forms |= {token_key} - {""}
    assert len(secret_forms) >= 6
    return secret_forms


def find_all_secrets(lab: Lab, hosts: Sequence[str]) -> set[str]:
    return set().union(*(find_secrets(lab, host) for host in hosts))


def read_public_keys(lab: Lab, host: str) -> str:
    return lab.run(host, "sh", "-c", "wg show all public-key; wg show all peers")


@contextmanager
def watch_processes(lab: Lab, hosts: Sequence[str]) -> Iterator[None]:
    """Watch the processes of the hosts, and write what they show to /root/seen there."""
    watchers = [
        threading.Thread(target=lab.run, args=(host, "python3", "-c", _WATCH_PROGRAM), kwargs={"timeout": 3900})
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


def rotate_keys(lab: Lab, members: Sequence[str], directory: Path, *group_options: str) -> KeyRotation:
    """Replace all keys, and print all facts and variables of every host, as a curious user would.

    ``members`` are watched, and ``group_options`` choose the hosts.
    """
    facts_playbook = directory / "facts.yml"
    facts_playbook.write_text(
        "- hosts: \"{{ cluster_hosts | default('cluster') }}\"\n"
        "  tasks:\n"
        "    - {gpumesh.cluster.cluster_info: {}, register: known}\n"
        "    - {gpumesh.cluster.interface_info: {}, register: seen}\n"
        '    - {ansible.builtin.debug: {var: "hostvars[inventory_hostname]"}}\n',
        encoding="utf-8",
    )
    former_keys, former_secrets = read_rotated_keys(lab, members[0]), find_all_secrets(lab, members)
    rotation_options = ("-e", "mesh_rotate_keys=true", "-e", "munge_rotate_key=true")
    report_options = ("-e", f"check_report_dir={directory / 'report'}")
    with watch_processes(lab, members):
        site_run = lab.run_playbook(
            "gpumesh.cluster.site", "-vvv", "--diff", *group_options, *rotation_options, *report_options
        )
        show_run = lab.run_playbook("gpumesh.cluster.show", "-vvv", *group_options, "-e", "show_output=json")
        facts_run = lab.run_playbook(str(facts_playbook), "-vvv", *group_options)
    return KeyRotation(
        site_run,
        [site_run, show_run, facts_run],
        former_keys,
        read_rotated_keys(lab, members[0]),
        former_secrets | find_all_secrets(lab, members),
        directory,
    )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything on a host that a cluster could leave behind: read it before and after, and list the differences.

Packages may stay, so what belongs to them is excluded: files that dpkg lists, and files that their scripts create.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from typing import Any

from lab_hosts import Lab

#: The program that reads the state on the host, as one process.
_STATE_PROGRAM = r"""
import glob, hashlib, json, os, stat, subprocess

def output(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()

def device(path):
    try:
        return os.lstat(path).st_dev
    except FileNotFoundError:
        return None

def files():
    found, root = {}, device("/")
    for folder, below, names in os.walk("/"):
        below[:] = [name for name in below if device(os.path.join(folder, name)) == root]
        for name in [*below, *names]:
            path = os.path.join(folder, name)
            try:
                about = os.lstat(path)
                words = [oct(about.st_mode), str(about.st_uid), str(about.st_gid)]
                if stat.S_ISLNK(about.st_mode):
                    words.append(os.readlink(path))
                elif stat.S_ISREG(about.st_mode) and path.startswith(("/etc/", "/root/", "/home/", "/usr/local/", "/opt/")):
                    with open(path, "rb") as stream:
                        words.append(hashlib.sha256(stream.read()).hexdigest())
            except FileNotFoundError:
                continue
            found[path] = " ".join(words)
    return found

def packaged():
    return sorted({line.rstrip("\n") for path in glob.glob("/var/lib/dpkg/info/*.list") for line in open(path)})

def units(*arguments):
    return [line.split()[0] for line in output("systemctl", "--no-pager", "--no-legend", "--plain", *arguments)]

print(json.dumps({
    "files": files(),
    "packaged": packaged(),
    "users": output("getent", "passwd"),
    "groups": output("getent", "group"),
    "enabled units": units("list-unit-files", "--state=enabled"),
    "active units": units("list-units", "--all", "--state=active,failed", "--type=service,socket,timer,mount,automount"),
    "volatile": sorted(os.listdir("/run")),
    "shared memory": sorted(os.listdir("/dev/shm")),
    "interfaces": sorted(line["ifname"] for line in json.loads("".join(output("ip", "-j", "link")))),
    "addresses": [f"{link['ifname']} {address['local']}/{address['prefixlen']}"
                  for link in json.loads("".join(output("ip", "-j", "address"))) for address in link["addr_info"]],
    "routes": output("ip", "-o", "route", "show", "table", "all"),
    "rules": output("ip", "rule"),
    "sockets": sorted({" ".join(line.split()[0:1] + line.split()[4:5]) for line in output("ss", "-Hltun")}),
    "processes": sorted({line.strip() for line in output("sh", "-c", "cat /proc/[0-9]*/comm")}),
}))
"""

#: Files that change without a cluster: on their own, at a login, or when a package is installed or has run.
_CHANGING_FILES = re.compile(
    r"/(root|home/[^/]+)/\.(ansible|cache)(/|$)|/home/[^/]+/\.sudo_as_admin_successful$"
    r"|/tmp/|/var/(cache|backups|tmp)/|/var/log/(journal|apt|mysql|munge)(/|$)"
    r"|/var/log/(lastlog|wtmp(\.db)?|btmp|faillog|dpkg\.log|alternatives\.log|bootstrap\.log)$"
    r"|/var/lib/(apt|dpkg|systemd|ucf|pam|private|wtmpdb|lastlog|update-notifier|misc|mysql|munge)(/|$)"
    r"|/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|/etc/\.pwd\.lock$|/etc/(alternatives|rc[0-9S]\.d|init\.d)/"
    r"|/etc/ld\.so\.cache$|/etc/mailcap$|/etc/ssl/certs/|/.*\.pyc$|/.*/__pycache__$|/usr/share/(mime|info)/"
    r"|/etc/(munge|mysql|wireguard|slurm)$|/etc/mysql/debian(-start|\.cnf)?$|/etc/mysql/my\.cnf$"
    r"|/usr/lib/.*/(gconv|giomodule)|/usr/lib/systemd/.*\.cache$"
)
#: The links of Debian's alternatives, and directories below /run that packages create.
_ALTERNATIVE_LINK = re.compile(r"was not there -> 0o120777 0 0 /etc/alternatives/")
_PACKAGE_RUN_ENTRIES = {"adduser", "mysqld", "munge", "wireguard"}
#: The container engine's resolver, whose ports differ at each start.
_ENGINE_RESOLVER = "127.0.0.11"
_COUNTERS = re.compile(r"counter packets \d+ bytes \d+ ?|^\[\d+:\d+\] ")
#: Accounts of the packages.
_PACKAGE_ACCOUNTS = {"munge", "slurm", "mysql", "nvpd", "_rpc", "statd"}
#: Units that appear and disappear on any host, such as those of a login session.
_COMMON_UNITS = re.compile(
    r"(session|user@|user-runtime-dir@|run-user|user-|apt-daily|dpkg-db|e2scrub|fstrim|logrotate|man-db"
    r"|systemd-|ldconfig|motd|run-credentials|run-docker|ssh@|sshd@).*"
)
_TRANSIENT_PROCESSES = re.compile(
    r"(sshd.*|ps|sh|cat|python3?|sleep|systemctl|agetty|\(.*\)|kworker.*|systemd-.*|ssh-agent|sftp.*)"
)


def read_state(lab: Lab, host: str) -> dict[str, Any]:
    """Read the state of a host, including the firewall of its kernel."""
    state: dict[str, Any] = json.loads(lab.run(host, "python3", "-c", _STATE_PROGRAM))
    pid = subprocess.run(
        ["docker", "inspect", "--format={{.State.Pid}}", f"gpumesh-{lab.name}-{host}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    nsenter_command = ["nsenter", f"--target={pid}", "--net"]
    for name, command in (("nftables", ["nft", "list", "ruleset"]), ("iptables", ["iptables-save"])):
        completed = subprocess.run([*nsenter_command, *command], capture_output=True, text=True, check=False)
        lines = [_COUNTERS.sub("", line) for line in completed.stdout.splitlines()]
        state[name] = [line for line in lines if not line.startswith(("#", ":")) and _ENGINE_RESOLVER not in line]
    state["sockets"] = [line for line in state["sockets"] if _ENGINE_RESOLVER not in line]
    return state


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what was added, removed or changed and does not belong to a package. Empty if nothing is left."""
    packaged_files = set(after["packaged"])
    difference_lines = [
        f"{path}: {before['files'].get(path, 'was not there')} -> {after['files'].get(path, 'is gone')}"
        for path in sorted(before["files"].keys() | after["files"].keys())
        if before["files"].get(path) != after["files"].get(path)
        and path not in packaged_files
        and not _CHANGING_FILES.match(path)
    ]
    ignore_rules = {
        "users": lambda line: line.split(":")[0] in _PACKAGE_ACCOUNTS,
        "groups": lambda line: line.split(":")[0] in _PACKAGE_ACCOUNTS,
        "enabled units": _COMMON_UNITS.match,
        "active units": _COMMON_UNITS.match,
        "processes": _TRANSIENT_PROCESSES.fullmatch,
        "volatile": _PACKAGE_RUN_ENTRIES.__contains__,
    }
    for topic in before.keys() - {"files", "packaged"}:
        is_ignored = ignore_rules.get(topic, lambda _line: False)
        difference_lines += [
            f"{topic}: + {line}" for line in after[topic] if line not in before[topic] and not is_ignored(line)
        ]
        difference_lines += [
            f"{topic}: - {line}" for line in before[topic] if line not in after[topic] and not is_ignored(line)
        ]
    return [line for line in difference_lines if not _ALTERNATIVE_LINK.search(line)]

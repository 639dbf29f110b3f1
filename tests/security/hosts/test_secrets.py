# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret of the cluster is anywhere but in its own file: not in output, diffs, facts, reports, logs or processes."""

from __future__ import annotations

import base64
import re
import threading
from pathlib import Path

import pytest
from lab_hosts import Lab

MEMBERS = ("e1", "e2")
#: Where secrets are at home, with the owner that each file must have. Nobody else may read any of them.
HOMES = {
    "/etc/munge/munge.key": "munge",
    "/etc/slurm/slurmdbd.conf": "slurm",
    "/var/lib/slurm/slurmctld/jwt_hs256.key": "slurm",
}


@pytest.mark.parametrize("host", MEMBERS)
def test_only_its_owner_reads_a_secret(lab: Lab, host: str) -> None:
    for path, owner in HOMES.items():
        found = lab.run(host, "stat", "--format", "%U %a", path, check=False).split()
        assert found in ([], [owner, "600"], [owner, "400"]), (path, found)


def secrets(lab: Lab, host: str) -> set[str]:
    """Each secret of the host, in every way of writing it that a program could print."""
    munge = lab.read(host, "/etc/munge/munge.key")
    tokens = lab.run(host, "sh", "-c", "cat /var/lib/slurm/slurmctld/jwt_hs256.key 2>/dev/null; true").strip()
    keys = lab.run(host, "sh", "-c", "wg show all private-key; wg show all preshared-keys")
    signing = lab.run(host, "sh", "-c", "cat /etc/gpumesh/ssh/*/SIGNING /etc/gpumesh/ssh/*/root")
    told = {word for word in re.findall(r"[A-Za-z0-9+/]{43}=", keys) if word not in public_keys(lab, host)}
    told |= {base64.b64encode(munge).decode()[:64], munge.hex()[:64], repr(munge)[2:40]}
    # All OpenSSH keys of a kind begin with the same line.
    told |= {line for line in signing.splitlines() if len(line) == 70 and not line.startswith("b3BlbnNzaC1r")}
    told |= {tokens} - {""}
    assert len(told) >= 6
    return told


def public_keys(lab: Lab, host: str) -> str:
    return lab.run(host, "sh", "-c", "wg show all public-key; wg show all peers")


WATCH = """
import glob, os, time
seen = set()
end = time.time() + 600
while time.time() < end and not os.path.exists("/root/enough"):
    for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
        try:
            seen.add(open(path, "rb").read())
        except OSError:
            pass
open("/root/seen", "wb").write(b"\\n".join(seen))
"""


def test_nothing_tells_a_secret(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rotations, with all the output that there is, while the processes of the members are watched."""
    # What AWX keeps as artifacts is printed, and the facts are written where a site keeps them between runs.
    monkeypatch.setenv("ANSIBLE_SHOW_CUSTOM_STATS", "true")
    monkeypatch.setenv("ANSIBLE_CACHE_PLUGIN", "ansible.builtin.jsonfile")
    monkeypatch.setenv("ANSIBLE_CACHE_PLUGIN_CONNECTION", str(tmp_path / "facts"))
    before = set().union(*(secrets(lab, host) for host in MEMBERS))
    watchers = [
        threading.Thread(target=lab.run, args=(host, "python3", "-c", WATCH), kwargs={"timeout": 700})
        for host in MEMBERS
    ]
    for watcher in watchers:
        watcher.start()
    report = f"check_report_dir={tmp_path / 'report'}"
    runs = [
        lab.play("gpumesh.cluster.mesh", "-vvv", "--diff", "-e", "mesh_rotate_keys=true"),
        lab.play("gpumesh.cluster.slurm", "-vvv", "--diff", "-e", "munge_rotate_key=true"),
        lab.play("gpumesh.cluster.show", "-vvv", "-e", "show_output=json"),
        lab.play("gpumesh.cluster.check", "-vvv", "-e", report),
    ]
    for host, watcher in zip(MEMBERS, watchers, strict=True):
        lab.run(host, "touch", "/root/enough")
        watcher.join()
    for run in runs:
        assert run.code == 0, run.output[-3000:]
    now = set().union(*(secrets(lab, host) for host in MEMBERS))
    assert now - before, "the rotations made no new key"
    told = "\n".join(run.output for run in runs)
    assert "CUSTOM STATS" in told
    told += "\n".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    for host in MEMBERS:
        told += lab.read(host, "/root/seen").decode(errors="replace")
        told += lab.run(host, "sh", "-c", "journalctl --no-pager; cat /var/log/*.log /var/log/slurm/*", check=False)
    assert not [secret for secret in before | now if secret in told]


@pytest.mark.parametrize("host", MEMBERS)
def test_a_secret_has_one_home(lab: Lab, host: str, tmp_path: Path) -> None:
    lines = sorted(secrets(lab, host))
    lab.run(host, "python3", "-c", f"open('/root/lines', 'w').write({chr(10).join(lines)!r})")
    found = lab.run(
        host, "sh", "-c", "grep -rlaF -f /root/lines /etc /var /run /tmp /root/.ansible /home /srv 2>/dev/null; true"
    ).split()
    lab.run(host, "rm", "/root/lines", "/root/seen")
    folders = ("/etc/wireguard/", "/etc/gpumesh/ssh/")
    assert [path for path in found if path not in HOMES and not path.startswith(folders)] == []
    for path in found:
        assert lab.run(host, "stat", "--format", "%a", path).strip() in {"600", "400"}, path


@pytest.mark.parametrize("daemon", ["munged", "slurmctld", "slurmdbd"])
def test_a_crash_leaves_no_key(lab: Lab, daemon: str) -> None:
    """The kernel writes the memory of a process into its core file."""
    limits = lab.run("e1", "sh", "-c", f"cat /proc/$(pgrep -o -x {daemon})/limits")
    (core,) = (line.split() for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core[4] == "0"

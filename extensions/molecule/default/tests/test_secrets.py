# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret of the cluster is anywhere but in its own file: not in output, diffs, facts, reports, logs or processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_hosts import Lab
from told_secrets import KeyRotation, find_secrets

#: The manager, and another member.
MEMBERS = ("n1", "n2")
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


def test_nothing_tells_a_secret(lab: Lab, rotation: KeyRotation) -> None:
    """While all keys were replaced, and the processes of the members were watched."""
    for run in rotation.runs:
        assert run.exit_status == 0, run.failure_report
    assert not set(rotation.former_keys) & set(rotation.current_keys), "a key was not rotated, so nothing was tried"
    told = "\n".join(run.output for run in rotation.runs)
    assert "CUSTOM STATS" in told
    # Each byte is a character, so that munge's key, which is no text, can be found as it is.
    raw = {key.decode("latin-1") for key in (rotation.former_keys[0], rotation.current_keys[0])}
    told += "\n".join(path.read_text("latin-1") for path in rotation.directory.rglob("*") if path.is_file())
    logs = "find /var/log /var/lib/gpumesh -xdev -type f -not -path '*/journal/*' -exec cat {} +"
    for host in MEMBERS:
        lab.run(host, "sh", "-c", f"(journalctl --no-pager --output=cat; {logs}; true) >>/root/seen")
        told += lab.read(host, "/root/seen").decode("latin-1")
    assert not [secret for secret in rotation.secrets | raw if secret in told]


@pytest.mark.parametrize("host", MEMBERS)
def test_a_secret_has_one_home(lab: Lab, host: str, tmp_path: Path) -> None:
    lines = sorted(find_secrets(lab, host))
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
    limits = lab.run("n1", "sh", "-c", f"cat /proc/$(pgrep -o -x {daemon})/limits")
    (core,) = (line.split() for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core[4] == "0"

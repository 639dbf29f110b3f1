# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests that need kernels of their own, on three hosts: the cluster's data survives the failures of its machines.

v1 serves /data, v2 serves /scratch and is the manager. The tests run in the order of the file; the last ones remove v3.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from functools import partial

import pytest
from kernel_hosts import KernelLab
from lab_hosts import AnsibleRun

MACHINES = ("v1", "v2", "v3")
MESH = "gpumesh0"
#: A soft mount gives up once its connection is dead, which the kernel decides after 180 s at most; later requests fail
#: after 15 s each. One that hangs never does.
BOUNDED = 480
#: What does not need the volume ends long before, whatever the load of this machine.
USABLE = 120
#: Seconds to allow on a busy machine for what usually takes a few.
PATIENCE = 900
REFUSED = r"access denied|not permitted|No such file"
HEALTH = "/usr/local/sbin/gpumesh-node-health"
STORAGE = "gpumesh.cluster.storage"
DATA = {"name": "data", "server": "v1", "path": "/srv/data", "mount_point": "/data"}
SCRATCH = {"name": "scratch", "server": "v2", "path": "/srv/scratch", "mount_point": "/scratch", "recovery": "hard"}
LIMITED = {"name": "limited", "server": "v2", "path": "/srv/limited/data", "mount_point": "/limited"}
SMALL = {**LIMITED, "quota": "16M"}
TOO_MUCH = "No space left on device|Disk quota exceeded"
CONTENT = "".join(f"{number}\n" for number in range(200_000))
CHECKSUM = hashlib.sha256(CONTENT.encode()).hexdigest()


@pytest.fixture(name="lab", scope="module")
def _lab() -> KernelLab:
    return KernelLab("molecule-kernel")


def address(machine: str) -> str:
    """The mesh address of the machine."""
    return f"10.99.0.{machine[1:]}"


def exported(lab: KernelLab, server: str) -> dict[str, set[str]]:
    """The clients to which the kernel of the server exports each of its folders."""
    found: dict[str, set[str]] = {}
    for path, client in re.findall(r"^(\S+)\s+(\S+)\(", lab.run_shell(server, "exportfs -s"), re.MULTILINE):
        found.setdefault(path, set()).add(client)
    return found


def checksum(lab: KernelLab, machine: str, path: str = "/data/kept") -> str:
    return lab.run_shell(machine, f"sha256sum {path}").split()[0]


def nodes(lab: KernelLab, asked: str = "v2") -> set[str]:
    states = lab.ssh(asked, "sinfo --noheader --Node --format='%N %T'").stdout
    return set(states.split("\n")) - {""}


def all_idle(lab: KernelLab, machines: tuple[str, ...] = MACHINES) -> bool:
    return nodes(lab) == {f"{machine} idle" for machine in machines}


def readable(lab: KernelLab, machine: str) -> bool:
    """Whether the kept file can be read there, at the first or a later attempt."""
    try:
        return lab.ssh(machine, "sha256sum /data/kept").stdout[:64] == CHECKSUM
    except subprocess.TimeoutExpired:
        return False


def failed(lab: KernelLab, machine: str) -> set[str]:
    """The units that have failed, once the machine has booted."""
    listed = "systemctl is-system-running --quiet --wait; systemctl list-units --failed --plain --no-legend"
    return {line.split()[0] for line in lab.run_shell(machine, listed, timeout=PATIENCE).splitlines()}


def share(lab: KernelLab, *volumes: dict[str, str]) -> AnsibleRun:
    """Set these volumes, and no others."""
    return lab.run_playbook(STORAGE, "-e", json.dumps({"storage_volumes": volumes}))


def serve(lab: KernelLab, *volumes: dict[str, str], hosts: str = "v2") -> AnsibleRun:
    """Set these volumes, and no others, on some hosts. The module says whether something has changed, and why not."""
    record = json.loads(lab.run_shell("v2", "cat /var/lib/gpumesh/clusters/kernel.json"))
    return lab.run_module(hosts, "gpumesh.cluster.storage", {"storage_volumes": volumes}, record=record, preview=True)


def make_filesystem(lab: KernelLab, kind: str, option: str, point: str) -> None:
    """Create a file system on v2 that accounts usage by project."""
    options = "-O project,quota" if kind == "ext4" else ""
    made = f"truncate --size 320M {point}.img && mkfs.{kind} -q {options} {point}.img"
    lab.run_shell("v2", f"modprobe loop && {made} && mount --mkdir -o loop,{option} {point}.img {point}")


def write(path: str, mebibytes: int) -> str:
    """The command that writes a file and syncs it to the disk."""
    return f"dd if=/dev/zero of={path} bs=1M count={mebibytes} conv=fsync"


def assert_fails(lab: KernelLab, command: str) -> None:
    """It must fail with an error, and in time: a command that hangs raises subprocess.TimeoutExpired."""
    done = lab.ssh("v3", command, timeout=BOUNDED)
    assert done.returncode not in {0, 255}, done.stdout + done.stderr


def test_the_tunnel_is_the_kernels(lab: KernelLab) -> None:
    for machine in MACHINES:
        assert "wireguard" in lab.run_shell(machine, f"ip -details link show {MESH}")
        assert lab.ssh(machine, "command -v wireguard-go; pgrep -x wireguard-go").stdout == ""
        assert len(lab.run_shell(machine, f"wg show {MESH} latest-handshakes").splitlines()) == 2


def test_a_second_run_changes_nothing(lab: KernelLab) -> None:
    """That of the storage follows on the run that heals a stale handle."""
    run = lab.run_playbook("gpumesh.cluster.mesh", "--limit", "v3")
    assert run.exit_status == 0, run.failure_report
    assert run.changed == {"v3": 0}, run.changes


def test_the_jobs_are_in_control_groups_of_version_2(lab: KernelLab) -> None:
    assert lab.run_shell("v3", "stat --file-system --format=%T /sys/fs/cgroup").strip() == "cgroup2fs"
    lab.wait_until("all nodes are idle", lambda: all_idle(lab), PATIENCE)
    group = lab.run_shell("v1", "srun --nodelist=v3 --mem=64M cat /proc/self/cgroup").strip()
    assert group.startswith("0::/"), group
    assert "job_" in group, group


@pytest.fixture(name="unchecked")
def _unchecked(lab: KernelLab) -> Iterator[None]:
    """Slurm has no node checked from time to time, so that a test knows what has found a fault."""
    change = "sed -i 's/^HealthCheckInterval=.*/HealthCheckInterval={}/' /etc/slurm/slurm.conf && scontrol reconfigure"
    lab.run_shell("v2", change.format(0))
    yield
    lab.run_shell("v2", change.format(180))


def drain_reason(lab: KernelLab, machine: str) -> str:
    """Why the node is drained; empty if it is in service."""
    shown = lab.ssh("v2", f"sinfo --noheader --nodes={machine} --format='%T|%E'").stdout
    state, _separator, reason = shown.splitlines()[0].partition("|") if shown else ("", "", "")
    return reason.strip() if state.startswith("drain") else ""


def is_notified(lab: KernelLab, notice: str) -> bool:
    return notice in lab.run_shell("v3", "cat /var/tmp/notified")


@pytest.mark.usefixtures("unchecked")
def test_a_fault_in_the_kernel_log_takes_the_node_out_of_service_within_a_minute(lab: KernelLab) -> None:
    """The messages are those of NVIDIA's driver about a GPU that needs a reset, and then nothing any more."""
    lab.wait_until("all nodes are idle", lambda: all_idle(lab), PATIENCE)
    # A GPU for which this kernel has no driver, so that its messages count.
    lab.run_shell("v3", "systemctl is-active gpumesh-health && mknod /dev/nvidia0 c 195 0 && rm -f /var/tmp/notified")
    submit = "sbatch --parsable --nodelist=v3 --mem=64M --chdir=/ --output=/var/tmp/notified --wrap='sleep 3000'"
    job = lab.run_shell("v2", submit).strip()
    # Slurm says RUNNING from the prolog on, in which a job can be told nothing yet.
    lab.wait_until("the job's script runs", lambda: not lab.ssh("v3", "test -e /var/tmp/notified").returncode, PATIENCE)
    message = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x{} ({}) to 0x{} ({})"
    fault = "health.gpu_xid: Xid 154 (the driver requires: GPU Reset Required) on 0000:01:00, 1 ×"
    try:
        for occurrence in ("", " (second time in 7 days)"):
            lab.log_as_kernel("v3", message.format(0, "None", 1, "GPU Reset Required"))
            lab.wait_until("the node is drained", lambda: bool(drain_reason(lab, "v3")), 60, spacing=1)
            assert drain_reason(lab, "v3") == f"gpumesh health: {fault}{occurrence}"
            notice = f"v3 accepts no more jobs, because it is unhealthy: {fault}{occurrence}"
            lab.wait_until("the job knows it", partial(is_notified, lab, notice))
            lab.log_as_kernel("v3", message.format(1, "GPU Reset Required", 0, "None"))
            lab.wait_until("the node is back", lambda: not drain_reason(lab, "v3"), USABLE)
        lab.log_as_kernel("v3", message.format(0, "None", 1, "GPU Reset Required"))
        lab.wait_until("the node is drained", lambda: bool(drain_reason(lab, "v3")), 60, spacing=1)
        assert "third time in 7 days" in lab.run_module("v3", "gpumesh.cluster.node_health", only=["gpu_xid"]).output
        assert lab.run_shell("v3", "cat /var/tmp/notified").count("accepts no more jobs") == 3
        # The job goes on.
        assert f"{job} RUNNING" in lab.ssh("v2", "squeue -h -o '%A %T'").stdout
    finally:
        lab.run_shell("v2", f"scancel {job}")
        lab.log_as_kernel("v3", message.format(1, "GPU Reset Required", 0, "None"))
        lab.wait_until("the node is back", lambda: not drain_reason(lab, "v3"), USABLE)
        lab.run_shell("v3", "rm /dev/nvidia0 /var/tmp/notified")
    # The daemon neither costs a quiet machine anything, nor changes in a second run.
    used = "systemctl show --property=CPUUsageNSec,ActiveEnterTimestampMonotonic gpumesh-health"
    before = lab.run_shell("v3", used)
    time.sleep(30)
    assert lab.run_shell("v3", used) == before
    run = lab.run_playbook("gpumesh.cluster.slurm", "--limit", "v3")
    assert run.exit_status == 0, run.failure_report
    assert run.changed == {"v3": 0}, run.changes


def test_volumes_are_nfs_4_2_over_the_tunnel(lab: KernelLab) -> None:
    for machine in ("v2", "v3"):
        lab.run_shell(machine, "ls /data")
        kind, options = lab.run_shell(
            machine, "findmnt --noheadings --types nfs4 --output FSTYPE,OPTIONS /data"
        ).split()
        assert kind == "nfs4"
        assert "vers=4.2" in options
        assert f"addr={address('v1')}" in options
        assert f"clientaddr={address(machine)}" in options


def test_exports_are_for_members_alone(lab: KernelLab) -> None:
    assert exported(lab, "v1") == {"/srv/data": {address("v2"), address("v3")}}
    assert exported(lab, "v2") == {"/srv/scratch": {address("v1"), address("v3")}}
    shown = lab.run_shell("v2", f"showmount --exports --no-headers {address('v1')}").split()
    assert shown[0] == "/srv/data"
    assert set(shown[1].split(",")) == {address("v2"), address("v3")}


def test_an_address_that_is_no_members_is_refused(lab: KernelLab) -> None:
    """An address outside the mesh stands for any other machine of the network."""
    attempt = lab.ssh("v3", "mount --mkdir -t nfs4 -o vers=4.2,soft,retry=0 10.79.0.11:/srv/data /tmp/no")
    assert attempt.returncode != 0
    assert re.search(REFUSED, attempt.stderr), attempt.stderr


def test_root_of_a_member_is_nobody_on_the_server(lab: KernelLab) -> None:
    lab.run_shell("v1", "install -d -m 1777 /srv/data /srv/data/open && chmod 1777 /srv/data")
    lab.run_shell("v2", "chmod 1777 /srv/scratch")
    lab.run_shell("v3", "touch /data/open/by-root")
    assert lab.run_shell("v1", "stat --format=%U /srv/data/open/by-root").strip() == "nobody"


def test_a_job_writes_on_one_node_and_another_reads(lab: KernelLab) -> None:
    lab.wait_until("all nodes are idle", lambda: all_idle(lab), PATIENCE)
    written = lab.run_shell("v2", "srun --nodelist=v3 --mem=64M sh -c 'seq 0 199999 >/data/kept && hostname'")
    assert written.strip() == "v3"
    read = lab.run_shell("v2", "srun --nodelist=v2 --mem=64M sha256sum /data/kept")
    assert read.split()[0] == CHECKSUM
    assert checksum(lab, "v1", "/srv/data/kept") == CHECKSUM


def test_a_volume_in_use_is_not_unmounted(lab: KernelLab) -> None:
    lab.run_shell("v3", "systemd-run --quiet --unit=holder --working-directory=/data sleep infinity")
    run = share(lab, SCRATCH)
    assert run.exit_status != 0
    assert re.search(r"sleep of root \(process \d+\) uses /data", run.flat_output), run.failure_report
    assert not any(run.changed.values()), run.changed
    # No other host has lost the volume either.
    assert exported(lab, "v1") == {"/srv/data": {address("v2"), address("v3")}}
    assert checksum(lab, "v2") == CHECKSUM
    lab.run_shell("v3", "systemctl stop holder")


def test_a_quota_needs_a_file_system_that_has_them(lab: KernelLab) -> None:
    refused = serve(lab, DATA, {**SCRATCH, "quota": "16M"}).output
    assert re.search(r"'scratch' at /srv/scratch cannot have a quota: it is on ext4.*tune2fs", refused), refused


def test_a_stale_handle_is_healed_by_the_next_run(lab: KernelLab) -> None:
    """Which also adds a volume with a quota, for the next test."""
    make_filesystem(lab, "ext4", "prjquota", "/srv/limited")
    # Existing files count too, and a link is not followed.
    before = "/srv/limited/data/deep/before"
    lab.run_shell("v2", f"install -d -m 1777 /srv/limited/data /srv/limited/data/deep && {write(before, 8)}")
    lab.run_shell("v2", "mkdir /srv/limited/other && ln -s ../other /srv/limited/data/link")
    for machine in ("v2", "v3"):
        lab.run_shell(machine, "ls /data/open")
    # As after a restore from a backup: the same path, another folder.
    lab.run_shell(
        "v1", "systemctl stop data.mount && mv /srv/data /srv/before && cp -a /srv/before /srv/data && exportfs -f"
    )
    try:
        assert "Stale file handle" in lab.ssh("v3", "ls /data/").stderr
        # v2 has not sent a request since, and may use cached attributes for a minute.
        run = share(lab, DATA, SCRATCH, SMALL)
        assert run.exit_status == 0, run.failure_report
    finally:
        lab.run_shell("v1", "rm -r /srv/before")
    folder = lab.run_shell("v1", "stat --format=%i /srv/data")
    for machine in MACHINES:
        assert lab.run_shell(machine, "stat --format=%i /data/.") == folder
        assert checksum(lab, machine) == CHECKSUM
    # What a second run does on each host.
    again = serve(lab, DATA, SCRATCH, SMALL, hosts="cluster")
    assert again.output.count("SUCCESS") == len(MACHINES), again.output


def test_a_quota_is_the_size_of_a_volume(lab: KernelLab) -> None:
    size, used = lab.run_shell("v3", "ls /limited/ && df --block-size=1M --output=size,used /limited").split()[-2:]
    assert (size, used) in {("16", "8"), ("16", "9")}
    place = {key: LIMITED[key] for key in ("name", "mount_point")}
    looked = lab.run_module("v3", "gpumesh.cluster.volume_probe", phase="usage", volumes=[place]).output
    assert f'"total_bytes": {16 << 20}' in looked
    attempt = lab.ssh("v3", write("/limited/more", 12))
    assert attempt.returncode != 0
    assert re.search(TOO_MUCH, attempt.stderr), attempt.stderr
    lab.run_shell("v3", f"{write('/scratch/more', 24)} && rm /scratch/more")
    assert "gpumesh.kernel.limited" in lab.run_shell("v2", "xfs_quota -x -f -c 'report -p' /srv/limited")
    assert lab.run_shell("v2", "lsattr -d -p /srv/limited/other").split()[0] == "0"

    assert "CHANGED" in serve(lab, DATA, SCRATCH, {**LIMITED, "quota": "32M"}).output
    lab.run_shell("v3", write("/limited/more", 12))

    run = share(lab, DATA, SCRATCH)
    assert run.exit_status == 0, run.failure_report
    assert lab.ssh("v2", "grep --no-messages gpumesh /etc/projid /etc/projects").stdout == ""
    listed = lab.run_shell("v2", "lsattr -d -p /srv/limited/data /srv/limited/data/deep /srv/limited/data/more")
    assert {line.split()[0] for line in listed.splitlines()} == {"0"}
    assert lab.run_shell("v2", "ls /srv/limited/data").split() == ["deep", "link", "more"]


def test_a_quota_on_xfs(lab: KernelLab) -> None:
    make_filesystem(lab, "xfs", "pquota", "/srv/xfs")
    lab.run_shell("v2", "install -d -m 1777 /srv/xfs/data")
    as_nobody = f"runuser -u nobody -- {write('/srv/xfs/data/file', 24)}"
    lab.run_shell("v2", as_nobody)

    def limit(*quotas: str) -> str:
        place = {"name": "xfs", "server": "v2", "path": "/srv/xfs/data", "mount_point": "/xfs"}
        return serve(lab, DATA, SCRATCH, *({**place, "quota": quota} for quota in quotas)).output

    assert re.search(r"24\S* MiB, more than its quota of 16 MiB", limit("16M"))
    lab.run_shell("v2", "rm /srv/xfs/data/file")
    assert "CHANGED" in limit("16M")
    assert "SUCCESS" in limit("16M")
    assert lab.run_shell("v2", "df --block-size=1M --output=size /srv/xfs/data").split()[-1] == "16"
    attempt = lab.ssh("v2", as_nobody)
    assert attempt.returncode != 0
    assert re.search(TOO_MUCH, attempt.stderr), attempt.stderr
    assert "gpumesh.kernel.xfs" in lab.run_shell("v2", "xfs_quota -x -c 'report -p' /srv/xfs")
    assert "CHANGED" in limit()
    lab.run_shell("v2", as_nobody)


def test_a_mount_that_was_refused_many_times_is_tried_again(lab: KernelLab) -> None:
    lab.run_shell("v1", "exportfs -ua")
    try:
        lab.run_shell("v3", "systemctl stop data.mount; for attempt in $(seq 8); do ! ls /data || exit 1; done")
    finally:
        lab.run_shell("v1", "exportfs -ra")
    assert checksum(lab, "v3") == CHECKSUM


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("server", "point", "mode"), [("v1", "/data", "soft"), ("v2", "/scratch", "hard")])
def test_a_job_waits_in_its_prolog_for_the_server_of_a_volume_and_can_be_cancelled(
    lab: KernelLab, server: str, point: str, mode: str
) -> None:
    """Nothing else finds out that the volume is away: what the periodic check does depends on the moment."""
    lab.wait_until("all nodes are idle", lambda: all_idle(lab), PATIENCE)
    assert mode in lab.run_shell(
        "v3", f"ls {point} && findmnt --noheadings --types nfs4 --output OPTIONS {point}"
    ).split(",")
    submit = "sbatch --parsable --nodelist=v3 --mem=64M --chdir=/ --output=/dev/null --wrap='touch /var/tmp/ran'"

    def state(job: str) -> str:
        return lab.ssh("v2", f"squeue --noheader --states=all --jobs={job} --format='%T %r'").stdout.strip()

    lab.run_shell("v3", "rm -f /var/tmp/ran")
    lab.run_shell(server, "systemctl stop nfs-server")
    try:
        cancelled, waiting = lab.run_shell("v2", submit).strip(), lab.run_shell("v2", submit).strip()
        lab.wait_until("it waits in its prolog", lambda: state(cancelled) == "RUNNING Prolog", PATIENCE)
        # This takes as long as the prolog of a job that is not made to wait.
        assert f"fail storage.mounts: {point}: " in lab.ssh("v3", f"{HEALTH} --show", timeout=USABLE).stdout
        assert state(cancelled) == "RUNNING Prolog"
        assert "Slurmd PID" in lab.run_shell("v3", "scontrol show slurmd", timeout=USABLE)
        # Its prolog ends although the volume is still away, and slurmd begins with the next job.
        lab.run_shell("v2", f"scancel {cancelled}")
        lab.wait_until("the next job waits", lambda: state(waiting) == "RUNNING Prolog", PATIENCE)
        assert not state(cancelled).startswith(("RUNNING", "COMPLETING"))
        assert lab.ssh("v3", "test -e /var/tmp/ran").returncode == 1
    finally:
        lab.run_shell(server, "systemctl start nfs-server")
    lab.wait_until("it has run", lambda: state(waiting).startswith("COMPLETED"), PATIENCE)
    lab.run_shell("v3", "rm /var/tmp/ran")


def test_a_shutdown_unmounts_before_the_tunnel_goes(lab: KernelLab) -> None:
    # The writer has written, but not yet closed the file, when the machine goes down.
    writer = "exec 3>/data/open/late; seq 0 199999 >&3; touch /data/open/written; exec sleep infinity"
    lab.run_shell("v3", f"systemd-run --quiet --unit=writer --property=After=remote-fs.target sh -c '{writer}'")
    lab.wait_until("it has written", lambda: lab.ssh("v1", "ls /srv/data/open/written").returncode == 0, PATIENCE)
    said = len(lab.read_console("v3"))
    lab.reboot("v3")
    console = lab.read_console("v3")[said:]
    assert 0 < console.find("Unmounted data.mount") < console.find(f"Stopped wg-quick@{MESH}.service"), console
    assert checksum(lab, "v1", "/srv/data/open/late") == CHECKSUM


def test_without_its_server_a_volume_fails_in_bounded_time_and_nothing_else_does(lab: KernelLab) -> None:
    lab.wait_until("all nodes are idle", lambda: all_idle(lab), PATIENCE)
    lab.run_shell("v3", "ls /data /scratch")
    healthy = failed(lab, "v3")
    lab.cut_power("v1")
    try:
        # The machine stays usable while a process waits for the volume.
        lab.run_shell("v3", "systemd-run --quiet --unit=waits --collect ls /data")
        assert lab.run_shell("v3", "hostname; ls /; ls /scratch", timeout=USABLE).startswith("v3")
        assert_fails(lab, "ls /data/")
        said = len(lab.read_console("v3"))
        lab.reboot("v3")
        # The unit's time limit, after which systemd would stop waiting for the server, was not needed.
        assert "Unmounted data.mount" in lab.read_console("v3")[said:]
        # The mount is tried again, and that is bounded too.
        assert_fails(lab, "ls /data/")
        assert lab.run_shell("v3", "hostname; ls /; ls /scratch", timeout=USABLE).startswith("v3")
        # The unit may also be starting at this moment, for the health check.
        assert failed(lab, "v3") - healthy <= {"data.mount"}
        # The health check drains a node whose volume is unavailable, the next time it runs. The node itself stays up.
        back = {"v3 idle", "v3 draining", "v3 drained"}
        lab.wait_until("the node of v3 is back", lambda: bool(back & nodes(lab)), PATIENCE)
    finally:
        lab.boot("v1")
    lab.wait_until("they have their volume again", lambda: readable(lab, "v2") and readable(lab, "v3"), PATIENCE)
    lab.wait_until("jobs can run again", lambda: all_idle(lab), PATIENCE)


def test_the_data_outlives_the_power_cut_of_its_server(lab: KernelLab) -> None:
    """v1 has booted since, and nothing has run on it but what its boot starts."""
    assert checksum(lab, "v1", "/srv/data/kept") == checksum(lab, "v1") == CHECKSUM
    assert exported(lab, "v1") == {"/srv/data": {address("v2"), address("v3")}}


def boot_times(lab: KernelLab) -> dict[str, int]:
    """When each machine has booted, in seconds since 1970."""
    return {machine: int(lab.run_shell(machine, "awk '/^btime/ {print $2}' /proc/stat")) for machine in MACHINES}


def boot_ids(lab: KernelLab) -> dict[str, str]:
    return {machine: lab.read_boot_id(machine) for machine in MACHINES}


def job_states(lab: KernelLab) -> dict[str, str]:
    """The state of each job, and how often it was started again."""
    listed = lab.run_shell("v2", "squeue --noheader --Format=JobID:.20,State:.20,RestartCnt:.20")
    return {number: f"{state} {restarts}" for number, state, restarts in map(str.split, listed.splitlines())}


REBOOT = "gpumesh.cluster.reboot"


def test_members_are_rebooted_one_at_a_time(lab: KernelLab) -> None:
    """v1 has a job that ends, v3 is drained by its administrator, and a job on v2 goes on meanwhile."""
    lab.wait_until("all nodes are idle", lambda: all_idle(lab), PATIENCE)
    lab.run_shell("v2", "scontrol update nodename=v3 state=drain reason='replacing the fan'")
    lab.run_shell("v1", "rm -f /var/tmp/ended")
    submit = "sbatch --parsable --no-requeue --mem=64M --chdir=/ --output=/dev/null --nodelist={} --wrap='{}'"
    staying = lab.run_shell("v2", submit.format("v2", "sleep 30000")).strip()
    ending = lab.run_shell("v2", submit.format("v1", "sleep 60; touch /var/tmp/ended")).strip()
    lab.wait_until("both jobs run", lambda: job_states(lab) == dict.fromkeys((staying, ending), "RUNNING 0"), PATIENCE)
    before = boot_ids(lab)
    run = lab.run_playbook(REBOOT, "--limit", "v1,v3", "-e", "cluster_drain_timeout=900")
    assert run.exit_status == 0, run.failure_report
    assert "Rebooted one at a time, in this order: v1, v3." in run.flat_output
    assert "v3 stays out of service, since others have drained it: replacing the fan" in run.flat_output
    # The job has ended before the reboot, which would have killed it for good.
    lab.run_shell("v1", "ls /var/tmp/ended")
    assert job_states(lab)[staying] == "RUNNING 0"
    after = boot_ids(lab)
    assert {machine for machine in MACHINES if after[machine] != before[machine]} == {"v1", "v3"}
    times = boot_times(lab)
    assert times["v1"] < times["v3"]
    assert drain_reason(lab, "v3") == "replacing the fan"
    assert "v1 idle" in nodes(lab)
    lab.run_shell("v2", f"scontrol update nodename=v3 state=resume; scancel {staying}")
    lab.wait_until("all nodes are idle", lambda: all_idle(lab), PATIENCE)


def test_the_queue_outlives_the_reboot_of_the_manager(lab: KernelLab) -> None:
    held = lab.run_shell("v2", "sbatch --parsable --hold --mem=64M --chdir=/ --output=/dev/null --wrap=true").strip()
    before = boot_ids(lab)
    run = lab.run_playbook(REBOOT, "--limit", "v2")
    assert run.exit_status == 0, run.failure_report
    after = boot_ids(lab)
    assert {machine for machine in MACHINES if after[machine] != before[machine]} == {"v2"}
    assert job_states(lab) == {held: "PENDING 0"}
    lab.run_shell("v2", f"scancel {held}")
    lab.wait_until("all nodes are idle", lambda: all_idle(lab), PATIENCE)


def test_who_leaves_is_refused_and_the_data_stays(lab: KernelLab) -> None:
    said = len(lab.read_console("v3"))
    run = lab.run_playbook("gpumesh.cluster.remove", "-e", "cluster_machine=v3")
    assert run.exit_status == 0, run.failure_report + lab.read_console("v3")[said:]
    # It unmounts before anybody refuses it, and the clean-up finds nothing left to unmount.
    changes = [change.partition(" : ")[2] or change for change in run.changes]
    (unmounted,) = (number for number, change in enumerate(changes) if change.startswith("Unmount the volumes"))
    (recorded,) = (
        number for number, change in enumerate(changes) if change.startswith("Remove the machine from the rec")
    )
    assert unmounted < recorded, changes
    assert exported(lab, "v1") == {"/srv/data": {address("v2")}}
    assert exported(lab, "v2") == {"/srv/scratch": {address("v1")}}
    for machine in ("v1", "v2"):
        assert checksum(lab, machine) == CHECKSUM
    assert lab.ssh("v3", "findmnt --types nfs4,autofs /data").returncode != 0
    assert "LoadState=not-found" in lab.run_shell("v3", "systemctl show --property=LoadState gpumesh-health")
    assert lab.run_shell("v3", "ls /etc/systemd/system/*.wants").count("gpumesh-health") == 0
    assert lab.ssh("v3", f"ls /var/lib/gpumesh/health {HEALTH}").stdout == ""
    # Over the network that all machines share.
    attempt = lab.ssh("v3", "mount --mkdir -t nfs4 -o vers=4.2,soft,retry=0 10.79.0.11:/srv/data /tmp/no")
    assert attempt.returncode != 0
    assert re.search(REFUSED, attempt.stderr), attempt.stderr
    whole = lab.ssh("v3", "mount -t nfs4 -o vers=4.2,soft,retry=0 10.79.0.11:/ /tmp/no && ls -A /tmp/no")
    assert whole.stdout == ""


def test_the_others_run_jobs_on_the_same_data(lab: KernelLab) -> None:
    lab.wait_until("both nodes are idle", lambda: all_idle(lab, ("v1", "v2")), PATIENCE)
    read = lab.run_shell("v1", "srun --nodelist=v2 --mem=64M sha256sum /data/kept")
    assert read.split()[0] == CHECKSUM

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An ordinary user of this machine does what would take its node out of service."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu, host
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.program import find_job_leftovers
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import kernel_log

XID_MESSAGE = "NVRM: Xid (PCI:0000:3d:00): 79, GPU has fallen off the bus."
#: x86-64: mov %eax, (0).
FAULT_CODE = bytes.fromhex("890425 00000000")


def build_crashing_program() -> bytes:
    """Build an executable that crashes in its own code, so that the kernel names its file too."""
    start, size = 0x400000, 64 + 56 + len(FAULT_CODE)
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, start + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, start, start, size, size, 0x1000) + FAULT_CODE


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program that crashes is for x86-64")
@pytest.mark.parametrize(
    "name",
    ["NVRM: Xid (0): 79", XID_MESSAGE, f"x\n{XID_MESSAGE}", f"x\n<3>[    1.0] {XID_MESSAGE}", "NVRM: Xid (): 79"],
)
def test_crashing_program_named_like_a_gpu_fault(attacker: pwd.struct_passwd, name: str) -> None:
    if kernel_log.read_records("/dev/kmsg") is None:
        pytest.skip("this machine's kernel log cannot be read")
    path = Path(attacker.pw_dir) / name
    path.write_bytes(build_crashing_program())
    path.chmod(0o755)
    try:
        completed = subprocess.run([str(path)], user=attacker.pw_uid, group=attacker.pw_gid, check=False, cwd="/")
    finally:
        path.unlink()
    assert completed.returncode < 0, "it was meant to crash"
    # The kernel may leave out messages where there are too many of them.
    xid_messages = [
        text for text in kernel_log.extract_messages(kernel_log.read_records("/dev/kmsg") or "") if "NVRM: Xid" in text
    ]
    assert xid_messages or "suppressed" in (kernel_log.read_records("/dev/kmsg") or ""), "the kernel has not named it"
    assert gpu.judge_xid(kernel_log.read_records("/dev/kmsg")).status == "pass"


def test_message_written_to_the_kernel_log() -> None:
    """Root alone can write to it, and the text is still no message of the kernel."""
    with contextlib.suppress(OSError):
        Path("/dev/kmsg").write_text(f"<3>{XID_MESSAGE}\n", encoding="utf-8")
    records = kernel_log.read_records("/dev/kmsg")
    if records is None or XID_MESSAGE not in records:
        pytest.skip("this machine's kernel log can be neither read nor written to")
    assert gpu.judge_xid(records).status == "pass"


@pytest.fixture
def volume(attacker: pwd.struct_passwd) -> Iterator[Path]:
    """Mount a small file system that everybody can write to."""
    mount_point = Path(attacker.pw_dir) / "volume"
    mount_point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=8,mode=1777", "attacked", str(mount_point)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        mount_point.rmdir()
        pytest.skip("nothing can be mounted here")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", str(mount_point)], check=True)
        mount_point.rmdir()


@pytest.mark.parametrize("resource", ["space", "inodes"])
def test_full_volume(attacker: pwd.struct_passwd, volume: Path, resource: str) -> None:
    fill = {
        "space": f"dd if=/dev/zero of={volume}/filler bs=4k",
        "inodes": f"cd {volume} && touch 1 2 3 4 5 6 7 8 9",
    }[resource]
    filled = subprocess.run(
        ["sh", "-c", fill], user=attacker.pw_uid, group=attacker.pw_gid, check=False, capture_output=True, text=True
    )
    assert "No space left" in filled.stderr
    assert host.probe_mount(str(volume)) is None


def test_process_named_slurmd(attacker: pwd.struct_passwd) -> None:
    """The process has a limit of its own, which would be taken for that of all jobs."""
    renamed = "import os, sys; open('/proc/self/comm', 'w').write('slurmd'); os.read(0, 1)"
    before = host.read_memlock(Tree())
    command = ["prlimit", "--memlock=65536", "python3", "-c", renamed]
    with subprocess.Popen(command, stdin=subprocess.PIPE, user=attacker.pw_uid, group=attacker.pw_gid) as process:
        try:
            deadline = time.monotonic() + 120
            while Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8").strip() != "slurmd":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert os.stat(f"/proc/{process.pid}").st_uid == attacker.pw_uid
            assert host.read_memlock(Tree()) == before
        finally:
            process.kill()


#: A program that starts another one whose input never comes, and waits for it, which only SIGKILL interrupts.
_BLOCK_PROGRAM = """
import os
os.mkfifo("never")
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, "never", os.O_RDONLY, 0)])
"""


def test_uninterruptible_process(attacker: pwd.struct_passwd, tmp_path: Path) -> None:
    """A node that Slurm has drained for such a process of a job is only out of service until all of these are gone."""
    fifo_path = Path(attacker.pw_dir) / "never"
    command = ["python3", "-c", _BLOCK_PROGRAM]
    with subprocess.Popen(command, cwd=attacker.pw_dir, user=attacker.pw_uid, group=attacker.pw_gid) as process:
        try:
            deadline = time.monotonic() + 120
            while Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "D":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process_directory = tmp_path / "proc" / str(process.pid)
            process_directory.mkdir(parents=True)
            for name in ("stat", "status"):
                (process_directory / name).write_bytes(Path(f"/proc/{process.pid}/{name}").read_bytes())
        finally:
            # The program that it starts has its input then, and ends.
            os.close(os.open(fifo_path, os.O_RDWR))
            process.kill()
    # Its group is that of a login of the user, and not the one of slurmd.
    (process_directory / "cgroup").write_text("0::/user.slice/user-1000.slice/session-3.scope\n", encoding="utf-8")
    slurmd_directory = tmp_path / "proc/1"
    slurmd_directory.mkdir()
    (slurmd_directory / "cgroup").write_text("0::/system.slice/slurmd.service\n", encoding="utf-8")
    (slurmd_directory / "status").write_text("Name:\tslurmd\nUid:\t0\t0\t0\t0\n", encoding="utf-8")
    (slurmd_directory / "exe").symlink_to("/usr/sbin/slurmd-wlm")
    assert find_job_leftovers(Tree(str(tmp_path))) == []


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """Mount a real volume that can be read, and takes no file: its file system is frozen."""
    image, mount_point = tmp_path / "image", tmp_path / "frozen"
    mount_point.mkdir()
    image.touch()
    os.truncate(image, 16 * 1024 * 1024)
    steps = (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount_point)])
    if any(subprocess.run(step, check=False, capture_output=True).returncode for step in steps):
        pytest.skip("no image can be mounted here")
    try:
        subprocess.run(["fsfreeze", "--freeze", str(mount_point)], check=True)
        try:
            yield mount_point
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(mount_point)], check=True)
    finally:
        # The abandoned process waits for nothing any more, and has the volume open until it ends.
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


# Python warns about the process that hangs in the kernel and is left behind.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_volume_slowed_by_many_writers(frozen: Path) -> None:
    trouble = host.probe_mount(str(frozen), time_limit=1)
    assert trouble is not None and trouble.is_slow, trouble
    kinds = {str(frozen): "ext4"}
    assert host.judge_mounts({str(frozen): trouble}, kinds).status == "fail", "it is reported"
    assert host.judge_mounts({str(frozen): trouble}, kinds, drains_node=True).status == "pass", "and drains nobody"

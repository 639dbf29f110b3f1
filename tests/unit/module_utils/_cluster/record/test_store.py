# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record on a real disk: damage, owners, locks, processes that die at any point, and concurrent ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply, model, store
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import DamagedRecordError, Store
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, HostStateError


def member_entry(number: int) -> dict[str, Any]:
    return {"machine": f"n{number}", "address": f"10.77.0.{number + 10}", "interface": "eth0"}


REQUEST = apply.ClusterRequest(subnet="10.77.0.1/24", manager="n1", members=[member_entry(1), member_entry(2)])

#: Other files that a host may have beside it.
ANOTHER = apply.ClusterRequest(
    subnet="10.78.0.0/24",
    manager="n1",
    mesh={"backend": "none"},
    members=[{"machine": "n1", "address": "10.78.0.1", "interface": "eth1"}],
)


@pytest.fixture
def cluster_store(tmp_path: Path) -> Store:
    """A folder with cluster lab at generation 1."""
    new_store = Store(str(tmp_path / "gpumesh" / "clusters"), "lab", lock_timeout=0.2)
    apply.cluster_present(new_store, REQUEST, "tester@here", check_mode=False)
    return new_store


def file_names(folder: str) -> list[str]:
    return sorted(os.listdir(folder))


class TestFiles:
    def test_written_record_is_readable_only_by_its_owner(self, cluster_store: Store) -> None:
        record = cluster_store.read()
        assert record is not None
        assert record["generation"] == 1
        assert file_names(cluster_store.directory) == [".lab.lock", "lab.json", "lab.json.good"]
        for path in (cluster_store.path, cluster_store.good_path):
            assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.stat(cluster_store.directory).st_mode & 0o777 == 0o700

    def test_unchanged_record_is_not_written(self, cluster_store: Store) -> None:
        before = os.stat(cluster_store.path)
        applied = apply.cluster_present(cluster_store, REQUEST, "tester@here", check_mode=False)
        assert not applied.changes
        # Reading it may change the time of its last access, and writing replaces it.
        after = os.stat(cluster_store.path)
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def test_check_mode_creates_nothing(self, tmp_path: Path) -> None:
        fresh = Store(str(tmp_path / "clusters"), "lab")
        applied = apply.cluster_present(fresh, REQUEST, "tester@here", check_mode=True)
        assert applied.after is not None
        assert applied.after["generation"] == 1
        assert list(tmp_path.iterdir()) == []

    def test_delete_removes_all_files(self, cluster_store: Store, tmp_path: Path) -> None:
        applied = apply.cluster_absent(cluster_store, None, force=False, actor_name="tester@here", check_mode=False)
        assert applied.changes
        assert list(tmp_path.iterdir()) == []
        again = apply.cluster_absent(cluster_store, None, force=False, actor_name="tester@here", check_mode=False)
        assert not again.changes
        assert list(tmp_path.iterdir()) == []

    def test_delete_keeps_records_of_other_clusters(self, cluster_store: Store) -> None:
        other = Store(cluster_store.directory, "other")
        apply.cluster_present(other, ANOTHER, "tester@here", check_mode=False)
        apply.cluster_absent(cluster_store, None, force=False, actor_name="tester@here", check_mode=False)
        assert file_names(cluster_store.directory) == [".other.lock", "other.json", "other.json.good"]

    def test_other_cluster_with_the_same_name_is_not_deleted(self, cluster_store: Store) -> None:
        record = cluster_store.read()
        assert record is not None
        other = {**record, "id": "f" * 32}
        assert not apply.cluster_absent(cluster_store, other, False, "tester@here", check_mode=False).changes
        assert cluster_store.read() == record


def corrupt_nothing_left(path: str) -> None:
    Path(path).write_text("")


def corrupt_cut_off(path: str) -> None:
    text = Path(path).read_text()
    Path(path).write_text(text[: len(text) // 2])


def corrupt_garbage(path: str) -> None:
    Path(path).write_bytes(b"\x00\xff\x9f" * 100)


def corrupt_nested(path: str) -> None:
    Path(path).write_text("[" * 200_000)


def corrupt_wrong_type(path: str) -> None:
    Path(path).write_text("[1, 2]")


def corrupt_future(path: str) -> None:
    document = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**document, "schema_version": 99}))


def corrupt_name(path: str) -> None:
    document = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**document, "name": "other"}))


def corrupt_owner(path: str) -> None:
    os.chown(path, 65534, 65534)


def corrupt_mode(path: str) -> None:
    os.chmod(path, 0o666)


def corrupt_symlink(path: str) -> None:
    os.rename(path, path + ".elsewhere")
    os.symlink(path + ".elsewhere", path)


def corrupt_fifo(path: str) -> None:
    os.unlink(path)
    os.mkfifo(path, 0o600)


def corrupt_folder(path: str) -> None:
    os.unlink(path)
    os.mkdir(path, 0o700)


def corrupt_gone(path: str) -> None:
    os.unlink(path)


DAMAGES = [
    (corrupt_nothing_left, "it is empty"),
    (corrupt_cut_off, "it is not JSON"),
    (corrupt_garbage, "it is not JSON"),
    (corrupt_nested, "it is not JSON"),
    (corrupt_wrong_type, "expected a JSON object"),
    (corrupt_future, "it has schema version 99"),
    (corrupt_name, "it is the record of 'other'"),
    pytest.param(
        corrupt_owner,
        "it belongs to user 65534, not to 0",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away"),
    ),
    (corrupt_mode, "it can be written by others"),
    (corrupt_symlink, "it is a symbolic link"),
    (corrupt_fifo, "it is not a plain file"),
    (corrupt_folder, "it is not a plain file"),
    (corrupt_gone, "it is missing, although its last good copy exists"),
]


def snapshot(folder: str) -> list[tuple[str, int, bytes | None]]:
    """Every file's name, mode and content."""
    found = []
    for name in file_names(folder):
        path = os.path.join(folder, name)
        plain = os.path.isfile(path) and not name.startswith(".")
        found.append((name, os.lstat(path).st_mode, Path(path).read_bytes() if plain else None))
    return found


class TestDamage:
    @pytest.mark.parametrize(("corrupt", "reason"), DAMAGES)
    def test_damaged_record_is_reported_and_not_changed(
        self, cluster_store: Store, corrupt: Callable[[str], None], reason: str
    ) -> None:
        corrupt(cluster_store.path)
        before = snapshot(cluster_store.directory)
        attempts: list[Callable[[], Any]] = [
            cluster_store.read,
            lambda: apply.cluster_present(cluster_store, REQUEST, "tester@here", check_mode=False),
            lambda: apply.members_present(cluster_store, [member_entry(3)], None, "tester@here", check_mode=False),
            lambda: apply.cluster_absent(cluster_store, None, False, "tester@here", check_mode=False),
        ]
        for attempt in attempts:
            with pytest.raises(DamagedRecordError) as caught:
                attempt()
            details = caught.value.details
            assert details["path"] == cluster_store.path
            assert reason in details["reason"]
            assert (details["last_good"], details["last_good_generation"]) == (cluster_store.good_path, 1)
            assert cluster_store.path in str(caught.value)
            assert caught.value.remedy
        assert snapshot(cluster_store.directory) == before

    def test_missing_good_copy_is_reported(self, cluster_store: Store) -> None:
        corrupt_garbage(cluster_store.path)
        corrupt_cut_off(cluster_store.good_path)
        with pytest.raises(DamagedRecordError, match="Last good copy: none on this host. .*a member's copy"):
            cluster_store.read()

    def test_damaged_record_does_not_hide_others(self, cluster_store: Store) -> None:
        apply.cluster_present(Store(cluster_store.directory, "other"), ANOTHER, "tester@here", check_mode=False)
        corrupt_gone(cluster_store.path)
        Path(cluster_store.directory, "Notes.json").write_text("{}")
        found = store.scan_directory(cluster_store.directory)
        assert [stored.record["name"] for stored in found.records] == ["other"]
        assert [os.path.basename(damage.path) for damage in found.damaged_records] == ["Notes.json", "lab.json"]
        assert found.damaged_records[1].last_good == cluster_store.good_path
        assert [damage.path for damage in store.scan_directory(cluster_store.directory, "lab").damaged_records] == [
            cluster_store.path
        ]

    def test_directory_writable_by_others_is_refused(self, cluster_store: Store) -> None:
        os.chmod(cluster_store.directory, 0o777)
        with pytest.raises(HostStateError, match="can be written by others.*chmod 0700"):
            cluster_store.read()

    def test_missing_directory_has_no_clusters(self, tmp_path: Path) -> None:
        assert store.scan_directory(str(tmp_path / "none")) == ([], [])

    def test_full_disk_keeps_the_old_record(self, cluster_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        before = snapshot(cluster_store.directory)

        def full(_handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(HostStateError, match="cannot be written: No space left on device"):
            apply.members_present(cluster_store, [member_entry(3)], None, "tester@here", check_mode=False)
        assert snapshot(cluster_store.directory) == before

    @pytest.mark.parametrize(("works", "there"), [(0, "old"), (1, "new"), (2, "new"), (3, "new")])
    def test_write_error_midway_leaves_the_reported_record(
        self, cluster_store: Store, monkeypatch: pytest.MonkeyPatch, works: int, there: str
    ) -> None:
        """Each file is synced, and after it the folder."""
        before, sync, left = cluster_store.read(), os.fsync, iter([True] * works)

        def failing(handle: int) -> None:
            if not next(left, False):
                raise OSError(5, "Input/output error")
            sync(handle)

        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(HostStateError, match=f"the {there} record is in place"):
            apply.members_present(cluster_store, [member_entry(3)], None, "tester@here", check_mode=False)
        assert (cluster_store.read() == before) == (there == "old")


class TestReplica:
    def test_copy_is_updated(self, cluster_store: Store, tmp_path: Path) -> None:
        copy = Store(str(tmp_path / "member" / "clusters"), "lab")
        record = cluster_store.read()
        assert apply.replace_copy(copy, record, False, "tester@here", check_mode=False).changes
        assert copy.read() == record
        assert not apply.replace_copy(copy, record, False, "tester@here", check_mode=False).changes
        newer = apply.members_present(cluster_store, [member_entry(3)], None, "tester@here", check_mode=False).after
        assert apply.replace_copy(copy, newer, False, "tester@here", check_mode=False).changes
        with pytest.raises(apply.ReplicaRefusedError, match="generation 2, while 1 was expected"):
            apply.replace_copy(copy, record, False, "tester@here", check_mode=False)
        assert copy.read() == newer
        apply.replace_copy(copy, record, True, "tester@here", check_mode=False)
        assert copy.read() == record

    def test_invalid_record_is_not_copied(self, cluster_store: Store) -> None:
        record = cluster_store.read()
        with pytest.raises(model.InvalidRecordError):
            apply.replace_copy(cluster_store, {"name": "lab"}, True, "tester@here", check_mode=False)
        assert cluster_store.read() == record


#: Runs in a separate process: one join, with everything imported before the first line of output.
CHILD = """
import os, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply, store
folder, number = sys.argv[1], int(sys.argv[2])
kept = store.Store(folder, "lab", 60.0)
member = {"machine": f"n{number}", "address": f"10.77.0.{number + 10}", "interface": "eth0"}
def work():
    apply.members_present(kept, [member], None, "child", check_mode=False)
"""

#: Ends the process without any cleanup, like kill -9, at the Nth system call of the write. A write is also split: the
#: first half reaches the file, then the process ends.
DIE = """
import builtins, fcntl, io
fatal, count = int(sys.argv[3]), 0
def step(name):
    global count
    count += 1
    if count == fatal:
        os._exit(77)
def dying(module, name):
    real = getattr(module, name)
    def call(*args, **kwargs):
        step(name)
        result = real(*args, **kwargs)
        step(name + " done")
        return result
    setattr(module, name, call)
for name in ("open", "close", "fsync", "fchmod", "replace", "unlink", "ftruncate", "pwrite", "mkdir", "stat", "listdir"):
    dying(os, name)
dying(fcntl, "flock")
real_fdopen = os.fdopen
class Halving:
    def __init__(self, stream):
        self.stream = stream
    def __enter__(self):
        return self
    def __exit__(self, *about):
        step("stream close")
        self.stream.close()
    def write(self, text):
        self.stream.write(text[: len(text) // 2])
        self.stream.flush()
        step("half written")
        self.stream.write(text[len(text) // 2 :])
    def __getattr__(self, name):
        return getattr(self.stream, name)
os.fdopen = lambda *args, **kwargs: Halving(real_fdopen(*args, **kwargs))
real_open = builtins.open
def halving_open(file, mode="r", *args, **kwargs):
    stream = real_open(file, mode, *args, **kwargs)
    return stream if mode.startswith("r") else Halving(stream)
builtins.open = halving_open
work()
print(count)
"""


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TestDeath:
    def test_killed_writer_leaves_the_old_or_the_new_record(self, cluster_store: Store) -> None:
        forked = """
            for fatal in range(1, 400):
                pid = os.fork()
                if pid == 0:
                    sys.argv[3] = str(fatal)
                    exec(DIE)
                    os._exit(0)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                found = store.scan_directory(folder)
                assert not found.damaged_records, (fatal, found.damaged_records)
                record = found.records[0].record
                machines = [member["machine"] for member in record["members"]]
                assert (record["generation"], machines) in ((1, ["n1", "n2"]), (2, ["n1", "n2", "n7"])), (fatal, record)
                print(fatal, status, record["generation"], flush=True)
                if record["generation"] == 2:
                    # Once more from the old record.
                    with kept.locked("test"):
                        kept.write(ORIGINAL)
                if status == 0:
                    break
                assert status == 77, status
        """
        code = CHILD + f"\nDIE = {DIE!r}\nsys.argv.append('0')\nORIGINAL = kept.read()\n" + textwrap.dedent(forked)
        process = child(code, cluster_store.directory, 7)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        steps = [line.split() for line in output.splitlines() if len(line.split()) == 3]
        generations = [int(generation) for _fatal, _status, generation in steps]
        # It died often, both before and after the moment in which the record changes, and finally succeeded.
        assert len(steps) > 30
        assert generations == sorted(generations)
        assert {1, 2} == set(generations)
        assert steps[-1][1] == "0"

    def test_remains_of_a_killed_writer_are_removed_and_its_lock_is_released(self, cluster_store: Store) -> None:
        Path(cluster_store.directory, ".lab.json.abc123").write_text("half a rec")
        Path(cluster_store.directory, ".other.json.abc123").write_text("not ours")
        apply.members_present(cluster_store, [member_entry(3)], None, "tester@here", check_mode=False)
        assert file_names(cluster_store.directory) == [".lab.lock", ".other.json.abc123", "lab.json", "lab.json.good"]

    @pytest.mark.skipif(shutil.which("strace") is None, reason="not checked: strace is not installed")
    def test_kill_9_at_every_system_call(self, cluster_store: Store, tmp_path: Path) -> None:
        """The kernel itself kills the process on entry to the Nth system call of the write.

        The calls are counted from the start of Python, so its compiled files are in a folder that no other test writes
        to, and are there before the first count.
        """
        original = cluster_store.read()
        assert original is not None
        calls = "openat,open,write,pwrite64,fsync,rename,renameat,fchmod,ftruncate,flock,close,unlink,fstat,lseek,read,getdents64"
        begin = "\nos.chdir(folder)\n"
        python = [sys.executable, "-X", f"pycache_prefix={tmp_path / 'compiled'}", "-c"]
        program = [*python, CHILD + begin + "work()\n", cluster_store.directory, "7"]
        subprocess.run(program, check=True)
        with cluster_store.locked("test"):
            cluster_store.write(original)
        counted = subprocess.run(
            ["strace", "-qq", "-e", f"trace={calls},chdir", *program],
            capture_output=True,
            text=True,
            check=True,
        )
        with cluster_store.locked("test"):
            cluster_store.write(original)
        traced = [line.partition("(")[0] for line in counted.stderr.splitlines()]
        start = traced.index("chdir")
        # The calls of the write itself; after the last output about the record, Python only exits.
        last = max(index for index, line in enumerate(counted.stderr.splitlines()) if "lab.json" in line)
        assert traced[start : last + 1].count("renameat") == 2
        generations = []
        for index in range(start + 1, last + 3):
            call = traced[index]
            nth = traced[: index + 1].count(call)
            done = subprocess.run(
                [
                    *["strace", "-qq", "-o", "/dev/null", "-e", f"trace={call}"],
                    *["-e", f"inject={call}:signal=KILL:when={nth}", *program],
                ],
                capture_output=True,
                check=False,
            )
            assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), (call, nth, done)
            found = store.scan_directory(cluster_store.directory)
            assert not found.damaged_records, (call, nth, found.damaged_records)
            record = found.records[0].record
            assert record == original or [m["machine"] for m in record["members"]] == ["n1", "n2", "n7"]
            generations.append(record["generation"])
            if record["generation"] == 2:
                with cluster_store.locked("test"):
                    cluster_store.write(original)
        assert set(generations) == {1, 2}


class TestLock:
    def test_lock_timeout_names_the_lock_owner(self, cluster_store: Store) -> None:
        said = f"alice@n1, process {os.getpid()}, since .*within 0.2 s"
        with cluster_store.locked("alice@n1"), pytest.raises(store.LockedRecordError, match=said), cluster_store.locked(
            "bob@n1"
        ):
            pass

    def test_lock_is_released_when_its_owner_is_killed(self, cluster_store: Store) -> None:
        holder = child(
            CHILD + "\nwith kept.locked('child'):\n    print('held', flush=True)\n    sys.stdin.read()\n",
            cluster_store.directory,
            7,
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(store.LockedRecordError, match=f"process {holder.pid}"), cluster_store.locked("tester"):
                pass
            holder.kill()
        with cluster_store.locked("tester"):
            pass

    def test_reading_does_not_wait_for_the_lock(self, cluster_store: Store) -> None:
        with cluster_store.locked("alice@n1"):
            assert cluster_store.read() is not None

    def test_symbolic_link_as_lock_is_refused(self, cluster_store: Store, tmp_path: Path) -> None:
        os.unlink(cluster_store.lock_path)
        os.symlink(tmp_path / "passwd", cluster_store.lock_path)
        with pytest.raises(GpumeshError, match="cannot be opened"), cluster_store.locked("tester"):
            pass
        assert not (tmp_path / "passwd").exists()

    @pytest.mark.parametrize("step", ["mkdir", "open"])
    def test_concurrently_deleted_directory_is_created_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        folder = tmp_path / "gpumesh" / "clusters"
        made = Store(str(folder), "lab")
        calls = 0
        original = getattr(os, step)

        def deleted_before(path: Any, *rest: Any, **named: Any) -> Any:
            nonlocal calls
            if str(path).startswith(str(folder)):
                calls += 1
                if calls == 1:
                    shutil.rmtree(folder.parent, ignore_errors=True)
            return original(path, *rest, **named)

        monkeypatch.setattr(os, step, deleted_before)
        with made.locked("tester"):
            assert calls > 1 and Path(made.lock_path).exists()

    def test_directory_deleted_during_makedirs_is_created_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        above = tmp_path / "gpumesh"
        above.mkdir()
        is_folder = os.path.isdir

        def deleted_before(path: Any) -> bool:
            if str(path) == str(above):
                monkeypatch.setattr(os.path, "isdir", is_folder)
                above.rmdir()
            return is_folder(path)

        monkeypatch.setattr(os.path, "isdir", deleted_before)
        made = Store(str(above / "clusters"), "lab")
        with made.locked("tester"):
            assert os.path.isdir is is_folder and Path(made.lock_path).exists()

    def test_file_in_place_of_the_parent_directory_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "gpumesh").write_text("")
        blocked = Store(str(tmp_path / "gpumesh" / "clusters"), "lab")
        with pytest.raises(HostStateError, match="cannot be created: File exists"), blocked.locked("tester"):
            pass

    def test_waiting_for_a_deleted_lock_starts_over(self, cluster_store: Store) -> None:
        """Concurrent deletions and creations: no process may hold a lock file that no longer exists."""
        turns = CHILD + (
            "\nfor turn in range(25):\n"
            "    if number % 2:\n"
            "        apply.cluster_absent(kept, None, False, 'child', False)\n"
            "    else:\n"
            "        request = apply.ClusterRequest('10.77.0.0/24', f'n{number}', members=[member])\n"
            "        try:\n"
            "            apply.cluster_present(kept, request, 'child', False)\n"
            "        except apply.InputError as refused:\n"
            "            assert 'has the manager' in str(refused), refused\n"
        )
        processes = [child(turns, cluster_store.directory, number) for number in range(1, 7)]
        for process in processes:
            _output, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
        assert not store.scan_directory(cluster_store.directory).damaged_records

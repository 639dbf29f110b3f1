# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The code of a run: a copy of a directory, made before the run is submitted, which all of its attempts use.

The copy contains files with their permissions and times, directories and links. A link within the directory becomes a
link within the copy; a link to somewhere outside keeps its target. Pipes, sockets and devices are excluded, and so are
the files of version control and Python's caches.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)

#: The name of the copy in the directory of the run.
SNAPSHOT_NAME = "code"
#: Names that are excluded everywhere.
EXCLUDED_NAMES = (".git", ".hg", ".svn", "__pycache__")
#: The default maximum size of a snapshot in MiB: it is code, not data.
DEFAULT_LIMIT_MIB = 256
_MIB = 1 << 20
#: The number of attempts to copy a file that changes meanwhile.
_COPY_ATTEMPTS = 3
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SnapshotEntry(NamedTuple):
    """An entry of the directory. ``path`` is relative to it; ``file_type`` is the file type in its mode."""

    path: str
    file_type: int
    size: int


def start_directory(source: str, directory: str, run_dir: str) -> str:
    """Return where the command starts: the counterpart of the current directory, or else the top of the snapshot."""
    root, current_dir = os.path.realpath(source), os.path.realpath(directory)
    snapshot_dir = f"{run_dir}/{SNAPSHOT_NAME}"
    is_inside = current_dir.startswith(root.rstrip("/") + "/")
    return f"{snapshot_dir}/{os.path.relpath(current_dir, root)}" if is_inside else snapshot_dir


def list_entries(root: str, excluded: Sequence[str] = ()) -> Iterator[SnapshotEntry]:
    """Yield everything that a copy contains, directories before their content. ``excluded``: real paths.

    Files that disappear meanwhile, such as an editor's temporary files, are skipped. Raises HostStateError.
    """
    try:
        with os.scandir(root) as entries:
            sorted_entries = sorted(entries, key=lambda entry: entry.name)
    except OSError as failure:
        raise _unreadable(root, failure) from failure
    for entry in sorted_entries:
        if entry.name in EXCLUDED_NAMES or entry.path in excluded:
            continue
        try:
            entry_stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        file_type = stat.S_IFMT(entry_stat.st_mode)
        if file_type not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            continue
        yield SnapshotEntry(entry.name, file_type, entry_stat.st_size if file_type == stat.S_IFREG else 0)
        if file_type == stat.S_IFDIR:
            for nested_entry in list_entries(entry.path, excluded):
                yield nested_entry._replace(path=f"{entry.name}/{nested_entry.path}")


def check_source(
    source: str, command: Sequence[str], directory: str, limit_mib: int, excluded: Sequence[str] = ()
) -> None:
    """Raise InputError if the source is not a directory, is too large, or lacks the command."""
    root = os.path.realpath(source)
    if not os.path.isdir(root):
        raise InputError(f"{source} is not a directory.", "Set --code to the directory of the code.")
    size_by_name: Dict[str, int] = {}
    for entry in list_entries(root, excluded):
        top_name = entry.path.partition("/")[0]
        size_by_name[top_name] = size_by_name.get(top_name, 0) + entry.size
    total_size = sum(size_by_name.values())
    if total_size > limit_mib * _MIB:
        largest_names = sorted(size_by_name, key=lambda name: -size_by_name[name])[:3]
        size_summary = ", ".join(f"{name} {size_by_name[name] / _MIB:.0f} MiB" for name in largest_names)
        raise InputError(
            f"{source} has {total_size / _MIB:.0f} MiB, more than the limit of {limit_mib} MiB for code ({size_summary}).",
            "Keep data elsewhere, or allow more with --code-limit MIB.",
        )
    program = command[0] if command else ""
    if "/" in program and not program.startswith("/"):
        start_dir = start_directory(source, directory, "")[len(SNAPSHOT_NAME) + 2 :]
        if not os.access(os.path.join(root, start_dir, program), os.X_OK):
            raise InputError(
                f"{source} has no command {program}.",
                "Give its path relative to the directory in which the command starts.",
            )


def create_snapshot(source: str, run_dir: str, limit_mib: int, excluded: Sequence[str] = ()) -> None:
    """Create the copy, which gets its name only when it is complete. Raises GpumeshError."""
    root = os.path.realpath(source)
    draft_dir = f"{run_dir}/.{SNAPSHOT_NAME}.{secrets.token_hex(4)}"
    bytes_left = limit_mib * _MIB
    directory_modes: List[Tuple[str, int]] = []
    try:
        os.mkdir(draft_dir)
        for entry in list_entries(root, excluded):
            original_path, copy_path = f"{root}/{entry.path}", f"{draft_dir}/{entry.path}"
            try:
                if entry.file_type == stat.S_IFDIR:
                    directory_modes.append((copy_path, stat.S_IMODE(os.lstat(original_path).st_mode) & 0o777 | 0o700))
                    os.mkdir(copy_path, 0o700)
                elif entry.file_type == stat.S_IFLNK:
                    os.symlink(target_in_copy(root, entry.path, os.readlink(original_path)), copy_path)
                else:
                    bytes_left -= _copy_file(original_path, copy_path, bytes_left)
            except FileNotFoundError:
                # The file has disappeared meanwhile. A removed run directory is noticed below.
                continue
        # Modes are set last, since nothing can be created in a directory without write permission.
        for path, mode in reversed(directory_modes):
            if os.path.isdir(path):
                os.chmod(path, mode)
        os.rename(draft_dir, f"{run_dir}/{SNAPSHOT_NAME}")
    except OSError as failure:
        raise HostStateError(
            f"{source} cannot be copied to {run_dir}: {failure.strerror} ({failure.filename}).",
            "Make it readable, and make sure that the shared volume has free space.",
        ) from failure
    finally:
        shutil.rmtree(draft_dir, ignore_errors=True)


def target_in_copy(root: str, link_path: str, target: str) -> str:
    """Return the target, in the copy, of a link at ``link_path`` below ``root``."""
    link_dir = os.path.dirname(os.path.join(root, link_path))
    absolute_target = os.path.normpath(os.path.join(link_dir, target))
    if absolute_target == root or absolute_target.startswith(root.rstrip("/") + "/"):
        return os.path.relpath(absolute_target, link_dir)
    return absolute_target


def _copy_file(original_path: str, copy_path: str, max_size: int) -> int:
    """Copy a file. Returns its size. Raises OSError, InputError and HostStateError."""
    source_fd = os.open(original_path, _READ_FLAGS)
    try:
        for _try in range(_COPY_ATTEMPTS):
            stat_before = os.fstat(source_fd)
            if not stat.S_ISREG(stat_before.st_mode):
                raise FileNotFoundError(original_path)
            if stat_before.st_size > max_size:
                raise InputError(
                    f"{original_path} has grown in the meantime.", "Keep data out of the directory of the code."
                )
            os.lseek(source_fd, 0, os.SEEK_SET)
            with os.fdopen(os.open(copy_path, _WRITE_FLAGS, 0o600), "wb") as stream:
                for chunk in iter(lambda: os.read(source_fd, _MIB), b""):
                    stream.write(chunk)
                stream.flush()
                os.fchmod(stream.fileno(), stat.S_IMODE(stat_before.st_mode) & 0o777 | 0o600)
                os.utime(stream.fileno(), ns=(stat_before.st_mtime_ns, stat_before.st_mtime_ns))
                os.fsync(stream.fileno())
                size = stream.tell()
            stat_after = os.fstat(source_fd)
            if (stat_before.st_size, stat_before.st_mtime_ns) == (
                stat_after.st_size,
                stat_after.st_mtime_ns,
            ) and size == stat_before.st_size:
                return size
            os.unlink(copy_path)
    finally:
        os.close(source_fd)
    raise HostStateError(
        f"{original_path} keeps changing.", "Wait until nothing writes to it, and start the run again."
    )


def git_commit(run_command: Runner, source: str) -> str:
    """The commit of the directory in git, with ``-dirty`` if files differ from it; empty without git."""
    try:
        completed = run_command(
            ["git", "-C", os.path.realpath(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            timeout=20.0,
            check=False,
        )
    except CommandError:
        return ""
    return "" if completed.rc else completed.stdout.strip()


def _unreadable(path: str, failure: OSError) -> HostStateError:
    return HostStateError(
        f"{path} cannot be read: {failure.strerror}.", "Make it readable, or set --code to another directory."
    )


def excluded_paths(run_dir: str) -> List[str]:
    """Return what a snapshot never contains: the directory of the runs, which may be inside that of the code."""
    runs_dir = os.path.realpath(os.path.dirname(run_dir))
    return [runs_dir, f"{runs_dir}/{os.path.basename(run_dir)}"]

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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError, InputError

#: The name of the copy in the directory of the run.
NAME = "code"
#: Names that are excluded everywhere.
LEFT_OUT = (".git", ".hg", ".svn", "__pycache__")
#: The default maximum size of a snapshot in MiB: it is code, not data.
LIMIT = 256
_MIB = 1 << 20
#: How often a file that changes meanwhile is copied again.
_TRIES = 3
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Found(NamedTuple):
    """An entry of the directory. ``path`` is relative to it; ``kind`` is the file type in its mode."""

    path: str
    kind: int
    size: int


def start_directory(source: str, directory: str, folder: str) -> str:
    """Where the command starts: the counterpart of the user's current directory, or else the top of the snapshot."""
    root, here = os.path.realpath(source), os.path.realpath(directory)
    top = f"{folder}/{NAME}"
    inside = here.startswith(root.rstrip("/") + "/")
    return f"{top}/{os.path.relpath(here, root)}" if inside else top


def listed(root: str, without: Sequence[str] = ()) -> Iterator[Found]:
    """Everything that a copy contains, directories before their content. ``without``: real paths that are excluded.

    Files that disappear meanwhile, such as an editor's temporary files, are skipped. Raises HostStateError.
    """
    try:
        with os.scandir(root) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as failure:
        raise _unreadable(root, failure) from failure
    for entry in found:
        if entry.name in LEFT_OUT or entry.path in without:
            continue
        try:
            about = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        kind = stat.S_IFMT(about.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            continue
        yield Found(entry.name, kind, about.st_size if kind == stat.S_IFREG else 0)
        if kind == stat.S_IFDIR:
            for below in listed(entry.path, without):
                yield below._replace(path=f"{entry.name}/{below.path}")


def check(source: str, command: Sequence[str], directory: str, limit: int, without: Sequence[str] = ()) -> None:
    """Raises InputError if the source is not a directory, is too large, or lacks the command."""
    root = os.path.realpath(source)
    if not os.path.isdir(root):
        raise InputError(f"{source} is not a directory.", "Set --code to the directory of the code.")
    sizes: Dict[str, int] = {}
    for found in listed(root, without):
        top = found.path.partition("/")[0]
        sizes[top] = sizes.get(top, 0) + found.size
    total = sum(sizes.values())
    if total > limit * _MIB:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} {sizes[name] / _MIB:.0f} MiB" for name in largest)
        raise InputError(
            f"{source} has {total / _MIB:.0f} MiB, more than the limit of {limit} MiB for code ({named}).",
            "Keep data elsewhere, or allow more with --code-limit MIB.",
        )
    program = command[0] if command else ""
    if "/" in program and not program.startswith("/"):
        here = start_directory(source, directory, "")[len(NAME) + 2 :]
        if not os.access(os.path.join(root, here, program), os.X_OK):
            raise InputError(
                f"{source} has no command {program}.",
                "Give its path relative to the directory in which the command starts.",
            )


def take(source: str, folder: str, limit: int, without: Sequence[str] = ()) -> None:
    """Create the copy. It gets its name only when it is complete. Raises GpumeshError."""
    root = os.path.realpath(source)
    draft = f"{folder}/.{NAME}.{secrets.token_hex(4)}"
    left = limit * _MIB
    modes: List[Tuple[str, int]] = []
    try:
        os.mkdir(draft)
        for found in listed(root, without):
            original, copy = f"{root}/{found.path}", f"{draft}/{found.path}"
            try:
                if found.kind == stat.S_IFDIR:
                    modes.append((copy, stat.S_IMODE(os.lstat(original).st_mode) & 0o777 | 0o700))
                    os.mkdir(copy, 0o700)
                elif found.kind == stat.S_IFLNK:
                    os.symlink(link_target(root, found.path, os.readlink(original)), copy)
                else:
                    left -= _copy(original, copy, left)
            except FileNotFoundError:
                # It has disappeared meanwhile. If the run's own directory was removed, that is noticed below.
                continue
        # Last, since nothing can be created in a directory without write permission.
        for path, mode in reversed(modes):
            if os.path.isdir(path):
                os.chmod(path, mode)
        os.rename(draft, f"{folder}/{NAME}")
    except OSError as failure:
        raise HostStateError(
            f"{source} cannot be copied to {folder}: {failure.strerror} ({failure.filename}).",
            "Make it readable, and make sure that the shared volume has free space.",
        ) from failure
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def link_target(root: str, path: str, target: str) -> str:
    """The target in the copy of a link at ``path`` below ``root``."""
    place = os.path.dirname(os.path.join(root, path))
    absolute = os.path.normpath(os.path.join(place, target))
    if absolute == root or absolute.startswith(root.rstrip("/") + "/"):
        return os.path.relpath(absolute, place)
    return absolute


def _copy(original: str, copy: str, most: int) -> int:
    """Copy a file. Returns its size. Raises OSError, InputError and HostStateError."""
    source = os.open(original, _READ)
    try:
        for _try in range(_TRIES):
            before = os.fstat(source)
            if not stat.S_ISREG(before.st_mode):
                raise FileNotFoundError(original)
            if before.st_size > most:
                raise InputError(
                    f"{original} has grown in the meantime.", "Keep data out of the directory of the code."
                )
            os.lseek(source, 0, os.SEEK_SET)
            with os.fdopen(os.open(copy, _WRITE, 0o600), "wb") as stream:
                for part in iter(lambda: os.read(source, _MIB), b""):
                    stream.write(part)
                stream.flush()
                os.fchmod(stream.fileno(), stat.S_IMODE(before.st_mode) & 0o777 | 0o600)
                os.utime(stream.fileno(), ns=(before.st_mtime_ns, before.st_mtime_ns))
                os.fsync(stream.fileno())
                size = stream.tell()
            after = os.fstat(source)
            if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns) and size == before.st_size:
                return size
            os.unlink(copy)
    finally:
        os.close(source)
    raise HostStateError(f"{original} keeps changing.", "Wait until nothing writes to it, and start the run again.")


def commit(run: Runner, source: str) -> str:
    """The commit of the directory in git, with ``-dirty`` if files differ from it; empty without git."""
    try:
        done = run(
            ["git", "-C", os.path.realpath(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            timeout=20.0,
            check=False,
        )
    except CommandError:
        return ""
    return "" if done.rc else done.stdout.strip()


def _unreadable(path: str, failure: OSError) -> HostStateError:
    return HostStateError(
        f"{path} cannot be read: {failure.strerror}.", "Make it readable, or set --code to another directory."
    )


def without(folder: str) -> List[str]:
    """What a snapshot never contains: the directory of the runs, if it is inside that of the code."""
    base = os.path.realpath(os.path.dirname(folder))
    return [base, f"{base}/{os.path.basename(folder)}"]

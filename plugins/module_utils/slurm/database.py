# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
r"""The accounting of slurmdbd as an SQL file: saved on one manager, loaded on the next.

A file from another machine has content that its root chose, and a MariaDB client does more than send SQL: ``\!`` runs a
shell, and ``source`` reads files. So the client accepts no commands (``--binary-mode``, and ``--sandbox`` if it
supports that), reads no files for the server, and runs as slurmdbd's account, which MariaDB allows to use only this
database.
"""

from __future__ import annotations

import os
import stat
import subprocess
from typing import List, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import acting_as, command_as

#: Seconds. Years of jobs amount to millions of rows.
_PATIENCE = 3600.0


class Database(NamedTuple):
    """The database. ``user`` is the account in the system and in MariaDB, which logs in through the socket."""

    name: str
    socket: str
    user: str


def is_there(path: str) -> bool:
    """Whether there is a file to load."""
    return os.path.lexists(path)


def save(database: Database, path: str) -> None:
    """Write the accounting to a file that only its account can read. Raises CommandError with the tool's message."""
    argv = [
        *_tool("mariadb-dump", "mysqldump", database),
        # The account has access only to its own tables.
        "--no-tablespaces",
        "--single-transaction",
        database.name,
    ]
    with acting_as(database.user):
        remove_file(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as stream:
        _run(database.user, argv, subprocess.DEVNULL, stream.fileno())


def load(database: Database, path: str) -> None:
    """Load the file into the database and delete it.

    Raises CommandError with the server's message, and keeps the file.
    """
    argv = [
        *_tool("mariadb", "mysql", database),
        "--batch",
        "--binary-mode",
        # Older clients do not know this option, and continue without it.
        "--loose-sandbox",
        "--local-infile=0",
        database.name,
    ]
    with acting_as(database.user):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as failure:
            raise HostStateError(f"{path} cannot be opened: {failure.strerror}.", "Delete it.") from failure
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise HostStateError(f"{path} is not a plain file.", "Delete it.")
        _run(database.user, argv, stream.fileno(), subprocess.DEVNULL)
    with acting_as(database.user):
        remove_file(path)


def _tool(name: str, former_name: str, database: Database) -> List[str]:
    tool = name if find(name) else former_name
    # Without option files, which may name other commands and other servers.
    return [tool, "--no-defaults", "--protocol=socket", f"--socket={database.socket}", f"--user={database.user}"]


def _run(user: str, argv: List[str], stdin: int, stdout: int) -> None:
    program = find(argv[0])
    if program is None:
        raise CommandError(argv, "cannot be run: the program is not installed", remedy="Install MariaDB's client.")
    with Process(
        command_as(user, [program, *argv[1:]]),
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/nonexistent"},
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            said = process.communicate(timeout=_PATIENCE)[1]
        except subprocess.TimeoutExpired as expired:
            raise CommandError(argv, f"did not end within {_PATIENCE:g} s") from expired
        finally:
            process.kill()
    if process.returncode != 0:
        raise CommandError(argv, f"exited {process.returncode}", rc=process.returncode, stderr=complaint(said))


def complaint(said: str) -> str:
    """The tool's own message, without the statement that it repeats, and with only printable characters."""
    lines = [line for line in said.splitlines() if "ERROR" in line or "error:" in line] or said.splitlines()
    return "".join(letter if letter.isprintable() else "?" for letter in "; ".join(lines)[-400:])

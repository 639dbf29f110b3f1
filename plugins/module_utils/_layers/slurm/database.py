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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import ChildProcess, Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import acting_as, command_as

#: Where slurmdbd stores the accounting, and MariaDB this database.
DATABASE_NAME = "slurm_acct_db"
DATABASE_DIRECTORY = f"/var/lib/mysql/{DATABASE_NAME}"
#: The time limit in seconds. Years of jobs amount to millions of rows.
_CLIENT_TIMEOUT = 3600.0
#: MariaDB's ER_NONEXISTING_GRANT: the account does not exist.
_NO_SUCH_GRANT = 1141


class AccountingDatabase(NamedTuple):
    """The database. ``user`` is the account in the system and in MariaDB, which logs in through the socket."""

    name: str
    socket_path: str
    user: str


def dump_exists(path: str) -> bool:
    """Whether there is a dump to load."""
    return os.path.lexists(path)


def account_lacks_rights(run: Runner, database: AccountingDatabase) -> bool:
    """Whether the account is missing, or may not use its whole database. False if the server does not tell root."""
    arguments = _client_arguments("mariadb", "mysql", database._replace(user="root"))
    query = f"--execute=SHOW GRANTS FOR '{database.user}'@'localhost'"
    completed = run([*arguments, "--batch", "--skip-column-names", query], check=False)
    if completed.rc != 0:
        return f"ERROR {_NO_SUCH_GRANT} " in completed.stderr
    # The name is quoted as the server is set up, and is a pattern, in which some tools escape the underscores.
    grants = completed.stdout.translate(str.maketrans("", "", '`"\\'))
    return not any(f"GRANT ALL PRIVILEGES ON {scope}.* " in grants for scope in (database.name, "*"))


def save_dump(database: AccountingDatabase, dump_path: str) -> None:
    """Write the accounting to a file that only its account can read. Raises CommandError with the tool's message."""
    dump_command = [
        *_client_arguments("mariadb-dump", "mysqldump", database),
        # The account has access only to its own tables.
        "--no-tablespaces",
        "--single-transaction",
        database.name,
    ]
    with acting_as(database.user):
        remove_file(dump_path)
        descriptor = os.open(dump_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as stream:
        _run_client(database.user, dump_command, subprocess.DEVNULL, stream.fileno())


def load_dump(database: AccountingDatabase, dump_path: str) -> None:
    """Load the file into the database and delete it.

    Raises CommandError with the server's message, and keeps the file.
    """
    load_command = [
        *_client_arguments("mariadb", "mysql", database),
        "--batch",
        "--binary-mode",
        # Older clients do not know this option, and continue without it.
        "--loose-sandbox",
        "--local-infile=0",
        database.name,
    ]
    with acting_as(database.user):
        try:
            descriptor = os.open(dump_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as failure:
            raise HostStateError(f"{dump_path} cannot be opened: {failure.strerror}.", "Delete it.") from failure
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise HostStateError(f"{dump_path} is not a plain file.", "Delete it.")
        _run_client(database.user, load_command, stream.fileno(), subprocess.DEVNULL)
    with acting_as(database.user):
        remove_file(dump_path)


def _client_arguments(name: str, former_name: str, database: AccountingDatabase) -> List[str]:
    tool = name if find_program(name) else former_name
    # Option files are not read, since they may name other commands and other servers.
    return [tool, "--no-defaults", "--protocol=socket", f"--socket={database.socket_path}", f"--user={database.user}"]


def _run_client(user: str, argv: List[str], input_descriptor: int, output_descriptor: int) -> None:
    program_path = find_program(argv[0])
    if program_path is None:
        raise CommandError(argv, "cannot be run: the program is not installed", remedy="Install MariaDB's client.")
    with ChildProcess(
        command_as(user, [program_path, *argv[1:]]),
        stdin=input_descriptor,
        stdout=output_descriptor,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/nonexistent"},
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            error_output = process.communicate(timeout=_CLIENT_TIMEOUT)[1]
        except subprocess.TimeoutExpired as expired:
            raise CommandError(argv, f"did not end within {_CLIENT_TIMEOUT:g} s") from expired
        finally:
            process.kill()
    if process.returncode != 0:
        raise CommandError(
            argv, f"exited {process.returncode}", rc=process.returncode, stderr=extract_error(error_output)
        )


def extract_error(error_output: str) -> str:
    """Extract the tool's own message, without the statement that it repeats, in printable characters."""
    lines = [
        line for line in error_output.splitlines() if "ERROR" in line or "error:" in line
    ] or error_output.splitlines()
    return "".join(letter if letter.isprintable() else "?" for letter in "; ".join(lines)[-400:])

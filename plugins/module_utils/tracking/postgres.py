# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's PostgreSQL on this host: the database of the tracking server is created, migrated, saved and loaded.

Statements that need the rights of PostgreSQL's own account are run by ``psql`` as that account. A dump comes from
another machine: it is loaded with the rights of the server's account, which has access to this one database only.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import acting_as, command_as
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking.settings import ACCOUNT, SOCKETS

#: Seconds. Years of runs are millions of points.
_PATIENCE = 3600.0
_OWNER = "postgres"
#: The database into which a dump is loaded. It gets its name only when it is complete.
_NEW = f"{ACCOUNT}_new"
_DROP = 'DROP DATABASE IF EXISTS :"name" WITH (FORCE);'
#: A database with sessions cannot be renamed.
_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname IN (:'account', :'name');"
_CHUNK = 1 << 20
#: The tables in which MLflow stores the versions of its schema and of that of its users.
VERSIONS = ("alembic_version", "alembic_version_auth")


class Cluster(NamedTuple):
    """A PostgreSQL cluster, in Debian's sense."""

    version: str
    name: str
    port: int
    data: str
    #: Such as ``online``, ``online,recovery`` or ``down,binaries_missing``.
    status: str = "online"

    @property
    def online(self) -> bool:
        """Whether it is running."""
        return self.status.startswith("online")

    @property
    def socket(self) -> str:
        """The socket on which it listens."""
        return f"{SOCKETS}/.s.PGSQL.{self.port}"

    @property
    def unit(self) -> str:
        """The unit of systemd, without its suffix."""
        return f"postgresql@{self.version}-{self.name}"

    @property
    def command(self) -> str:
        """The command that runs it in the foreground."""
        settings = f"/etc/postgresql/{self.version}/{self.name}/postgresql.conf"
        return f"/usr/lib/postgresql/{self.version}/bin/postgres -D {self.data} -c config_file={settings}"


def parse_clusters(text: str) -> List[Cluster]:
    """The output of `pg_lsclusters --no-header`.

    ``17  main    5432 online postgres /var/lib/postgresql/17/main /var/log/postgresql/postgresql-17-main.log``
    """
    rows = [line.split() for line in text.splitlines()]
    return [Cluster(row[0], row[1], int(row[2]), row[5], row[3]) for row in rows if len(row) >= 6 and row[2].isdigit()]


def find_cluster(run: Runner, port: Optional[int]) -> Cluster:
    """The cluster ``main`` with the database; the newest one if none has it. Raises HostStateError.

    An upgrade of Debian leaves the old cluster, with the database, and adds an empty one of the new version.

    ``port``: that of the database in the server's configuration; None if there is no server yet.
    """
    found = [one for one in parse_clusters(run(["pg_lsclusters", "--no-header"]).stdout) if one.name == "main"]
    if not found:
        raise HostStateError(
            "PostgreSQL is installed, but has no cluster 'main'.", "Make one with pg_createcluster VERSION main."
        )
    found.sort(key=lambda one: [int(part) for part in one.version.split(".")], reverse=True)
    configured = [one for one in found if one.port == port]
    if len(found) == 1:
        return found[0]
    if configured and configured[0].online:
        return configured[0]
    if configured:
        version = configured[0].version
        raise HostStateError(
            f"PostgreSQL {version}, which has the database of the experiments, is down, and PostgreSQL "
            f"{found[0].version} is installed as well.",
            f"Start it with pg_ctlcluster {version} main start, or upgrade it as the manual of pg_upgradecluster says.",
        )
    having = [one for one in found if one.online and exists(run, one)]
    if port is not None and not having:
        raise HostStateError(
            f"The database of the experiments was in PostgreSQL on port {port}, and no running cluster has it.",
            "Start the cluster that has it with pg_ctlcluster VERSION main start; see pg_lsclusters.",
        )
    return (having or found)[0]


def parse_offered(text: str) -> str:
    """The major version in the output of `apt-cache policy postgresql`, as of Debian's ``15+248+deb12u1``.

    Empty if it offers none.
    """
    found = re.search(r"^ *Candidate: (\d+)\+", text, re.MULTILINE)
    return found[1] if found else ""


def version(run: Runner, port: Optional[int]) -> str:
    """The version of the cluster with the database, or of the PostgreSQL that would be installed; empty if unknown."""
    if find("pg_lsclusters"):
        return find_cluster(run, port).version
    return parse_offered(run(["apt-cache", "policy", "postgresql"]).stdout) if find("apt-cache") else ""


def sql(
    run: Runner, cluster: Cluster, statements: str, user: str = _OWNER, database: str = "postgres", **names: str
) -> List[str]:
    """The rows of the statements, which are passed on standard input. Raises CommandError with PostgreSQL's message.

    ``names``: the values of :'NAME' and :"NAME" in the statements, besides ``account``.
    """
    argv = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
    argv += [f"--set={name}={value}" for name, value in {"account": ACCOUNT, **names}.items()]
    argv += [f"--host={SOCKETS}", f"--port={cluster.port}", f"--dbname={database}"]
    return run(command_as(user, argv), stdin=statements, timeout=_PATIENCE).stdout.splitlines()


def exists(run: Runner, cluster: Cluster, name: str = ACCOUNT) -> bool:
    """Whether the database exists."""
    return sql(run, cluster, "SELECT 1 FROM pg_database WHERE datname = :'name';", name=name) == ["1"]


def identity(run: Runner, cluster: Cluster) -> str:
    """What no other database has, such as one that is made from a dump of this one."""
    query = "SELECT system_identifier || '-' || oid FROM pg_control_system(), pg_database WHERE datname = :'account';"
    return "".join(sql(run, cluster, query))


def create(run: Runner, cluster: Cluster, name: str = ACCOUNT) -> None:
    """Create the account and the database if they are missing."""
    if not sql(run, cluster, "SELECT 1 FROM pg_roles WHERE rolname = :'account';"):
        sql(run, cluster, 'CREATE ROLE :"account" LOGIN;')
    if not exists(run, cluster, name):
        statement = 'CREATE DATABASE :"name" OWNER :"account" ENCODING \'UTF8\' TEMPLATE template0;'
        sql(run, cluster, statement, name=name)
    sql(run, cluster, 'REVOKE CONNECT ON DATABASE :"name" FROM PUBLIC;', name=name)


def put_aside(run: Runner, cluster: Cluster) -> str:
    """Rename the database, which another server has taken over. Returns its new name; empty if there is none."""
    sql(run, cluster, _DROP, name=_NEW)
    if not exists(run, cluster):
        return ""
    kept = _dated("moved")
    sql(run, cluster, f'{_END_SESSIONS}\nALTER DATABASE :"account" RENAME TO :"kept";', name=ACCOUNT, kept=kept)
    return kept


def _dated(word: str) -> str:
    """The name of a database that is kept, with the time at which another one has replaced it."""
    return f"{ACCOUNT}_{word}_{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}"


def versions(run: Runner, cluster: Cluster, name: str = ACCOUNT) -> Dict[str, str]:
    """The versions of the schemas, by table; none if MLflow has not used the database yet."""
    found = {}
    for table in VERSIONS:
        known = sql(run, cluster, "SELECT to_regclass('public.' || :'table');", ACCOUNT, name, table=table)
        if known == [table]:
            rows = sql(run, cluster, 'SELECT version_num FROM :"table";', ACCOUNT, name, table=table)
            found[table] = ",".join(rows)
    return found


def digest(path: str) -> str:
    """The SHA-256 of a dump. Raises HostStateError."""
    found = hashlib.sha256()
    try:
        with acting_as(ACCOUNT), open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            for chunk in iter(lambda: stream.read(_CHUNK), b""):
                found.update(chunk)
    except OSError as failure:
        raise HostStateError(f"{path} cannot be read: {failure.strerror}.", "See the volume.") from failure
    return found.hexdigest()


def save(run: Runner, cluster: Cluster, path: str, note: Callable[[str], None]) -> None:
    """Write the database to a file that only its account can read. It gets its name only when it is complete.

    ``note`` records the digest of the file before that.
    """
    draft = f"{path}.{secrets.token_hex(4)}"
    argv = ["pg_dump", "--format=custom", f"--host={SOCKETS}", f"--port={cluster.port}", f"--file={draft}", ACCOUNT]
    try:
        with acting_as(ACCOUNT):
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        run(command_as(ACCOUNT, argv), timeout=_PATIENCE)
        with acting_as(ACCOUNT):
            descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        note(digest(draft))
        with acting_as(ACCOUNT):
            os.replace(draft, path)
    except OSError as failure:
        raise HostStateError(f"{path} cannot be written: {failure.strerror}.", "See the volume.") from failure
    finally:
        remove(draft)


def load(run: Runner, cluster: Cluster, path: str, accept: Callable[[str], None], stop: Callable[[], None]) -> str:
    """Replace the database by the content of the file, which discard() deletes. Raises HostStateError.

    The file may be incomplete, and the database that it replaces may be the only one with its runs. So it is loaded
    into a new database first, whose name ``accept`` gets and may refuse, ``stop`` stops the server only then, and the
    replaced database is renamed. Returns the new name; empty if there was none.
    """
    mark = _mark(path)
    if _comment(run, cluster) == mark:
        return ""
    _load_new(run, cluster, path)
    try:
        accept(_NEW)
    except HostStateError:
        sql(run, cluster, _DROP, name=_NEW)
        raise
    sql(run, cluster, "COMMENT ON DATABASE :\"name\" IS :'mark';", name=_NEW, mark=mark)
    stop()
    return _put_in_place(run, cluster)


def discard(run: Runner, cluster: Cluster, path: str) -> None:
    """Delete a file whose content the database has."""
    remove(path)
    sql(run, cluster, 'COMMENT ON DATABASE :"account" IS NULL;')


def _mark(path: str) -> str:
    """Identifies the file. As the database's comment, it shows that only the deletion of the file was interrupted."""
    with acting_as(ACCOUNT):
        found = os.lstat(path)
    return f"dump {found.st_size} {found.st_ctime_ns}"


def _comment(run: Runner, cluster: Cluster) -> str:
    found = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = :'account';"
    return "\n".join(sql(run, cluster, found))


def _load_new(run: Runner, cluster: Cluster, path: str) -> None:
    sql(run, cluster, _DROP, name=_NEW)
    create(run, cluster, _NEW)
    argv = ["pg_restore", "--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    argv += [f"--host={SOCKETS}", f"--port={cluster.port}", f"--dbname={_NEW}", path]
    try:
        run(command_as(ACCOUNT, argv), timeout=_PATIENCE)
    except CommandError as failure:
        sql(run, cluster, _DROP, name=_NEW)
        remedy = "Replace it by a complete dump"
        if "unsupported version" in failure.message:
            remedy = "Choose a server whose PostgreSQL is as new as that of the dump"
        if exists(run, cluster):
            remedy += ", or remove it to keep the database of this machine, which is unchanged"
        raise HostStateError(
            f"{path} cannot be loaded into PostgreSQL {cluster.version}: {failure.message}", f"{remedy}."
        ) from failure


def _put_in_place(run: Runner, cluster: Cluster) -> str:
    """Rename the present database and the new one, in one transaction. Returns the present one's new name."""
    kept = _dated("before") if exists(run, cluster) else ""
    statements = [
        _END_SESSIONS,
        "BEGIN;",
        *(['ALTER DATABASE :"account" RENAME TO :"kept";'] if kept else []),
        'ALTER DATABASE :"name" RENAME TO :"account";',
        "COMMIT;",
    ]
    sql(run, cluster, "\n".join(statements), name=_NEW, kept=kept)
    return kept


def is_there(path: str) -> bool:
    """Whether there is a dump."""
    with acting_as(ACCOUNT):
        return os.path.lexists(path)


def remove(path: str) -> None:
    """Delete a dump, with the rights of its account."""
    with acting_as(ACCOUNT):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def reason(failure: CommandError) -> Optional[str]:
    """The explanation if PostgreSQL rejects the account; None for another failure."""
    if "Peer authentication failed" in failure.message or "no pg_hba.conf entry" in failure.message:
        return "Let local accounts log in by their own names: 'local all all peer' in pg_hba.conf."
    return None

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's PostgreSQL on this host: create, save, load and rename the database of the tracking server.

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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import acting_as, command_as
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking.settings import ACCOUNT, SOCKETS

#: The timeout, in seconds, of a command. Years of runs are millions of points.
_COMMAND_TIMEOUT = 3600.0
_SUPERUSER = "postgres"
#: The database into which a dump is loaded. The complete database is renamed.
_NEW_DATABASE = f"{ACCOUNT}_new"
_DROP_DATABASE = 'DROP DATABASE IF EXISTS :"name" WITH (FORCE);'
#: A database with sessions cannot be renamed.
_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname IN (:'account', :'name');"
_CHUNK_SIZE = 1 << 20
#: The tables in which MLflow stores the versions of its schema and of that of its users.
VERSION_TABLES = ("alembic_version", "alembic_version_auth")


class PostgresCluster(NamedTuple):
    """A PostgreSQL cluster, in Debian's sense."""

    version: str
    name: str
    port: int
    data_directory: str
    #: The state, such as ``online``, ``online,recovery`` or ``down,binaries_missing``.
    status: str = "online"

    @property
    def is_online(self) -> bool:
        """Return whether the cluster is running."""
        return self.status.startswith("online")

    @property
    def socket_path(self) -> str:
        """Return the path of the socket on which the cluster listens."""
        return f"{SOCKETS}/.s.PGSQL.{self.port}"

    @property
    def unit_name(self) -> str:
        """Return the name of the unit of systemd, without its suffix."""
        return f"postgresql@{self.version}-{self.name}"

    @property
    def start_command(self) -> str:
        """Return the command that runs the cluster in the foreground."""
        config_file = f"/etc/postgresql/{self.version}/{self.name}/postgresql.conf"
        return f"/usr/lib/postgresql/{self.version}/bin/postgres -D {self.data_directory} -c config_file={config_file}"


def parse_clusters(text: str) -> List[PostgresCluster]:
    """Parse the output of `pg_lsclusters --no-header`.

    ``17  main    5432 online postgres /var/lib/postgresql/17/main /var/log/postgresql/postgresql-17-main.log``
    """
    cluster_rows = [line.split() for line in text.splitlines()]
    return [
        PostgresCluster(row[0], row[1], int(row[2]), row[5], row[3])
        for row in cluster_rows
        if len(row) >= 6 and row[2].isdigit()
    ]


def find_cluster(run: Runner, configured_port: Optional[int]) -> PostgresCluster:
    """Return the cluster ``main`` with the database; the newest one if none has it. Raises HostStateError.

    An upgrade of Debian leaves the old cluster, with the database, and adds an empty one of the new version.

    ``configured_port``: the port of the database in the server's configuration; None if there is no server yet.
    """
    main_clusters = [
        cluster for cluster in parse_clusters(run(["pg_lsclusters", "--no-header"]).stdout) if cluster.name == "main"
    ]
    if not main_clusters:
        raise HostStateError(
            "PostgreSQL is installed, but has no cluster 'main'.", "Create one with pg_createcluster VERSION main."
        )
    main_clusters.sort(
        key=lambda cluster: [int(version_part) for version_part in cluster.version.split(".")], reverse=True
    )
    configured = [cluster for cluster in main_clusters if cluster.port == configured_port]
    if len(main_clusters) == 1:
        return main_clusters[0]
    if configured and configured[0].is_online:
        return configured[0]
    if configured:
        version = configured[0].version
        raise HostStateError(
            f"PostgreSQL {version}, which has the database of the experiments, is down, and PostgreSQL "
            f"{main_clusters[0].version} is installed as well.",
            f"Start it with pg_ctlcluster {version} main start, or upgrade it as the manual of pg_upgradecluster says.",
        )
    clusters_with_database = [
        cluster for cluster in main_clusters if cluster.is_online and database_exists(run, cluster)
    ]
    if configured_port is not None and not clusters_with_database:
        raise HostStateError(
            f"The database of the experiments was in PostgreSQL on port {configured_port}, and no running cluster has it.",
            "Start the cluster that has it with pg_ctlcluster VERSION main start; see pg_lsclusters.",
        )
    return (clusters_with_database or main_clusters)[0]


def parse_candidate(policy_output: str) -> str:
    """Parse the major version in the output of `apt-cache policy postgresql`, such as 15 in ``15+248+deb12u1``.

    The result is empty if the output offers none.
    """
    match = re.search(r"^ *Candidate: (\d+)\+", policy_output, re.MULTILINE)
    return match[1] if match else ""


def postgresql_version(run: Runner, configured_port: Optional[int]) -> str:
    """Return the version of the cluster with the database, or of the PostgreSQL to be installed; empty if unknown."""
    if find_program("pg_lsclusters"):
        return find_cluster(run, configured_port).version
    return parse_candidate(run(["apt-cache", "policy", "postgresql"]).stdout) if find_program("apt-cache") else ""


def run_sql(
    run: Runner,
    cluster: PostgresCluster,
    statements: str,
    user_name: str = _SUPERUSER,
    database: str = "postgres",
    **sql_variables: str,
) -> List[str]:
    """Run statements, which are passed on standard input. Returns their rows. Raises CommandError with psql's message.

    ``sql_variables``: the values of :'NAME' and :"NAME" in the statements, besides ``account``.
    """
    psql_command = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
    psql_command += [f"--set={variable}={text}" for variable, text in {"account": ACCOUNT, **sql_variables}.items()]
    psql_command += [f"--host={SOCKETS}", f"--port={cluster.port}", f"--dbname={database}"]
    return run(command_as(user_name, psql_command), stdin=statements, timeout=_COMMAND_TIMEOUT).stdout.splitlines()


def database_exists(run: Runner, cluster: PostgresCluster, database_name: str = ACCOUNT) -> bool:
    """Return whether the database exists."""
    return run_sql(run, cluster, "SELECT 1 FROM pg_database WHERE datname = :'name';", name=database_name) == ["1"]


def database_identity(run: Runner, cluster: PostgresCluster) -> str:
    """Return an identity that no other database has, not even one that was loaded from a dump of this one."""
    query = "SELECT system_identifier || '-' || oid FROM pg_control_system(), pg_database WHERE datname = :'account';"
    return "".join(run_sql(run, cluster, query))


def create_database(run: Runner, cluster: PostgresCluster, database_name: str = ACCOUNT) -> None:
    """Create the account and the database if they are missing."""
    if not run_sql(run, cluster, "SELECT 1 FROM pg_roles WHERE rolname = :'account';"):
        run_sql(run, cluster, 'CREATE ROLE :"account" LOGIN;')
    if not database_exists(run, cluster, database_name):
        statement = 'CREATE DATABASE :"name" OWNER :"account" ENCODING \'UTF8\' TEMPLATE template0;'
        run_sql(run, cluster, statement, name=database_name)
    run_sql(run, cluster, 'REVOKE CONNECT ON DATABASE :"name" FROM PUBLIC;', name=database_name)


def set_aside_database(run: Runner, cluster: PostgresCluster) -> str:
    """Rename the database, which another server has taken over. Returns its new name; empty if there is none."""
    run_sql(run, cluster, _DROP_DATABASE, name=_NEW_DATABASE)
    if not database_exists(run, cluster):
        return ""
    kept_name = _dated_name("moved")
    run_sql(
        run, cluster, f'{_END_SESSIONS}\nALTER DATABASE :"account" RENAME TO :"kept";', name=ACCOUNT, kept=kept_name
    )
    return kept_name


def _dated_name(label: str) -> str:
    """Return the name for a database that is kept, with the time at which another one has replaced it."""
    return f"{ACCOUNT}_{label}_{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}"


def schema_versions(run: Runner, cluster: PostgresCluster, database_name: str = ACCOUNT) -> Dict[str, str]:
    """Return the versions of the schemas, by table; none if MLflow has not used the database yet."""
    versions_by_table = {}
    for table in VERSION_TABLES:
        table_names = run_sql(
            run, cluster, "SELECT to_regclass('public.' || :'table');", ACCOUNT, database_name, table=table
        )
        if table_names == [table]:
            version_rows = run_sql(
                run, cluster, 'SELECT version_num FROM :"table";', ACCOUNT, database_name, table=table
            )
            versions_by_table[table] = ",".join(version_rows)
    return versions_by_table


def dump_digest(dump_path: str) -> str:
    """Return the SHA-256 of a dump. Raises HostStateError."""
    sha256 = hashlib.sha256()
    try:
        with acting_as(ACCOUNT), open(os.open(dump_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            for chunk in iter(lambda: stream.read(_CHUNK_SIZE), b""):
                sha256.update(chunk)
    except OSError as failure:
        raise HostStateError(
            f"{dump_path} cannot be read: {failure.strerror}.",
            "Check that its volume is mounted, and who owns the file.",
        ) from failure
    return sha256.hexdigest()


def save_database(run: Runner, cluster: PostgresCluster, dump_path: str, note_digest: Callable[[str], None]) -> None:
    """Write the database to a file that only its account can read. The file gets its name when it is complete.

    ``note_digest`` records the digest of the file before that.
    """
    draft_path = f"{dump_path}.{secrets.token_hex(4)}"
    dump_command = [
        "pg_dump",
        "--format=custom",
        f"--host={SOCKETS}",
        f"--port={cluster.port}",
        f"--file={draft_path}",
        ACCOUNT,
    ]
    try:
        with acting_as(ACCOUNT):
            os.close(os.open(draft_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        run(command_as(ACCOUNT, dump_command), timeout=_COMMAND_TIMEOUT)
        with acting_as(ACCOUNT):
            draft_descriptor = os.open(draft_path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(draft_descriptor)
            finally:
                os.close(draft_descriptor)
        note_digest(dump_digest(draft_path))
        with acting_as(ACCOUNT):
            os.replace(draft_path, dump_path)
    except OSError as failure:
        raise HostStateError(
            f"{dump_path} cannot be written: {failure.strerror}.",
            "Check that its volume is mounted and has free space.",
        ) from failure
    finally:
        remove_dump(draft_path)


def load_dump(
    run: Runner,
    cluster: PostgresCluster,
    dump_path: str,
    check_database: Callable[[str], None],
    stop_server: Callable[[], None],
) -> str:
    """Replace the database by the content of the file, which discard_dump() deletes. Raises HostStateError.

    The file may be incomplete, and the database that it replaces may be the only one with its runs. So the file is
    loaded into a new database first, which ``check_database`` may refuse by its name. Only then ``stop_server`` stops
    the server, and the replaced database is renamed. Returns the name that it now has; empty if there was none.
    """
    file_mark = _file_mark(dump_path)
    if _database_comment(run, cluster) == file_mark:
        return ""
    _load_new_database(run, cluster, dump_path)
    try:
        check_database(_NEW_DATABASE)
    except HostStateError:
        run_sql(run, cluster, _DROP_DATABASE, name=_NEW_DATABASE)
        raise
    run_sql(run, cluster, "COMMENT ON DATABASE :\"name\" IS :'mark';", name=_NEW_DATABASE, mark=file_mark)
    stop_server()
    return _swap_databases(run, cluster)


def discard_dump(run: Runner, cluster: PostgresCluster, dump_path: str) -> None:
    """Delete a file whose content the database has."""
    remove_dump(dump_path)
    run_sql(run, cluster, 'COMMENT ON DATABASE :"account" IS NULL;')


def _file_mark(path: str) -> str:
    """Return a mark that identifies the file. As the database's comment, it shows that the file has been loaded."""
    with acting_as(ACCOUNT):
        status = os.lstat(path)
    return f"dump {status.st_size} {status.st_ctime_ns}"


def _database_comment(run: Runner, cluster: PostgresCluster) -> str:
    query = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = :'account';"
    return "\n".join(run_sql(run, cluster, query))


def _load_new_database(run: Runner, cluster: PostgresCluster, dump_path: str) -> None:
    run_sql(run, cluster, _DROP_DATABASE, name=_NEW_DATABASE)
    create_database(run, cluster, _NEW_DATABASE)
    restore_command = ["pg_restore", "--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    restore_command += [f"--host={SOCKETS}", f"--port={cluster.port}", f"--dbname={_NEW_DATABASE}", dump_path]
    try:
        run(command_as(ACCOUNT, restore_command), timeout=_COMMAND_TIMEOUT)
    except CommandError as failure:
        run_sql(run, cluster, _DROP_DATABASE, name=_NEW_DATABASE)
        remedy = "Replace it by a complete dump"
        if "unsupported version" in failure.message:
            remedy = "Choose a server whose PostgreSQL is as new as that of the dump"
        if database_exists(run, cluster):
            remedy += ", or remove it to keep the database of this machine, which is unchanged"
        raise HostStateError(
            f"{dump_path} cannot be loaded into PostgreSQL {cluster.version}: {failure.message}", f"{remedy}."
        ) from failure


def _swap_databases(run: Runner, cluster: PostgresCluster) -> str:
    """Rename the current database and the new one, in one transaction. Returns the new name of the current one."""
    kept_name = _dated_name("before") if database_exists(run, cluster) else ""
    statements = [
        _END_SESSIONS,
        "BEGIN;",
        *(['ALTER DATABASE :"account" RENAME TO :"kept";'] if kept_name else []),
        'ALTER DATABASE :"name" RENAME TO :"account";',
        "COMMIT;",
    ]
    run_sql(run, cluster, "\n".join(statements), name=_NEW_DATABASE, kept=kept_name)
    return kept_name


def dump_exists(path: str) -> bool:
    """Return whether a dump exists."""
    with acting_as(ACCOUNT):
        return os.path.lexists(path)


def remove_dump(path: str) -> None:
    """Delete a dump, with the rights of its account."""
    with acting_as(ACCOUNT):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def rejection_reason(failure: CommandError) -> Optional[str]:
    """Return the remedy if PostgreSQL rejects the account; None for another failure."""
    if "Peer authentication failed" in failure.message or "no pg_hba.conf entry" in failure.message:
        return "Let local accounts log in by their own names: 'local all all peer' in pg_hba.conf."
    return None

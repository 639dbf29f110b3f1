# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tracking server on its host: its current state, its desired state, and the steps between them.

It can be interrupted anywhere and run again with the same result: an environment counts when it is complete, a database
from another member is kept as a file until it has been loaded, and the schema is compared before each start.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import inspect
import json
import os
import pwd
import secrets
import shutil
import stat
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import daemon, host_files, own_certificate
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import (
    read_text,
    remove_empty,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import Differences
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import (
    account,
    acting_as,
    command_as,
    make_account,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import store
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DEFAULT_FOLDER
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import (
    confine,
    environment,
    move,
    postgres,
    settings,
    users,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking.settings import Server

#: Seconds until the server answers. It takes 10 on an idle machine, and minutes on a busy one.
_READY = 600.0
_MIGRATION = 3600.0
_LONGEST_NOTE = 200
_RECORDS = DEFAULT_FOLDER
#: Owners of a folder on a volume that may become the account when it is used: root, and nobody, to which a volume may
#: map an account that this host does not have yet.
_UNCERTAIN = (0, 65534)
STILL_HERE = "the server is still here"


class Request(NamedTuple):
    """The desired state of this host.

    ``users``, ``certificate``, ``key`` and ``trust`` are None to keep the current ones.
    """

    server: Server
    serves: bool
    requirements: str
    users: Optional[Sequence[Mapping[str, Any]]]
    certificate: Optional[str]
    key: Optional[str]
    trust: Optional[str]
    places: daemon.Places


class Done(NamedTuple):
    """Descriptions of the changes, and the daemons that were restarted."""

    words: List[str]
    restarted: List[str]


def is_here() -> bool:
    """Whether this host has a tracking server of this collection."""
    return os.path.lexists(settings.PROGRAM) or os.path.lexists(settings.AUTHENTICATION)


def other_cluster(request: Request) -> str:
    """The other cluster of this host whose server is here; empty if there is none.

    The server's program names it. A cluster that has no record here any more counts as gone.
    """
    named = settings.cluster_of(read_text(settings.PROGRAM) or "")
    if named in ("", request.server.cluster):
        return ""
    return named if store.Store(_RECORDS, named).exists() else ""


def is_ours(request: Request) -> bool:
    """Whether this host has a tracking server that does not belong to another cluster."""
    return is_here() and not other_cluster(request)


def leftover(request: Request) -> bool:
    """Whether this host has remains of a server that should not run here, or no longer does."""
    return not request.serves and (is_ours(request) or (not request.server.tls and bool(_trusted(request))))


def _trusted(request: Request) -> List[str]:
    """The existing files with certificates that nobody needs once this cluster does not.

    The file of earlier versions may be that of any cluster of this host.
    """
    own = settings.trust_of(request.server.cluster)
    found = [own] if os.path.lexists(own) else []
    if os.path.lexists(settings.SHARED_TRUST) and not _other_records(request):
        found.append(settings.SHARED_TRUST)
    return found


def _other_records(request: Request) -> bool:
    """Whether this host is in another cluster as well."""
    found = store.scan(_RECORDS)
    names = [*(one.record["name"] for one in found.records), *found.unreadable]
    return any(name != request.server.cluster for name in names)


# --- Before anything changes


def refuse_account(uid: int) -> None:
    """Refuse a UID or GID that another account has here. Raises HostStateError."""
    ids = {"user": _number(pwd.getpwnam, 2), "group": _number(grp.getgrnam, 2)}
    names = {"user": _number(pwd.getpwuid, 0, uid), "group": _number(grp.getgrgid, 0, uid)}
    for kind, has in ids.items():
        if has is not None and has != uid:
            raise HostStateError(
                f"The {kind} {settings.ACCOUNT} has the number {has} on this host, not {uid}.",
                f"Set tracking_uid={has}, or give it the number {uid}.",
                uid=uid,
            )
        if names[kind] not in (None, settings.ACCOUNT):
            raise HostStateError(
                f"The number {uid} for the {kind} {settings.ACCOUNT} belongs to '{names[kind]}' on this host.",
                "Set tracking_uid to a number that is free on every member that may run the server.",
                uid=uid,
            )


def _number(find_entry: Callable[[Any], Sequence[Any]], field: int, key: Any = settings.ACCOUNT) -> Any:
    """A field of an entry of the users or the groups; None if there is no such entry."""
    try:
        return find_entry(key)[field]
    except KeyError:
        return None


def missing() -> List[str]:
    """The Debian packages that have to be installed first."""
    found = [] if find("pg_lsclusters") else ["postgresql"]
    if daemon.supervisord_missing(daemon.service_manager(Tree())):
        found.append("supervisor")
    return found


def refuse_server(request: Request) -> None:
    """Refuse invalid requests before anything changes. Raises GpumeshError."""
    server = request.server
    other = other_cluster(request)
    if other:
        raise HostStateError(
            f"This host runs the tracking server of cluster '{other}', and can run only one. Cluster "
            f"'{server.cluster}' would replace it, so nothing was changed.",
            f"Set tracking_server to another member of '{server.cluster}', or move the server of '{other}' first.",
            cluster=other,
        )
    if not server.unconfined and not confine.version():
        raise HostStateError(
            "The kernel of this host has no Landlock, or does not allow it here, so the tracking server could not be confined "
            "to its artifacts: a fault in MLflow would open all that its account can read and write.",
            "Choose another tracking_server, with Linux 5.13 or newer and Landlock among its security modules, or set "
            "tracking_unconfined=true.",
        )
    refuse_account(server.uid)
    if not os.path.isdir(server.mount_point):
        raise HostStateError(
            f"{server.mount_point}, where the artifacts belong, does not exist on this host.",
            "Run the playbook storage first.",
        )
    _refuse_folder(server)
    if server.tls and not server.own_certificate:
        for given, path, option in (
            (request.certificate, settings.CERTIFICATE, "tracking_certificate_file"),
            (request.key, settings.KEY, "tracking_key_file"),
        ):
            if given is None and not os.path.lexists(path):
                raise InputError(
                    f"The tracking server has TLS, and there is no {path} on this host.", f"Set {option} once more."
                )


def _refuse_folder(server: Server) -> None:
    """Refuse the folder on the volume if it belongs to an account with another number. Raises HostStateError."""
    try:
        owner = os.lstat(server.folder).st_uid
    except OSError:
        return
    if owner in (server.uid, *_UNCERTAIN):
        return
    raise HostStateError(
        f"{server.folder} belongs to user {owner}, and {settings.ACCOUNT} has the number {server.uid} on this host.",
        f"If a server with another number has made it, set tracking_uid={owner} for all members, or give it with its "
        f"contents to user {server.uid}. Otherwise, move it away.",
        uid=server.uid,
    )


def postgresql(run: Runner, request: Request) -> str:
    """The version of PostgreSQL of a member that has, or should have, the server; empty if unknown.

    A database can only be transferred to the same version, or a newer one.
    """
    return postgres.version(run, database_port()) if request.serves or is_here() else ""


def refuse_member(request: Request) -> None:
    """Refuse invalid requests for any member before anything changes. Raises GpumeshError."""
    if request.server.tls and not request.server.own_certificate and _trust(request) is None:
        path = settings.trust_of(request.server.cluster)
        raise InputError(
            f"The tracking server has TLS, and there is no {path} on this host.",
            "Set tracking_certificate_file, or tracking_ca_file, once more.",
        )


# --- The parts


def certificates(run: Runner, request: Request) -> Optional[List[str]]:
    """Make or renew the certificate of this host's server. Returns those that clients have to trust; None for another host.

    Raises GpumeshError.
    """
    if not request.serves or not request.server.own_certificate:
        return None
    refuse_server(request)
    return own_certificate.settle(run, request.server.identity)


def make_folders(server: Server) -> bool:
    """Create missing directories: the home, and as the account, those on the volume. Raises HostStateError."""
    entry = account(settings.ACCOUNT)
    made = _make_home(entry)
    try:
        made = _make_on_volume(server.mount_point, os.path.basename(server.folder), entry) or made
        with acting_as(settings.ACCOUNT):
            made = _make(server.artifacts, None) or made
    except OSError as failure:
        raise HostStateError(
            f"{server.folder} cannot be made: {failure.strerror}.",
            f"Make it on the volume's server, with mode 0700 for the user and the group {entry.pw_uid}.",
        ) from failure
    return made


def _make_home(entry: pwd.struct_passwd) -> bool:
    """Create the home, and the directory in it that the server can write to. Returns whether anything was changed.

    An earlier version has given it the home.
    """
    os.makedirs(os.path.dirname(settings.HOME), mode=0o755, exist_ok=True)
    changed = False
    for path, mode, owner in ((settings.HOME, 0o755, (0, 0)), (settings.SCRATCH, 0o700, (entry.pw_uid, entry.pw_gid))):
        made = _make(path, None)
        about = os.lstat(path)
        if not stat.S_ISDIR(about.st_mode):
            raise HostStateError(f"{path} is not a directory.", "Move it away, and run again.")
        if made or (about.st_uid, about.st_gid) != owner or stat.S_IMODE(about.st_mode) != mode:
            os.chown(path, *owner, follow_symlinks=False)
            os.chmod(path, mode)
            changed = True
    return changed


def _make_on_volume(mount_point: str, name: str, entry: pwd.struct_passwd) -> bool:
    """Create the folder on the volume as the account if possible, otherwise as root. Returns whether it was created.

    Root may not even be able to read it on a volume that squashes root, so it is only opened as a path.
    """
    held = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(os.path.realpath(mount_point), held)
    try:
        with acting_as(settings.ACCOUNT):
            try:
                made = _make(name, folder)
            except PermissionError:
                made = False
        with contextlib.suppress(FileExistsError):
            if not made:
                made = _make(name, folder)
        inner = os.open(name, held, dir_fd=folder)
        try:
            if made and os.fstat(inner).st_uid == 0:
                os.chown(f"/proc/self/fd/{inner}", entry.pw_uid, entry.pw_gid)
            if os.fstat(inner).st_uid != entry.pw_uid:
                raise HostStateError(
                    f"{mount_point}/{name} does not belong to {settings.ACCOUNT}.", "Move it away, and run again."
                )
        finally:
            os.close(inner)
    finally:
        os.close(folder)
    return made


def _make(path: str, folder: Optional[int]) -> bool:
    """Create a directory. Returns whether it was missing."""
    try:
        os.mkdir(path, 0o700, dir_fd=folder)
    except FileExistsError:
        return False
    return True


class Secret(NamedTuple):
    """A file that only the server's account can read, or only root."""

    path: str
    text: str
    owner: str = settings.ACCOUNT


def secret_files(request: Request, port: int) -> List[Secret]:
    """The files to write, whose content is never shown."""
    checker = read_text(settings.CHECKER_PASSWORD)
    # In earlier versions, the server could read the password of the check there.
    unused = _authentication("admin_password") if checker else None
    account_files: Dict[str, Optional[str]] = {
        **{
            path: None if os.path.lexists(path) else secrets.token_urlsafe(48)
            for path in (settings.SECRET, settings.PASSPHRASE)
        },
        settings.AUTHENTICATION: settings.authentication(port, unused or secrets.token_urlsafe(24)),
    }
    if request.server.tls:
        account_files.update({request.server.certificate: request.certificate, request.server.key: request.key})
    wanted = [(path, text, settings.ACCOUNT) for path, text in account_files.items()]
    wanted.append((settings.CHECKER_PASSWORD, None if checker else secrets.token_urlsafe(24), "root"))
    found = []
    for path, text, owner in wanted:
        present = read_text(path)
        right = present if text is None else text
        if right is not None and (present != right or not _is_private(path, owner)):
            found.append(Secret(path, right, owner))
    return found


def _is_private(path: str, owner: str) -> bool:
    """Whether the account owns the file, if it exists already, and only the owner can read it."""
    about, number = os.stat(path), _number(pwd.getpwnam, 2, owner)
    return number in (None, about.st_uid) and not about.st_mode & 0o077


def checker_password() -> Optional[str]:
    """The password of the account with which the check writes its run; None if there is no server."""
    return read_text(settings.CHECKER_PASSWORD) or None


def database_port() -> Optional[int]:
    """The port of the PostgreSQL cluster that has the database; None if there is no server."""
    return settings.port_of(_authentication("database_uri") or "")


def _cluster(run: Runner) -> postgres.Cluster:
    """The PostgreSQL cluster that has the database, or gets it. Raises HostStateError."""
    return postgres.find_cluster(run, database_port())


def _authentication(option: str) -> Optional[str]:
    """An option of MLflow's authentication file."""
    for line in (read_text(settings.AUTHENTICATION) or "").splitlines():
        name, _equals, value = line.partition("=")
        if name.strip() == option:
            return value.strip()
    return None


def write_secrets(files: Sequence[Secret]) -> None:
    """Write them, readable only by their owner."""
    for one in files:
        entry = account(one.owner)
        write_atomic(one.path, one.text or "", mode=0o600, owner=(entry.pw_uid, entry.pw_gid))


def trust_files(request: Request) -> List[Secret]:
    """The files to write with the certificates against which this member verifies the server.

    Everybody can read them. An earlier version wrote a private key there if the given file had one.
    """
    if not request.server.tls:
        return []
    wanted = {settings.trust_of(request.server.cluster): _trust(request)}
    shared = read_text(settings.SHARED_TRUST)
    if shared is not None and "PRIVATE KEY" in shared:
        wanted[settings.SHARED_TRUST] = own_certificate.certificates_in(shared)
    return [Secret(path, text) for path, text in wanted.items() if text is not None and read_text(path) != text]


def _trust(request: Request) -> Optional[str]:
    """The certificates that are given, or that the member has already, such as from an earlier version.

    Those that the server has made for itself are always given, from the record.
    """
    if request.server.own_certificate:
        return request.trust
    texts = (request.trust, read_text(settings.trust_of(request.server.cluster)), read_text(settings.SHARED_TRUST))
    return next((own_certificate.certificates_in(text) for text in texts if text), None)


def daemons(
    server: Server, cluster: postgres.Cluster, systemd: bool, programs: Sequence[str] = ()
) -> List[Tuple[Any, Any]]:
    """PostgreSQL and MLflow, each with the conditions under which it is ready.

    ``programs``: files of the environment that MLflow reads at its start.
    """
    database = daemon.Daemon(
        cluster.unit if systemd else "postgresql",
        "started",
        cluster.command,
        "",
        "postgres",
        [settings.SOCKETS],
        {},
    )
    hidden = [settings.AUTHENTICATION, settings.SECRET, settings.PASSPHRASE]
    reads = [settings.PROGRAM, settings.CONFINE, *hidden, *programs]
    reads += [server.certificate, server.key] if server.tls else []
    mlflow = mlflow_daemon("restarted" if is_remounted(server) else "started")._replace(
        reads=[*reads, settings.UNIT] if systemd else reads
    )
    return [
        (database, daemon.Ready(cluster.socket, None, None)),
        (mlflow, daemon.Ready(None, server.address, server.port)),
    ]


def is_remounted(server: Server) -> bool:
    """Whether a directory of the server is another one than at its start, to which the kernel denies it the access.

    Its volume has been mounted again. The account can write to the note, so it is read with its rights.
    """
    try:
        with acting_as(settings.ACCOUNT):
            note = os.open(settings.ALLOWED, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                noted = os.read(note, _LONGEST_NOTE).decode("ascii", "replace")
            finally:
                os.close(note)
            return noted != confine.directories(settings.writable(server))
    except (OSError, HostStateError):
        return False


def mlflow_daemon(state: str) -> daemon.Daemon:
    """MLflow alone."""
    return daemon.Daemon(settings.SERVICE, state, settings.PROGRAM, "", settings.ACCOUNT, [], {})


# --- All of it


def look(run: Runner, request: Request) -> List[str]:
    """Describe the differences, without changing anything."""
    words = [host_files.in_words(one.path) for one in trust_files(request)]
    if request.serves and not request.server.tls:
        words += [f"{path} is no longer needed" for path in _trusted(request)]
    if request.serves and (other := other_cluster(request)):
        return [*words, f"the server of cluster '{other}' is here"]
    if not request.serves:
        return words + ([STILL_HERE] if leftover(request) else [])
    lacking = missing()
    if lacking or not environment.can_make(run):
        return [*words, f"lacks {', '.join(lacking or ['python3-venv'])}"]
    systemd = daemon.service_manager(Tree()) == daemon.SYSTEMD
    cluster = _cluster(run)
    python = environment.python_version(run)
    folder = settings.environment_of(request.requirements, python)
    if environment.facts(folder) is None:
        words.append(f"{folder} is missing")
    if _number(pwd.getpwnam, 2) is not None and postgres.is_there(request.server.dump):
        words.append(f"{request.server.dump} is to be loaded")
    words += host_files.differences(settings.files(request.server, folder, python, cluster.port, systemd)).words
    words += [host_files.in_words(one.path) for one in secret_files(request, cluster.port)]
    database, mlflow = daemons(request.server, cluster, systemd, list(settings.plugin(folder, python)))
    # systemd does not know a unit that has not been written yet, which is reported above.
    known = not systemd or os.path.lexists(settings.UNIT)
    for wanted, _ready in (database, mlflow) if known else (database,):
        if daemon.make_plan(run, _manager(systemd), wanted, request.places).changed:
            words.append(f"{wanted.name} does not run as it should")
    return words


def differences(run: Runner, params: Mapping[str, Any]) -> Differences:
    """The same for the playbook show, from the module's parameters."""
    request = requested(params)
    words = look(run, request)
    return Differences(words, bool(words) and request.serves and not is_here())


def requested(params: Mapping[str, Any]) -> Request:
    """The request in the parameters of the module tracking."""
    given = {name: params.get(name) for name in ("serves", "requirements", "users", "certificate", "key", "trust")}
    places = daemon.Places.given(params) if "supervisor_config" in params else daemon.Places()
    return Request(server=Server.given(params), places=places, **given)  # type: ignore[arg-type]


def apply(run: Runner, request: Request) -> Done:
    """Apply the desired state. Raises GpumeshError."""
    done = Done([], [])
    for path in _trusted(request) if request.serves and not request.server.tls else []:
        remove_file(path)
        done.words.append(f"{path} removed")
    for trust in trust_files(request):
        os.makedirs(os.path.dirname(trust.path), mode=0o755, exist_ok=True)
        write_atomic(trust.path, trust.text or "", mode=0o644)
        done.words.append(f"{trust.path} written")
    if request.serves:
        _serve(run, request, done)
    return done


def install(run: Runner, request: Request) -> bool:
    """Install MLflow. Returns whether it was missing. Raises GpumeshError."""
    python = environment.python_version(run)
    missing_before = environment.facts(settings.environment_of(request.requirements, python)) is None
    environment.build(run, request.requirements, python)
    return missing_before


def _serve(run: Runner, request: Request, done: Done) -> None:
    server, words = request.server, done.words
    systemd = daemon.service_manager(Tree()) == daemon.SYSTEMD
    cluster = _cluster(run)
    if install(run, request):
        words.append("MLflow installed")
    python = environment.python_version(run)
    folder = settings.environment_of(request.requirements, python)
    heads = environment.facts(folder) or {}
    if make_account(run, settings.ACCOUNT, settings.HOME, server.uid):
        words.append(f"account {settings.ACCOUNT} made")
    if make_folders(server):
        words.append(f"{server.folder} made")
    if cluster.online and postgres.exists(run, cluster):
        _refuse_newer(run, folder, heads, _versions(run, cluster))
    words += [
        f"{step.path} written"
        for step in host_files.see_to(settings.files(server, folder, python, cluster.port, systemd), False)
    ]
    hidden = secret_files(request, cluster.port)
    write_secrets(hidden)
    words += [f"{one.path} written" for one in hidden]
    database, mlflow = daemons(server, cluster, systemd, list(settings.plugin(folder, python)))
    _run_daemon(run, request, systemd, database, done)
    _prepare(run, request, systemd, cluster, folder, heads, words)
    # The account of the check as well, since the database may come from a member where it had another password. Before
    # MLflow starts: it would make that account with a password that the server can read.
    own = {"name": settings.CHECKER, "password": checker_password(), "administrator": True}
    words += settle_users(run, folder, cluster, [own, *(request.users or [])])
    _run_daemon(run, request, systemd, mlflow, done)
    for path in environment.others(folder):
        shutil.rmtree(path)
        words.append(f"{path} removed")


def _manager(systemd: bool) -> str:
    return daemon.SYSTEMD if systemd else daemon.SUPERVISORD


def _run_daemon(run: Runner, request: Request, systemd: bool, wanted: Tuple[Any, Any], done: Done) -> None:
    one, ready = wanted
    plan = daemon.bring_about(run, _manager(systemd), one, request.places, ready, _READY, False)
    if plan.changed:
        done.words.append(f"{one.name} {'restarted' if plan.restarts else 'started'}")
    if plan.restarts:
        done.restarted.append(one.name)


def _stop(run: Runner, request: Request, systemd: bool) -> None:
    """Stop MLflow, also at boot: nothing may be written to a database that is being transferred."""
    plan = mlflow_daemon("absent")
    daemon.bring_about(run, _manager(systemd), plan, request.places, daemon.Ready(None, None, None), _READY, False)


def _prepare(
    run: Runner,
    request: Request,
    systemd: bool,
    cluster: postgres.Cluster,
    folder: str,
    heads: Mapping[str, str],
    words: List[str],
) -> None:
    """Prepare the database: the transferred one, a new one, or the current one, with the schema of this MLflow."""
    words += _settle_database(
        run,
        request.server,
        cluster,
        lambda name: _refuse_newer(run, folder, heads, _versions(run, cluster, name)),
        lambda: _stop(run, request, systemd),
    )
    known = _versions(run, cluster)
    if not known or all(heads.get(table) == version for table, version in known.items()):
        return
    _refuse_newer(run, folder, heads, known)
    _stop(run, request, systemd)
    url = settings.database_url(cluster.port)
    for argv in (["-m", "mlflow", "db", "upgrade", url], ["-m", "mlflow.server.auth", "db", "upgrade", f"--url={url}"]):
        command = command_as(settings.ACCOUNT, [f"{folder}/bin/python", *argv])
        run(command, timeout=_MIGRATION, environment=_variables())
    words.append("schema migrated")


def _settle_database(
    run: Runner,
    server: Server,
    cluster: postgres.Cluster,
    accept: Callable[[str], None],
    stop: Callable[[], None],
) -> List[str]:
    """Load the dump on the volume, or make a database if there is none. Returns descriptions of the changes."""
    saved, moves = move.mark(), move.listed(server.moves)
    # First, since it says that another server has the database, and from now on no other member has what is in it.
    remove_file(settings.MOVED)
    pending = move.pending(moves)
    if postgres.is_there(server.dump):
        digest = postgres.digest(server.dump)
        if saved is not None and saved.digest == digest and postgres.exists(run, cluster):
            # The move of this very database has failed. It has not been used since.
            move.write_list(server.moves, [one for one in moves if one is not pending])
            postgres.remove(server.dump)
            return []
        kept = postgres.load(run, cluster, server.dump, accept, stop)
        if moves:
            move.write_list(server.moves, move.completed(moves, digest, server.machine))
        postgres.discard(run, cluster, server.dump)
        return [f"database loaded, the previous one is kept as {kept}" if kept else "database loaded"]
    if pending is not None:
        if pending.former != server.machine:
            raise _vanished(server, pending)
        move.write_list(server.moves, moves[:-1])
    if postgres.exists(run, cluster):
        return []
    postgres.create(run, cluster)
    return ["database made"]


def _vanished(server: Server, pending: move.Move) -> HostStateError:
    return HostStateError(
        f"The database of the experiments that {pending.former} has saved for this server is missing: {server.dump} was "
        f"removed before it was loaded. {pending.former} still has all runs.",
        f"Return to it with tracking_server={pending.former}, and move the server again. If {pending.former} is lost, "
        f"remove {server.moves} to start with an empty database.",
        former=pending.former,
    )


def _versions(run: Runner, cluster: postgres.Cluster, name: str = settings.ACCOUNT) -> Dict[str, str]:
    """The versions of the schemas in a database. Raises HostStateError."""
    try:
        return postgres.versions(run, cluster, name)
    except CommandError as failure:
        raise HostStateError(
            f"PostgreSQL does not let {settings.ACCOUNT} in: {failure.message}", postgres.reason(failure) or ""
        ) from failure


def _refuse_newer(run: Runner, folder: str, heads: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse a database of a newer MLflow, to which this one cannot return. Raises HostStateError."""
    differing = {table: version for table, version in found.items() if heads.get(table) != version}
    known = environment.revisions(run, folder) if differing else {}
    for table, version in differing.items():
        unknown = [one for one in version.split(",") if one not in known.get(table, [])]
        if unknown:
            raise HostStateError(
                f"The database of the experiments has the schema {unknown[0]} ({table}), of a newer MLflow than "
                f"{heads.get('mlflow')}, which cannot read it. Nothing was changed.",
                "Use the version of this collection with which the schema was migrated, or a newer one; or restore a "
                "backup from before that.",
                schema=unknown[0],
            )


def _variables() -> Dict[str, str]:
    """The variables that MLflow's own commands read."""
    return {"HOME": settings.HOME, "MLFLOW_AUTH_CONFIG_PATH": settings.AUTHENTICATION, "PYTHONSAFEPATH": "1"}


def settle_users(run: Runner, folder: str, cluster: postgres.Cluster, wanted: Sequence[Mapping[str, Any]]) -> List[str]:
    """Apply MLflow's users and their experiments, and the identity of the database. Returns descriptions of the changes.

    The passwords are passed on standard input.
    """
    given = {
        "url": settings.database_url(cluster.port),
        "artifacts": settings.ARTIFACT_ROOT,
        "users": list(wanted),
        "without": [settings.CHECKER],
        "passphrase": read_text(settings.PASSPHRASE),
        "database": postgres.identity(run, cluster),
    }
    program = os.path.join(settings.LIBRARY, "users.py")
    source = inspect.getsource(users)
    if read_text(program) != source:
        write_atomic(program, source, mode=0o644)
    argv = command_as(settings.ACCOUNT, [f"{folder}/bin/python", program])
    said = environment.last_json(run(argv, stdin=json.dumps(given), timeout=300, environment=_variables()).stdout)
    changed = [f"user {name} changed" for name in said["changed"] if name != settings.CHECKER]
    changed += [f"experiment of user {name} made" for name in said["experiments"]]
    changed += [f"experiment of user {name} not made: {reason}" for name, reason in said["failed"].items()]
    changed += ["keys of the gateway encrypted"] if said["encrypted"] else []
    return [*changed, *(["runs send again what the database lacks"] if said["database"] else [])]


# --- Away from this host


def refuse_to_save(request: Request) -> None:
    """Refuse to move a server whose host another cluster has taken over, with the database. Raises HostStateError.

    The new server would start with an empty one.
    """
    other, cluster = other_cluster(request), request.server.cluster
    if other:
        raise HostStateError(
            f"The database of cluster '{cluster}' cannot be saved: this host runs the tracking server of cluster '{other}', "
            "which uses the same database.",
            f"To start with an empty database, switch tracking of '{cluster}' off with tracking_state=absent, and on again "
            "on another member.",
            cluster=other,
        )


def save(run: Runner, request: Request) -> bool:
    """Stop the server and write its database to the volume, for another member. Returns whether there was one to write.

    If that has been done already, the file is current, and is kept. Raises GpumeshError.
    """
    refuse_to_save(request)
    if not is_ours(request) or find("pg_lsclusters") is None:
        return False
    systemd = daemon.service_manager(Tree()) == daemon.SYSTEMD
    _stop(run, request, systemd)
    if postgres.is_there(request.server.dump):
        # Without a mark: it may be a backup to restore, and then no file has what is in this database.
        return False
    cluster = _cluster(run)
    _run_daemon(run, request, systemd, daemons(request.server, cluster, systemd)[0], Done([], []))
    if not postgres.exists(run, cluster):
        return False

    def note(digest: str) -> None:
        saved, moves = move.Move(digest, request.server.machine), move.listed(request.server.moves)
        move.write_list(request.server.moves, [*(one for one in moves if one.loaded), saved])
        move.write_mark(saved)

    postgres.save(run, cluster, request.server.dump, note)
    return True


def retire(run: Runner, request: Request, keep_data: bool) -> bool:
    """Remove the server from this host, unless it is that of another cluster. Returns whether anything was removed.

    Its database is renamed if another member has taken it over, unless ``keep_data``. The program is deleted last: as
    long as it exists, the next run continues the removal. Raises GpumeshError.
    """
    trusted = _trusted(request) if keep_data or not request.server.tls else []
    for path in trusted:
        remove_file(path)
    if not is_ours(request):
        remove_empty(os.path.dirname(settings.SHARED_TRUST))
        return bool(trusted)
    systemd = daemon.service_manager(Tree()) == daemon.SYSTEMD
    if not keep_data and postgres.is_there(request.server.dump):
        raise HostStateError(
            f"The database of the experiments has not been taken over yet: {request.server.dump} is still there.",
            "Run the playbook tracking with all members.",
        )
    taken_over = not keep_data and _taken_over(request.server)
    _stop(run, request, systemd)
    if taken_over and find("pg_lsclusters") is not None:
        cluster = _cluster(run)
        _run_daemon(run, request, systemd, daemons(request.server, cluster, systemd)[0], Done([], []))
        postgres.put_aside(run, cluster)
    secret = (
        settings.SECRET,
        settings.PASSPHRASE,
        settings.CHECKER_PASSWORD,
        settings.KEY,
        *own_certificate.files(settings.FOLDER),
    )
    for path in (settings.UNIT, settings.CERTIFICATE, *secret):
        remove_file(path)
    if systemd:
        run(["systemctl", "daemon-reload"])
    else:
        database = daemon.Daemon("postgresql", "absent", "", "", "postgres", [], {})
        nothing = daemon.Ready(None, None, None)
        daemon.bring_about(run, daemon.SUPERVISORD, database, request.places, nothing, _READY, False)
    _remove_folders()
    return True


def _taken_over(server: Server) -> bool:
    """Whether the new server has loaded the database that this host has saved. Raises HostStateError if it has not.

    False if this host has not saved it: a backup was loaded instead, or the former server took no part in the move.
    """
    saved = move.mark()
    if saved is None:
        return False
    moves = move.listed(server.moves)
    if any(one.digest == saved.digest and one.loaded for one in moves):
        return True
    pending = move.pending(moves)
    here = (
        f"{server.machine} has not loaded the database of the experiments, and {server.dump} is missing. The database "
        "is still on this host, and its server is stopped."
    )
    if pending is not None and pending.digest == saved.digest:
        raise HostStateError(here, f"Return to it with tracking_server={saved.former}, and move the server again.")
    raise HostStateError(
        here,
        f"To continue with what {server.machine} has now, remove {settings.MOVED} on this host, where the database then "
        "stays. To have its runs instead, restore it there as the guide says for a lost move.",
    )


def _remove_folders() -> None:
    for path in (settings.LIBRARY, settings.FOLDER):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as failure:
            if failure.errno != errno.ENOTEMPTY:
                raise HostStateError(f"{path} cannot be removed: {failure.strerror}.") from failure
        remove_empty(os.path.dirname(path))

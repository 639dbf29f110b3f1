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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import store
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DEFAULT_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files, server_certificate, service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_text,
    remove_empty_directory,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import (
    acting_as,
    command_as,
    ensure_account,
    require_account,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.managed_files import LayerDifferences
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import (
    confine,
    environment,
    move,
    postgres,
    settings,
    users,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking.settings import TrackingServer

#: The timeout, in seconds, for the server to start. It needs 10 on an idle machine, and minutes on a busy one.
_READY_TIMEOUT = 600.0
_MIGRATION_TIMEOUT = 3600.0
_MAX_NOTE_BYTES = 200
_RECORD_DIRECTORY = DEFAULT_DIRECTORY
#: The owners of a directory on a volume that may become the account once it exists: root, and nobody, to which a volume
#: may map an account that this host does not have yet.
_UNCERTAIN_OWNERS = (0, 65534)
STILL_HERE = "the server is still here"


class TrackingRequest(NamedTuple):
    """The desired state of this host.

    ``users``, ``certificate``, ``key`` and ``trust`` are None to keep the current ones.
    """

    server: TrackingServer
    serves: bool
    requirements: str
    users: Optional[Sequence[Mapping[str, Any]]]
    certificate: Optional[str]
    key: Optional[str]
    trust: Optional[str]
    service_paths: service.ServicePaths


class TrackingResult(NamedTuple):
    """Descriptions of the changes, and the daemons that were restarted."""

    messages: List[str]
    restarted_daemons: List[str]


def is_installed() -> bool:
    """Return whether this host has a tracking server of this collection."""
    return os.path.lexists(settings.PROGRAM) or os.path.lexists(settings.AUTHENTICATION)


def foreign_cluster(request: TrackingRequest) -> str:
    """Return the other cluster whose server runs on this host; empty if there is none.

    The server's program names its cluster. A cluster that has no record on this host any more does not count.
    """
    named_cluster = settings.parse_cluster(read_text(settings.PROGRAM) or "")
    if named_cluster in ("", request.server.cluster):
        return ""
    return named_cluster if store.Store(_RECORD_DIRECTORY, named_cluster).exists() else ""


def is_own_server(request: TrackingRequest) -> bool:
    """Return whether this host has a tracking server that does not belong to another cluster."""
    return is_installed() and not foreign_cluster(request)


def has_leftovers(request: TrackingRequest) -> bool:
    """Return whether this host has remains of a server that should not run here, or no longer does."""
    return not request.serves and (
        is_own_server(request) or (not request.server.tls and bool(_obsolete_trust_files(request)))
    )


def _obsolete_trust_files(request: TrackingRequest) -> List[str]:
    """Return the existing trust files that nobody needs once this cluster does not need them.

    The file of earlier versions may be used by any cluster of this host.
    """
    own_trust = settings.trust_path(request.server.cluster)
    trust_paths = [own_trust] if os.path.lexists(own_trust) else []
    if os.path.lexists(settings.SHARED_TRUST) and not _other_records(request):
        trust_paths.append(settings.SHARED_TRUST)
    return trust_paths


def _other_records(request: TrackingRequest) -> bool:
    """Return whether this host is also a member of another cluster."""
    scan_result = store.scan_directory(_RECORD_DIRECTORY)
    cluster_names = [*(stored_record.record["name"] for stored_record in scan_result.records), *scan_result.unreadable]
    return any(name != request.server.cluster for name in cluster_names)


# --- Before anything changes


def refuse_account(uid: int) -> None:
    """Refuse a UID or GID that another account has here. Raises HostStateError."""
    numbers_by_kind = {"user": _account_number(pwd.getpwnam, 2), "group": _account_number(grp.getgrnam, 2)}
    names_by_kind = {"user": _account_number(pwd.getpwuid, 0, uid), "group": _account_number(grp.getgrgid, 0, uid)}
    for kind, current_number in numbers_by_kind.items():
        if current_number is not None and current_number != uid:
            raise HostStateError(
                f"The {kind} {settings.ACCOUNT} has the ID {current_number} on this host, not {uid}.",
                f"Set tracking_uid={current_number}, or change its ID to {uid}.",
                uid=uid,
            )
        if names_by_kind[kind] not in (None, settings.ACCOUNT):
            raise HostStateError(
                f"The ID {uid} for the {kind} {settings.ACCOUNT} belongs to '{names_by_kind[kind]}' on this host.",
                "Set tracking_uid to an ID that is unused on every member that may run the server.",
                uid=uid,
            )


def _account_number(
    find_entry: Callable[[Any], Sequence[Any]], field_index: int, account_key: Any = settings.ACCOUNT
) -> Any:
    """Return a field of an entry in the user or group database; None if there is no such entry."""
    try:
        return find_entry(account_key)[field_index]
    except KeyError:
        return None


def missing_packages() -> List[str]:
    """Return the Debian packages that have to be installed first."""
    package_names = [] if find_program("pg_lsclusters") else ["postgresql"]
    if service.supervisord_missing(service.service_manager(Tree())):
        package_names.append("supervisor")
    return package_names


def refuse_server(request: TrackingRequest) -> None:
    """Refuse invalid requests before anything changes. Raises GpumeshError."""
    server = request.server
    other_name = foreign_cluster(request)
    if other_name:
        raise HostStateError(
            f"This host runs the tracking server of cluster '{other_name}', and can run only one. Cluster "
            f"'{server.cluster}' would replace it, so nothing was changed.",
            f"Set tracking_server to another member of '{server.cluster}', or move the server of '{other_name}' first.",
            cluster=other_name,
        )
    if not server.unconfined and not confine.landlock_version():
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
    _refuse_directory(server)
    if server.tls and not server.own_certificate:
        for content, path, option_name in (
            (request.certificate, settings.CERTIFICATE, "tracking_certificate_file"),
            (request.key, settings.KEY, "tracking_key_file"),
        ):
            if content is None and not os.path.lexists(path):
                raise InputError(
                    f"The tracking server uses TLS, but there is no {path} on this host.",
                    f"Set {option_name} again.",
                )


def _refuse_directory(server: TrackingServer) -> None:
    """Refuse the directory on the volume if it belongs to an account with another UID. Raises HostStateError."""
    try:
        owner_uid = os.lstat(server.volume_directory).st_uid
    except OSError:
        return
    if owner_uid in (server.uid, *_UNCERTAIN_OWNERS):
        return
    raise HostStateError(
        f"{server.volume_directory} belongs to user {owner_uid}, and {settings.ACCOUNT} has the ID {server.uid} on this host.",
        f"If a server with another ID created it, set tracking_uid={owner_uid} for all members, or give it with its "
        f"contents to user {server.uid}. Otherwise, move it away.",
        uid=server.uid,
    )


def postgresql_version(run: Runner, request: TrackingRequest) -> str:
    """Return the version of PostgreSQL of a member that has, or should have, the server; empty if unknown.

    A database can only be transferred to the same version, or a newer one.
    """
    return postgres.postgresql_version(run, database_port()) if request.serves or is_installed() else ""


def refuse_member(request: TrackingRequest) -> None:
    """Refuse invalid requests for any member before anything changes. Raises GpumeshError."""
    if request.server.tls and not request.server.own_certificate and _trusted_certificates(request) is None:
        path = settings.trust_path(request.server.cluster)
        raise InputError(
            f"The tracking server uses TLS, but there is no {path} on this host.",
            "Set tracking_certificate_file, or tracking_ca_file, again.",
        )


# --- The parts of the server


def ensure_certificates(run: Runner, request: TrackingRequest) -> Optional[List[str]]:
    """Create or renew the certificate of this host's server. Raises GpumeshError.

    Returns the certificates that clients have to trust; None for a host without the server.
    """
    if not request.serves or not request.server.own_certificate:
        return None
    refuse_server(request)
    return server_certificate.ensure_certificate(run, request.server.identity)


def make_directories(server: TrackingServer) -> bool:
    """Create missing directories: the home, and as the account, those on the volume. Returns whether any was missing.

    Raises HostStateError.
    """
    entry = require_account(settings.ACCOUNT)
    is_changed = _make_home(entry)
    try:
        is_changed = _make_on_volume(server.mount_point, os.path.basename(server.volume_directory), entry) or is_changed
        with acting_as(settings.ACCOUNT):
            is_changed = _make_directory(server.artifact_directory, None) or is_changed
    except OSError as failure:
        raise HostStateError(
            f"{server.volume_directory} cannot be created: {failure.strerror}.",
            f"Create it on the volume's server, with mode 0700 for the user and the group {entry.pw_uid}.",
        ) from failure
    return is_changed


def _make_home(entry: pwd.struct_passwd) -> bool:
    """Create the home, and the directory in it that the server can write to. Returns whether anything was changed.

    In earlier versions, the account owned the home.
    """
    os.makedirs(os.path.dirname(settings.HOME), mode=0o755, exist_ok=True)
    is_changed = False
    for path, mode, owner_ids in (
        (settings.HOME, 0o755, (0, 0)),
        (settings.SCRATCH, 0o700, (entry.pw_uid, entry.pw_gid)),
    ):
        is_new = _make_directory(path, None)
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise HostStateError(f"{path} is not a directory.", "Move it away, and run again.")
        if is_new or (status.st_uid, status.st_gid) != owner_ids or stat.S_IMODE(status.st_mode) != mode:
            os.chown(path, *owner_ids, follow_symlinks=False)
            os.chmod(path, mode)
            is_changed = True
    return is_changed


def _make_on_volume(mount_point: str, directory_name: str, entry: pwd.struct_passwd) -> bool:
    """Create the directory on the volume as the account if possible, otherwise as root. Returns whether it was created.

    On a volume that squashes root, root may not even be able to read it, so it is only opened as a path.
    """
    open_flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    volume_descriptor = os.open(os.path.realpath(mount_point), open_flags)
    try:
        with acting_as(settings.ACCOUNT):
            try:
                is_new = _make_directory(directory_name, volume_descriptor)
            except PermissionError:
                is_new = False
        with contextlib.suppress(FileExistsError):
            if not is_new:
                is_new = _make_directory(directory_name, volume_descriptor)
        directory_descriptor = os.open(directory_name, open_flags, dir_fd=volume_descriptor)
        try:
            if is_new and os.fstat(directory_descriptor).st_uid == 0:
                os.chown(f"/proc/self/fd/{directory_descriptor}", entry.pw_uid, entry.pw_gid)
            if os.fstat(directory_descriptor).st_uid != entry.pw_uid:
                raise HostStateError(
                    f"{mount_point}/{directory_name} does not belong to {settings.ACCOUNT}.",
                    "Move it away, and run again.",
                )
        finally:
            os.close(directory_descriptor)
    finally:
        os.close(volume_descriptor)
    return is_new


def _make_directory(path: str, parent_descriptor: Optional[int]) -> bool:
    """Create a directory. Returns whether it was missing."""
    try:
        os.mkdir(path, 0o700, dir_fd=parent_descriptor)
    except FileExistsError:
        return False
    return True


class TrackingFile(NamedTuple):
    """A file to write. A secret can be read only by the server's account, or only by root."""

    path: str
    content: str
    owner_name: str = settings.ACCOUNT


def secret_files(request: TrackingRequest, database_port: int) -> List[TrackingFile]:
    """Return the secret files to write, whose content is never shown."""
    checker_password = read_text(settings.CHECKER_PASSWORD)
    # The authentication file of earlier versions contains the password of the check, which the server can read there.
    old_admin_password = _read_authentication("admin_password") if checker_password else None
    content_by_path: Dict[str, Optional[str]] = {
        **{
            path: None if os.path.lexists(path) else secrets.token_urlsafe(48)
            for path in (settings.SECRET, settings.PASSPHRASE)
        },
        settings.AUTHENTICATION: settings.format_authentication(
            database_port, old_admin_password or secrets.token_urlsafe(24)
        ),
    }
    if request.server.tls:
        content_by_path.update(
            {request.server.certificate_path: request.certificate, request.server.key_path: request.key}
        )
    desired_files = [(path, content, settings.ACCOUNT) for path, content in content_by_path.items()]
    desired_files.append((settings.CHECKER_PASSWORD, None if checker_password else secrets.token_urlsafe(24), "root"))
    changed_files = []
    for path, content, owner_name in desired_files:
        current_content = read_text(path)
        desired_content = current_content if content is None else content
        if desired_content is not None and (current_content != desired_content or not _is_private(path, owner_name)):
            changed_files.append(TrackingFile(path, desired_content, owner_name))
    return changed_files


def _is_private(path: str, owner_name: str) -> bool:
    """Return whether the account, if it exists already, owns the file, and only the owner can read it."""
    status, owner_number = os.stat(path), _account_number(pwd.getpwnam, 2, owner_name)
    return owner_number in (None, status.st_uid) and not status.st_mode & 0o077


def checker_password() -> Optional[str]:
    """Return the password of the account with which the check writes its run; None if there is no server."""
    return read_text(settings.CHECKER_PASSWORD) or None


def database_port() -> Optional[int]:
    """Return the port of the PostgreSQL cluster that has the database; None if there is no server."""
    return settings.parse_port(_read_authentication("database_uri") or "")


def _find_cluster(run: Runner) -> postgres.PostgresCluster:
    """Return the PostgreSQL cluster that has the database, or will have it. Raises HostStateError."""
    return postgres.find_cluster(run, database_port())


def _read_authentication(option_name: str) -> Optional[str]:
    """Return an option of MLflow's authentication file; None if it is not set."""
    for line in (read_text(settings.AUTHENTICATION) or "").splitlines():
        option_key, _equals, value = line.partition("=")
        if option_key.strip() == option_name:
            return value.strip()
    return None


def write_secrets(files: Sequence[TrackingFile]) -> None:
    """Write secret files, readable only by their owner."""
    for file in files:
        account_entry = require_account(file.owner_name)
        write_atomic(file.path, file.content or "", mode=0o600, owner=(account_entry.pw_uid, account_entry.pw_gid))


def trust_files(request: TrackingRequest) -> List[TrackingFile]:
    """Return the files to write with the certificates against which this member verifies the server.

    Everybody can read them. An earlier version also wrote a private key there if the given file contained one.
    """
    if not request.server.tls:
        return []
    desired_content = {settings.trust_path(request.server.cluster): _trusted_certificates(request)}
    shared_trust = read_text(settings.SHARED_TRUST)
    if shared_trust is not None and "PRIVATE KEY" in shared_trust:
        desired_content[settings.SHARED_TRUST] = server_certificate.extract_certificates(shared_trust)
    return [
        TrackingFile(path, content)
        for path, content in desired_content.items()
        if content is not None and read_text(path) != content
    ]


def _trusted_certificates(request: TrackingRequest) -> Optional[str]:
    """Return the certificates in the request, or those that the member already has, such as from an earlier version.

    The certificates that the server has made for itself are always in the request, from the record.
    """
    if request.server.own_certificate:
        return request.trust
    candidate_texts = (
        request.trust,
        read_text(settings.trust_path(request.server.cluster)),
        read_text(settings.SHARED_TRUST),
    )
    return next((server_certificate.extract_certificates(text) for text in candidate_texts if text), None)


def build_daemons(
    server: TrackingServer, cluster: postgres.PostgresCluster, systemd: bool, programs: Sequence[str] = ()
) -> List[Tuple[Any, Any]]:
    """Return the daemons PostgreSQL and MLflow, each with the conditions under which it is ready.

    ``programs``: files of the environment that MLflow reads when it starts.
    """
    database_daemon = service.Daemon(
        cluster.unit_name if systemd else "postgresql",
        "started",
        cluster.start_command,
        "",
        "postgres",
        [settings.SOCKETS],
        {},
    )
    secret_paths = [settings.AUTHENTICATION, settings.SECRET, settings.PASSPHRASE]
    read_paths = [settings.PROGRAM, settings.LAUNCHER_PATH, *secret_paths, *programs]
    read_paths += [server.certificate_path, server.key_path] if server.tls else []
    mlflow_service = mlflow_daemon("restarted" if is_remounted(server) else "started")._replace(
        reads=[*read_paths, settings.UNIT] if systemd else read_paths
    )
    return [
        (database_daemon, service.ReadyCondition(cluster.socket_path, None, None)),
        (mlflow_service, service.ReadyCondition(None, server.address, server.port)),
    ]


def is_remounted(server: TrackingServer) -> bool:
    """Return whether a directory of the server has been mounted again since its start, and the kernel denies it access.

    The account can write to the note, so the note is read with the account's rights.
    """
    try:
        with acting_as(settings.ACCOUNT):
            note_descriptor = os.open(settings.ALLOWED_NOTE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                noted_identities = os.read(note_descriptor, _MAX_NOTE_BYTES).decode("ascii", "replace")
            finally:
                os.close(note_descriptor)
            return noted_identities != confine.directory_identities(settings.writable_directories(server))
    except (OSError, HostStateError):
        return False


def mlflow_daemon(state: str) -> service.Daemon:
    """Return the daemon MLflow alone."""
    return service.Daemon(settings.SERVICE_NAME, state, settings.PROGRAM, "", settings.ACCOUNT, [], {})


# --- The whole server


def describe_differences(run: Runner, request: TrackingRequest) -> List[str]:
    """Describe the differences, without changing anything."""
    messages = [managed_files.describe_difference(file.path) for file in trust_files(request)]
    if request.serves and not request.server.tls:
        messages += [f"{path} is no longer needed" for path in _obsolete_trust_files(request)]
    if request.serves and (foreign_name := foreign_cluster(request)):
        return [*messages, f"the server of cluster '{foreign_name}' is here"]
    if not request.serves:
        return messages + ([STILL_HERE] if has_leftovers(request) else [])
    missing_names = missing_packages()
    if missing_names or not environment.can_create(run):
        return [*messages, f"lacks {', '.join(missing_names or ['python3-venv'])}"]
    systemd = service.service_manager(Tree()) == service.SYSTEMD
    cluster = _find_cluster(run)
    python_version = environment.python_version(run)
    venv_path = settings.environment_path(request.requirements, python_version)
    if environment.read_versions(venv_path) is None:
        messages.append(f"{venv_path} is missing")
    if _account_number(pwd.getpwnam, 2) is not None and postgres.dump_exists(request.server.dump_path):
        messages.append(f"{request.server.dump_path} is to be loaded")
    messages += managed_files.differences(
        settings.list_files(request.server, venv_path, python_version, cluster.port, systemd)
    ).messages
    messages += [managed_files.describe_difference(file.path) for file in secret_files(request, cluster.port)]
    database_entry, mlflow_entry = build_daemons(
        request.server, cluster, systemd, list(settings.plugin_files(venv_path, python_version))
    )
    # A unit that has not been written yet, which is reported above, is unknown to systemd.
    unit_exists = not systemd or os.path.lexists(settings.UNIT)
    for desired_daemon, _ready in (database_entry, mlflow_entry) if unit_exists else (database_entry,):
        if service.make_plan(run, _service_manager(systemd), desired_daemon, request.service_paths).changed:
            messages.append(f"{desired_daemon.name} does not run as it should")
    return messages


def differences(run: Runner, params: Mapping[str, Any]) -> LayerDifferences:
    """Describe the differences for the playbook show, from the module's parameters."""
    request = parse_request(params)
    messages = describe_differences(run, request)
    return LayerDifferences(messages, bool(messages) and request.serves and not is_installed())


def parse_request(params: Mapping[str, Any]) -> TrackingRequest:
    """Return the request in the parameters of the module tracking."""
    request_fields = {
        name: params.get(name) for name in ("serves", "requirements", "users", "certificate", "key", "trust")
    }
    service_paths = (
        service.ServicePaths.from_params(params) if "supervisor_config" in params else service.ServicePaths()
    )
    return TrackingRequest(server=TrackingServer.from_params(params), service_paths=service_paths, **request_fields)  # type: ignore[arg-type]


def apply_request(run: Runner, request: TrackingRequest) -> TrackingResult:
    """Apply the desired state. Raises GpumeshError."""
    result = TrackingResult([], [])
    for path in _obsolete_trust_files(request) if request.serves and not request.server.tls else []:
        remove_file(path)
        result.messages.append(f"{path} removed")
    for trust_file in trust_files(request):
        os.makedirs(os.path.dirname(trust_file.path), mode=0o755, exist_ok=True)
        write_atomic(trust_file.path, trust_file.content or "", mode=0o644)
        result.messages.append(f"{trust_file.path} written")
    if request.serves:
        _ensure_server(run, request, result)
    return result


def install_mlflow(run: Runner, request: TrackingRequest) -> bool:
    """Install MLflow. Returns whether it was missing. Raises GpumeshError."""
    python_version = environment.python_version(run)
    missing_before = environment.read_versions(settings.environment_path(request.requirements, python_version)) is None
    environment.build_environment(run, request.requirements, python_version)
    return missing_before


def _ensure_server(run: Runner, request: TrackingRequest, result: TrackingResult) -> None:
    server, messages = request.server, result.messages
    systemd = service.service_manager(Tree()) == service.SYSTEMD
    cluster = _find_cluster(run)
    if install_mlflow(run, request):
        messages.append("MLflow installed")
    python_version = environment.python_version(run)
    venv_path = settings.environment_path(request.requirements, python_version)
    head_revisions = environment.read_versions(venv_path) or {}
    if ensure_account(run, settings.ACCOUNT, settings.HOME, server.uid):
        messages.append(f"account {settings.ACCOUNT} created")
    if make_directories(server):
        messages.append(f"{server.volume_directory} made")
    if cluster.is_online and postgres.database_exists(run, cluster):
        _refuse_newer(run, venv_path, head_revisions, _schema_versions(run, cluster))
    messages += [
        f"{file_change.path} written"
        for file_change in managed_files.ensure_files(
            settings.list_files(server, venv_path, python_version, cluster.port, systemd), False
        )
    ]
    changed_secrets = secret_files(request, cluster.port)
    write_secrets(changed_secrets)
    messages += [f"{file.path} written" for file in changed_secrets]
    database_entry, mlflow_entry = build_daemons(
        server, cluster, systemd, list(settings.plugin_files(venv_path, python_version))
    )
    _run_daemon(run, request, systemd, database_entry, result)
    _prepare_database(run, request, systemd, cluster, venv_path, head_revisions, messages)
    # The users include the account of the check, since it may have another password in a database from another member.
    # They are applied before MLflow starts, which would create that account with a password that the server can read.
    checker_user = {"name": settings.CHECKER_NAME, "password": checker_password(), "administrator": True}
    messages += ensure_users(run, venv_path, cluster, [checker_user, *(request.users or [])])
    _run_daemon(run, request, systemd, mlflow_entry, result)
    for obsolete_path in environment.list_obsolete(venv_path):
        shutil.rmtree(obsolete_path)
        messages.append(f"{obsolete_path} removed")


def _service_manager(systemd: bool) -> str:
    return service.SYSTEMD if systemd else service.SUPERVISORD


def _run_daemon(
    run: Runner, request: TrackingRequest, systemd: bool, daemon_entry: Tuple[Any, Any], result: TrackingResult
) -> None:
    desired_daemon, ready_condition = daemon_entry
    daemon_plan = service.ensure_daemon(
        run, _service_manager(systemd), desired_daemon, request.service_paths, ready_condition, _READY_TIMEOUT, False
    )
    if daemon_plan.changed:
        result.messages.append(f"{desired_daemon.name} {'restarted' if daemon_plan.restarts_daemon else 'started'}")
    if daemon_plan.restarts_daemon:
        result.restarted_daemons.append(desired_daemon.name)


def _stop_mlflow(run: Runner, request: TrackingRequest, systemd: bool) -> None:
    """Stop MLflow, and disable it at boot: nothing may be written to a database that is being transferred."""
    absent_daemon = mlflow_daemon("absent")
    service.ensure_daemon(
        run,
        _service_manager(systemd),
        absent_daemon,
        request.service_paths,
        service.ReadyCondition(None, None, None),
        _READY_TIMEOUT,
        False,
    )


def _prepare_database(
    run: Runner,
    request: TrackingRequest,
    systemd: bool,
    cluster: postgres.PostgresCluster,
    venv_path: str,
    head_revisions: Mapping[str, str],
    messages: List[str],
) -> None:
    """Prepare the database: the transferred one, a new one, or the current one, with the schema of this MLflow."""
    messages += _ensure_database(
        run,
        request.server,
        cluster,
        lambda database_name: _refuse_newer(
            run, venv_path, head_revisions, _schema_versions(run, cluster, database_name)
        ),
        lambda: _stop_mlflow(run, request, systemd),
    )
    current_versions = _schema_versions(run, cluster)
    if not current_versions or all(head_revisions.get(table) == version for table, version in current_versions.items()):
        return
    _refuse_newer(run, venv_path, head_revisions, current_versions)
    _stop_mlflow(run, request, systemd)
    url = settings.database_url(cluster.port)
    for arguments in (
        ["-m", "mlflow", "db", "upgrade", url],
        ["-m", "mlflow.server.auth", "db", "upgrade", f"--url={url}"],
    ):
        command = command_as(settings.ACCOUNT, [f"{venv_path}/bin/python", *arguments])
        run(command, timeout=_MIGRATION_TIMEOUT, environment=_mlflow_variables())
    messages.append("schema migrated")


def _ensure_database(
    run: Runner,
    server: TrackingServer,
    cluster: postgres.PostgresCluster,
    check_database: Callable[[str], None],
    stop_server: Callable[[], None],
) -> List[str]:
    """Load the dump on the volume, or make a database if there is none. Returns descriptions of the changes."""
    saved_move, known_moves = move.read_mark(), move.read_list(server.moves_path)
    # The mark is removed first: it means that another server has the database, and from now on this one has it.
    remove_file(settings.MOVED)
    pending_move = move.pending_move(known_moves)
    if postgres.dump_exists(server.dump_path):
        dump_digest = postgres.dump_digest(server.dump_path)
        if saved_move is not None and saved_move.digest == dump_digest and postgres.database_exists(run, cluster):
            # The move of this very database has failed, and no other server has used it since.
            move.write_list(
                server.moves_path, [move_entry for move_entry in known_moves if move_entry is not pending_move]
            )
            postgres.remove_dump(server.dump_path)
            return []
        kept_name = postgres.load_dump(run, cluster, server.dump_path, check_database, stop_server)
        if known_moves:
            move.write_list(server.moves_path, move.complete_move(known_moves, dump_digest, server.machine))
        postgres.discard_dump(run, cluster, server.dump_path)
        return [f"database loaded, the previous one is kept as {kept_name}" if kept_name else "database loaded"]
    if pending_move is not None:
        if pending_move.former != server.machine:
            raise _missing_dump_error(server, pending_move)
        move.write_list(server.moves_path, known_moves[:-1])
    if postgres.database_exists(run, cluster):
        return []
    postgres.create_database(run, cluster)
    return ["database made"]


def _missing_dump_error(server: TrackingServer, pending_move: move.DatabaseMove) -> HostStateError:
    return HostStateError(
        f"The database of the experiments that {pending_move.former} has saved for this server is missing: {server.dump_path} was "
        f"removed before it was loaded. {pending_move.former} still has all runs.",
        f"Return to it with tracking_server={pending_move.former}, and move the server again. If {pending_move.former} is lost, "
        f"remove {server.moves_path} to start with an empty database.",
        former=pending_move.former,
    )


def _schema_versions(
    run: Runner, cluster: postgres.PostgresCluster, database_name: str = settings.ACCOUNT
) -> Dict[str, str]:
    """Return the versions of the schemas in a database. Raises HostStateError."""
    try:
        return postgres.schema_versions(run, cluster, database_name)
    except CommandError as failure:
        raise HostStateError(
            f"PostgreSQL rejected the login of {settings.ACCOUNT}: {failure.message}",
            postgres.rejection_reason(failure) or "",
        ) from failure


def _refuse_newer(
    run: Runner, venv_path: str, head_revisions: Mapping[str, str], found_versions: Mapping[str, str]
) -> None:
    """Refuse a database of a newer MLflow, whose schema this one cannot read. Raises HostStateError."""
    differing_versions = {
        table: version for table, version in found_versions.items() if head_revisions.get(table) != version
    }
    known_revisions = environment.list_revisions(run, venv_path) if differing_versions else {}
    for table, version in differing_versions.items():
        unknown_revisions = [
            revision for revision in version.split(",") if revision not in known_revisions.get(table, [])
        ]
        if unknown_revisions:
            raise HostStateError(
                f"The database of the experiments has the schema {unknown_revisions[0]} ({table}), of a newer MLflow than "
                f"{head_revisions.get('mlflow')}, which cannot read it. Nothing was changed.",
                "Use the version of this collection with which the schema was migrated, or a newer one; or restore a "
                "backup from before that.",
                schema=unknown_revisions[0],
            )


def _mlflow_variables() -> Dict[str, str]:
    """Return the variables that MLflow's own commands read."""
    return {"HOME": settings.HOME, "MLFLOW_AUTH_CONFIG_PATH": settings.AUTHENTICATION, "PYTHONSAFEPATH": "1"}


def ensure_users(
    run: Runner, venv_path: str, cluster: postgres.PostgresCluster, desired_users: Sequence[Mapping[str, Any]]
) -> List[str]:
    """Apply MLflow's users and their experiments, and the identity of the database. Returns descriptions of the changes.

    The passwords are passed on standard input.
    """
    program_input = {
        "url": settings.database_url(cluster.port),
        "artifacts": settings.ARTIFACT_ROOT,
        "users": list(desired_users),
        "without": [settings.CHECKER_NAME],
        "passphrase": read_text(settings.PASSPHRASE),
        "database": postgres.database_identity(run, cluster),
    }
    program_path = os.path.join(settings.LIBRARY, "users.py")
    source = inspect.getsource(users)
    if read_text(program_path) != source:
        write_atomic(program_path, source, mode=0o644)
    users_command = command_as(settings.ACCOUNT, [f"{venv_path}/bin/python", program_path])
    program_output = environment.parse_last_line(
        run(users_command, stdin=json.dumps(program_input), timeout=300, environment=_mlflow_variables()).stdout
    )
    messages = [
        f"user {user_name} changed" for user_name in program_output["changed"] if user_name != settings.CHECKER_NAME
    ]
    messages += [f"experiment of user {user_name} created" for user_name in program_output["experiments"]]
    messages += [
        f"experiment of user {user_name} not created: {reason}"
        for user_name, reason in program_output["failed"].items()
    ]
    messages += ["keys of the gateway encrypted"] if program_output["encrypted"] else []
    return [*messages, *(["runs send again what the database lacks"] if program_output["database"] else [])]


# --- Moving away from this host


def refuse_to_save(request: TrackingRequest) -> None:
    """Refuse to move a server whose host another cluster has taken over, with the database. Raises HostStateError.

    The new server would start with an empty one.
    """
    foreign_name, cluster_name = foreign_cluster(request), request.server.cluster
    if foreign_name:
        raise HostStateError(
            f"The database of cluster '{cluster_name}' cannot be saved: this host runs the tracking server of cluster '{foreign_name}', "
            "which uses the same database.",
            f"To start with an empty database, switch tracking of '{cluster_name}' off with tracking_state=absent, and on again "
            "on another member.",
            cluster=foreign_name,
        )


def save_database(run: Runner, request: TrackingRequest) -> bool:
    """Stop the server and write its database to the volume, for another member. Returns whether there was one to write.

    If the database has been written before, the file is current, and is kept. Raises GpumeshError.
    """
    refuse_to_save(request)
    if not is_own_server(request) or find_program("pg_lsclusters") is None:
        return False
    systemd = service.service_manager(Tree()) == service.SYSTEMD
    _stop_mlflow(run, request, systemd)
    if postgres.dump_exists(request.server.dump_path):
        # No mark is written: the file may be a backup to restore, and then no file contains this database.
        return False
    cluster = _find_cluster(run)
    _run_daemon(run, request, systemd, build_daemons(request.server, cluster, systemd)[0], TrackingResult([], []))
    if not postgres.database_exists(run, cluster):
        return False

    def note_digest(dump_digest: str) -> None:
        saved_move, known_moves = (
            move.DatabaseMove(dump_digest, request.server.machine),
            move.read_list(request.server.moves_path),
        )
        move.write_list(
            request.server.moves_path, [*(move_entry for move_entry in known_moves if move_entry.loaded), saved_move]
        )
        move.write_mark(saved_move)

    postgres.save_database(run, cluster, request.server.dump_path, note_digest)
    return True


def retire_server(run: Runner, request: TrackingRequest, keep_data: bool) -> bool:
    """Remove the server from this host, unless it is that of another cluster. Returns whether anything was removed.

    Its database is renamed if another member has taken it over, unless ``keep_data``. The program is deleted last: as
    long as it exists, the next run continues the removal. Raises GpumeshError.
    """
    trust_paths = _obsolete_trust_files(request) if keep_data or not request.server.tls else []
    for path in trust_paths:
        remove_file(path)
    if not is_own_server(request):
        remove_empty_directory(os.path.dirname(settings.SHARED_TRUST))
        return bool(trust_paths)
    systemd = service.service_manager(Tree()) == service.SYSTEMD
    if not keep_data and postgres.dump_exists(request.server.dump_path):
        raise HostStateError(
            f"The database of the experiments has not been taken over yet: {request.server.dump_path} is still there.",
            "Run the playbook tracking with all members.",
        )
    is_taken_over = not keep_data and _is_taken_over(request.server)
    _stop_mlflow(run, request, systemd)
    if is_taken_over and find_program("pg_lsclusters") is not None:
        cluster = _find_cluster(run)
        _run_daemon(run, request, systemd, build_daemons(request.server, cluster, systemd)[0], TrackingResult([], []))
        postgres.set_aside_database(run, cluster)
    secret_paths = (
        settings.SECRET,
        settings.PASSPHRASE,
        settings.CHECKER_PASSWORD,
        settings.KEY,
        *server_certificate.list_files(settings.FOLDER),
    )
    for path in (settings.UNIT, settings.CERTIFICATE, *secret_paths):
        remove_file(path)
    if systemd:
        run(["systemctl", "daemon-reload"])
    else:
        database_daemon = service.Daemon("postgresql", "absent", "", "", "postgres", [], {})
        no_condition = service.ReadyCondition(None, None, None)
        service.ensure_daemon(
            run, service.SUPERVISORD, database_daemon, request.service_paths, no_condition, _READY_TIMEOUT, False
        )
    _remove_directories()
    return True


def _is_taken_over(server: TrackingServer) -> bool:
    """Return whether the new server has loaded the database that this host has saved. Raises HostStateError otherwise.

    The result is False if this host has not saved it: a backup was loaded instead, or it took no part in the move.
    """
    saved_move = move.read_mark()
    if saved_move is None:
        return False
    known_moves = move.read_list(server.moves_path)
    if any(move_entry.digest == saved_move.digest and move_entry.loaded for move_entry in known_moves):
        return True
    pending_move = move.pending_move(known_moves)
    error_message = (
        f"{server.machine} has not loaded the database of the experiments, and {server.dump_path} is missing. The database "
        "is still on this host, and its server is stopped."
    )
    if pending_move is not None and pending_move.digest == saved_move.digest:
        raise HostStateError(
            error_message, f"Return to it with tracking_server={saved_move.former}, and move the server again."
        )
    raise HostStateError(
        error_message,
        f"To continue with what {server.machine} has now, remove {settings.MOVED} on this host, where the database then "
        "stays. To have its runs instead, restore it there as the guide says for a lost move.",
    )


def _remove_directories() -> None:
    for path in (settings.LIBRARY, settings.FOLDER):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as failure:
            if failure.errno != errno.ENOTEMPTY:
                raise HostStateError(f"{path} cannot be removed: {failure.strerror}.") from failure
        remove_empty_directory(os.path.dirname(path))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of a cluster's tracking server on its host: names, paths and the contents of its files. Pure."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shlex
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.server_certificate import (
    CertificateIdentity,
    current_pair,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import confine, limits, locations

#: The name of the system account, the PostgreSQL account and the database. PostgreSQL authenticates it by its socket.
ACCOUNT = "gpumesh_tracking"
DEFAULT_UID = 875
#: The MLflow account, an administrator, with which the check writes a run. Its password belongs to the server.
CHECKER_NAME = "gpumesh"
#: The name of the user who is always an administrator.
ADMINISTRATOR_NAME = "admin"

SERVICE_NAME = "gpumesh-tracking"
UNIT = f"/etc/systemd/system/{SERVICE_NAME}.service"
FOLDER = "/etc/gpumesh/tracking"
AUTHENTICATION = f"{FOLDER}/auth.ini"
SECRET = f"{FOLDER}/secret"
#: The passphrase with which MLflow encrypts the keys of its gateway in the database. MLflow's default is public.
PASSPHRASE = f"{FOLDER}/passphrase"
#: The password of CHECKER_NAME, which only root can read.
CHECKER_PASSWORD = f"{FOLDER}/checker"
CERTIFICATE = f"{FOLDER}/tls.crt"
KEY = f"{FOLDER}/tls.key"
#: The certificate that the server has made for itself.
OWN_CERTIFICATE, OWN_KEY = current_pair(FOLDER)
#: The mark of the file on the volume to which the database has been saved for another member; see move.py.
MOVED = f"{FOLDER}/moved"
#: The trust file of earlier versions, which is now at trust_path(). Jobs that were started then still read it.
SHARED_TRUST = "/etc/gpumesh/tracking-ca.crt"
LIBRARY = "/usr/local/lib/gpumesh/mlflow"
PROGRAM = f"{LIBRARY}/serve"
#: The launcher that confines the server, and what MLflow imports from its environment: the module of its authorization
#: function, and that of its app, with the name of the app.
LAUNCHER_PATH = f"{LIBRARY}/confine.py"
AUTHORIZATION_MODULE = "gpumesh_locations"
LIMITS_MODULE = "gpumesh_limits"
APP_NAME = "gpumesh"
HOME = "/var/lib/gpumesh/tracking"
#: The only directory besides the artifacts that the server can write to.
SCRATCH = f"{HOME}/scratch"
#: The note of the directories that the kernel allows the running server.
ALLOWED_NOTE = f"{SCRATCH}/allowed"
SOCKETS = "/run/postgresql"

#: The root of the locations of experiments, as clients see it.
ARTIFACT_ROOT = "mlflow-artifacts:/"

_FILE_HEADER = "# Written by the Ansible collection gpumesh.cluster; changes here are lost.\n"
#: The number of workers, each of which is a process of about 200 MiB that imports MLflow for many seconds, on a host with
#: this many processors. One with fewer has a single worker.
_WORKER_COUNT, _WORKER_PROCESSORS = 2, 4
#: The memory limits, in MiB, of each process, and of all processes together.
_PROCESS_MEMORY = 2048
_TOTAL_MEMORY = 4096
#: The timeout of a worker's health check, in seconds.
_HEALTH_TIMEOUT = 300
_CLUSTER_PATTERN = re.compile(r"--artifacts-destination=[^\n]*?/mlflow-([a-z][a-z0-9_-]{0,39})/artifacts'?(?=\s|$)")


class TrackingServer(NamedTuple):
    """The server in the record. ``mount_point``: that of the artifacts' volume.

    ``unconfined``: whether it may serve where the kernel cannot confine it. ``own_certificate``: whether it makes its
    certificate itself.
    """

    cluster: str
    machine: str
    address: str
    port: int
    tls: bool
    mount_point: str
    uid: int
    unconfined: bool = False
    own_certificate: bool = False

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> TrackingServer:
        """Return the server in the parameters of the module tracking."""
        return cls(
            **{field_name: params[field_name] for field_name in cls._fields if params.get(field_name) is not None}
        )

    @property
    def certificate_path(self) -> str:
        """Return the path of the certificate."""
        return OWN_CERTIFICATE if self.own_certificate else CERTIFICATE

    @property
    def key_path(self) -> str:
        """Return the path of the private key."""
        return OWN_KEY if self.own_certificate else KEY

    @property
    def identity(self) -> CertificateIdentity:
        """Return the identity for which the server makes its own certificate."""
        return CertificateIdentity(FOLDER, self.cluster, "MLflow", self.machine, [self.address])

    @property
    def volume_directory(self) -> str:
        """Return the directory of the server on the volume."""
        return f"{self.mount_point}/mlflow-{self.cluster}"

    @property
    def artifact_directory(self) -> str:
        """Return the directory of the artifacts of runs."""
        return f"{self.volume_directory}/artifacts"

    @property
    def dump_path(self) -> str:
        """Return the path of the database that is moved to another member. While it exists, it is the current one."""
        return f"{self.volume_directory}/database.dump"

    @property
    def moves_path(self) -> str:
        """Return the path of the list of moves of the database, and of the servers that have loaded it; see move.py."""
        return f"{self.volume_directory}/moves.json"


def trust_path(cluster: str) -> str:
    """Return the path, on each member, of the certificates against which it verifies the server of this cluster.

    A machine can be in several clusters.
    """
    return f"/etc/gpumesh/tracking-ca-{cluster}.crt"


def environment_path(requirements: str, python_version: str) -> str:
    """Return the directory of the environment for these packages and this version of Python, such as 3.13."""
    environment_digest = hashlib.sha256(f"{python_version}\n{requirements}".encode()).hexdigest()
    return f"{LIBRARY}/{environment_digest[:12]}"


def database_url(port: int) -> str:
    """Return the URL of the database for SQLAlchemy, through PostgreSQL's socket."""
    return f"postgresql+psycopg://{ACCOUNT}@/{ACCOUNT}?host={SOCKETS}&port={port}"


def parse_port(url: str) -> Optional[int]:
    """Return the port in a URL of database_url(); None if it has none."""
    match = re.search(r"[?&]port=(\d+)", url)
    return int(match[1]) if match else None


def format_authentication(database_port: int, admin_password: str) -> str:
    """Return MLflow's authentication file: users can read everything, and change what they own.

    MLflow requires the password of an administrator in this file, which it uses only if no administrator exists.
    CHECKER_NAME is one, but has another password: the server can read this file.
    """
    return (
        f"{_FILE_HEADER}[mlflow]\ndefault_permission = READ\n"
        # The file supports only this quoting.
        f"database_uri = {database_url(database_port).replace('%', '%%')}\n"
        f"admin_username = {CHECKER_NAME}\nadmin_password = {admin_password}\n"
        f"authorization_function = {AUTHORIZATION_MODULE}:authenticate\n"
    )


def allowed_origins(server: TrackingServer) -> List[str]:
    """Return the origins under which browsers reach the server: its address, and the name of its machine."""
    url_scheme = "https" if server.tls else "http"
    url_host = f"[{server.address}]" if ":" in server.address else server.address
    return [f"{url_scheme}://{host_name}:{server.port}" for host_name in (url_host, server.machine)]


def writable_directories(server: TrackingServer) -> List[str]:
    """Return the directories that the server can write to."""
    return [server.artifact_directory, SCRATCH]


def format_program(server: TrackingServer, venv_path: str, database_port: int) -> str:
    """Return the program that starts the server. The secret is neither in a unit nor in a process list."""
    python_path = f"{venv_path}/bin/python"
    readable_paths = [AUTHENTICATION, *([server.certificate_path, server.key_path] if server.tls else [])]
    server_command = [
        *(python_path, "-I", LAUNCHER_PATH, *(["--unconfined"] if server.unconfined else [])),
        *(f"--read={path}" for path in readable_paths),
        *(f"--write={path}" for path in writable_directories(server)),
        *(f"--note={ALLOWED_NOTE}", f"--port={server.port}", f"--memory={_PROCESS_MEMORY}"),
        *("--", python_path, "-m", "mlflow", "server"),
        f"--app-name={APP_NAME}",
        f"--host={server.address}",
        f"--port={server.port}",
        f"--backend-store-uri={database_url(database_port)}",
        f"--artifacts-destination={server.artifact_directory}",
        # Any host name is allowed, since each request has a password.
        "--allowed-hosts=*",
        # A page of another origin must not act for the user who has it open. Origins of localhost are always allowed.
        f"--cors-allowed-origins={','.join(allowed_origins(server))}",
    ]
    # While a worker on a busy machine imports MLflow, it does not respond for longer than uvicorn's 5 seconds, and would
    # be replaced each time.
    uvicorn_options = f"--timeout-worker-healthcheck {_HEALTH_TIMEOUT}"
    if server.tls:
        uvicorn_options += f" --ssl-certfile {server.certificate_path} --ssl-keyfile {server.key_path}"
    server_command.append(f"--uvicorn-opts={uvicorn_options}")
    return (
        # Python imports nothing from the working directory, which the server could not write to anyway.
        f"#!/bin/sh\n{_FILE_HEADER}set -eu\numask 0027\ncd {LIBRARY}\nexport PYTHONSAFEPATH=1\n"
        f"MLFLOW_FLASK_SERVER_SECRET_KEY=$(cat {SECRET})\n"
        f"MLFLOW_CRYPTO_KEK_PASSPHRASE=$(cat {PASSPHRASE})\n"
        "export MLFLOW_FLASK_SERVER_SECRET_KEY MLFLOW_CRYPTO_KEK_PASSPHRASE\n"
        f"export HOME={HOME} TMPDIR={SCRATCH}\nexport MLFLOW_AUTH_CONFIG_PATH={AUTHENTICATION}\n"
        # Otherwise, MLflow starts six more processes, for evaluations of language models by other services.
        "export MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false\n"
        "export MLFLOW_DISABLE_TELEMETRY=true\nexport GIT_PYTHON_REFRESH=quiet\n"
        # Otherwise, a library that the server does not use allocates memory for each processor.
        "export OPENBLAS_NUM_THREADS=1\n"
        f'workers=1\n[ "$(nproc)" -lt {_WORKER_PROCESSORS} ] || workers={_WORKER_COUNT}\n'
        f'exec {" ".join(map(shlex.quote, server_command))} "--workers=$workers"\n'
    )


def parse_cluster(program_text: str) -> str:
    """Return the cluster whose server a program of format_program() starts; empty if the text does not name one."""
    match = _CLUSTER_PATTERN.search(program_text)
    return match[1] if match else ""


def format_unit(server: TrackingServer) -> str:
    """Return the unit for systemd, which restricts the server further than its launcher does."""
    return (
        f"{_FILE_HEADER}[Unit]\nDescription=Experiments of gpumesh cluster {server.cluster} (MLflow)\n"
        "Wants=network-online.target\nAfter=network-online.target postgresql.service\n"
        # A mesh address may be assigned late.
        "StartLimitIntervalSec=0\n\n"
        f"[Service]\nUser={ACCOUNT}\nGroup={ACCOUNT}\nExecStart={PROGRAM}\nRestart=always\nRestartSec=3\n"
        f"MemoryMax={_TOTAL_MEMORY}M\n"
        "NoNewPrivileges=yes\nCapabilityBoundingSet=\nLimitCORE=0\nProtectSystem=strict\n"
        f"ReadWritePaths={SCRATCH} {_quote_path(server.artifact_directory)}\nPrivateTmp=yes\nPrivateDevices=yes\n"
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _quote_path(path: str) -> str:
    """Quote a path for a unit of systemd, which has specifiers such as %n."""
    escaped_path = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped_path}"'


def plugin_files(venv_path: str, python_version: str) -> Dict[str, str]:
    """Return the files that MLflow imports from its environment, for a version of Python, with their contents."""
    site_packages = f"{venv_path}/lib/python{python_version}/site-packages"
    return {
        f"{site_packages}/{AUTHORIZATION_MODULE}.py": inspect.getsource(locations),
        f"{site_packages}/{LIMITS_MODULE}.py": inspect.getsource(limits),
        f"{site_packages}/{LIMITS_MODULE}-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {LIMITS_MODULE}\nVersion: 1\n",
        f"{site_packages}/{LIMITS_MODULE}-1.dist-info/entry_points.txt": f"[mlflow.app]\n{APP_NAME} = {LIMITS_MODULE}:create_app\n",
    }


def list_files(
    server: TrackingServer, venv_path: str, python_version: str, database_port: int, systemd: bool
) -> List[Dict[str, Any]]:
    """Return the files without secrets, as entries for ``managed_files``."""
    contents_by_path = plugin_files(venv_path, python_version)
    file_entries = [
        {"path": LIBRARY, "state": "directory", "mode": "0755"},
        {"path": FOLDER, "state": "directory", "mode": "0755"},
        {"path": LAUNCHER_PATH, "content": inspect.getsource(confine), "mode": "0644"},
        *(
            {"path": directory, "state": "directory", "mode": "0755"}
            for directory in sorted(set(map(os.path.dirname, contents_by_path)))
        ),
        *({"path": path, "content": content, "mode": "0644"} for path, content in contents_by_path.items()),
        {"path": PROGRAM, "content": format_program(server, venv_path, database_port), "mode": "0755"},
    ]
    if systemd:
        file_entries.append({"path": UNIT, "content": format_unit(server), "mode": "0644"})
    return file_entries

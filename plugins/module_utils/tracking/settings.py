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

from ansible_collections.gpumesh.cluster.plugins.module_utils.own_certificate import Identity, own
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import confine, limits, locations

#: The name of the system account, the PostgreSQL account and the database. PostgreSQL authenticates it by its socket.
ACCOUNT = "gpumesh_tracking"
UID = 875
#: The MLflow account, an administrator, with which the check writes a run. Its password belongs to the server.
CHECKER = "gpumesh"
#: The name of the user who is always an administrator.
ADMINISTRATOR = "admin"

SERVICE = "gpumesh-tracking"
UNIT = f"/etc/systemd/system/{SERVICE}.service"
FOLDER = "/etc/gpumesh/tracking"
AUTHENTICATION = f"{FOLDER}/auth.ini"
SECRET = f"{FOLDER}/secret"
#: With which MLflow encrypts the keys of its gateway in the database. Its default is published.
PASSPHRASE = f"{FOLDER}/passphrase"
#: The password of CHECKER, which only root can read.
CHECKER_PASSWORD = f"{FOLDER}/checker"
CERTIFICATE = f"{FOLDER}/tls.crt"
KEY = f"{FOLDER}/tls.key"
#: The certificate that the server has made for itself.
OWN_CERTIFICATE, OWN_KEY = own(FOLDER)
#: Says which file on the volume has the database, if it has been written there for another member; see move.py.
MOVED = f"{FOLDER}/moved"
#: Where earlier versions wrote what is now in trust_of(). Jobs that were started then still read it.
SHARED_TRUST = "/etc/gpumesh/tracking-ca.crt"
LIBRARY = "/usr/local/lib/gpumesh/mlflow"
PROGRAM = f"{LIBRARY}/serve"
#: The launcher that confines the server, and what MLflow imports from its environment: its authorization function, and the
#: module of its app, which has this name for MLflow.
CONFINE = f"{LIBRARY}/confine.py"
AUTHORIZATION = "gpumesh_locations"
LIMITS = "gpumesh_limits"
APP = "gpumesh"
HOME = "/var/lib/gpumesh/tracking"
#: The only directory besides the artifacts that the server can write to.
SCRATCH = f"{HOME}/scratch"
#: Which directories the kernel allows the running server.
ALLOWED = f"{SCRATCH}/allowed"
SOCKETS = "/run/postgresql"

#: The root of the locations of experiments, as clients see it.
ARTIFACT_ROOT = "mlflow-artifacts:/"

_WRITTEN = "# Written by the Ansible collection gpumesh.cluster; changes here are lost.\n"
#: Each is a process of about 200 MiB.
_WORKERS = 2
#: MiB of each process, and of all of them together.
_MEMORY = 2048
_TOTAL_MEMORY = 4096
#: Seconds.
_HEALTHY = 300
_CLUSTER = re.compile(r"--artifacts-destination=[^\n]*?/mlflow-([a-z][a-z0-9_-]{0,39})/artifacts'?(?=\s|$)")


class Server(NamedTuple):
    """The server in the record. ``mount_point`` is that of the artifacts' volume.

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
    def given(cls, params: Mapping[str, Any]) -> Server:
        """Read the parameters of the module tracking."""
        return cls(**{name: params[name] for name in cls._fields if params.get(name) is not None})

    @property
    def certificate(self) -> str:
        """The file of the certificate."""
        return OWN_CERTIFICATE if self.own_certificate else CERTIFICATE

    @property
    def key(self) -> str:
        """The file of the private key."""
        return OWN_KEY if self.own_certificate else KEY

    @property
    def identity(self) -> Identity:
        """For whom the certificate is that it makes itself."""
        return Identity(FOLDER, self.cluster, "MLflow", self.machine, [self.address])

    @property
    def folder(self) -> str:
        """The directory of the server on the volume."""
        return f"{self.mount_point}/mlflow-{self.cluster}"

    @property
    def artifacts(self) -> str:
        """The artifacts of the runs."""
        return f"{self.folder}/artifacts"

    @property
    def dump(self) -> str:
        """The database on its way to another member. While it exists, it is the current one."""
        return f"{self.folder}/database.dump"

    @property
    def moves(self) -> str:
        """Which databases were on their way, and which server has loaded each; see move.py."""
        return f"{self.folder}/moves.json"


def trust_of(cluster: str) -> str:
    """The file on every member with the certificates against which it verifies the server of this cluster.

    A machine can be in several clusters.
    """
    return f"/etc/gpumesh/tracking-ca-{cluster}.crt"


def environment_of(requirements: str, python: str) -> str:
    """The folder of the Python environment: different packages, or another Python (such as 3.13), have another one."""
    digest = hashlib.sha256(f"{python}\n{requirements}".encode()).hexdigest()
    return f"{LIBRARY}/{digest[:12]}"


def database_url(port: int) -> str:
    """The URL of the database for SQLAlchemy, through PostgreSQL's socket."""
    return f"postgresql+psycopg://{ACCOUNT}@/{ACCOUNT}?host={SOCKETS}&port={port}"


def port_of(url: str) -> Optional[int]:
    """The port in such a URL; None if it has none."""
    found = re.search(r"[?&]port=(\d+)", url)
    return int(found[1]) if found else None


def authentication(port: int, password: str) -> str:
    """MLflow's authentication file: users can read everything, and change what they own.

    MLflow requires the password of an administrator here, which it uses only if there is none. CHECKER is one, and has
    another password, which this file does not have, since the server can read it.
    """
    return (
        f"{_WRITTEN}[mlflow]\ndefault_permission = READ\n"
        # The file supports no other quoting.
        f"database_uri = {database_url(port).replace('%', '%%')}\n"
        f"admin_username = {CHECKER}\nadmin_password = {password}\n"
        f"authorization_function = {AUTHORIZATION}:authenticate\n"
    )


def origins(server: Server) -> List[str]:
    """The origins under which browsers reach the server: its address, and the name of its machine."""
    scheme = "https" if server.tls else "http"
    address = f"[{server.address}]" if ":" in server.address else server.address
    return [f"{scheme}://{host}:{server.port}" for host in (address, server.machine)]


def writable(server: Server) -> List[str]:
    """The directories that the server can write to."""
    return [server.artifacts, SCRATCH]


def program(server: Server, environment: str, port: int) -> str:
    """The program that starts the server. The secret is neither in a unit nor in a process list."""
    python = f"{environment}/bin/python"
    read = [AUTHENTICATION, *([server.certificate, server.key] if server.tls else [])]
    argv = [
        *(python, "-I", CONFINE, *(["--unconfined"] if server.unconfined else [])),
        *(f"--read={path}" for path in read),
        *(f"--write={path}" for path in writable(server)),
        *(f"--note={ALLOWED}", f"--port={server.port}", f"--memory={_MEMORY}"),
        *("--", python, "-m", "mlflow", "server"),
        f"--app-name={APP}",
        f"--host={server.address}",
        f"--port={server.port}",
        f"--workers={_WORKERS}",
        f"--backend-store-uri={database_url(port)}",
        f"--artifacts-destination={server.artifacts}",
        # Any host name is allowed, since each request has a password.
        "--allowed-hosts=*",
        # A page of another origin must not act for the user who has it open. Origins of localhost are always allowed.
        f"--cors-allowed-origins={','.join(origins(server))}",
    ]
    # On a busy machine, a worker does not answer for longer than uvicorn's 5 seconds while it imports MLflow, and would be
    # replaced each time.
    options = f"--timeout-worker-healthcheck {_HEALTHY}"
    if server.tls:
        options += f" --ssl-certfile {server.certificate} --ssl-keyfile {server.key}"
    argv.append(f"--uvicorn-opts={options}")
    return (
        # Python imports nothing from the working directory, which the server could not write to anyway.
        f"#!/bin/sh\n{_WRITTEN}set -eu\numask 0027\ncd {LIBRARY}\nexport PYTHONSAFEPATH=1\n"
        f"MLFLOW_FLASK_SERVER_SECRET_KEY=$(cat {SECRET})\n"
        f"MLFLOW_CRYPTO_KEK_PASSPHRASE=$(cat {PASSPHRASE})\n"
        "export MLFLOW_FLASK_SERVER_SECRET_KEY MLFLOW_CRYPTO_KEK_PASSPHRASE\n"
        f"export HOME={HOME} TMPDIR={SCRATCH}\nexport MLFLOW_AUTH_CONFIG_PATH={AUTHENTICATION}\n"
        # Otherwise, it starts six more processes, for evaluations of language models by other services.
        "export MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false\n"
        "export MLFLOW_DISABLE_TELEMETRY=true\nexport GIT_PYTHON_REFRESH=quiet\n"
        # Otherwise, a library that the server does not use takes memory for each processor.
        "export OPENBLAS_NUM_THREADS=1\n"
        f"exec {' '.join(map(shlex.quote, argv))}\n"
    )


def cluster_of(program_text: str) -> str:
    """The cluster whose server such a program starts; empty if it does not say."""
    found = _CLUSTER.search(program_text)
    return found[1] if found else ""


def unit(server: Server) -> str:
    """The unit for systemd, which restricts the server further than its launcher does."""
    return (
        f"{_WRITTEN}[Unit]\nDescription=Experiments of gpumesh cluster {server.cluster} (MLflow)\n"
        "Wants=network-online.target\nAfter=network-online.target postgresql.service\n"
        # A mesh address may be assigned late.
        "StartLimitIntervalSec=0\n\n"
        f"[Service]\nUser={ACCOUNT}\nGroup={ACCOUNT}\nExecStart={PROGRAM}\nRestart=always\nRestartSec=3\n"
        f"MemoryMax={_TOTAL_MEMORY}M\n"
        "NoNewPrivileges=yes\nCapabilityBoundingSet=\nLimitCORE=0\nProtectSystem=strict\n"
        f"ReadWritePaths={SCRATCH} {_quoted(server.artifacts)}\nPrivateTmp=yes\nPrivateDevices=yes\n"
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _quoted(path: str) -> str:
    """A path in a unit of systemd, which has specifiers such as %n."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def plugin(environment: str, python: str) -> Dict[str, str]:
    """The files that MLflow imports from its environment, for a version of Python, with their contents."""
    packages = f"{environment}/lib/python{python}/site-packages"
    return {
        f"{packages}/{AUTHORIZATION}.py": inspect.getsource(locations),
        f"{packages}/{LIMITS}.py": inspect.getsource(limits),
        f"{packages}/{LIMITS}-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {LIMITS}\nVersion: 1\n",
        f"{packages}/{LIMITS}-1.dist-info/entry_points.txt": f"[mlflow.app]\n{APP} = {LIMITS}:create_app\n",
    }


def files(server: Server, environment: str, python: str, port: int, systemd: bool) -> List[Dict[str, Any]]:
    """Return the files without secrets, as entries for ``host_files``."""
    added = plugin(environment, python)
    entries = [
        {"path": LIBRARY, "state": "directory", "mode": "0755"},
        {"path": FOLDER, "state": "directory", "mode": "0755"},
        {"path": CONFINE, "content": inspect.getsource(confine), "mode": "0644"},
        *(
            {"path": folder, "state": "directory", "mode": "0755"}
            for folder in sorted(set(map(os.path.dirname, added)))
        ),
        *({"path": path, "content": text, "mode": "0644"} for path, text in added.items()),
        {"path": PROGRAM, "content": program(server, environment, port), "mode": "0755"},
    ]
    if systemd:
        entries.append({"path": UNIT, "content": unit(server), "mode": "0644"})
    return entries

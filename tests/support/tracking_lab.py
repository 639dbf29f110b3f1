# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab of the scenario tracking, and access to its MLflow through the API."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from desk import GUIDES_DIRECTORY, GuideRunner
from lab_hosts import ROOT, AnsibleRun, Lab
from told_secrets import watch_processes

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking.settings import FOLDER, LIBRARY
from ansible_collections.gpumesh.cluster.tests.publication.guides import blocks

LAB_NAME = "molecule-tracking"
MANAGER, _SECOND, BARE_HOST = MACHINES = ("gpu1", "gpu2", "gpu4")
NETWORK = "10.79.92."
ADDRESS_BY_MACHINE = {machine: f"{NETWORK}1{machine[-1]}" for machine in MACHINES}
SHARED_VOLUME = ROOT / ".lab" / LAB_NAME / "shared"
#: The users of the guide, with their passwords, and others.
PASSWORDS = {
    "admin": "an-administrator-of-mlflow",
    "alice": "only-alice-knows-this",
    "mallory": "password-of-mallory",
    "dave": "password-of-dave",
}
SERVICE = "gpumesh-tracking"
#: The guide whose commands the tests type, and those that change the server.
GUIDE_NAME = "profile"
TRACKING_COMMAND = "ansible-playbook -i inventories/lan gpumesh.cluster.tracking"
START_COMMAND = f"{TRACKING_COMMAND} -e tracking_users_file=secrets/tracking-users"
#: The steps of the training in the guide.
GUIDE_STEPS = 20
#: A copy of the library of MLflow on the volume, which all machines have.
LIBRARY_COPY = "/mnt/shared/mlflow-library"


def build_opener(trusted_certificates: str) -> urllib.request.OpenerDirector:
    """Build an opener of URLs that trusts these certificates."""
    context = ssl.create_default_context(cadata=trusted_certificates) if trusted_certificates else None
    if context:
        # One that was provided is for the name of the machine, which this machine cannot resolve.
        context.check_hostname = False
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))


class TrackingLab(Lab):
    """The lab and its tracking server.

    ``server_uri`` is the current address of the server, ``trusted_certificates`` are those by which it is verified.
    """

    def __init__(self, name: str = LAB_NAME, network: str = NETWORK) -> None:
        """Find the server. ``network`` begins the addresses of the lab's hosts."""
        super().__init__(name)
        self.network = network
        self.trusted_certificates = ""
        self.server_uri = ""
        self.find_server()

    def find_server(self) -> None:
        """Read from the record where the server is."""
        tracking_settings = self.read_record()["tracking"]
        if tracking_settings:
            self.trusted_certificates = "".join(tracking_settings["certificates"]) or self.trusted_certificates
            self.server_uri = f"{'https' if tracking_settings['tls'] else 'http'}://{self.address_of(tracking_settings['server'])}:5000"

    def address_of(self, machine: str) -> str:
        return f"{self.network}1{machine[-1]}"

    def read_record(self) -> dict[str, Any]:
        return dict(json.loads(self.read(MANAGER, "/var/lib/gpumesh/clusters/lan.json")))

    def query(self, path: str, body: dict[str, Any] | None = None, user: str = "admin") -> dict[str, Any]:
        """Send a request as the pages of MLflow do in a browser, with their origin. Returns the response."""
        return dict(json.loads(self.fetch(path, body, user) or b"{}"))

    def fetch(self, path: str, body: dict[str, Any] | None = None, user: str = "admin") -> bytes:
        credentials = base64.b64encode(f"{user}:{PASSWORDS.get(user, 'something else')}".encode()).decode()
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Basic {credentials}",
            "Origin": self.server_uri,
        }
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server_uri}/api/2.0/{path}", data, headers)
        with build_opener(self.trusted_certificates).open(request, timeout=120) as response:
            return bytes(response.read())

    def find_runs(self, experiment: str) -> dict[str, dict[str, Any]]:
        """Return the runs of an experiment, by their names."""
        experiment_response = self.query(f"mlflow/experiments/get-by-name?experiment_name={experiment}")
        run_query = {"experiment_ids": [experiment_response["experiment"]["experiment_id"]]}
        return {run["info"]["run_name"]: run for run in self.query("mlflow/runs/search", run_query).get("runs", [])}

    def identify_runs(self, experiment: str) -> dict[str, Any]:
        """Return what identifies the runs: their IDs, times, users and the location of their artifacts."""
        return {name: run["info"] for name, run in self.find_runs(experiment).items()}

    def stored_steps(self, run: dict[str, Any], metric: str) -> list[int]:
        """Return the sorted steps of a metric, each as often as it was stored."""
        path = f"mlflow/metrics/get-history?run_id={run['info']['run_id']}&metric_key={metric}"
        return sorted(int(point["step"]) for point in self.query(path).get("metrics", []))

    def read_artifact(self, run: dict[str, Any], name: str) -> str:
        """Return the content of an artifact."""
        artifact_path = run["info"]["artifact_uri"].partition(":/")[2]
        return self.fetch(f"mlflow-artifacts/artifacts/{artifact_path}/{name}").decode()

    def is_responding(self) -> bool:
        """Return whether the server responds."""
        try:
            self.query("mlflow/experiments/get?experiment_id=0")
        except OSError:
            return False
        return True

    def run_job(self, *argv: str) -> str:
        return self.run(MANAGER, "srun", "--nodes=2", "--job-name=look", *argv)

    def run_tracking(self, *options: str) -> AnsibleRun:
        playbook_run = self.run_playbook("gpumesh.cluster.tracking", *options)
        self.find_server()
        return playbook_run

    def save_library(self, host: str) -> None:
        """Keep MLflow and its launcher as a host has installed them: it takes minutes to install them again."""
        self.run(host, "sh", "-c", f"rm -rf {LIBRARY_COPY} && cp -a {LIBRARY} {LIBRARY_COPY}", timeout=600)

    def restore_library(self, host: str) -> None:
        """Give a host the environment of MLflow that was kept, as if it had installed it before."""
        self.run(host, "sh", "-c", f"mkdir -p {LIBRARY} && cp -a {LIBRARY_COPY}/*/ {LIBRARY}", timeout=600)

    def read_secrets(self) -> set[str]:
        """Return the passwords, and the lines of the private key, that only some of the first server's files may have."""
        secret_files = self.run(MANAGER, "sh", "-c", f"cat {FOLDER}/checker; echo; cat {FOLDER}/*.key")
        return {line for line in secret_files.splitlines() if len(line) > 20 and not line.startswith("-----")}

    def schema_version(self, host: str) -> str:
        """Return the version of the schema in PostgreSQL."""
        return self.query_database(host, "SELECT version_num FROM alembic_version", "gpumesh_tracking")

    def query_database(self, host: str, sql: str, *options: str) -> str:
        """Run a query in PostgreSQL on a host. Returns its output."""
        return self.run(host, "runuser", "-u", "postgres", "--", "psql", "-At", *options, "-c", sql)


def create_certificate(machine: str, directory: Path) -> tuple[Path, Path]:
    """Create a certificate for the name of a machine. Returns its path, and that of its private key."""
    certificate_path, key_path = directory / f"{machine}.pem", directory / f"{machine}.key"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={machine}"]
    argv += ["-addext", f"subjectAltName=DNS:{machine}", "-keyout", str(key_path), "-out", str(certificate_path)]
    subprocess.run(argv, check=True, capture_output=True)
    return certificate_path, key_path


def run_tags(run: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]}


class StartRuns(NamedTuple):
    """The playbooks that could have printed the passwords of users and the keys of the server, while both were new and
    the processes of all members were watched; see `watch_processes`.
    """

    tracking_run: AnsibleRun
    show_run: AnsibleRun
    check_run: AnsibleRun
    #: The directory with the report of the check.
    report_directory: Path
    passwords: dict[str, str]

    @property
    def runs(self) -> tuple[AnsibleRun, ...]:
        return self.tracking_run, self.show_run, self.check_run


def read_guide_file(name: str) -> str:
    """Return the content of a file, as the guide shows it."""
    (text,) = (block.text for block in blocks(GUIDES_DIRECTORY / f"{GUIDE_NAME}.md") if block.file == name)
    return f"{text}\n"


def start_with_new_secrets(guide_runner: GuideRunner, lab: TrackingLab, directory: Path) -> StartRuns:
    """Type the guide's command that starts the server, with a user more than in its file."""
    eve_password = 'eve\'s \\own "p@ss" 4711'
    guide_runner.write("secrets/tracking-users", f"{read_guide_file('secrets/tracking-users')}eve:{eve_password}\n")
    check_options = ("--diff", "--tags", "tracking", "-e", f"check_report_dir={directory}")
    with watch_processes(lab, MACHINES):
        tracking_run = guide_runner.run_ansible(*guide_runner.type_line(GUIDE_NAME, START_COMMAND), "-vvv", "--diff")
        show_run = lab.run_playbook("gpumesh.cluster.show", "-vvv", "-e", "show_output=json")
        check_run = lab.run_playbook("gpumesh.cluster.check", "-vvv", *check_options)
    lab.find_server()
    passwords = {name: PASSWORDS[name] for name in ("admin", "alice")}
    return StartRuns(tracking_run, show_run, check_run, directory, {**passwords, "eve": eve_password})

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

from desk import GUIDES, Desk
from lab_hosts import ROOT, Lab, Run
from told_secrets import watched

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking.settings import FOLDER, LIBRARY
from ansible_collections.gpumesh.cluster.tests.publication.guides import blocks

NAME = "molecule-tracking"
MANAGER, _SECOND, BARE = MACHINES = ("gpu1", "gpu2", "gpu4")
NETWORK = "10.79.92."
ADDRESS = {machine: f"{NETWORK}1{machine[-1]}" for machine in MACHINES}
SHARED = ROOT / ".lab" / NAME / "shared"
#: The users of the guide, with their passwords, and others.
PASSWORDS = {
    "admin": "an-administrator-of-mlflow",
    "alice": "only-alice-knows-this",
    "mallory": "password-of-mallory",
    "dave": "password-of-dave",
}
SERVICE = "gpumesh-tracking"
#: The guide whose commands the tests type, and those that change the server.
GUIDE = "profile"
AGAIN = "ansible-playbook -i inventories/lan gpumesh.cluster.tracking"
ON = f"{AGAIN} -e tracking_users_file=secrets/tracking-users"
#: The steps of the training in the guide.
STEPS = 20
#: A copy of the library of MLflow on the volume, which all machines have.
LIBRARY_KEPT = "/mnt/shared/mlflow-library"


def opener(trust: str) -> urllib.request.OpenerDirector:
    """Build an opener of URLs that trusts these certificates."""
    context = ssl.create_default_context(cadata=trust) if trust else None
    if context:
        # One that was provided is for the name of the machine, which this machine cannot resolve.
        context.check_hostname = False
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))


class TrackingLab(Lab):
    """The lab and its tracking server.

    ``server_uri`` is the current address of the server, ``trusted_certificates`` are those by which it is verified.
    """

    def __init__(self, name: str = NAME, network: str = NETWORK) -> None:
        """Find the server. ``network`` begins the addresses of the lab's hosts."""
        super().__init__(name)
        self.network = network
        self.trust = ""
        self.uri = ""
        self.find_server()

    def find_server(self) -> None:
        """Read from the record where the server is."""
        tracking = self.record()["tracking"]
        if tracking:
            self.trust = "".join(tracking["certificates"]) or self.trust
            self.uri = f"{'https' if tracking['tls'] else 'http'}://{self.address(tracking['server'])}:5000"

    def address(self, machine: str) -> str:
        return f"{self.network}1{machine[-1]}"

    def record(self) -> dict[str, Any]:
        return dict(json.loads(self.read(MANAGER, "/var/lib/gpumesh/clusters/lan.json")))

    def ask(self, path: str, body: dict[str, Any] | None = None, user: str = "admin") -> dict[str, Any]:
        """Send a request as the pages of MLflow do in a browser, with their origin. Returns the response."""
        return dict(json.loads(self.fetch(path, body, user) or b"{}"))

    def fetch(self, path: str, body: dict[str, Any] | None = None, user: str = "admin") -> bytes:
        login = base64.b64encode(f"{user}:{PASSWORDS.get(user, 'something else')}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}", "Origin": self.uri}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.uri}/api/2.0/{path}", data, headers)
        with opener(self.trust).open(request, timeout=120) as answer:
            return bytes(answer.read())

    def runs(self, experiment: str) -> dict[str, dict[str, Any]]:
        """Return the runs of an experiment, by their names."""
        found = self.ask(f"mlflow/experiments/get-by-name?experiment_name={experiment}")
        wanted = {"experiment_ids": [found["experiment"]["experiment_id"]]}
        return {run["info"]["run_name"]: run for run in self.ask("mlflow/runs/search", wanted).get("runs", [])}

    def known(self, experiment: str) -> dict[str, Any]:
        """Return what identifies the runs: their IDs, times, users and the location of their artifacts."""
        return {name: run["info"] for name, run in self.runs(experiment).items()}

    def history(self, run: dict[str, Any], metric: str) -> list[int]:
        """Return the sorted steps of a metric, each as often as it was stored."""
        path = f"mlflow/metrics/get-history?run_id={run['info']['run_id']}&metric_key={metric}"
        return sorted(int(point["step"]) for point in self.ask(path).get("metrics", []))

    def artifact(self, run: dict[str, Any], name: str) -> str:
        """Return the content of an artifact."""
        where = run["info"]["artifact_uri"].partition(":/")[2]
        return self.fetch(f"mlflow-artifacts/artifacts/{where}/{name}").decode()

    def answers(self) -> bool:
        """Return whether the server responds."""
        try:
            self.ask("mlflow/experiments/get?experiment_id=0")
        except OSError:
            return False
        return True

    def job(self, *argv: str) -> str:
        return self.run(MANAGER, "srun", "--nodes=2", "--job-name=look", *argv)

    def track(self, *options: str) -> Run:
        done = self.play("gpumesh.cluster.tracking", *options)
        self.find_server()
        return done

    def keep_library(self, host: str) -> None:
        """Keep MLflow and its launcher as a host has installed them: it takes minutes to install them again."""
        self.run(host, "sh", "-c", f"rm -rf {LIBRARY_KEPT} && cp -a {LIBRARY} {LIBRARY_KEPT}", timeout=600)

    def give_packages(self, host: str) -> None:
        """Give a host the environment of MLflow that was kept, as if it had installed it before."""
        self.run(host, "sh", "-c", f"mkdir -p {LIBRARY} && cp -a {LIBRARY_KEPT}/*/ {LIBRARY}", timeout=600)

    def secrets(self) -> set[str]:
        """Return the passwords, and the lines of the private key, that only some of the first server's files may have."""
        made = self.run(MANAGER, "sh", "-c", f"cat {FOLDER}/checker; echo; cat {FOLDER}/*.key")
        return {line for line in made.splitlines() if len(line) > 20 and not line.startswith("-----")}

    def versions(self, host: str) -> str:
        """Return the version of the schema in PostgreSQL."""
        return self.in_database(host, "SELECT version_num FROM alembic_version", "gpumesh_tracking")

    def in_database(self, host: str, words: str, *options: str) -> str:
        """Run a query in PostgreSQL on a host. Returns its output."""
        return self.run(host, "runuser", "-u", "postgres", "--", "psql", "-At", *options, "-c", words)


def certificate(machine: str, folder: Path) -> tuple[Path, Path]:
    """Create a certificate for the name of a machine. Returns its path, and that of its private key."""
    made, key = folder / f"{machine}.pem", folder / f"{machine}.key"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={machine}"]
    argv += ["-addext", f"subjectAltName=DNS:{machine}", "-keyout", str(key), "-out", str(made)]
    subprocess.run(argv, check=True, capture_output=True)
    return made, key


def tags(run: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]}


class Told(NamedTuple):
    """The playbooks that could have printed the passwords of users and the keys of the server, while both were new and
    the processes of all members were watched; see `watch_processes`.
    """

    tracking: Run
    show: Run
    check: Run
    #: The directory with the report of the check.
    report: Path
    passwords: dict[str, str]

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.tracking, self.show, self.check


def written(name: str) -> str:
    """Return the content of a file, as the guide shows it."""
    (text,) = (block.text for block in blocks(GUIDES / f"{GUIDE}.md") if block.file == name)
    return f"{text}\n"


def tell(desk: Desk, lab: TrackingLab, folder: Path) -> Told:
    """Type the guide's command that starts the server, with a user more than in its file."""
    eve = 'eve\'s \\own "p@ss" 4711'
    desk.write("secrets/tracking-users", f"{written('secrets/tracking-users')}eve:{eve}\n")
    checked = ("--diff", "--tags", "tracking", "-e", f"check_report_dir={folder}")
    with watched(lab, MACHINES):
        tracking = desk.run(*desk.type(GUIDE, ON), "-vvv", "--diff")
        show = lab.play("gpumesh.cluster.show", "-vvv", "-e", "show_output=json")
        check = lab.play("gpumesh.cluster.check", "-vvv", *checked)
    lab.find_server()
    passwords = {name: PASSWORDS[name] for name in ("admin", "alice")}
    return Told(tracking, show, check, folder, {**passwords, "eve": eve})

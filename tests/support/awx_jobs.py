# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a job as AWX does: a private data directory, and ansible-runner on it.

Surveys and credential types are read from the installed archive of the collection.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml
from jinja2.sandbox import SandboxedEnvironment

from ansible_collections.gpumesh.cluster.tests.publication.archive import BIN, Installed, checkout
from ansible_collections.gpumesh.cluster.tests.publication.awx_rules import check_injectors, launch


class Unsafe(str):
    """An answer, marked as AWX does, so that Ansible never templates it."""

    __slots__ = ()


class Dumper(yaml.SafeDumper):
    """Writes answers as AWX does."""


Dumper.add_representer(Unsafe, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text)))


class DataLoader(yaml.SafeLoader):
    """Reads the data of playbooks/awx, whose `!unsafe` is for Ansible."""


DataLoader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


class Credential(NamedTuple):
    """A credential of a type of the collection, with its inputs."""

    kind: str
    inputs: dict[str, str]


class Injected(NamedTuple):
    """The variables that the injectors of a credential add to a job."""

    extra_vars: dict[str, str]
    environment: dict[str, str]


class Job(NamedTuple):
    """A job that has ended.

    ``artifacts`` is the data of set_stats, ``directory`` contains everything that was recorded, and ``source_files``
    are the files of the playbook and of all tasks that ran.
    """

    playbook: str
    status: str
    stats: dict[str, dict[str, int]]
    artifacts: dict[str, Any]
    stdout: str
    folder: Path
    sources: frozenset[Path]

    @property
    def changed(self) -> dict[str, int]:
        return {host: count for host, count in self.stats.get("changed", {}).items() if count}


class Node:
    """An AWX node with what it stores: the project, the inventory, the key of the machine credential."""

    def __init__(
        self,
        installed: Installed,
        inventory: dict[str, Any],
        key: str,
        folder: Path,
        by_name: bool = False,
        programs: Path = BIN,
        host_keys: str = "",
    ) -> None:
        """Set up AWX.

        ``ssh_key`` is the private key of the machine credential, ``program_directory`` contains Ansible in the
        execution environment, and ``host_keys`` are the lines of known_hosts in the credential that every template has;
        if empty, templates have no such credential.

        The project is a clone of this repository, and a playbook is one of its files. With ``use_collection_names``,
        the project is empty, and a playbook is that of the installed collection.
        """
        self.installed = installed
        self.folder = folder
        self.key = key
        self.by_name = by_name
        self.programs = programs
        self.host_keys = host_keys
        self.inventory = inventory
        #: The account of the templates that run commands of users.
        self.job_user = "nobody"
        self.jobs: list[Job] = []

    def data(self, name: str) -> Any:
        """Load a file of playbooks/awx/data."""
        path = self.installed.collection / "playbooks" / "awx" / "data" / f"{name}.yml"
        return yaml.load(path.read_text(encoding="utf-8"), DataLoader)

    def answers(self, playbook: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the extra variables of a job that was launched with these answers, as AWX passes them."""
        template = self.template(playbook)
        own = {
            name: self.job_user if value == "{{ gpumesh_awx_job_user }}" else value
            for name, value in template.get("extra_vars", {}).items()
        }
        launched = launch(self.survey(template), own, given)
        assert not launched.ignored_fields, (
            f"AWX drops {launched.ignored_fields}: they are not in the survey of {playbook}"
        )
        return launched.extra_vars

    def template(self, playbook: str) -> dict[str, Any]:
        """Return the template of a playbook."""
        every: list[dict[str, Any]] = self.data("templates")["controller_templates"]
        return next(one for one in every if one["playbook"] == f"playbooks/{playbook}.yml")

    def survey(self, template: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the questions of a template's survey if no cluster is suggested."""
        data = self.data("surveys")
        name = re.fullmatch(r"{{ gpumesh_awx_surveys\.(\w+) }}", template["survey_spec"]["spec"])
        assert name, template
        return [
            data["__gpumesh_awx_cluster"] if isinstance(one, str) else one
            for one in data["gpumesh_awx_surveys"][name[1]]
        ]

    def inject(self, credential: Credential, folder: Path) -> Injected:
        """Write the files of the credential into ``directory``, and fill in what its type injects."""
        types = {one["name"]: one for one in self.data("credential_types")["controller_credential_types"]}
        kind = types[credential.kind]
        check_injectors(kind["injectors"])
        assert set(kind["inputs"]["required"]) <= set(credential.inputs)
        assert set(credential.inputs) <= {field["id"] for field in kind["inputs"]["fields"]}
        environment = SandboxedEnvironment()
        paths = SimpleNamespace()
        values = {**credential.inputs, "tower": SimpleNamespace(filename=paths)}
        for name, template in kind["injectors"].get("file", {}).items():
            path = folder / name.removeprefix("template.")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(environment.from_string(template, values).render())
            setattr(paths, path.name, str(path))

        def filled(part: str) -> dict[str, str]:
            templates = kind["injectors"].get(part, {})
            return {name: environment.from_string(template, values).render() for name, template in templates.items()}

        return Injected(filled("extra_vars"), filled("env"))

    def run(
        self,
        playbook: str,
        limit: str = "",
        check: bool = False,
        credential: Credential | None = None,
        only: Sequence[str] = (),
        host_keys: str | None = None,
        **given: Any,
    ) -> Job:
        """Run a job.

        ``limit``: the hosts of the job, set through the question for those to leave out; ``slice_hosts``: the hosts of
        a slice; ``host_keys``: replaces those of all jobs; ``answers``: those that differ from the defaults of the
        survey.
        """
        folder = self.folder / f"job{len(self.jobs) + 1}-{playbook.replace('/', '-')}"
        project = folder / "project"
        if self.by_name:
            project.mkdir(parents=True)
        else:
            checkout(project)
        left_out = [
            name for name in self.slice(())["all"]["children"]["cluster"]["hosts"] if name not in limit.split(",")
        ]
        given = {**given, **({"cluster_without": ",".join(left_out)} if limit else {})}
        extra = {**self.answers(playbook, given), "awx_job_id": len(self.jobs) + 1, "awx_user_name": "jane"}
        environment = self.environment(folder)
        (folder / "env").mkdir(mode=0o700)
        known = self.host_keys if host_keys is None else host_keys
        credentials = [Credential("gpumesh host keys", {"known_hosts": known})] if known else []
        cmdline = ["--check", "--diff"] if check else []
        for number, one in enumerate([*credentials, credential] if credential else credentials):
            secrets = folder / "secrets" / str(number)
            injected = self.inject(one, secrets)
            environment |= injected.environment
            # Separate from the answers: AWX passes each credential's variables in a file of its own, and answers take
            # precedence.
            marked = {name: mark(value) for name, value in injected.extra_vars.items()}
            (secrets / "extravars").write_text(yaml.dump(marked, Dumper=Dumper))
            cmdline += ["-e", f"@{secrets / 'extravars'}"]
        marked = {name: mark(value) for name, value in extra.items()}
        (folder / "env" / "extravars").write_text("---\n" + yaml.dump(marked, Dumper=Dumper))
        (folder / "inventory").mkdir()
        (folder / "inventory" / "hosts.json").write_text(json.dumps(self.slice(only)))
        (folder / "env" / "envvars").write_text(yaml.safe_dump(environment))
        (folder / "env" / "ssh_key").write_text(self.key)
        (folder / "env" / "settings").write_text(yaml.safe_dump({"job_timeout": 1500}))
        named = f"gpumesh.cluster.{playbook.replace('/', '.')}" if self.by_name else f"playbooks/{playbook}.yml"
        options = ["--ident", "job", "--playbook", named, "--quiet"]
        options += ["--inventory", str(folder / "inventory" / "hosts.json")]
        options += ["--cmdline", shlex.join(cmdline)] if cmdline else []
        subprocess.run(
            [str(BIN / "ansible-runner"), "run", *options, str(folder)],
            check=False,
            capture_output=True,
            timeout=1800,
        )
        self.jobs.append(ended(playbook, folder))
        return self.jobs[-1]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment that AWX sets for a job, with the paths of its collections. Jobs share no SSH
        connections.
        """
        own = {key: value for key, value in self.installed.environment.items() if key.startswith("ANSIBLE_")}
        own["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(folder / "cp")
        return {**own, "PATH": f"{self.programs}:{os.environ['PATH']}"}

    def slice(self, only: Sequence[str]) -> dict[str, Any]:
        """Return the inventory of a slice, which contains only the hosts of the slice."""
        group = self.inventory["all"]["children"]["cluster"]
        hosts = {name: variables for name, variables in group["hosts"].items() if not only or name in only}
        return {"all": {**self.inventory["all"], "children": {"cluster": {"hosts": hosts}}}}


def ended(playbook: str, folder: Path) -> Job:
    """Read what ansible-runner has recorded."""
    recorded = folder / "artifacts" / "job"
    events = [json.loads(path.read_text()) for path in (recorded / "job_events").glob("[0-9]*.json")]
    stats = next((event["event_data"] for event in events if event["event"] == "playbook_on_stats"), {})
    tasks = [event.get("event_data", {}).get("task_path") for event in events]
    return Job(
        playbook=playbook,
        status=(recorded / "status").read_text(),
        stats=stats,
        artifacts=stats.get("artifact_data", {}),
        stdout=(recorded / "stdout").read_text(),
        folder=folder,
        sources=frozenset(Path(task.rpartition(":")[0]) for task in tasks if task),
    )


def mark(value: Any) -> Any:
    """Mark every text in an answer, including those in lists."""
    if isinstance(value, list):
        return [mark(one) for one in value]
    return Unsafe(value) if isinstance(value, str) else value

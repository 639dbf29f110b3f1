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

from ansible_collections.gpumesh.cluster.tests.publication.archive import BIN, ROOT, Installed, checkout
from ansible_collections.gpumesh.cluster.tests.publication.awx_rules import check_injectors, launch


class UnsafeText(str):
    """An answer, marked as AWX does, so that Ansible never templates it."""

    __slots__ = ()


class AnswerDumper(yaml.SafeDumper):
    """Writes answers as AWX does."""


AnswerDumper.add_representer(UnsafeText, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text)))


class AwxDataLoader(yaml.SafeLoader):
    """Reads the data of playbooks/awx, whose `!unsafe` is for Ansible."""


AwxDataLoader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


class AwxCredential(NamedTuple):
    """A credential of a type of the collection, with its inputs."""

    type_name: str
    inputs: dict[str, str]


class InjectedVariables(NamedTuple):
    """The variables that the injectors of a credential add to a job."""

    extra_vars: dict[str, str]
    environment: dict[str, str]


class AwxJob(NamedTuple):
    """A job that has ended.

    ``artifacts`` is the data of set_stats, ``directory`` contains everything that was recorded, and ``source_files``
    are the files of the playbook and of all tasks that ran.
    """

    playbook: str
    status: str
    stats: dict[str, dict[str, int]]
    artifacts: dict[str, Any]
    stdout: str
    directory: Path
    source_files: frozenset[Path]

    @property
    def changed_counts(self) -> dict[str, int]:
        return {host: count for host, count in self.stats.get("changed", {}).items() if count}


class AwxNode:
    """An AWX node with what it stores: the project, the inventory, the key of the machine credential."""

    def __init__(
        self,
        installed: Installed,
        inventory: dict[str, Any],
        ssh_key: str,
        directory: Path,
        use_collection_names: bool = False,
        program_directory: Path = BIN,
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
        self.directory = directory
        self.ssh_key = ssh_key
        self.use_collection_names = use_collection_names
        self.program_directory = program_directory
        self.host_keys = host_keys
        self.inventory = inventory
        #: The account of the templates that run commands of users.
        self.job_user = "nobody"
        self.jobs: list[AwxJob] = []

    def load_awx_file(self, name: str) -> Any:
        """Load a file of playbooks/awx/data."""
        path = self.installed.collection / "playbooks" / "awx" / "data" / f"{name}.yml"
        return yaml.load(path.read_text(encoding="utf-8"), AwxDataLoader)

    def build_extra_vars(self, playbook: str, answers: dict[str, Any]) -> dict[str, Any]:
        """Return the extra variables of a job that was launched with these answers, as AWX passes them."""
        template = self.find_template(playbook)
        template_vars = {
            name: self.job_user if value == "{{ gpumesh_awx_job_user }}" else value
            for name, value in template.get("extra_vars", {}).items()
        }
        launch_result = launch(self.load_survey(template), template_vars, answers)
        assert not launch_result.ignored_fields, (
            f"AWX drops {launch_result.ignored_fields}: they are not in the survey of {playbook}"
        )
        return launch_result.extra_vars

    def find_template(self, playbook: str) -> dict[str, Any]:
        """Return the template of a playbook."""
        templates: list[dict[str, Any]] = self.load_awx_file("templates")["controller_templates"]
        return next(template for template in templates if template["playbook"] == f"playbooks/{playbook}.yml")

    def load_survey(self, template: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the questions of a template's survey if no cluster is suggested."""
        surveys = self.load_awx_file("surveys")
        survey_name = re.fullmatch(r"{{ gpumesh_awx_surveys\.(\w+) }}", template["survey_spec"]["spec"])
        assert survey_name, template
        return [
            surveys["__gpumesh_awx_cluster"] if isinstance(question, str) else question
            for question in surveys["gpumesh_awx_surveys"][survey_name[1]]
        ]

    def inject_credential(self, credential: AwxCredential, directory: Path) -> InjectedVariables:
        """Write the files of the credential into ``directory``, and fill in what its type injects."""
        types_by_name = {
            credential_type["name"]: credential_type
            for credential_type in self.load_awx_file("credential_types")["controller_credential_types"]
        }
        credential_type = types_by_name[credential.type_name]
        check_injectors(credential_type["injectors"])
        assert set(credential_type["inputs"]["required"]) <= set(credential.inputs)
        assert set(credential.inputs) <= {field["id"] for field in credential_type["inputs"]["fields"]}
        template_environment = SandboxedEnvironment()
        file_paths = SimpleNamespace()
        values = {**credential.inputs, "tower": SimpleNamespace(filename=file_paths)}
        for name, template in credential_type["injectors"].get("file", {}).items():
            path = directory / name.removeprefix("template.")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(template_environment.from_string(template, values).render())
            setattr(file_paths, path.name, str(path))

        def render_templates(section: str) -> dict[str, str]:
            templates = credential_type["injectors"].get(section, {})
            return {
                name: template_environment.from_string(template, values).render()
                for name, template in templates.items()
            }

        return InjectedVariables(render_templates("extra_vars"), render_templates("env"))

    def run_job(
        self,
        playbook: str,
        limit: str = "",
        check: bool = False,
        credential: AwxCredential | None = None,
        slice_hosts: Sequence[str] = (),
        host_keys: str | None = None,
        **answers: Any,
    ) -> AwxJob:
        """Run a job.

        ``limit``: the hosts of the job, set through the question for those to leave out; ``slice_hosts``: the hosts of
        a slice; ``host_keys``: replaces those of all jobs; ``answers``: those that differ from the defaults of the
        survey.
        """
        job_directory = self.directory / f"job{len(self.jobs) + 1}-{playbook.replace('/', '-')}"
        project_directory = job_directory / "project"
        if self.use_collection_names:
            project_directory.mkdir(parents=True)
        else:
            checkout(project_directory)
        excluded_hosts = [
            name
            for name in self.slice_inventory(())["all"]["children"]["cluster"]["hosts"]
            if name not in limit.split(",")
        ]
        answers = {**answers, **({"cluster_without": ",".join(excluded_hosts)} if limit else {})}
        extra_vars = {
            **self.build_extra_vars(playbook, answers),
            "awx_job_id": len(self.jobs) + 1,
            "awx_user_name": "jane",
        }
        environment = self.job_environment(job_directory)
        (job_directory / "env").mkdir(mode=0o700)
        known_hosts = self.host_keys if host_keys is None else host_keys
        credentials = [AwxCredential("gpumesh host keys", {"known_hosts": known_hosts})] if known_hosts else []
        cmdline = ["--check", "--diff"] if check else []
        for number, job_credential in enumerate([*credentials, credential] if credential else credentials):
            secrets_directory = job_directory / "secrets" / str(number)
            injected_variables = self.inject_credential(job_credential, secrets_directory)
            environment |= injected_variables.environment
            # Separate from the answers: AWX passes each credential's variables in a file of its own, and answers take
            # precedence.
            marked_vars = {name: mark_unsafe(value) for name, value in injected_variables.extra_vars.items()}
            (secrets_directory / "extravars").write_text(yaml.dump(marked_vars, Dumper=AnswerDumper))
            cmdline += ["-e", f"@{secrets_directory / 'extravars'}"]
        marked_vars = {name: mark_unsafe(value) for name, value in extra_vars.items()}
        (job_directory / "env" / "extravars").write_text("---\n" + yaml.dump(marked_vars, Dumper=AnswerDumper))
        (job_directory / "inventory").mkdir()
        (job_directory / "inventory" / "hosts.json").write_text(json.dumps(self.slice_inventory(slice_hosts)))
        (job_directory / "env" / "envvars").write_text(yaml.safe_dump(environment))
        (job_directory / "env" / "ssh_key").write_text(self.ssh_key)
        (job_directory / "env" / "settings").write_text(yaml.safe_dump({"job_timeout": 1500}))
        playbook_name = (
            f"gpumesh.cluster.{playbook.replace('/', '.')}"
            if self.use_collection_names
            else f"playbooks/{playbook}.yml"
        )
        options = ["--ident", "job", "--playbook", playbook_name, "--quiet"]
        options += ["--inventory", str(job_directory / "inventory" / "hosts.json")]
        options += ["--cmdline", shlex.join(cmdline)] if cmdline else []
        subprocess.run(
            [str(BIN / "ansible-runner"), "run", *options, str(job_directory)],
            check=False,
            capture_output=True,
            timeout=1800,
        )
        self.jobs.append(read_job(playbook, job_directory))
        return self.jobs[-1]

    def job_environment(self, job_directory: Path) -> dict[str, str]:
        """Return the environment that AWX sets for a job, with the paths of its collections. Jobs share no SSH
        connections.
        """
        ansible_variables = {
            key: value for key, value in self.installed.environment.items() if key.startswith("ANSIBLE_")
        }
        ansible_variables["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(job_directory / "cp")
        return {
            **ansible_variables,
            **read_image_environment(),
            "PATH": f"{self.program_directory}:{os.environ['PATH']}",
        }

    def slice_inventory(self, slice_hosts: Sequence[str]) -> dict[str, Any]:
        """Return the inventory of a slice, which contains only the hosts of the slice."""
        group = self.inventory["all"]["children"]["cluster"]
        hosts = {
            name: variables for name, variables in group["hosts"].items() if not slice_hosts or name in slice_hosts
        }
        return {"all": {**self.inventory["all"], "children": {"cluster": {"hosts": hosts}}}}


def read_image_environment() -> dict[str, str]:
    """Read the environment of the image that execution-environment.yml describes."""
    definition = yaml.safe_load((ROOT / "execution-environment.yml").read_text(encoding="utf-8"))
    instructions = [step.split(maxsplit=1) for step in definition["additional_build_steps"]["append_final"]]
    return dict(setting.split("=", 1) for instruction, setting in instructions if instruction == "ENV")


def read_job(playbook: str, job_directory: Path) -> AwxJob:
    """Read what ansible-runner has recorded."""
    artifacts_directory = job_directory / "artifacts" / "job"
    events = [json.loads(path.read_text()) for path in (artifacts_directory / "job_events").glob("[0-9]*.json")]
    stats = next((event["event_data"] for event in events if event["event"] == "playbook_on_stats"), {})
    tasks = [event.get("event_data", {}).get("task_path") for event in events]
    return AwxJob(
        playbook=playbook,
        status=(artifacts_directory / "status").read_text(),
        stats=stats,
        artifacts=stats.get("artifact_data", {}),
        stdout=(artifacts_directory / "stdout").read_text(),
        directory=job_directory,
        source_files=frozenset(Path(task.rpartition(":")[0]) for task in tasks if task),
    )


def mark_unsafe(value: Any) -> Any:
    """Mark every text in an answer, including those in lists."""
    if isinstance(value, list):
        return [mark_unsafe(list_entry) for list_entry in value]
    return UnsafeText(value) if isinstance(value, str) else value

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts a job as AWX does: a private data directory, and ansible-runner on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ansible_collections.gpumesh.cluster.tests.publication.archive import BIN, ROOT, Installed


class Unsafe(str):
    """An answer: AWX marks it so that Ansible never templates it."""

    __slots__ = ()


class Dumper(yaml.SafeDumper):
    """Writes answers as AWX does."""


Dumper.add_representer(Unsafe, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text)))


class Job(NamedTuple):
    """A job that has ended. ``artifacts`` is what set_stats gave, ``folder`` has all that was recorded."""

    status: str
    stats: dict[str, dict[str, int]]
    artifacts: dict[str, Any]
    stdout: str
    folder: Path

    @property
    def changed(self) -> dict[str, int]:
        return {host: count for host, count in self.stats.get("changed", {}).items() if count}


class Node:
    """What AWX has: the project, the inventory, the key of the machines' credential."""

    def __init__(
        self, installed: Installed, inventory: dict[str, Any], key: str, folder: Path, prefix: Sequence[str] = ()
    ) -> None:
        """``key`` is the private key of the machine credential, ``prefix`` what starts a job's process elsewhere."""
        self.installed = installed
        self.folder = folder
        self.key = key
        self.prefix = prefix
        self.inventory = inventory
        self.jobs = 0

    def answers(self, playbook: str, given: dict[str, Any]) -> dict[str, Any]:
        """The survey's defaults and what was answered, in the types that AWX hands on."""
        data = ROOT / "playbooks" / "awx" / "data"
        survey = yaml.safe_load((data / "surveys.yml").read_text())["gpumesh_awx_surveys"][playbook]
        settings = yaml.safe_load((data / "settings.yml").read_text())
        extra: dict[str, Any] = {}
        for question in survey:
            answer = given.get(question["variable"], question["default"])
            if answer == "{{ gpumesh_awx_cluster_name }}":
                answer = settings["gpumesh_awx_cluster_name"]
            if question["type"] == "multiselect" and isinstance(answer, str):
                answer = answer.splitlines()
            extra[question["variable"]] = answer
        unasked = set(given) - set(extra)
        assert not unasked, f"AWX would drop {unasked}: the survey of {playbook} does not ask"
        return {name: mark(value) for name, value in extra.items()}

    def run(
        self, playbook: str, limit: str = "", check: bool = False, secret: str = "", only: str = "", **given: Any
    ) -> Job:
        """``secret`` is a munge key, injected as its credential type says; ``only`` is the host of a slice."""
        self.jobs += 1
        folder = self.folder / f"job{self.jobs}-{playbook}"
        shutil.copytree(self.installed.folder / "project", folder / "project")
        extra = self.answers(playbook, given)
        extra |= {"awx_job_id": self.jobs, "awx_user_name": "jane"}
        if secret:
            key = folder / "secrets" / "munge_key"
            key.parent.mkdir(mode=0o700)
            key.write_text(secret)
            extra["munge_key_file"] = str(key)
        (folder / "env").mkdir(mode=0o700)
        (folder / "env" / "extravars").write_text("---\n" + yaml.dump(extra, Dumper=Dumper))
        (folder / "inventory").mkdir()
        (folder / "inventory" / "hosts.json").write_text(json.dumps(self.slice(only)))
        (folder / "env" / "envvars").write_text(yaml.safe_dump(self.environment()))
        (folder / "env" / "ssh_key").write_text(self.key)
        (folder / "env" / "settings").write_text(yaml.safe_dump({"job_timeout": 1500}))
        options = ["--ident", "job", "--playbook", f"playbooks/{playbook}.yml", "--quiet"]
        options += ["--inventory", str(folder / "inventory" / "hosts.json")]
        options += ["--limit", limit] if limit else []
        options += ["--cmdline", "--check --diff"] if check else []
        subprocess.run(
            [*self.prefix, str(BIN / "ansible-runner"), "run", *options, str(folder)],
            check=False,
            capture_output=True,
            timeout=1800,
        )
        return ended(folder)

    def environment(self) -> dict[str, str]:
        """What a job of AWX sets, and where its collections are."""
        own = {key: value for key, value in self.installed.environment.items() if key.startswith("ANSIBLE_")}
        return {**own, "PATH": f"{BIN}:{os.environ['PATH']}"}

    def slice(self, only: str) -> dict[str, Any]:
        """The inventory as a slice of a job has it: the hosts of the others are not in it."""
        group = self.inventory["all"]["children"]["cluster"]
        hosts = {name: variables for name, variables in group["hosts"].items() if only in ("", name)}
        return {"all": {**self.inventory["all"], "children": {"cluster": {"hosts": hosts}}}}


def ended(folder: Path) -> Job:
    """What ansible-runner has recorded."""
    recorded = folder / "artifacts" / "job"
    events = [json.loads(path.read_text()) for path in (recorded / "job_events").glob("[0-9]*.json")]
    stats = next((event["event_data"] for event in events if event["event"] == "playbook_on_stats"), {})
    return Job(
        status=(recorded / "status").read_text(),
        stats=stats,
        artifacts=stats.get("artifact_data", {}),
        stdout=(recorded / "stdout").read_text(),
        folder=folder,
    )


def mark(value: Any) -> Any:
    """Every text of an answer, also in a list."""
    if isinstance(value, list):
        return [mark(one) for one in value]
    return Unsafe(value) if isinstance(value, str) else value

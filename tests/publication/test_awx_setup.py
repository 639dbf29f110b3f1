# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook that sets up a controller, from the archive, with the real modules.

Their controller is one that keeps what they make.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, Installed
from ansible_collections.gpumesh.cluster.tests.publication.controller import Controller, running

AWX = ROOT / "playbooks" / "awx"
#: What Ansible's connection by ssh reads.
SSH_ARGUMENTS = {"ansible_ssh_extra_args", "ansible_sftp_extra_args", "ansible_scp_extra_args"}


class Outcome(NamedTuple):
    controller: Controller
    first: subprocess.CompletedProcess[str]
    again: subprocess.CompletedProcess[str]
    changes_of_first: list[str]
    changes_of_again: list[str]


def apply(installed: Installed, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """From the installed archive, with no other copy in sight."""
    own = {"CONTROLLER_HOST": address, "CONTROLLER_OAUTH_TOKEN": "a token"}
    there = installed._replace(environment={**installed.environment, **own})
    return there.run("ansible-playbook", "-i", "localhost,", "gpumesh.cluster.awx.setup", *options, timeout=600)


@pytest.fixture(scope="module")
def outcome(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Two runs with everything that the settings can name."""
    folder = tmp_path_factory.mktemp("setup")
    mine = folder / "mine.yml"
    mine.write_text(
        yaml.safe_dump(
            {
                "gpumesh_awx_organization": "Research",
                "gpumesh_awx_cluster_name": "lan",
                "gpumesh_awx_credentials": ["machines", "munge"],
                "gpumesh_awx_execution_environment_image": "images.example.com/gpumesh-ee:1.0.0",
                "gpumesh_awx_notifications": ["chat"],
            }
        )
    )
    with running() as (controller, address):
        organization = controller.add("organizations", {"name": "Research"})["id"]
        for kind, names in {
            "credentials": ["machines", "munge"],
            "notification_templates": ["chat"],
        }.items():
            for name in names:
                controller.add(kind, {"name": name, "organization": organization})
        first = apply(installed, address, "-e", f"@{mine}")
        changes_of_first = [*controller.changes]
        controller.changes.clear()
        again = apply(installed, address, "-e", f"@{mine}")
        yield Outcome(controller, first, again, changes_of_first, controller.changes)


def data(name: str) -> Any:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))
    return yaml.load((AWX / "data" / f"{name}.yml").read_text(encoding="utf-8"), Loader)


def test_every_module_takes_its_arguments(outcome: Outcome) -> None:
    assert outcome.first.returncode == 0, outcome.first.stdout + outcome.first.stderr
    assert outcome.changes_of_first


def test_a_second_run_changes_nothing(outcome: Outcome) -> None:
    assert outcome.again.returncode == 0, outcome.again.stdout + outcome.again.stderr
    assert "changed=0 " in outcome.again.stdout, outcome.again.stdout
    assert outcome.changes_of_again == []


def test_there_is_a_template_for_every_playbook(outcome: Outcome) -> None:
    made = {one["playbook"]: one for one in outcome.controller.objects["job_templates"].values()}
    assert set(made) == {f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml")}
    project = outcome.controller.named("projects", "gpumesh")["id"]
    assert {one["project"] for one in made.values()} == {project}


def test_templates_run_in_the_environment_that_is_made(outcome: Outcome) -> None:
    made = outcome.controller.named("execution_environments", "gpumesh")
    assert made["image"] == "images.example.com/gpumesh-ee:1.0.0"
    assert {one["execution_environment"] for one in outcome.controller.objects["job_templates"].values()} == {
        made["id"]
    }


def test_templates_have_the_credentials_and_the_survey(outcome: Outcome) -> None:
    controller = outcome.controller
    wanted = {controller.named("credentials", name)["id"] for name in ("machines", "munge")}
    surveys = data("surveys")["gpumesh_awx_surveys"]
    for template in controller.objects["job_templates"].values():
        assert set(controller.links[f"{template['url']}credentials/"]) == wanted
        spec = controller.surveys[template["related"]["survey_spec"]]["spec"]
        playbook = Path(template["playbook"]).stem
        assert [question["variable"] for question in spec] == [one["variable"] for one in surveys[playbook]]
        assert {one["default"] for one in spec if one["variable"] == "cluster_name"} <= {"lan"}


def test_secrets_reach_jobs_by_the_names_that_are_read(outcome: Outcome) -> None:
    controller = outcome.controller
    munge = controller.named("credential_types", "gpumesh munge key")
    assert munge["injectors"]["file"] == {"template.munge_key": "{{ munge_key }}"}
    options: set[str] = set()
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        for spec in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            options |= set(spec.get("options") or {})
    for one in controller.objects["credential_types"].values():
        fields = {field["id"]: field for field in one["inputs"]["fields"]}
        assert set(one["inputs"]["required"]) <= set(fields)
        assert all(fields[name].get("secret") for name in fields if "key" in name)
        assert set(one["injectors"].get("extra_vars", {})) <= options | SSH_ARGUMENTS
    manager = controller.named("credential_types", "gpumesh manager")
    plugin = (ROOT / "plugins" / "inventory" / "clusters.py").read_text(encoding="utf-8")
    for name in manager["injectors"]["env"]:
        assert f"- name: {name}\n" in plugin, f"the inventory plugin does not read {name}"


def test_host_keys_are_checked_in_every_template(outcome: Outcome) -> None:
    """That it works is shown with jobs."""
    for template in outcome.controller.objects["job_templates"].values():
        given = json.loads(template["extra_vars"])
        assert given["ansible_host_key_checking"] is True
        assert "StrictHostKeyChecking=yes" in given["ansible_ssh_args"].split()


@pytest.mark.parametrize("name", ["ANSIBLE_PRIVATE_KEY_FILE", "ANSIBLE_SSH_COMMON_ARGS", "ANSIBLE_HOST_KEY_CHECKING"])
def test_no_credential_can_set_a_variable_of_ansible(name: str) -> None:
    with running() as (_controller, address):
        body = json.dumps({"name": "one", "kind": "cloud", "injectors": {"env": {name: "x"}}}).encode()
        asked = urllib.request.Request(f"{address}/api/v2/credential_types/", body, method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked)
        assert refused.value.code == 400
        assert name in json.load(refused.value)["injectors"][0]


def test_workflows_lead_from_node_to_node(outcome: Outcome) -> None:
    controller = outcome.controller

    def after(workflow: str, node: str, result: str) -> list[str]:
        number = controller.named("workflow_job_templates", workflow)["id"]
        nodes = {
            one["identifier"]: one
            for one in controller.objects["workflow_job_template_nodes"].values()
            if one["workflow_job_template"] == number
        }
        names = {one["id"]: name for name, one in nodes.items()}
        return [names[other] for other in controller.links.get(f"{nodes[node]['url']}{result}_nodes/", [])]

    assert after("gpumesh build and prove", "site", "success") == ["check"]
    assert after("gpumesh build and prove", "site", "failure") == ["show"]
    assert after("gpumesh join and check", "discover", "success") == ["join"]
    assert after("gpumesh join and check", "join", "success") == ["check"]
    assert after("gpumesh remove with approval", "show", "success") == ["approve"]
    assert after("gpumesh remove with approval", "approve", "success") == ["remove"]
    assert after("gpumesh remove with approval", "approve", "failure") == []
    assert after("gpumesh remove with approval", "remove", "success") == ["check"]
    assert controller.named("workflow_approval_templates", "May the machine leave?")["timeout"] == 86400
    chat = controller.named("notification_templates", "chat")["id"]
    for one in controller.objects["workflow_job_templates"].values():
        assert controller.links[f"{one['url']}notification_templates_success/"] == [chat]
        assert controller.links[f"{one['url']}notification_templates_error/"] == [chat]


def test_a_workflow_asks_what_its_templates_take(outcome: Outcome) -> None:
    """AWX hands an answer on to the nodes whose template asks for it, and drops it elsewhere."""
    controller = outcome.controller
    for workflow in controller.objects["workflow_job_templates"].values():
        asked = {one["variable"] for one in controller.surveys[workflow["related"]["survey_spec"]]["spec"]}
        nodes = [
            one
            for one in controller.objects["workflow_job_template_nodes"].values()
            if one["workflow_job_template"] == workflow["id"]
        ]
        taken: set[str] = set()
        for node in nodes:
            template = controller.objects["job_templates"].get(node["unified_job_template"])
            spec = controller.surveys[template["related"]["survey_spec"]]["spec"] if template else []
            taken |= {one["variable"] for one in spec}
            needed = {one["variable"] for one in spec if one["required"] and one.get("default", "") == ""}
            assert needed <= asked | set(node.get("extra_data", {})), f"{workflow['name']}: {node['identifier']}"
            assert set(node.get("extra_data", {})) <= {one["variable"] for one in spec}
        assert asked <= taken, workflow["name"]


def test_the_settings_work_as_they_are(installed: Installed) -> None:
    with running() as (controller, address):
        controller.add("organizations", {"name": "Default"})
        done = apply(installed, address)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(controller.objects["job_templates"]) == len(data("templates")["controller_templates"])


@pytest.mark.parametrize(
    ("name", "image", "named", "made"),
    [
        ("", "", "", []),
        ("ours", "", "ours", []),
        ("", "ee:1", "gpumesh", ["gpumesh"]),
        ("ours", "ee:1", "ours", ["ours"]),
    ],
)
def test_the_environment_of_jobs(
    installed: Installed, tmp_path: Path, name: str, image: str, named: str, made: list[str]
) -> None:
    files = ("settings", "execution_environments", "surveys", "templates")
    read = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(AWX / "data" / f"{file}.yml") for file in files],
        "tasks": [
            {
                "ansible.builtin.assert": {
                    "that": "controller_templates | map(attribute='execution_environment') | unique == [named]"
                }
            },
            {"ansible.builtin.assert": {"that": "controller_execution_environments | map(attribute='name') == made"}},
        ],
    }
    (tmp_path / "read.yml").write_text(yaml.safe_dump([read]))
    given = {"named": named, "made": made}
    given |= {"gpumesh_awx_execution_environment": name, "gpumesh_awx_execution_environment_image": image}
    done = installed.run("ansible-playbook", "-i", "localhost,", str(tmp_path / "read.yml"), "-e", json.dumps(given))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_other_collection_can_be_named(installed: Installed) -> None:
    """Where there is no such collection, Ansible says which one it looked for."""
    done = apply(installed, "http://127.0.0.1:9", "-e", "gpumesh_awx_collection=ansible.controller")
    assert done.returncode != 0
    assert "ansible.controller.project" in done.stdout + done.stderr

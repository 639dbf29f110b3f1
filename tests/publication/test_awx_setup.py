# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook that sets up a controller, from the archive, with the real modules.

Their controller is one that keeps what they make.
"""

from __future__ import annotations

import copy
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, Installed, checkout
from ansible_collections.gpumesh.cluster.tests.publication.awx_rules import RefusedError, launch, run_workflow
from ansible_collections.gpumesh.cluster.tests.publication.controller import Controller, running
from ansible_collections.gpumesh.cluster.tests.publication.guides import blocks

AWX = ROOT / "playbooks" / "awx"
#: What Ansible's connection by ssh reads.
SSH_ARGUMENTS = {"ansible_ssh_extra_args", "ansible_sftp_extra_args", "ansible_scp_extra_args"}
#: A name of an organization with characters that mean something in a URL.
SPECIAL = "R&D / Berlin+Bonn"


class Outcome(NamedTuple):
    """What came of the runs: one in check mode, the first, and again one in check mode. ``settings`` is their file."""

    controller: Controller
    address: str
    settings: Path
    before: subprocess.CompletedProcess[str]
    changes_of_before: list[str]
    first: subprocess.CompletedProcess[str]
    changes_of_first: list[str]
    after: subprocess.CompletedProcess[str]


def apply(installed: Installed, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """From the installed archive, with no other copy in sight."""
    own = {"CONTROLLER_HOST": address, "CONTROLLER_OAUTH_TOKEN": "a token"}
    there = installed._replace(environment={**installed.environment, **own})
    given = ["gpumesh.cluster.awx.setup", "-e", "gpumesh_awx_job_user=jobs", *options]
    return there.run("ansible-playbook", "-i", "localhost,", *given, timeout=600)


def repository(folder: Path) -> str:
    """Make the folder a repository; its URL."""
    author = ["-c", "user.name=Jane", "-c", "user.email=jane@example.com"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*author, "commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True)
    return f"file://{folder}"


def furnished(controller: Controller, organization: str = "Research") -> int:
    """An organization as the guide wants it; its number."""
    number: int = controller.add("organizations", {"name": organization})["id"]
    controller.links[f"/api/v2/organizations/{number}/galaxy_credentials/"] = [1]
    return number


@pytest.fixture(scope="module")
def outcome(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Runs with everything that the settings can name, on a clone of this repository."""
    folder = tmp_path_factory.mktemp("setup")
    mine = folder / "mine.yml"
    mine.write_text(
        yaml.safe_dump(
            {
                "gpumesh_awx_organization": SPECIAL,
                "gpumesh_awx_project_url": repository(checkout(folder / "clone")),
                "gpumesh_awx_cluster_name": "lan",
                "gpumesh_awx_credentials": ["machines", "munge"],
                "gpumesh_awx_execution_environment_image": "images.example.com/gpumesh-ee:1.0.0",
                "gpumesh_awx_notifications": ["chat"],
            }
        )
    )
    with running() as (controller, address):
        # The other one has everything by the same names.
        for organization in (furnished(controller, SPECIAL), furnished(controller, "Default")):
            for kind, names in {
                "credentials": ["machines", "munge"],
                "notification_templates": ["chat"],
            }.items():
                for name in names:
                    controller.add(kind, {"name": name, "organization": organization})
        before = apply(installed, address, "-e", f"@{mine}", "--check")
        changes_of_before = [*controller.changes]
        first = apply(installed, address, "-e", f"@{mine}")
        changes_of_first = [*controller.changes]
        after = apply(installed, address, "-e", f"@{mine}", "--check")
        yield Outcome(controller, address, mine, before, changes_of_before, first, changes_of_first, after)


@pytest.fixture(scope="module")
def own(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one's own as the guide says to make it."""
    folder = tmp_path_factory.mktemp("own")
    (script,) = [one for one in blocks(ROOT / "docs" / "guides" / "awx.md") if one.language == "sh"]
    subprocess.run(["sh", "-e", "-c", script.text], cwd=folder, check=True, capture_output=True)
    return folder


def test_a_second_run_changes_nothing_and_organizations_share_a_controller(
    installed: Installed, outcome: Outcome, own: Path
) -> None:
    """The other organization comes between the two runs. It has the same names for everything of its own, a repository of
    its own, and the settings as they are, but for what has to be given.
    """
    with running(copy.deepcopy(outcome.controller)) as (controller, address):
        given = {"gpumesh_awx_project_url": repository(own), "gpumesh_awx_execution_environment_image": "ee:1"}
        environment = {"gpumesh_awx_execution_environment": "gpumesh other"}
        done = apply(installed, address, "-e", json.dumps({**given, **environment}))
        assert done.returncode == 0, done.stdout + done.stderr
        controller.changes.clear()
        again = apply(installed, address, "-e", f"@{outcome.settings}")
        assert again.returncode == 0, again.stdout + again.stderr
        assert "changed=0 " in again.stdout, again.stdout
        assert controller.changes == []
        other = controller.named("organizations", "Default")["id"]
        owners = {
            kind: {key: one.get("organization") for key, one in of.items()} for kind, of in controller.objects.items()
        }
        made = list(owners["job_templates"].values())
        assert made.count(other) == len(made) - made.count(other) == len(data("templates")["controller_templates"])
        for kind in ("job_templates", "workflow_job_templates"):
            for one in controller.objects[kind].values():
                assert owners["inventories"][one["inventory"]] == one["organization"], one["name"]
        for source in controller.objects["inventory_sources"].values():
            if owners["inventories"][source["inventory"]] == other:
                path = own / source["source_path"]
                assert path.is_file() or source["source_path"] == data("settings")["gpumesh_awx_inventory_path"]
        for kind, of in {
            "credentials": "job_templates",
            "notification_templates_error": "workflow_job_templates",
        }.items():
            for one in controller.objects[of].values():
                links = controller.links.get(f"{one['url']}{kind}/", [])
                linked = {owners[kind.removesuffix("_error")][link] for link in links}
                assert linked == {one["organization"]} - {other}, one["name"]
        done = apply(installed, address, "-e", json.dumps(given))
        assert done.returncode != 0
        assert "belongs to another organization" in " ".join(done.stdout.split())
        assert controller.changes == []


def data(name: str) -> Any:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))
    return yaml.load((AWX / "data" / f"{name}.yml").read_text(encoding="utf-8"), Loader)


def survey(playbook: str) -> list[dict[str, Any]]:
    """What a template asks, where no cluster is proposed."""
    read = data("surveys")
    return [
        read["__gpumesh_awx_cluster"] if isinstance(one, str) else one for one in read["gpumesh_awx_surveys"][playbook]
    ]


def test_every_module_takes_its_arguments(outcome: Outcome) -> None:
    assert outcome.first.returncode == 0, outcome.first.stdout + outcome.first.stderr
    assert outcome.changes_of_first
    assert "duplicate mapping key" not in outcome.first.stdout + outcome.first.stderr


def test_check_mode_works_on_an_empty_controller(outcome: Outcome) -> None:
    assert outcome.before.returncode == 0, outcome.before.stdout + outcome.before.stderr
    assert outcome.changes_of_before == []
    assert "gpumesh site" in outcome.before.stdout


def test_check_mode_reports_no_change_afterwards(outcome: Outcome) -> None:
    assert outcome.after.returncode == 0, outcome.after.stdout + outcome.after.stderr
    assert "changed=0 " in outcome.after.stdout, outcome.after.stdout


def test_there_is_a_template_for_every_playbook(outcome: Outcome) -> None:
    made = {one["playbook"]: one for one in outcome.controller.objects["job_templates"].values()}
    assert set(made) == {
        *(f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml")),
        "playbooks/awx/show_failure.yml",
    }
    project = outcome.controller.named("projects", "gpumesh")["id"]
    assert {one["project"] for one in made.values()} == {project}


def test_everything_runs_in_the_environment_that_is_made(outcome: Outcome) -> None:
    """In the default one, a source says: unknown plugin 'gpumesh.cluster.clusters'."""
    objects = outcome.controller.objects
    made = outcome.controller.named("execution_environments", "gpumesh")
    assert made["image"] == "images.example.com/gpumesh-ee:1.0.0"
    for kind in ("job_templates", "inventory_sources"):
        assert {one.get("execution_environment") for one in objects[kind].values()} == {made["id"]}, kind
    assert {one.get("default_environment") for one in objects["projects"].values()} == {made["id"]}


def test_templates_have_the_credentials_and_the_survey(outcome: Outcome) -> None:
    controller = outcome.controller
    wanted = {controller.named("credentials", name)["id"] for name in ("machines", "munge")}
    for template in controller.objects["job_templates"].values():
        assert set(controller.links[f"{template['url']}credentials/"]) == wanted
        spec = controller.surveys[template["related"]["survey_spec"]]["spec"]
        playbook = Path(template["playbook"]).stem.removesuffix("_failure")
        assert [question["variable"] for question in spec] == [one["variable"] for one in survey(playbook)]
        assert {one.get("default") for one in spec if one["variable"] == "cluster_name"} <= {"lan"}


def test_only_what_changes_nothing_can_be_sliced(outcome: Outcome) -> None:
    """A slice sees only its own machines, and `create` in three slices made three clusters. A second setup sets it back."""
    counts = {one["name"]: one.get("job_slice_count") for one in outcome.controller.objects["job_templates"].values()}
    assert counts.pop("gpumesh discover") is None
    assert set(counts.values()) == {1}, counts


def test_no_template_asks_for_a_limit(outcome: Outcome) -> None:
    """Ansible prints the lines of a file as patterns that match no host, and whoever may launch a job names the file."""
    templates = outcome.controller.objects["job_templates"].values()
    assert {one["ask_limit_on_launch"] for one in templates} == {False}
    asked = [[question["variable"] for question in outcome.controller.spec(one)] for one in templates]
    assert all("cluster_without" in names for names in asked)


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
        body = {"name": "one", "kind": "cloud", "injectors": {"env": {name: "x"}}}
        assert name in refused(address, "credential_types/", body)["injectors"][0]


def test_no_name_is_longer_than_a_controller_takes() -> None:
    with running() as (_controller, address):
        said = refused(address, "inventories/", {"name": "x" * 513})
        assert said == {"name": ["Ensure this field has no more than 512 characters."]}


def test_a_template_needs_a_playbook_that_the_project_has(outcome: Outcome) -> None:
    project = outcome.controller.named("projects", "gpumesh")["id"]
    body = {"name": "one", "project": project, "playbook": "playbooks/nobody.yml"}
    assert refused(outcome.address, "job_templates/", body) == {"playbook": ["Playbook not found for project."]}


def refused(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the controller says with 400."""
    asked = urllib.request.Request(f"{address}/api/v2/{path}", json.dumps(body).encode(), method="POST")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(asked)
    assert error.value.code == 400
    said: dict[str, Any] = json.load(error.value)
    return said


def launched(outcome: Outcome, template: dict[str, Any], given: dict[str, Any], **prompts: Any) -> dict[str, Any]:
    """What the controller says of a launch, with 201."""
    body = json.dumps({"extra_vars": given, **prompts}).encode()
    asked = urllib.request.Request(f"{outcome.address}{template['url']}launch/", body, method="POST")
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 201
        said: dict[str, Any] = json.load(answer)
    return said


#: What the playbooks join and remove cannot do without.
NEEDED = {
    "cluster_machines": "gpu4",
    "cluster_machine": "gpu4",
    "train_name": "nano",
    "session_name": "demo",
}


def required(controller: Controller, template: dict[str, Any]) -> dict[str, Any]:
    return {one["variable"]: NEEDED[one["variable"]] for one in controller.spec(template) if one["required"]}


def test_every_template_can_be_launched_with_what_it_needs_alone(outcome: Outcome) -> None:
    controller = outcome.controller
    for kind in ("job_templates", "workflow_job_templates"):
        for template in controller.objects[kind].values():
            needed = required(controller, template)
            if needed:
                said = refused(outcome.address, template["url"].removeprefix("/api/v2/") + "launch/", {})
                assert said == {"variables_needed_to_start": [f"'{name}' value missing" for name in needed]}
            extra = launched(outcome, template, needed)["extra_vars"]
            own = set(json.loads(template.get("extra_vars") or "{}"))
            assert set(extra) - own == {*needed, "cluster_name"} & {
                one["variable"] for one in controller.spec(template)
            }
            assert extra.get("cluster_name", "lan") == "lan"


#: What somebody who may only launch templates would send to become root, or to read what the jobs have.
ATTACK = "sudo cat /etc/munge/munge.key"


def test_who_may_only_launch_gets_neither_root_nor_a_secret(outcome: Outcome) -> None:
    """The inventory and the credentials stay those of the template, and with them what may run as root."""
    controller = outcome.controller
    more = {
        "train_user": "root",
        "train_privileged": True,
        "session_user": "root",
        "session_privileged": True,
        "ansible_user": "root",
        "ansible_ssh_common_args": f"-o ProxyCommand='{ATTACK}'",
        "check_job_user": "root",
    }
    mine = controller.add("inventories", {"name": "mine"})["id"]
    for kind in ("job_templates", "workflow_job_templates"):
        for template in controller.objects[kind].values():
            texts = [one["variable"] for one in controller.spec(template) if one["type"] in ("text", "textarea")]
            answers = {**dict.fromkeys(texts, ATTACK), **required(controller, template)}
            answers.update({"train_command": ATTACK} if "train_command" in texts else {})
            said = launched(outcome, template, {**answers, **more}, inventory=mine, credentials=[99])
            own = json.loads(template.get("extra_vars") or "{}")
            assert {name: value for name, value in said["extra_vars"].items() if name in more} == {
                name: own[name] for name in more if name in own
            }, template["name"]
            assert set(more) - set(own) <= set(said["ignored_fields"]["extra_vars"])
            assert said["ignored_fields"]["inventory"] == mine and said["ignored_fields"]["credentials"] == [99]
            assert said.get("inventory") == template["inventory"]
    users = {
        template["name"]: json.loads(template["extra_vars"]).get(f"{Path(template['playbook']).stem}_user")
        for template in controller.objects["job_templates"].values()
    }
    assert {name: user for name, user in users.items() if user} == {"gpumesh train": "jobs", "gpumesh session": "jobs"}


@pytest.mark.parametrize("user", ["", "root", "a b"])
def test_the_account_for_commands_of_users_has_to_be_chosen(installed: Installed, user: str) -> None:
    done = apply(installed, "http://127.0.0.1:9", "-e", json.dumps({"gpumesh_awx_job_user": user}))
    assert done.returncode == 2 and f"gpumesh_awx_job_user is '{user}'" in " ".join(done.stdout.split()), done.stdout


def answer(question: dict[str, Any]) -> Any:
    """One that is accepted."""
    return {
        "integer": lambda: question["max"],
        "float": lambda: 0.5,
        "multiplechoice": lambda: question["choices"][-1],
        "multiselect": lambda: question["choices"][:2],
    }.get(question["type"], lambda: "gpu4")()


def test_every_template_can_be_launched_with_each_single_answer(outcome: Outcome) -> None:
    controller = outcome.controller
    for template in controller.objects["job_templates"].values():
        for question in controller.spec(template):
            given = {**required(controller, template), question["variable"]: answer(question)}
            said = launched(outcome, template, given)
            assert said["extra_vars"][question["variable"]] == given[question["variable"]]
            assert said["ignored_fields"] == {}


def test_what_is_not_asked_is_ignored(outcome: Outcome) -> None:
    said = launched(outcome, outcome.controller.named("job_templates", "gpumesh show"), {"mesh_backend": "none"})
    assert said["ignored_fields"] == {"extra_vars": {"mesh_backend": "none"}}
    assert "mesh_backend" not in said["extra_vars"]


EVERY = [
    (playbook, one["variable"])
    for playbook in sorted(data("surveys")["gpumesh_awx_surveys"])
    for one in survey(playbook)
]


@pytest.mark.parametrize(("playbook", "name"), EVERY)
def test_no_empty_answer_reaches_a_job(playbook: str, name: str) -> None:
    """The controller hands on what has a default, also an empty one, so the inventory counts only without one."""
    spec = survey(playbook)
    needed = {one["variable"]: NEEDED[one["variable"]] for one in spec if one["required"]}
    if name not in needed:
        assert name not in launch(spec, {}, needed).extra_vars
    with pytest.raises(RefusedError):
        launch(spec, {}, {**needed, name: ""})


def test_an_empty_default_is_handed_on() -> None:
    """By the controller: this is why there is none."""
    question = {"variable": "cluster_manager", "type": "text", "required": False, "default": "", "min": 0}
    assert launch([question], {}, {}).extra_vars == {"cluster_manager": ""}
    del question["default"]
    assert launch([question], {}, {}).extra_vars == {}


def test_no_node_lacks_an_answer(outcome: Outcome) -> None:
    for workflow in outcome.controller.objects["workflow_job_templates"].values():
        with urllib.request.urlopen(f"{outcome.address}{workflow['url']}launch/") as answered:
            assert json.load(answered)["node_prompts_rejected"] == [], workflow["name"]


WAYS = [
    ("build and prove", {}, "successful", ["site", "check"]),
    ("build and prove", {"site": "failed"}, "failed", ["site", "show failure"]),
    ("build and prove", {"check": "failed"}, "failed", ["site", "check", "show failure"]),
    ("join and check", {}, "successful", ["discover", "join", "check"]),
    ("join and check", {"discover": "failed"}, "failed", ["discover"]),
    ("join and check", {"join": "failed"}, "failed", ["discover", "join", "show failure"]),
    ("join and check", {"join": "error"}, "failed", ["discover", "join", "show failure"]),
    ("join and check", {"check": "failed"}, "failed", ["discover", "join", "check", "show failure"]),
    ("remove with approval", {}, "successful", ["show", "approve", "remove", "check"]),
    ("remove with approval", {"approve": "failed"}, "failed", ["show", "approve"]),
    ("remove with approval", {"remove": "failed"}, "failed", ["show", "approve", "remove"]),
    ("remove with approval", {"check": "failed"}, "failed", ["show", "approve", "remove", "check"]),
]


@pytest.mark.parametrize(("workflow", "ends", "status", "ran"), WAYS, ids=str)
def test_a_workflow_ends_as_its_work(
    outcome: Outcome, workflow: str, ends: dict[str, str], status: str, ran: list[str]
) -> None:
    """That the job after a failure fails itself is shown with a job."""
    controller = outcome.controller
    nodes = controller.nodes(controller.named("workflow_job_templates", f"gpumesh {workflow}")["id"])
    assert run_workflow(nodes, {"show failure": "failed", **ends}) == (status, ran)


def test_a_failure_that_leads_on_is_handled() -> None:
    """By the controller: a job after it that succeeds would hide it."""
    nodes = [{"identifier": "join", "failure_nodes": ["show"]}, {"identifier": "show"}]
    assert run_workflow(nodes, {"join": "failed"}) == ("successful", ["join", "show"])


def test_people_approve_and_hear_of_the_end(outcome: Outcome) -> None:
    controller = outcome.controller
    assert controller.named("workflow_approval_templates", "May the machine leave?")["timeout"] == 86400
    chat = controller.named("notification_templates", "chat")["id"]
    for one in controller.objects["workflow_job_templates"].values():
        assert controller.links[f"{one['url']}notification_templates_success/"] == [chat]
        assert controller.links[f"{one['url']}notification_templates_error/"] == [chat]


def test_a_workflow_asks_what_its_templates_take(outcome: Outcome) -> None:
    """AWX hands an answer on to all nodes, so it has to be one of a question that is asked in some."""
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


def test_all_that_is_missing_is_said_at_once(installed: Installed, tmp_path: Path) -> None:
    given = {
        "gpumesh_awx_credentials": ["machines", "munge"],
        "gpumesh_awx_notifications": ["chat"],
        "gpumesh_awx_project_url": f"file://{tmp_path}/nothing",
    }
    with running() as (controller, address):
        controller.add("organizations", {"name": "Default"})
        controller.add("credentials", {"name": "munge"})
        done = apply(installed, address, "-e", json.dumps(given), "-e", "gpumesh_awx_organization=Elsewhere")
        assert done.returncode != 0
        said = " ".join(done.stdout.split())
        for words in ("'Elsewhere'", "'machines'", "'chat'", "execution environment", f"{tmp_path}/nothing"):
            assert words in said
        assert "'munge'" not in said
        given["gpumesh_awx_execution_environment"] = "ours"
        done = apply(installed, address, "-e", json.dumps(given), "-e", "gpumesh_awx_project_check=false")
        said = " ".join(done.stdout.split())
        assert "Galaxy credential" in said
        assert "execution environment 'ours'" in said
        assert f"{tmp_path}/nothing" not in said
        assert controller.changes == []


def test_a_project_whose_update_has_failed_is_updated_again(installed: Installed, outcome: Outcome) -> None:
    """The module itself leaves an unchanged project as it is, and then no template finds its playbook."""
    project = outcome.controller.named("projects", "gpumesh")
    given = {
        "gpumesh_awx_organization": "Research",
        "gpumesh_awx_project_url": project["scm_url"],
        "gpumesh_awx_execution_environment_image": "ee:1",
    }
    with running() as (controller, address):
        furnished(controller)
        controller.update = "failed"
        for _attempt in range(2):
            done = apply(installed, address, "-e", json.dumps(given))
            assert done.returncode != 0
            assert "fatal: the server is out of reach" in done.stdout, done.stdout
            assert "The status of the project 'gpumesh' is 'failed'" in " ".join(done.stdout.split())
            assert not controller.objects["job_templates"]
        assert len(controller.objects["project_updates"]) == 2
        controller.update = "successful"
        done = apply(installed, address, "-e", json.dumps(given))
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(controller.objects["project_updates"]) == 3


def test_who_may_not_make_credential_types_hears_of_it_first(installed: Installed, outcome: Outcome) -> None:
    project = outcome.controller.named("projects", "gpumesh")
    given = {
        "gpumesh_awx_organization": "Research",
        "gpumesh_awx_project_url": project["scm_url"],
        "gpumesh_awx_execution_environment_image": "ee:1",
    }
    with running() as (controller, address):
        furnished(controller)
        controller.account["is_superuser"] = False
        done = apply(installed, address, "-e", json.dumps(given))
        said = " ".join(done.stdout.split())
        assert done.returncode != 0 and "Only a system administrator can create" in said, said
        assert controller.changes == []
        controller.account["is_superuser"] = True
        only = {**given, "gpumesh_awx_credentials": ["gpu host keys"]}
        done = apply(installed, address, "-e", json.dumps(only))
        assert "create the types first: run this playbook with --tags credential_types" in " ".join(done.stdout.split())
        done = apply(installed, address, "-e", json.dumps(only), "--tags", "credential_types")
        assert done.returncode == 0, done.stdout + done.stderr
        assert {change.split()[0] for change in controller.changes} == {"credential_types"}
        controller.account["is_superuser"] = False
        done = apply(installed, address, "-e", json.dumps(given))
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_project_that_nobody_fetches_is_given_up(installed: Installed, outcome: Outcome) -> None:
    """The module itself waits for ever, and without a pause."""
    project = outcome.controller.named("projects", "gpumesh")
    with running() as (controller, address):
        furnished(controller)
        controller.update = "pending"
        given = {
            "gpumesh_awx_organization": "Research",
            "gpumesh_awx_project_url": project["scm_url"],
            "gpumesh_awx_project_timeout": 5,
            "gpumesh_awx_execution_environment_image": "ee:1",
        }
        done = apply(installed, address, "-e", json.dumps(given))
        assert done.returncode != 0
        assert "Timed out after 5 second(s)" in done.stdout
        assert not controller.objects["job_templates"]


def test_a_playbook_of_ones_own_runs_ours(installed: Installed, own: Path) -> None:
    paths = [path for path in sorted((own / "playbooks").rglob("*.yml")) if "inventory" not in path.parts]
    assert "show_failure" in [path.stem for path in paths]
    there = installed._replace(folder=own)
    done = there.run("ansible-playbook", "-i", "localhost,", "--list-tasks", *map(str, paths))
    assert done.returncode == 0, done.stdout + done.stderr
    listed = dict(text.split("\n", 1) for text in done.stdout.split("playbook: ")[1:])
    assert list(listed) == [str(path) for path in paths]
    for path, tasks in listed.items():
        assert "TAGS: " in tasks, path
        assert "Fail after a failed job" in tasks or not path.endswith("show_failure.yml")


def test_the_requirements_of_ones_own_are_installed(installed: Installed, own: Path, tmp_path: Path) -> None:
    """From the archive's address, here the archive itself."""
    written = yaml.safe_load((own / "collections" / "requirements.yml").read_text(encoding="utf-8"))
    (wanted,) = written["collections"]
    assert Path(wanted["name"]).name == installed.archive.name
    wanted["name"] = f"file://{installed.archive}"
    (tmp_path / "requirements.yml").write_text(yaml.safe_dump(written), encoding="utf-8")
    options = ["--collections-path", str(tmp_path), "--no-deps", "--force"]
    done = installed.run("ansible-galaxy", "collection", "install", "-r", str(tmp_path / "requirements.yml"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ansible_collections" / "gpumesh" / "cluster" / "playbooks" / "site.yml").is_file()


def test_the_environment_of_jobs(installed: Installed, tmp_path: Path) -> None:
    files = ("settings", "execution_environments", "surveys", "templates")
    cases: list[tuple[str, str, str, list[str]]] = [
        ("", "", "", []),
        ("ours", "", "ours", []),
        ("", "ee:1", "gpumesh", ["gpumesh"]),
        ("ours", "ee:1", "ours", ["ours"]),
    ]
    plays = []
    for name, image, named, made in cases:
        given = {"gpumesh_awx_execution_environment": name, "gpumesh_awx_execution_environment_image": image}
        conditions = [
            "controller_templates | map(attribute='execution_environment') | unique == [named]",
            "controller_execution_environments | map(attribute='name') == made",
        ]
        check = {"ansible.builtin.assert": {"that": conditions}, "vars": {"named": named, "made": made}}
        read = {"vars_files": [str(AWX / "data" / f"{file}.yml") for file in files]}
        plays.append(
            {"hosts": "localhost", "gather_facts": False, **read, "tasks": [{"ansible.builtin.set_fact": given}, check]}
        )
    (tmp_path / "read.yml").write_text(yaml.safe_dump(plays))
    done = installed.run("ansible-playbook", "-i", "localhost,", str(tmp_path / "read.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok={2 * len(cases)} " in done.stdout


def test_the_other_collection_can_be_named(installed: Installed) -> None:
    """Where there is no such collection, Ansible says which one it looked for."""
    done = apply(installed, "http://127.0.0.1:9", "-e", "gpumesh_awx_collection=ansible.controller")
    assert done.returncode != 0
    assert "ansible.controller" in done.stdout + done.stderr

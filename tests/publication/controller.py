# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""As much of the API of AWX 24.6.1 as the modules of awx.awx use: it keeps what they make, and refuses what AWX would.

The modules talk to it over HTTP as to a real one. Its rules are those of awx_rules, which says what they cannot show.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ansible_collections.gpumesh.cluster.tests.publication.awx_rules import (
    RefusedError,
    check_injectors,
    check_name,
    check_survey,
    launch,
    playbooks,
    prompts_rejected,
)

#: Each kind of object, and the fields that the API has for it; others are dropped, as there.
FIELDS = {
    "organizations": {"name", "description"},
    "projects": {
        "name",
        "description",
        "organization",
        "scm_type",
        "scm_url",
        "scm_branch",
        "scm_update_on_launch",
        "scm_update_cache_timeout",
        "default_environment",
        "status",
    },
    "credentials": {"name", "organization"},
    "credential_types": {"name", "description", "kind", "inputs", "injectors", "managed"},
    "execution_environments": {"name", "description", "organization", "image", "pull"},
    "notification_templates": {"name", "organization"},
    "inventories": {"name", "description", "organization", "kind", "host_filter"},
    "inventory_sources": {
        "name",
        "inventory",
        "source",
        "source_project",
        "source_path",
        "execution_environment",
        "overwrite",
        "overwrite_vars",
        "update_on_launch",
        "update_cache_timeout",
    },
    "job_templates": {
        "name",
        "description",
        "organization",
        "project",
        "inventory",
        "execution_environment",
        "playbook",
        "job_type",
        "job_slice_count",
        "extra_vars",
        "allow_simultaneous",
        "survey_enabled",
        "ask_limit_on_launch",
        "ask_job_type_on_launch",
        "ask_diff_mode_on_launch",
        "ask_tags_on_launch",
        "ask_inventory_on_launch",
        "ask_credential_on_launch",
        "ask_verbosity_on_launch",
    },
    "workflow_job_templates": {
        "name",
        "description",
        "organization",
        "inventory",
        "survey_enabled",
        "ask_inventory_on_launch",
    },
    "workflow_job_template_nodes": {"identifier", "workflow_job_template", "unified_job_template", "extra_data"},
    "workflow_approval_templates": {"name", "description", "timeout"},
    "project_updates": {"status", "failed", "finished", "scm_revision"},
    "jobs": {"extra_vars", "inventory", "credentials"},
}
TYPES = {name: name.removesuffix("s") for name in FIELDS} | {"inventories": "inventory"}


class Controller:
    """Its objects by kind and number, and every change that was asked of it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in FIELDS}
        self.surveys: dict[str, dict[str, Any]] = {}
        self.links: dict[str, list[int]] = {}
        self.changes: list[str] = []
        self.next = 1
        #: What an update of a project comes to; `pending` is one that nobody works on.
        self.update = "successful"
        self.playbooks: dict[str, list[str]] = {}
        #: The output of updates by their number.
        self.outputs: dict[int, str] = {}
        #: The account that is logged in. Only a system administrator may change credential types.
        self.account = {"username": "jane", "is_superuser": True}

    def named(self, kind: str, name: str) -> dict[str, Any]:
        return next(one for one in self.objects[kind].values() if one.get("name", one.get("identifier")) == name)

    def add(self, kind: str, given: dict[str, Any]) -> dict[str, Any]:
        check_name(given.get("name") or "")
        number, self.next = self.next, self.next + 1
        url = f"/api/v2/{kind}/{number}/"
        made = {key: value for key, value in given.items() if key in FIELDS[kind]}
        made |= {"id": number, "type": TYPES[kind], "url": url, "related": {}, "summary_fields": {}}
        made.update(filled_in(kind, made))
        if kind in ("job_templates", "workflow_job_templates"):
            made["related"]["survey_spec"] = f"{url}survey_spec/"
        if kind == "projects":
            made["scm_revision"] = ""
            made["related"]["update"] = f"{url}update/"
            made["summary_fields"]["current_update"] = {"id": self.fetch(made)["id"]}
            # While it runs, a project has a current update, and from then on a last one.
            if self.update != "pending":
                kept = {**made, "summary_fields": {"last_update": made["summary_fields"]["current_update"]}}
                self.objects[kind][number] = kept
                return made
        self.objects[kind][number] = made
        return made

    def fetch(self, project: dict[str, Any]) -> dict[str, Any]:
        """Update a project; its update."""
        project["status"], output = self.synced(project.get("scm_url", ""))
        ended = {"failed": project["status"] == "failed", "finished": self.update != "pending", "scm_revision": ""}
        update = self.add("project_updates", {"status": project["status"], **ended})
        self.outputs[update["id"]] = output
        return update

    def synced(self, url: str) -> tuple[str, str]:
        """Fetch a project, and find its playbooks; the status of its update, and its output."""
        if self.update != "successful":
            return (
                self.update,
                "" if self.update == "pending" else "\x1b[0;31mfatal: the server is out of reach\x1b[0m\r\n",
            )
        with tempfile.TemporaryDirectory() as folder:
            clone = ["git", "clone", "--quiet", "--depth=1", url, folder]
            done = subprocess.run(clone, check=False, capture_output=True, timeout=120, text=True)
            if done.returncode:
                return "failed", done.stderr
            self.playbooks[url] = playbooks(Path(folder))
        return "successful", "PLAY RECAP"

    def check(self, kind: str, body: dict[str, Any]) -> None:
        """Refuse what AWX would not take."""
        check_injectors(body.get("injectors", {}))
        if kind == "job_templates" and "playbook" in body:
            url = self.objects["projects"][body["project"]]["scm_url"]
            if body["playbook"] not in self.playbooks.get(url, []):
                raise RefusedError("Playbook not found for project.", field="playbook")

    def spec(self, template: dict[str, Any]) -> list[dict[str, Any]]:
        """The questions of a template."""
        found: list[dict[str, Any]] = self.surveys[template["related"]["survey_spec"]]["spec"]
        return found

    def nodes(self, workflow: int) -> list[dict[str, Any]]:
        """The nodes of a workflow, with the identifiers of those that each leads to."""
        every = self.objects["workflow_job_template_nodes"]
        own = [one for one in every.values() if one["workflow_job_template"] == workflow]
        ways = ("success_nodes", "failure_nodes", "always_nodes")
        return [
            {
                **one,
                **{way: [every[to]["identifier"] for to in self.links.get(f"{one['url']}{way}/", [])] for way in ways},
            }
            for one in own
        ]

    def launch(self, kind: str, one: dict[str, Any], method: str, body: dict[str, Any]) -> tuple[int, Any]:
        """A launch, or what it would need."""
        spec = self.spec(one)
        if method == "GET":
            needed = [question["variable"] for question in spec if question["required"]]
            rejected = []
            for node in self.nodes(one["id"]) if kind == "workflow_job_templates" else []:
                template = self.objects["job_templates"].get(node["unified_job_template"])
                if template and prompts_rejected(self.spec(template), node):
                    rejected.append(node["id"])
            return 200, {"variables_needed_to_start": needed, "node_prompts_rejected": rejected}
        given = launch(spec, json.loads(one.get("extra_vars") or "{}"), body.get("extra_vars", {}))
        prompts = {"inventory": "ask_inventory_on_launch", "credentials": "ask_credential_on_launch"}
        taken = {name: body[name] for name, asks in prompts.items() if name in body and one.get(asks)}
        ignored = {name: body[name] for name in prompts if name in body and name not in taken}
        job = self.add("jobs", {"inventory": one.get("inventory"), **taken, "extra_vars": given.extra_vars})
        ignored.update({"extra_vars": given.ignored_fields} if given.ignored_fields else {})
        return 201, {**job, "job": job["id"], "ignored_fields": ignored}

    def select(self, kind: str, query: dict[str, str]) -> list[dict[str, Any]]:
        kinds = ("job_templates", "workflow_job_templates", "projects") if kind == "unified_job_templates" else (kind,)
        found = [one for name in kinds for one in self.objects[name].values()]
        query = {key: value for key, value in query.items() if key != "page_size"}
        either = {key.removeprefix("or__"): query.pop(key) for key in [*query] if key.startswith("or__")}
        return [
            one
            for one in found
            if all(self.matches(one, key, value) for key, value in query.items())
            and (not either or any(self.matches(one, key, value) for key, value in either.items()))
        ]

    def matches(self, one: dict[str, Any], key: str, value: str) -> bool:
        """A condition of a query."""
        if key.endswith("__in"):
            return str(one.get(key.removesuffix("__in"))) in value.split(",")
        if key == "organization__name":
            return bool(self.objects["organizations"][one["organization"]]["name"] == value)
        if key == "workflow_job_template__organization":
            return self.matches(
                self.objects["workflow_job_templates"][one["workflow_job_template"]], "organization", value
            )
        return str(one.get(key)) == value

    def one(self, kind: str, name: str) -> dict[str, Any]:
        """An object by its number, or by the name in its URL: its own and that of its organization."""
        if name.isdigit():
            return self.objects[kind][int(name)]
        own, organization = (unquote(part) for part in name.replace("[+]", "%2B").split("++"))
        number = self.named("organizations", organization)["id"]
        found = (one for one in self.objects[kind].values() if (one["name"], one.get("organization")) == (own, number))
        made = next(found, None)
        if made is None:
            raise KeyError(name)
        return made

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        """The status and the document. A path that the API does not have is a KeyError."""
        parts = unquote(path).removeprefix("/api/v2/").strip("/").split("/")
        if parts[0] == "credential_types" and method != "GET" and not self.account["is_superuser"]:
            return 403, {"detail": "You do not have permission to perform this action."}
        if len(parts) == 1:
            return self.every(method, parts[0], query, body)
        one = self.one(parts[0], parts[1])
        if len(parts) == 2:
            if method == "PATCH":
                self.check(parts[0], {**one, **body})
                fields = {key: value for key, value in body.items() if key in FIELDS[parts[0]]}
                fields.update(filled_in(parts[0], fields))
                if any(one.get(key) != value for key, value in fields.items()):
                    self.changes.append(f"{path} {sorted(fields)}")
                one.update(fields)
            return 200, dict(one)
        if parts[2] == "survey_spec":
            return self.survey(method, path, body)
        if parts[2] == "launch":
            return self.launch(parts[0], one, method, body)
        actions = {"update": self.update_project, "stdout": self.show_output, "create_approval_template": self.approve}
        return actions[parts[2]](one, body) if parts[2] in actions else self.link(method, path, body)

    def every(self, method: str, kind: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        """All objects of a kind, or a new one."""
        if method == "POST":
            self.check(kind, body)
            made = self.add(kind, body)
            self.changes.append(f"{kind} {made.get('name', made.get('identifier'))}")
            return 201, made
        return 200, page([self.account] if kind == "me" else self.select(kind, query))

    def update_project(self, project: dict[str, Any], _body: dict[str, Any]) -> tuple[int, Any]:
        update = self.fetch(project)
        self.changes.append(f"{project['url']}update/")
        project["summary_fields"] = {"last_update": {"id": update["id"]}}
        return 202, update

    def show_output(self, update: dict[str, Any], _body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"range": {}, "content": self.outputs[update["id"]]}

    def approve(self, node: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        made = self.add("workflow_approval_templates", body)
        self.changes.append(f"approval {made['name']}")
        node["unified_job_template"] = made["id"]
        node["related"]["unified_job_template"] = made["url"]
        return 201, made

    def survey(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if method == "POST":
            check_survey(body)
            self.changes.append(path)
            self.surveys[path] = body
        return 200, self.surveys.get(path, {})

    def link(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        linked = self.links.setdefault(path, [])
        if method == "GET":
            return 200, page([{"id": number} for number in linked])
        self.changes.append(f"{path} {body}")
        if body.get("disassociate"):
            linked.remove(body["id"])
        else:
            linked.append(body["id"])
        return 204, None


def filled_in(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """What AWX has where it was given nothing."""
    return {"kind": given.get("kind") or "", "host_filter": given.get("host_filter")} if kind == "inventories" else {}


def page(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {"count": len(results), "next": None, "previous": None, "results": results}


@contextmanager
def running(controller: Controller | None = None) -> Iterator[tuple[Controller, str]]:
    """A controller that listens on this machine, and its address. Without one, it is a new one."""
    controller = controller or Controller()

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            split = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            try:
                status, document = controller.answer(self.command, split.path, dict(parse_qsl(split.query)), body or {})
            except KeyError:
                status, document = 404, {"detail": "Not found."}
            except RefusedError as refused:
                status, document = 400, {refused.field: refused.words}
            content = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: Any) -> None:
            """Nothing: the tests look at the changes."""

    for method in ("GET", "POST", "PATCH"):
        setattr(Handler, f"do_{method}", Handler.reply)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield controller, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=30)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""As much of a controller's API as the modules of awx.awx use: it keeps what they make, and refuses what AWX would.

The modules talk to it over HTTP as to a real one. What it cannot show is whether a real one knows a rule that is not
here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

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
    },
    "credentials": {"name", "organization"},
    "credential_types": {"name", "description", "kind", "inputs", "injectors", "managed"},
    "execution_environments": {"name", "description", "organization", "image", "pull"},
    "notification_templates": {"name", "organization"},
    "inventories": {"name", "description", "organization", "kind"},
    "inventory_sources": {
        "name",
        "inventory",
        "source",
        "source_project",
        "source_path",
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
    "project_updates": {"status"},
}
TYPES = {name: name.removesuffix("s") for name in FIELDS} | {"inventories": "inventory"}
QUESTIONS = {"text", "textarea", "password", "integer", "float", "multiplechoice", "multiselect"}


class RefusedError(Exception):
    """What a controller answers with status 400."""

    def __init__(self, words: str, field: str = "error") -> None:
        super().__init__(words)
        self.field = field


def check_survey(survey: dict[str, Any]) -> None:
    """The rules of AWX for a survey."""
    require(all(key in survey for key in ("name", "description", "spec")), "A key is missing", survey)
    require(bool(survey["spec"]), "No questions", survey)
    variables = [question.get("variable") for question in survey["spec"]]
    require(len(set(variables)) == len(variables), "A variable is asked for twice", variables)
    for question in survey["spec"]:
        check_question(question)


def check_question(question: dict[str, Any]) -> None:
    require({"type", "question_name", "variable", "required"} <= set(question), "A key is missing", question)
    require(isinstance(question["required"], bool), "required is no boolean", question)
    kind, default = question["type"], question.get("default", "")
    require(kind in QUESTIONS, "No such type", question)
    if kind in ("integer", "float"):
        number = int if kind == "integer" else (int, float)
        if default != "":
            require(isinstance(default, number) and not isinstance(default, bool), "The default is no number", question)
            require(question["min"] <= default <= question["max"], "The default is out of range", question)
    elif kind in ("multiplechoice", "multiselect"):
        require(all(isinstance(choice, str) for choice in question["choices"]), "A choice is no text", question)
        require(set(default.splitlines()) <= set(question["choices"]), "The default is no choice", question)
    else:
        require(isinstance(default, str), "The default is no text", question)


def check_injectors(injectors: dict[str, dict[str, str]]) -> None:
    """The rules of AWX for what a type of credentials adds to a job, and its words."""
    for name in injectors.get("env", {}):
        if name.startswith("ANSIBLE_"):
            raise RefusedError(
                f"Environment variable {name} may affect Ansible configuration so its use is not allowed in credentials.",
                field="injectors",
            )


def require(holds: bool, otherwise: str, given: object) -> None:
    if not holds:
        raise RefusedError(f"{otherwise}: {given}")


class Controller:
    """Its objects by kind and number, and every change that was asked of it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in FIELDS}
        self.surveys: dict[str, dict[str, Any]] = {}
        self.links: dict[str, list[int]] = {}
        self.changes: list[str] = []
        self.next = 1

    def named(self, kind: str, name: str) -> dict[str, Any]:
        return next(one for one in self.objects[kind].values() if one.get("name", one.get("identifier")) == name)

    def add(self, kind: str, given: dict[str, Any]) -> dict[str, Any]:
        number, self.next = self.next, self.next + 1
        url = f"/api/v2/{kind}/{number}/"
        made = {key: value for key, value in given.items() if key in FIELDS[kind]}
        made |= {"id": number, "type": TYPES[kind], "url": url, "related": {}, "summary_fields": {}}
        if kind in ("job_templates", "workflow_job_templates"):
            made["related"]["survey_spec"] = f"{url}survey_spec/"
        if kind == "projects":
            made["scm_revision"] = ""
            update = self.add("project_updates", {"status": "successful"})
            made["summary_fields"]["current_update"] = {"id": update["id"]}
        self.objects[kind][number] = made
        return made

    def select(self, kind: str, query: dict[str, str]) -> list[dict[str, Any]]:
        kinds = ("job_templates", "workflow_job_templates", "projects") if kind == "unified_job_templates" else (kind,)
        found = [one for name in kinds for one in self.objects[name].values()]
        return [one for one in found if all(str(one.get(key)) == value for key, value in query.items())]

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        """The status and the document. A path that the API does not have is a KeyError."""
        parts = path.removeprefix("/api/v2/").strip("/").split("/")
        if len(parts) == 1:
            if method == "POST":
                check_injectors(body.get("injectors", {}))
                made = self.add(parts[0], body)
                self.changes.append(f"{parts[0]} {made.get('name', made.get('identifier'))}")
                return 201, made
            return 200, page(self.select(parts[0], query))
        one = self.objects[parts[0]][int(parts[1])]
        if len(parts) == 2:
            if method == "PATCH":
                check_injectors(body.get("injectors", {}))
                fields = {key: value for key, value in body.items() if key in FIELDS[parts[0]]}
                if any(one.get(key) != value for key, value in fields.items()):
                    self.changes.append(f"{path} {sorted(fields)}")
                one.update(fields)
            return 200, dict(one)
        if parts[2] == "survey_spec":
            return self.survey(method, path, body)
        if parts[2] == "create_approval_template":
            made = self.add("workflow_approval_templates", body)
            self.changes.append(f"approval {made['name']}")
            one["unified_job_template"] = made["id"]
            one["related"]["unified_job_template"] = made["url"]
            return 201, made
        return self.link(method, path, body)

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


def page(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {"count": len(results), "next": None, "previous": None, "results": results}


@contextmanager
def running() -> Iterator[tuple[Controller, str]]:
    """A controller that listens on this machine, and its address."""
    controller = Controller()

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
                status, document = 400, {refused.field: [str(refused)]}
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

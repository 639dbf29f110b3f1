# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What users of MLflow cannot request, besides what MLflow itself refuses. The tracking server imports this module.

``authenticate`` is its authorization function, around that for passwords. It refuses locations of artifacts outside of
the server's own, and the names of other users for experiments. Locations that are in the database already are refused
when artifacts would be read from them, or written to them.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import urllib.parse
from typing import Any, Callable, Dict, Iterator, List, MutableMapping, Tuple

#: The scheme of the artifacts that the server keeps, and those of references to them.
_OWN = "mlflow-artifacts"
_REFERENCES = ("runs", "models")
_LOCAL = ("", "file")
#: Fields, and tags of traces, from which MLflow takes locations; without underscores, since it accepts both spellings.
_FIELDS = ("artifactlocation", "artifacturi", "artifactroot", "defaultartifactroot")
_TAGS = ("mlflow.artifactLocation", "mlflow.trace.archiveLocation")
#: What clients name as the source of a prompt, which has no artifacts.
_PROMPTS = ("dummy-source", "prompt-template")
_NEW_VERSION, _NEW_EXPERIMENT, _RENAMED = "/model-versions/create", "/experiments/create", "/experiments/update"
#: The tag with the owner of an experiment, which gpumesh_track shows.
OWNER = "gpumesh.owner"


def _decoded(text: str) -> str:
    """Text without any escapes, however often they are escaped."""
    while urllib.parse.unquote(text) != text:
        text = urllib.parse.unquote(text)
    return text


def is_own(location: str) -> bool:
    """Whether a location is among the artifacts of this server. An empty one is the default."""
    found = urllib.parse.urlsplit(location)
    # With a host, clients would send their password there.
    inside = not location.startswith(f"{found.scheme}://") and ".." not in re.split(r"[/\\]", _decoded(found.path))
    return not location or (found.scheme == _OWN and inside)


def _entries(given: Any) -> Iterator[Tuple[str, Any]]:
    """Yield all names with their values, also those of tags, which are objects with a key and a value."""
    if isinstance(given, list):
        for one in given:
            yield from _entries(one)
    elif isinstance(given, dict):
        if isinstance(given.get("key"), str):
            yield given["key"], given.get("value")
        for name, value in given.items():
            yield str(name), value
            yield from _entries(value)


def _plain(name: str) -> str:
    """A field's name, as it is in both spellings."""
    return name.replace("_", "").lower()


def foreign_location(path: str, given: Any) -> str:
    """The first location in a request that is not among the server's artifacts; empty if there is none."""
    for name, value in _entries(given):
        field, location = _plain(name), "" if value is None else str(value)
        if field in _FIELDS or name in _TAGS:
            # Those that begin with the number of an experiment are inside it.
            numbered = re.match(r"/*\d", _decoded(urllib.parse.urlsplit(location).path))
            if not is_own(location) or (numbered and path.endswith(_NEW_EXPERIMENT)):
                return location
        if field == "source" and path.endswith(_NEW_VERSION) and location not in _PROMPTS:
            found = urllib.parse.urlsplit(location)
            if not is_own(location) and (found.scheme not in _REFERENCES or found.netloc):
                return location
    return ""


def claimed_names(path: str, given: Any) -> List[str]:
    """The names that a request would give to an experiment."""
    if not isinstance(given, dict) or not path.endswith((_NEW_EXPERIMENT, _RENAMED)):
        return []
    return [str(value) for name, value in given.items() if _plain(name) in ("name", "newname")]


def claimed_owners(given: Any) -> List[str]:
    """The owners of experiments that a request names."""
    return [str(value) for name, value in _entries(given) if name == OWNER]


def guard(repositories: MutableMapping[str, Callable[..., Any]], root: str, refuse: Callable[[str], Exception]) -> None:
    """Let only the server's artifacts be opened, among the repositories that MLflow has by scheme.

    ``root``: where the artifacts are; ``refuse``: makes the exception.
    """
    for scheme, repository in list(repositories.items()):
        repositories[scheme] = _guarded(scheme, repository, os.path.realpath(root), refuse)


def _guarded(
    scheme: str, repository: Callable[..., Any], root: str, refuse: Callable[[str], Exception]
) -> Callable[..., Any]:
    def open_repository(location: str, *arguments: Any, **options: Any) -> Any:
        found = urllib.parse.urlsplit(str(location))
        if scheme in _LOCAL:
            path = urllib.parse.unquote(found.path) if scheme else str(location)
            inside = os.path.join(os.path.realpath(path), "").startswith(os.path.join(root, ""))
            allowed = inside and os.path.isabs(path) and not found.netloc
        else:
            allowed = scheme in (_OWN, *_REFERENCES) and not found.netloc
        if not allowed:
            raise refuse(f"{location} is not among the artifacts of this server")
        return repository(location, *arguments, **options)

    return open_repository


class _Server:
    """MLflow's own modules, and the guard around its repositories."""

    def __init__(self) -> None:
        self.auth = importlib.import_module("mlflow.server.auth")
        self._exceptions = importlib.import_module("mlflow.exceptions")
        self._flask = importlib.import_module("flask")
        registry = importlib.import_module("mlflow.store.artifact.artifact_repository_registry")
        name = importlib.import_module("mlflow.server").ARTIFACTS_DESTINATION_ENV_VAR
        guard(registry.get_registered_artifact_repositories(), os.environ[name], self.refusal)

    def refusal(self, message: str, code: str = "PERMISSION_DENIED") -> Exception:
        """The exception that MLflow returns to its client."""
        code_number = importlib.import_module("mlflow.protos.databricks_pb2").ErrorCode.Value(code)
        return self._exceptions.MlflowException(message, error_code=code_number)  # type: ignore[no-any-return]

    def requested(self) -> List[Any]:
        """The parts of a request from which MLflow takes values: the body, whatever its type, and the query."""
        request = self._flask.request
        body = request.get_json(force=True, silent=True)
        # MLflow decodes it a second time, for old clients.
        if isinstance(body, str):
            try:
                body = json.loads(body)
            except ValueError:
                body = None
        query: Dict[str, Any] = request.args.to_dict()
        return [body, query]

    def refuse(self, username: str) -> None:
        """Refuse requests of a user who is known by now. Raises MlflowException."""
        path = self._flask.request.path
        for given in self.requested():
            location = foreign_location(path, given)
            if location:
                message = f"{location} is not among the artifacts of this server. Leave the location out."
                raise self.refusal(message, "INVALID_PARAMETER_VALUE")
            self._refuse_names(username, claimed_names(path, given), claimed_owners(given))

    def _refuse_names(self, username: str, names: List[str], owners: List[str]) -> None:
        """Refuse experiments in the name of others, except by an administrator. Raises MlflowException."""
        others = {name for name in names if name != username and self.auth.store.has_user(name)}
        others.update(name for name in owners if name != username)
        if others and not self.auth.store.get_user(username).is_admin:
            listed = ", ".join(f"'{name}'" for name in sorted(others))
            raise self.refusal(f"Only {listed} can have an experiment of that name or owner. Choose another name.")


_servers: List[_Server] = []


def authenticate() -> Any:
    """MLflow's authorization function: the user with the password of the request, or a response."""
    if not _servers:
        _servers.append(_Server())
    server = _servers[0]
    found = server.auth.authenticate_request_basic_auth()
    username = getattr(found, "username", None)
    if username:
        server.refuse(str(username))
    return found

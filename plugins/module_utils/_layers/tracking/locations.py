# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refusal of requests of MLflow's users, besides what MLflow itself refuses. The tracking server imports this module.

``authenticate`` is MLflow's authorization function, and calls that for passwords. It refuses locations of artifacts
outside of the server's own, and experiments with the names of other users. Locations that are already in the database
are refused when artifacts would be read from them, or written to them.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import urllib.parse
from typing import Any, Callable, Dict, Iterator, List, MutableMapping, Tuple

#: The scheme of the artifacts that the server stores, and the schemes of references to them.
_OWN_SCHEME = "mlflow-artifacts"
_REFERENCE_SCHEMES = ("runs", "models")
_LOCAL_SCHEMES = ("", "file")
#: The fields, and tags of traces, from which MLflow takes locations. Fields are without underscores, since MLflow
#: accepts both spellings.
_LOCATION_FIELDS = ("artifactlocation", "artifacturi", "artifactroot", "defaultartifactroot")
_LOCATION_TAGS = ("mlflow.artifactLocation", "mlflow.trace.archiveLocation")
#: The sources that clients name for a prompt, which has no artifacts.
_PROMPT_SOURCES = ("dummy-source", "prompt-template")
_NEW_VERSION, _NEW_EXPERIMENT, _UPDATE_EXPERIMENT = (
    "/model-versions/create",
    "/experiments/create",
    "/experiments/update",
)
#: The tag with the owner of an experiment, which gpumesh_track shows.
OWNER_TAG = "gpumesh.owner"


def _decode_fully(text: str) -> str:
    """Return text without any URL escapes, however often they are escaped."""
    while urllib.parse.unquote(text) != text:
        text = urllib.parse.unquote(text)
    return text


def is_own_location(location: str) -> bool:
    """Return whether a location is among the artifacts of this server. An empty location is the default."""
    url_parts = urllib.parse.urlsplit(location)
    # A location with a host is refused, since clients would send their password to that host.
    is_inside = not location.startswith(f"{url_parts.scheme}://") and ".." not in re.split(
        r"[/\\]", _decode_fully(url_parts.path)
    )
    return not location or (url_parts.scheme == _OWN_SCHEME and is_inside)


def _walk_entries(document: Any) -> Iterator[Tuple[str, Any]]:
    """Yield all names with their values, also those of tags, which are objects with a key and a value."""
    if isinstance(document, list):
        for element in document:
            yield from _walk_entries(element)
    elif isinstance(document, dict):
        if isinstance(document.get("key"), str):
            yield document["key"], document.get("value")
        for name, value in document.items():
            yield str(name), value
            yield from _walk_entries(value)


def _normalize_field(name: str) -> str:
    """Return a field's name in a form that is the same for both spellings."""
    return name.replace("_", "").lower()


def find_foreign_location(path: str, document: Any) -> str:
    """Return the first location in a request that is not among the server's artifacts; empty if there is none."""
    for name, value in _walk_entries(document):
        field_name, location = _normalize_field(name), "" if value is None else str(value)
        if field_name in _LOCATION_FIELDS or name in _LOCATION_TAGS:
            # Locations that begin with the ID of an experiment are inside that experiment.
            numbered = re.match(r"/*\d", _decode_fully(urllib.parse.urlsplit(location).path))
            if not is_own_location(location) or (numbered and path.endswith(_NEW_EXPERIMENT)):
                return location
        if field_name == "source" and path.endswith(_NEW_VERSION) and location not in _PROMPT_SOURCES:
            url_parts = urllib.parse.urlsplit(location)
            if not is_own_location(location) and (url_parts.scheme not in _REFERENCE_SCHEMES or url_parts.netloc):
                return location
    return ""


def list_claimed_names(path: str, document: Any) -> List[str]:
    """Return the names that a request would give to an experiment."""
    if not isinstance(document, dict) or not path.endswith((_NEW_EXPERIMENT, _UPDATE_EXPERIMENT)):
        return []
    return [str(value) for name, value in document.items() if _normalize_field(name) in ("name", "newname")]


def list_claimed_owners(document: Any) -> List[str]:
    """Return the owners of experiments that a request names."""
    return [str(value) for name, value in _walk_entries(document) if name == OWNER_TAG]


def guard_repositories(
    repositories: MutableMapping[str, Callable[..., Any]], artifact_root: str, make_refusal: Callable[[str], Exception]
) -> None:
    """Let only the server's artifacts be opened, among the repositories that MLflow has by scheme.

    ``artifact_root``: the directory of the artifacts; ``make_refusal``: makes the exception.
    """
    for scheme, repository in list(repositories.items()):
        repositories[scheme] = _guard_repository(scheme, repository, os.path.realpath(artifact_root), make_refusal)


def _guard_repository(
    scheme: str, repository: Callable[..., Any], artifact_root: str, make_refusal: Callable[[str], Exception]
) -> Callable[..., Any]:
    def open_repository(location: str, *arguments: Any, **options: Any) -> Any:
        url_parts = urllib.parse.urlsplit(str(location))
        if scheme in _LOCAL_SCHEMES:
            path = urllib.parse.unquote(url_parts.path) if scheme else str(location)
            is_inside = os.path.join(os.path.realpath(path), "").startswith(os.path.join(artifact_root, ""))
            is_allowed = is_inside and os.path.isabs(path) and not url_parts.netloc
        else:
            is_allowed = scheme in (_OWN_SCHEME, *_REFERENCE_SCHEMES) and not url_parts.netloc
        if not is_allowed:
            raise make_refusal(f"{location} is not among the artifacts of this server")
        return repository(location, *arguments, **options)

    return open_repository


class _MlflowModules:
    """MLflow's own modules, and the guard around its repositories."""

    def __init__(self) -> None:
        self.auth = importlib.import_module("mlflow.server.auth")
        self._exceptions = importlib.import_module("mlflow.exceptions")
        self._flask = importlib.import_module("flask")
        registry = importlib.import_module("mlflow.store.artifact.artifact_repository_registry")
        root_variable = importlib.import_module("mlflow.server").ARTIFACTS_DESTINATION_ENV_VAR
        guard_repositories(registry.get_registered_artifact_repositories(), os.environ[root_variable], self.refusal)

    def refusal(self, message: str, error_code: str = "PERMISSION_DENIED") -> Exception:
        """Return the exception with which MLflow answers its client."""
        error_number = importlib.import_module("mlflow.protos.databricks_pb2").ErrorCode.Value(error_code)
        return self._exceptions.MlflowException(message, error_code=error_number)  # type: ignore[no-any-return]

    def request_documents(self) -> List[Any]:
        """Return the parts of a request from which MLflow takes values: the body, whatever its type, and the query."""
        request = self._flask.request
        body = request.get_json(force=True, silent=True)
        # MLflow decodes a body that is a string a second time, for old clients.
        if isinstance(body, str):
            try:
                body = json.loads(body)
            except ValueError:
                body = None
        query_parameters: Dict[str, Any] = request.args.to_dict()
        return [body, query_parameters]

    def refuse_request(self, username: str) -> None:
        """Refuse forbidden requests of a user who has been authenticated. Raises MlflowException."""
        path = self._flask.request.path
        for document in self.request_documents():
            location = find_foreign_location(path, document)
            if location:
                message = f"{location} is not among the artifacts of this server. Leave the location out."
                raise self.refusal(message, "INVALID_PARAMETER_VALUE")
            self._refuse_names(username, list_claimed_names(path, document), list_claimed_owners(document))

    def _refuse_names(self, username: str, experiment_names: List[str], owner_names: List[str]) -> None:
        """Refuse experiments in the name of others, except by an administrator. Raises MlflowException."""
        foreign_names = {name for name in experiment_names if name != username and self.auth.store.has_user(name)}
        foreign_names.update(name for name in owner_names if name != username)
        if foreign_names and not self.auth.store.get_user(username).is_admin:
            quoted_names = ", ".join(f"'{name}'" for name in sorted(foreign_names))
            raise self.refusal(
                f"Only {quoted_names} can have an experiment of that name or owner. Choose another name."
            )


_loaded_modules: List[_MlflowModules] = []


def authenticate() -> Any:
    """Authorize a request for MLflow: return the user with its password, or a response."""
    if not _loaded_modules:
        _loaded_modules.append(_MlflowModules())
    mlflow_modules = _loaded_modules[0]
    authorization = mlflow_modules.auth.authenticate_request_basic_auth()
    username = getattr(authorization, "username", None)
    if username:
        mlflow_modules.refuse_request(str(username))
    return authorization

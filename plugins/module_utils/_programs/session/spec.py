# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and validate the description of a session. All invalid requests are refused here. Pure."""

from __future__ import annotations

import math
import re
import shlex
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.time_limit import number_refusal, parse_minutes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    HOST_NETWORK,
    PRIVATE_NETWORK,
    Role,
    SessionSpec,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.plan import MAX_CONTAINERS

MAIN_ROLE = "main"
_SESSION_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
#: The names of roles do not end with a digit, or their containers could have the names of another role's containers.
_ROLE_NAME = re.compile(r"[a-z](?:[a-z-]{0,14}[a-z])?")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMORY_SIZE = re.compile(r"([0-9]{1,9})\s*([KMGT]?)i?B?", re.IGNORECASE)
_TIME_LIMIT = re.compile(
    r"(?:(?P<days>\d{1,4})-)?(?P<hours>\d{1,4}):(?P<minutes>\d{1,2}):(?P<seconds>\d{1,2})|(?P<only>\d{1,8})"
)
_MIB_BY_UNIT = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_ROLE_FIELDS = Role._fields
_SESSION_OPTIONS = ("name", "roles", "time", "network", "partition", "retry", "ports")


def parse_spec(document: Any) -> SessionSpec:
    """Parse the session in a file or a playbook, whose keys may have the prefix ``session_``. Raises InputError."""
    if not isinstance(document, Mapping):
        raise InputError("The session is not a mapping.", "Give at least session_name and session_roles.")
    options = {str(key)[8:] if str(key).startswith("session_") else str(key): value for key, value in document.items()}
    unknown = sorted(set(options) - set(_SESSION_OPTIONS))
    if unknown:
        raise InputError(
            f"A session has no option session_{unknown[0]}.",
            f"Its options are {join_names((f'session_{name}' for name in _SESSION_OPTIONS), max_named=None)}.",
        )
    session_name = str(options.get("name") or "")
    if not _SESSION_NAME.fullmatch(session_name):
        raise InputError(
            f"session_name '{session_name}' is an invalid session name.",
            "Use up to 32 lower-case letters, digits and '-', and begin and end with a letter or a digit.",
        )
    network_mode = str(options.get("network") or PRIVATE_NETWORK)
    if network_mode not in (PRIVATE_NETWORK, HOST_NETWORK):
        raise InputError(f"session_network is '{network_mode}'.", f"Choose {PRIVATE_NETWORK} or {HOST_NETWORK}.")
    roles = _parse_roles(options.get("roles"))
    spec = SessionSpec(
        name=session_name,
        roles=roles,
        time=parse_time_limit(options.get("time")),
        network=network_mode,
        partition=_parse_partition("session_partition", options.get("partition")),
        retry=_parse_boolean("session_retry", options.get("retry", True)),
        ports=parse_ports(options.get("ports")),
    )
    _refuse_conflicts(spec)
    return spec


def serialize_spec(spec: SessionSpec) -> Dict[str, Any]:
    """Return a session as a mapping, which parse_spec() can parse."""
    role_mappings = [{**role._asdict(), "env": dict(role.env), "memory": f"{role.memory}M"} for role in spec.roles]
    # The time is text, which is always in minutes: a number might be taken for seconds.
    return {**spec._asdict(), "roles": role_mappings, "time": str(spec.time)}


def parse_time_limit(value: Any) -> int:
    """Parse a time limit: minutes, H:MM:SS or D-H:MM:SS, as in Slurm, or with a unit, as 90m, 2h or 3d; 0 for none.

    A number is refused, since it may have been written as a time: YAML takes 2:00:00 without quotes for 7200.
    """
    if value in (None, "", 0):
        return 0
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise number_refusal("session_time", value)
    limit_text = str(value).strip()
    with_unit = parse_minutes(limit_text)
    if with_unit is not None:
        return with_unit
    match = _TIME_LIMIT.fullmatch(limit_text)
    if match is None:
        raise InputError(f"session_time is '{value}'.", "Give hours as 2h or 2:00:00, or days as 2-00:00:00.")
    if match.group("only"):
        return int(match.group("only"))
    days, hours, extra_minutes, seconds = (
        int(match.group(group) or 0) for group in ("days", "hours", "minutes", "seconds")
    )
    return (days * 24 + hours) * 60 + extra_minutes + (seconds > 0)


def parse_mebibytes(prefix: str, value: Any) -> int:
    """Parse memory in Slurm's form, such as 4G or 512M; a number is in MiB."""
    if value in (None, ""):
        return 0
    match = _MEMORY_SIZE.fullmatch(str(value).strip())
    if match is None:
        raise InputError(f"{prefix} is '{value}'.", "Give memory as 4G or 512M.")
    # The size is rounded up, since 0 means no limit.
    return math.ceil(int(match.group(1)) * _MIB_BY_UNIT[match.group(2).upper()])


def _parse_roles(value: Any) -> Tuple[Role, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InputError("session_roles has no role.", "Give a list with at least the role 'main'.")
    roles = tuple(_parse_role(role_number, role_entry) for role_number, role_entry in enumerate(value, 1))
    role_names = [role.name for role in roles]
    duplicate_names = sorted({name for name in role_names if role_names.count(name) > 1})
    if duplicate_names:
        raise InputError(f"session_roles has two roles '{duplicate_names[0]}'.", "Give each role its own name.")
    if MAIN_ROLE not in role_names:
        raise InputError(
            "session_roles has no role 'main'.", "Name one role 'main'; the session ends when its command ends."
        )
    if roles[0].name != MAIN_ROLE:
        roles = tuple(sorted(roles, key=lambda role: role.name != MAIN_ROLE))
    return roles


def _parse_role(role_number: int, value: Any) -> Role:
    if not isinstance(value, Mapping):
        raise InputError(f"Role {role_number} of session_roles is not a mapping.", "Give it a name and an image.")
    role_name = str(value.get("name") or "")
    prefix = f"session_roles: {role_name or role_number}"
    unknown = sorted(str(key) for key in value if key not in _ROLE_FIELDS)
    if unknown:
        raise InputError(
            f"{prefix} has the unknown field '{unknown[0]}'.",
            f"Its fields are {join_names(_ROLE_FIELDS, max_named=None)}.",
        )
    if not _ROLE_NAME.fullmatch(role_name):
        raise InputError(
            f"{prefix} is an invalid role name.",
            "Use up to 16 lower-case letters and '-', and begin and end with a letter.",
        )
    image_name = str(value.get("image") or "").strip()
    if not image_name or re.search(r"[\s\x00-\x1f]", image_name) or image_name.startswith("-"):
        raise InputError(
            f"{prefix}: the image is '{image_name}'.", "Name an image, such as docker.io/library/debian:13."
        )
    return Role(
        name=role_name,
        replicas=_parse_count(prefix, "replicas", value.get("replicas", 1), 1),
        image=image_name,
        command=_parse_command(prefix, value.get("command")),
        cpus=_parse_count(prefix, "cpus", value.get("cpus", 1), 1),
        memory=parse_mebibytes(f"{prefix}: memory", value.get("memory")),
        gpus=_parse_count(prefix, "gpus", value.get("gpus", 0), 0),
        per_node=_parse_count(prefix, "per_node", value.get("per_node", 0), 0),
        mounts=tuple(check_mount(prefix, text) for text in _parse_texts(prefix, "mounts", value.get("mounts"))),
        env=_parse_environment(prefix, value.get("env")),
    )


def check_mount(prefix: str, text: str) -> str:
    """Check a mount, and return it: HOST:CONTAINER, with :ro if it is read-only. Raises InputError."""
    parts = text.split(":")
    is_valid = len(parts) == 2 or (len(parts) == 3 and parts[2] in ("ro", "rw"))
    if not is_valid or "\0" in text or any(not path.startswith("/") or ".." in path.split("/") for path in parts[:2]):
        raise InputError(
            f"{prefix}: the mount '{text}' cannot be read.", "Use HOST_PATH:CONTAINER_PATH[:ro], with absolute paths."
        )
    return text


def refuse_mounts(spec: SessionSpec, allowed_directories: Sequence[str]) -> None:
    """Refuse directories of the hosts that are not below those that the administrator allows. Raises InputError."""
    for role in spec.roles:
        for text in role.mounts:
            directory = text.split(":")[0].rstrip("/") or "/"
            if not any(
                directory == base or directory.startswith(base.rstrip("/") + "/") for base in allowed_directories
            ):
                raise InputError(
                    f"session_roles: {role.name}: the mount of {directory} is not allowed.",
                    f"Use a directory below {join_names(allowed_directories, 'or', max_named=None)}."
                    if allowed_directories
                    else "Ask the administrator to set session_mounts_allowed.",
                )


def _refuse_conflicts(spec: SessionSpec) -> None:
    container_count = sum(role.replicas for role in spec.roles)
    if container_count > MAX_CONTAINERS:
        raise InputError(f"The session has {container_count} containers.", f"Ask for at most {MAX_CONTAINERS}.")
    if spec.ports and spec.network == HOST_NETWORK:
        raise InputError(
            "session_ports requires session_network=private.",
            "With session_network=host, connect to the node of main1.",
        )
    roles_without_memory = [role.name for role in spec.roles if not role.memory]
    if roles_without_memory and len(roles_without_memory) < len(spec.roles):
        raise InputError(
            f"session_roles: {roles_without_memory[0]} has no memory, but others do.",
            "Set memory for all roles, or for none.",
        )
    for role in spec.roles:
        if role.per_node and role.replicas % role.per_node:
            raise InputError(
                f"session_roles: {role.name}: {role.replicas} replicas cannot be placed {role.per_node} per node.",
                "Make replicas a multiple of per_node.",
            )


def parse_ports(value: Any) -> Tuple[str, ...]:
    """Parse ports: a number, or two if the manager's port differs. The answer of a survey in AWX is text."""
    port_texts = value if isinstance(value, Sequence) and not isinstance(value, str) else str(value or "").split()
    port_pairs: List[Tuple[int, int]] = []
    for port_text in (str(port_text).strip(",") for port_text in port_texts):
        port_parts = port_text.split(":")
        if len(port_parts) > 2 or not all(part.isdecimal() and 0 < int(part) < 65536 for part in port_parts):
            raise InputError(
                f"session_ports: '{port_text}' is not a port.", "Give 8888, or 9000:8888 to publish port 8888 as 9000."
            )
        manager_port = int(port_parts[0])
        if manager_port in (used_port for used_port, _container_port in port_pairs):
            raise InputError(
                f"session_ports has port {manager_port} of the manager twice.", "Use each port of the manager once."
            )
        port_pairs.append((manager_port, int(port_parts[-1])))
    return tuple(f"{manager_port}:{container_port}" for manager_port, container_port in port_pairs)


def _parse_count(prefix: str, field_name: str, value: Any, minimum: int) -> int:
    count_text = str(value).strip()
    if isinstance(value, bool) or not count_text.isdecimal() or not minimum <= int(count_text) <= 1_000_000:
        raise InputError(f"{prefix}: {field_name} is '{value}'.", f"Give a number of at least {minimum}.")
    return int(count_text)


def _parse_command(prefix: str, value: Any) -> Tuple[str, ...]:
    if value in (None, ""):
        return ()
    if isinstance(value, Sequence) and not isinstance(value, str):
        arguments = tuple(str(argument) for argument in value)
        _refuse_nul_bytes(prefix, "the command", arguments)
        return arguments
    _refuse_nul_bytes(prefix, "the command", [str(value)])
    try:
        return tuple(shlex.split(str(value)))
    except ValueError as failure:
        raise InputError(
            f"{prefix}: the command cannot be split: {failure}.", "Close its quotation marks."
        ) from failure


def _parse_texts(prefix: str, field_name: str, value: Any) -> List[str]:
    if value in (None, ""):
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{prefix}: {field_name} is not a list.", "Use a list, even for a single value.")
    return [str(entry) for entry in value]


def _parse_environment(prefix: str, value: Any) -> Tuple[Tuple[str, str], ...]:
    if value in (None, ""):
        return ()
    if not isinstance(value, Mapping):
        raise InputError(f"{prefix}: env is not a mapping.", "Give names with their values.")
    for variable_name in value:
        if not _VARIABLE_NAME.fullmatch(str(variable_name)):
            raise InputError(f"{prefix}: '{variable_name}' is not a valid name of an environment variable.")
    # YAML takes an empty value for null.
    texts_by_name = {str(variable_name): "" if text is None else str(text) for variable_name, text in value.items()}
    _refuse_nul_bytes(prefix, "env", texts_by_name.values())
    return tuple(texts_by_name.items())


def _refuse_nul_bytes(prefix: str, field_name: str, texts: Iterable[str]) -> None:
    """Refuse NUL bytes, which cannot be passed to a program. Raises InputError."""
    if any("\0" in text for text in texts):
        raise InputError(f"{prefix}: {field_name} contains a NUL character.", "Remove the character.")


def _parse_partition(option_name: str, value: Any) -> str:
    partition_name = str(value or "")
    if partition_name and not re.fullmatch(r"[A-Za-z0-9_.,-]+", partition_name):
        raise InputError(f"{option_name} is '{partition_name}'.", "Give the name of a Slurm partition.")
    return partition_name


def _parse_boolean(option_name: str, value: Any) -> bool:
    booleans_by_text = {"true": True, "yes": True, "false": False, "no": False, "": True}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in booleans_by_text:
        raise InputError(f"{option_name} is '{value}'.", "Give true or false.")
    return booleans_by_text[str(value).lower()]

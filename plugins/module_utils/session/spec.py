# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and validate the description of a session. All invalid requests are refused here. Pure."""

from __future__ import annotations

import math
import re
import shlex
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.plan import MOST_CONTAINERS
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import HOST, PRIVATE, Role, Spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.time_limit import number_refusal, unit_minutes

MAIN = "main"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
#: With a digit at its end, the names of its containers could be those of another role.
_ROLE = re.compile(r"[a-z](?:[a-z-]{0,14}[a-z])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMORY = re.compile(r"([0-9]{1,9})\s*([KMGT]?)i?B?", re.IGNORECASE)
_TIME = re.compile(
    r"(?:(?P<days>\d{1,4})-)?(?P<hours>\d{1,4}):(?P<minutes>\d{1,2}):(?P<seconds>\d{1,2})|(?P<only>\d{1,8})"
)
_MIB = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_FIELDS = Role._fields
_SESSION = ("name", "roles", "time", "network", "partition", "retry", "ports")


def parse(document: Any) -> Spec:
    """The request of a file or a playbook; its keys with or without ``session_``. Raises InputError."""
    if not isinstance(document, Mapping):
        raise InputError("The session is not a mapping.", "Give at least session_name and session_roles.")
    given = {str(key)[8:] if str(key).startswith("session_") else str(key): value for key, value in document.items()}
    unknown = sorted(set(given) - set(_SESSION))
    if unknown:
        raise InputError(
            f"A session has no option session_{unknown[0]}.", f"Its options are {_listed(_SESSION, 'session_')}."
        )
    name = str(given.get("name") or "")
    if not _NAME.fullmatch(name):
        raise InputError(
            f"session_name '{name}' is an invalid session name.",
            "Use up to 32 lower-case letters, digits and '-', and begin and end with a letter or a digit.",
        )
    network = str(given.get("network") or PRIVATE)
    if network not in (PRIVATE, HOST):
        raise InputError(f"session_network is '{network}'.", f"Choose {PRIVATE} or {HOST}.")
    roles = _roles(given.get("roles"))
    spec = Spec(
        name=name,
        roles=roles,
        time=minutes(given.get("time")),
        network=network,
        partition=_word("session_partition", given.get("partition")),
        retry=_boolean("session_retry", given.get("retry", True)),
        ports=_ports(given.get("ports")),
    )
    _refuse_together(spec)
    return spec


def as_values(spec: Spec) -> Dict[str, Any]:
    """The same as a mapping, which parse() reads."""
    roles = [{**role._asdict(), "env": dict(role.env), "memory": f"{role.memory}M"} for role in spec.roles]
    # As text, which is always in minutes: a number might be taken for seconds.
    return {**spec._asdict(), "roles": roles, "time": str(spec.time)}


def minutes(value: Any) -> int:
    """A time limit as Slurm has it, minutes, H:MM:SS or D-H:MM:SS, or with a unit, as 90m, 2h or 3d; 0 for none.

    A number may have been written as a time: YAML takes 2:00:00 without quotes for 7200.
    """
    if value in (None, "", 0):
        return 0
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise number_refusal("session_time", value)
    text = str(value).strip()
    with_unit = unit_minutes(text)
    if with_unit is not None:
        return with_unit
    found = _TIME.fullmatch(text)
    if found is None:
        raise InputError(f"session_time is '{value}'.", "Give hours as 2h or 2:00:00, or days as 2-00:00:00.")
    if found.group("only"):
        return int(found.group("only"))
    days, hours, more, seconds = (int(found.group(part) or 0) for part in ("days", "hours", "minutes", "seconds"))
    return (days * 24 + hours) * 60 + more + (seconds > 0)


def mebibytes(where: str, value: Any) -> int:
    """Memory as Slurm writes it: 4G, 512M; a number is of MiB."""
    if value in (None, ""):
        return 0
    found = _MEMORY.fullmatch(str(value).strip())
    if found is None:
        raise InputError(f"{where} is '{value}'.", "Give memory as 4G or 512M.")
    # Not rounded down to 0, which means no limit.
    return math.ceil(int(found.group(1)) * _MIB[found.group(2).upper()])


def _roles(value: Any) -> Tuple[Role, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InputError("session_roles has no role.", "Give a list with at least the role 'main'.")
    roles = tuple(_role(number, one) for number, one in enumerate(value, 1))
    names = [role.name for role in roles]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"session_roles has two roles '{twice[0]}'.", "Give each role its own name.")
    if MAIN not in names:
        raise InputError(
            "session_roles has no role 'main'.", "Name one role 'main'; the session ends when its command ends."
        )
    if roles[0].name != MAIN:
        roles = tuple(sorted(roles, key=lambda role: role.name != MAIN))
    return roles


def _role(number: int, value: Any) -> Role:
    if not isinstance(value, Mapping):
        raise InputError(f"Role {number} of session_roles is not a mapping.", "Give it a name and an image.")
    name = str(value.get("name") or "")
    where = f"session_roles: {name or number}"
    unknown = sorted(str(key) for key in value if key not in _FIELDS)
    if unknown:
        raise InputError(f"{where} has the unknown field '{unknown[0]}'.", f"Its fields are {_listed(_FIELDS)}.")
    if not _ROLE.fullmatch(name):
        raise InputError(
            f"{where} is an invalid role name.",
            "Use up to 16 lower-case letters and '-', and begin and end with a letter.",
        )
    image = str(value.get("image") or "").strip()
    if not image or re.search(r"[\s\x00-\x1f]", image) or image.startswith("-"):
        raise InputError(f"{where}: the image is '{image}'.", "Name an image, such as docker.io/library/debian:13.")
    return Role(
        name=name,
        replicas=_count(where, "replicas", value.get("replicas", 1), 1),
        image=image,
        command=_command(where, value.get("command")),
        cpus=_count(where, "cpus", value.get("cpus", 1), 1),
        memory=mebibytes(f"{where}: memory", value.get("memory")),
        gpus=_count(where, "gpus", value.get("gpus", 0), 0),
        per_node=_count(where, "per_node", value.get("per_node", 0), 0),
        mounts=tuple(mount(where, one) for one in _texts(where, "mounts", value.get("mounts"))),
        env=_environment(where, value.get("env")),
    )


def mount(where: str, text: str) -> str:
    """A mount, checked: HOST:CONTAINER with :ro where it is read-only."""
    parts = text.split(":")
    well = len(parts) == 2 or (len(parts) == 3 and parts[2] in ("ro", "rw"))
    if not well or "\0" in text or any(not path.startswith("/") or ".." in path.split("/") for path in parts[:2]):
        raise InputError(
            f"{where}: the mount '{text}' cannot be read.", "Use HOST_PATH:CONTAINER_PATH[:ro], with absolute paths."
        )
    return text


def refuse_mounts(spec: Spec, allowed: Sequence[str]) -> None:
    """Refuse directories of the hosts that are not below those that the administrator allows. Raises InputError."""
    for role in spec.roles:
        for text in role.mounts:
            folder = text.split(":")[0].rstrip("/") or "/"
            if not any(folder == base or folder.startswith(base.rstrip("/") + "/") for base in allowed):
                raise InputError(
                    f"session_roles: {role.name}: the mount of {folder} is not allowed.",
                    f"Use a directory below {' or '.join(allowed)}."
                    if allowed
                    else "Ask the administrator to set session_mounts_allowed.",
                )


def _refuse_together(spec: Spec) -> None:
    total = sum(role.replicas for role in spec.roles)
    if total > MOST_CONTAINERS:
        raise InputError(f"The session has {total} containers.", f"Ask for at most {MOST_CONTAINERS}.")
    if spec.ports and spec.network == HOST:
        raise InputError(
            "session_ports requires session_network=private.",
            "With session_network=host, connect to the node of main1.",
        )
    without = [role.name for role in spec.roles if not role.memory]
    if without and len(without) < len(spec.roles):
        raise InputError(
            f"session_roles: {without[0]} has no memory, but others do.", "Set memory for all roles, or for none."
        )
    for role in spec.roles:
        if role.per_node and role.replicas % role.per_node:
            raise InputError(
                f"session_roles: {role.name}: {role.replicas} replicas cannot be placed {role.per_node} per node.",
                "Make replicas a multiple of per_node.",
            )


def _ports(value: Any) -> Tuple[str, ...]:
    """A number, or two where the manager's is another. An answer of AWX is text."""
    words = value if isinstance(value, Sequence) and not isinstance(value, str) else str(value or "").split()
    found: List[Tuple[int, int]] = []
    for word in (str(word).strip(",") for word in words):
        parts = word.split(":")
        if len(parts) > 2 or not all(part.isdecimal() and 0 < int(part) < 65536 for part in parts):
            raise InputError(
                f"session_ports: '{word}' is not a port.", "Give 8888, or 9000:8888 to publish port 8888 as 9000."
            )
        outer = int(parts[0])
        if outer in (one for one, _inner in found):
            raise InputError(
                f"session_ports has port {outer} of the manager twice.", "Use each port of the manager once."
            )
        found.append((outer, int(parts[-1])))
    return tuple(f"{outer}:{inner}" for outer, inner in found)


def _count(where: str, field: str, value: Any, least: int) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or not least <= int(text) <= 1_000_000:
        raise InputError(f"{where}: {field} is '{value}'.", f"Give a number of at least {least}.")
    return int(text)


def _command(where: str, value: Any) -> Tuple[str, ...]:
    if value in (None, ""):
        return ()
    if isinstance(value, Sequence) and not isinstance(value, str):
        words = tuple(str(word) for word in value)
        _refuse_zeros(where, "the command", words)
        return words
    _refuse_zeros(where, "the command", [str(value)])
    try:
        return tuple(shlex.split(str(value)))
    except ValueError as failure:
        raise InputError(f"{where}: the command cannot be split: {failure}.", "Close its quotation marks.") from failure


def _texts(where: str, field: str, value: Any) -> List[str]:
    if value in (None, ""):
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{where}: {field} is not a list.", "Use a list, even for a single value.")
    return [str(one) for one in value]


def _environment(where: str, value: Any) -> Tuple[Tuple[str, str], ...]:
    if value in (None, ""):
        return ()
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: env is not a mapping.", "Give names with their values.")
    for name in value:
        if not _VARIABLE.fullmatch(str(name)):
            raise InputError(f"{where}: '{name}' is not a valid name of an environment variable.")
    # An empty value in YAML is null.
    texts = {str(name): "" if text is None else str(text) for name, text in value.items()}
    _refuse_zeros(where, "env", texts.values())
    return tuple(texts.items())


def _refuse_zeros(where: str, field: str, texts: Iterable[str]) -> None:
    """A NUL byte cannot be passed to a program."""
    if any("\0" in text for text in texts):
        raise InputError(f"{where}: {field} contains a NUL character.", "Remove it.")


def _word(option: str, value: Any) -> str:
    text = str(value or "")
    if text and not re.fullmatch(r"[A-Za-z0-9_.,-]+", text):
        raise InputError(f"{option} is '{text}'.", "Name a partition of Slurm.")
    return text


def _boolean(option: str, value: Any) -> bool:
    known = {"true": True, "yes": True, "false": False, "no": False, "": True}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in known:
        raise InputError(f"{option} is '{value}'.", "Give true or false.")
    return known[str(value).lower()]


def _listed(names: Sequence[str], prefix: str = "") -> str:
    words = [prefix + name for name in names]
    return f"{', '.join(words[:-1])} and {words[-1]}"

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resource limits: QOS, accounts and their users in slurmdbd, through sacctmgr(1).

Nothing is ever deleted here: deleting an account would also delete the history of its jobs.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import conf

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
#: 30, 30:00, 1:30:00, 2-12, 2-12:30 and 2-12:30:00, as everywhere in Slurm.
_TIME = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")

#: The settings of each, by name; names of settings are in lower case.
Settings = Mapping[str, Mapping[str, str]]


class Wanted(NamedTuple):
    """The desired state. ``users``: pairs of an account and a user."""

    qos: Settings
    accounts: Settings
    users: Sequence[Tuple[str, str]]


class Present(NamedTuple):
    """The current state, with the requested settings."""

    qos: Settings
    accounts: Settings
    users: Sequence[Tuple[str, str]]


def wanted(qos: Mapping[str, Any], accounts: Mapping[str, Any]) -> Wanted:
    """Convert the user's mappings, in which ``users`` of an account is a list of names. Raises InputError."""
    users: List[Tuple[str, str]] = []
    settings: Dict[str, Dict[str, str]] = {}
    for name, given in accounts.items():
        rest = dict(given or {})
        users += [(name, _checked("slurm_accounts", str(user))) for user in rest.pop("users", None) or []]
        settings[_checked("slurm_accounts", name)] = _texts(rest)
    return Wanted({_checked("slurm_qos", name): _texts(given or {}) for name, given in qos.items()}, settings, users)


def _checked(variable: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{variable}: {name!r} is not a valid name of an account, a user or a QOS.",
            "Names are lower-case letters, digits, '.', '_' and '-'.",
        )
    return name


def _texts(given: Mapping[str, Any]) -> Dict[str, str]:
    return {conf.check_key(key).lower(): conf.value_text(key, value) for key, value in given.items()}


# --- The current state


def read(run: Runner, cluster: str, asked: Wanted) -> Present:
    """Query slurmdbd, only for the settings that are given."""
    qos = _table(run, "qos", [], ["name"], asked.qos)
    where = ["where", f"cluster={cluster}"]
    about = ("description", "organization")
    names = {name: {k: v for k, v in given.items() if k in about} for name, given in asked.accounts.items()}
    limits = {name: {k: v for k, v in given.items() if k not in about} for name, given in asked.accounts.items()}
    described = {row["account"]: row for row in _table(run, "account", [], ["account"], names)}
    rows = _table(run, "assoc", where, ["account", "user"], _renamed(limits))
    return Present(
        {row["name"]: row for row in qos},
        {
            row["account"]: {**row, **described.get(row["account"], {}), "parent": row.get("parentname", "")}
            for row in rows
            if not row["user"]
        },
        [(row["account"], row["user"]) for row in rows if row["user"]],
    )


def _renamed(settings: Settings) -> Dict[str, Dict[str, str]]:
    """sacctmgr shows the parent under another name than the one that it accepts."""
    return {
        name: {"parentname" if key == "parent" else key: value for key, value in given.items()}
        for name, given in settings.items()
    }


def _table(
    run: Runner, what: str, where: Sequence[str], names: Sequence[str], settings: Settings
) -> List[Dict[str, str]]:
    fields = [*names, *sorted({key for given in settings.values() for key in given})]
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", what, *where, f"format={','.join(fields)}"]
    return parse_table(run(argv, timeout=60).stdout, fields)


def parse_table(text: str, fields: Sequence[str]) -> List[Dict[str, str]]:
    """The output of `sacctmgr --noheader --parsable2 show … format=FIELDS`."""
    rows = []
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != len(fields):
            raise ParseError("sacctmgr show", f"{line!r} does not have the {len(fields)} fields {', '.join(fields)}")
        rows.append(dict(zip(fields, values)))
    return rows


# --- The changes


def plan(cluster: str, present: Present, asked: Wanted) -> List[List[str]]:
    """The commands, in the order of their dependencies: a QOS, the account that has it, its users."""
    commands = []
    for name, settings in asked.qos.items():
        differing = _differing(present.qos.get(name), settings)
        if name not in present.qos:
            commands.append(_sacctmgr("add", "qos", name, *_pairs(settings)))
        elif differing:
            commands.append(_sacctmgr("modify", "qos", "where", f"name={name}", "set", *_pairs(differing)))
    for name, settings in asked.accounts.items():
        differing = _differing(present.accounts.get(name), settings)
        if name not in present.accounts:
            commands.append(_sacctmgr("add", "account", name, f"cluster={cluster}", *_pairs(settings)))
        elif differing:
            where = ["where", f"name={name}", f"cluster={cluster}"]
            commands.append(_sacctmgr("modify", "account", *where, "set", *_pairs(differing)))
    commands += [
        _sacctmgr("add", "user", user, f"account={account}", f"cluster={cluster}")
        for account, user in asked.users
        if (account, user) not in present.users
    ]
    return commands


def _sacctmgr(*words: str) -> List[str]:
    return ["sacctmgr", "--immediate", *words]


def _pairs(settings: Mapping[str, str]) -> List[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def _differing(present: Optional[Mapping[str, str]], settings: Mapping[str, str]) -> Dict[str, str]:
    shown = present or {}
    return {key: value for key, value in settings.items() if meaning(key, shown.get(key, "")) != meaning(key, value)}


def meaning(key: str, value: str) -> object:
    """Values are equal if Slurm considers them equal: the order of a list, the case and the form of a time do not
    matter.

    None stands for no limit, which is also written as -1.
    """
    text = value.strip().lower()
    if text in ("", "-1"):
        return None
    if "wall" in key:
        match = _TIME.fullmatch(text)
        if match:
            return _seconds(*match.groups())
    return frozenset(text.split(",")) if "," in text else frozenset([text])


def _seconds(days: Optional[str], first: str, second: Optional[str], third: Optional[str]) -> int:
    parts = [int(part) for part in (first, second, third) if part is not None]
    if days is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def carry_out(run: Runner, commands: Sequence[Sequence[str]]) -> None:
    """Run the commands. Raises CommandError with sacctmgr's message."""
    for command in commands:
        run(command, timeout=60)

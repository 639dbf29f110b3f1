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
_SECONDS = re.compile(r"[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
#: cpu=64, mem=500G, gres/gpu:h100=4; -1 lifts the limit.
_LIMIT = re.compile(r"([a-z][^=\s]*)=(?:-1|([0-9]{1,18})([kmgtp]?))")
_UNITS = ("", "k", "m", "g", "t", "p")
#: TRES whose numbers are in MB; those of others have no unit.
_IN_MB = ("mem", "bb")
_TEXTS = ("description", "organization")
#: Only these can be set to an empty list.
_NAMES = ("preempt", "qos")
_UNLIMITED = ("-1", "infinite", "unlimited")
#: For these, -1 restores the default instead of lifting a limit.
_DEFAULTS = {"fairshare": 1.0, "gracetime": 0, "usagefactor": 1.0}

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
    """Convert the user's mappings, in which ``users`` of an account is a list of names. Raises InputError.

    Accounts are sorted, since an account can only be added below an existing one.
    """
    users: List[Tuple[str, str]] = []
    settings: Dict[str, Dict[str, str]] = {}
    for name, given in accounts.items():
        rest = _mapping("slurm_accounts", name, given)
        listed = rest.pop("users", None) or []
        if not isinstance(listed, (list, tuple)):
            raise InputError(f"slurm_accounts: users of {name} is {listed!r}, not a list.", "Give a list of names.")
        users += [(name, _checked("slurm_accounts", str(user))) for user in listed]
        settings[_checked("slurm_accounts", name)] = _texts("slurm_accounts", name, rest)
    return Wanted(
        {
            _checked("slurm_qos", name): _texts("slurm_qos", name, _mapping("slurm_qos", name, given))
            for name, given in qos.items()
        },
        {name: settings[name] for name in _parents_first(settings)},
        users,
    )


def _mapping(variable: str, name: str, given: Any) -> Dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"{variable}: {name} is {given!r}.", "Give a mapping of settings, such as {Priority: 10}.")
    return dict(given or {})


def _checked(variable: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"{variable}: {name!r} is not a valid name of an account, a user or a QOS.",
            "Names are lower-case letters, digits, '.', '_' and '-'.",
        )
    return name


def _texts(variable: str, name: str, given: Mapping[str, Any]) -> Dict[str, str]:
    found = {}
    for key, value in given.items():
        text = conf.value_text(conf.check_key(key), value)
        if "|" in text:
            raise InputError(
                f"{variable}: {key} of {name} is {text!r}, and '|' separates the columns of sacctmgr.",
                f"Use another character in {key}.",
            )
        wrong = _not_limits(text) if _is_tres(key) else []
        if wrong:
            raise InputError(
                f"{variable}: {key} of {name} contains {wrong[0]!r}, which is not a limit of a resource.",
                "Write NAME=NUMBER with the names of 'sacctmgr show tres', as in cpu=64,mem=500G,gres/gpu=4. -1 lifts "
                "a limit.",
            )
        found[key.lower()] = text
    return found


def _parents_first(accounts: Settings) -> List[str]:
    """The accounts, each after its parent. Raises InputError for a cycle."""
    ordered: List[str] = []
    for first in accounts:
        line: List[str] = []
        name = first
        while name in accounts and name not in ordered:
            if name in line:
                raise InputError(
                    f"slurm_accounts: the parents form a cycle: {' -> '.join([*line[line.index(name) :], name])}.",
                    "Correct the Parent of one of these accounts.",
                )
            line.append(name)
            name = accounts[name].get("parent", "").lower()
        ordered += reversed(line)
    return ordered


def check_defaults(asked: Wanted) -> None:
    """Refuse an account whose users must request a QOS for each job, which our own programs do not.

    This is for clusters that enforce QOS. Raises InputError. Slurm uses the default QOS of the account or of those above
    it, else the only QOS, else normal.
    """
    for name, settings in asked.accounts.items():
        allowed = _names(settings.get("qos", ""))
        if not allowed or any(qos[0] in "+-" for qos in allowed):
            continue
        default = _default(settings) or _inherited(asked.accounts, name)
        used = default or (allowed[0] if len(allowed) == 1 else "normal")
        if used not in allowed:
            raise InputError(
                f"slurm_accounts: a job of {name} without --qos gets the QOS {used}, which is not among those of "
                f"{name} ({', '.join(allowed)}), and AccountingStorageEnforce rejects it.",
                f"Set DefaultQOS of {name} to one of them, or add {used} to its QOS.",
            )


def _inherited(accounts: Settings, name: str) -> str:
    """The default QOS of the nearest account above it, as far as the accounts are given."""
    while name in accounts and name != "root":
        name = accounts[name].get("parent", "root").lower()
        default = _default(accounts.get(name, {}))
        if default:
            return default
    return _default(accounts.get("root", {}))


def _default(settings: Mapping[str, str]) -> str:
    name = settings.get("defaultqos", "").strip().lower()
    return "" if name in _UNLIMITED else name


def _names(value: str) -> List[str]:
    return [name for name in value.lower().replace(" ", "").split(",") if name]


# --- The current state


def read(run: Runner, cluster: str, asked: Wanted) -> Present:
    """Query slurmdbd, only for the settings that are given."""
    qos = _table(run, "qos", [], ["name"], asked.qos)
    # Without this, an account shows the limits of those above it as its own.
    where = ["where", f"cluster={cluster}", "woplimits"]
    names = {name: {k: v for k, v in given.items() if k in _TEXTS} for name, given in asked.accounts.items()}
    limits = {name: {k: v for k, v in given.items() if k not in _TEXTS} for name, given in asked.accounts.items()}
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
            raise ParseError(
                "sacctmgr show",
                f"{line!r} does not have the {len(fields)} fields {', '.join(fields)}",
                "If a description or an organization contains '|', set another one with 'sacctmgr modify'.",
            )
        rows.append(dict(zip(fields, values)))
    return rows


# --- The changes


def plan(cluster: str, present: Present, asked: Wanted) -> List[List[str]]:
    """The commands, in the order of their dependencies: a QOS, the account that has it, its users."""
    commands = []
    for name, settings in asked.qos.items():
        if name not in present.qos:
            commands.append(_sacctmgr("add", "qos", name, *_pairs(_differing({}, _without_preempt(settings)))))
    for name, settings in asked.qos.items():
        # A QOS can only preempt existing ones.
        known = present.qos.get(name, _without_preempt(settings))
        differing = _differing(known, settings)
        if differing:
            commands.append(_sacctmgr("modify", "qos", "where", f"name={name}", "set", *_pairs(differing)))
    for name, settings in asked.accounts.items():
        if name not in present.accounts:
            commands.append(_sacctmgr("add", "account", name, f"cluster={cluster}", *_pairs(_differing({}, settings))))
            continue
        differing = _differing(present.accounts[name], settings)
        if differing:
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


def _without_preempt(settings: Mapping[str, str]) -> Dict[str, str]:
    return {key: value for key, value in settings.items() if key != "preempt"}


def _pairs(settings: Mapping[str, str]) -> List[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def _differing(present: Mapping[str, str], settings: Mapping[str, str]) -> Dict[str, str]:
    """The settings to send."""
    return {
        key: _sent(key, value, present.get(key, ""))
        for key, value in settings.items()
        if meaning(key, present.get(key, "")) != meaning(key, value)
    }


def _sent(key: str, value: str, shown: str) -> str:
    """A value in the form that sacctmgr accepts, in place of the shown one."""
    text = value.strip()
    if _is_tres(key):
        # sacctmgr merges the list with the present one, so what is not in it has to be lifted.
        items = [] if text.lower() in _UNLIMITED else [item.strip() for item in text.split(",") if item.strip()]
        named = {item.partition("=")[0].lower() for item in items}
        return ",".join([*items, *(f"{name}=-1" for name in _limits(shown) if name not in named)])
    if key in _TEXTS:
        return text
    if text.lower() in _UNLIMITED or (not text and key not in _NAMES):
        return "-1"
    seconds = meaning(key, text)
    # sacctmgr only accepts a number here, and would take 2:00 for two seconds.
    return str(seconds) if key == "gracetime" and isinstance(seconds, int) else text


def meaning(key: str, value: str) -> object:
    """Values are equal if Slurm considers them equal: the order of a list, the case, and the form of a time or number
    do not matter.

    None stands for no limit, which is also written as -1.
    """
    text = value.strip().lower()
    if key in _TEXTS:
        return text
    if _is_tres(key):
        return _limits(text)
    if text in _UNLIMITED:
        return _DEFAULTS.get(key)
    if not text:
        return None
    if key == "gracetime" and _SECONDS.fullmatch(text):
        return int(text)
    match = _TIME.fullmatch(text) if "wall" in key or key in ("gracetime", "preemptexempttime") else None
    if match:
        seconds = _seconds(*match.groups())
        # slurmdbd stores these in minutes, and rounds up.
        return -(-seconds // 60) if "wall" in key else seconds
    if _NUMBER.fullmatch(text):
        return float(text)
    return frozenset(part.strip() for part in text.split(","))


def _is_tres(key: str) -> bool:
    return "tres" in key.lower()


def _limits(value: str) -> Dict[str, object]:
    """The limits of a list of TRES. Those that are lifted are omitted."""
    found: Dict[str, object] = {}
    for item in value.lower().split(","):
        match = _LIMIT.fullmatch(item.strip())
        if match and match.group(2):
            name, number, unit = match.groups()
            base = "m" if name.partition("/")[0] in _IN_MB else ""
            found[name] = int(number) * 1024 ** max(0, _UNITS.index(unit) - _UNITS.index(base))
    return found


def _not_limits(value: str) -> List[str]:
    text = value.strip().lower()
    items = [] if text in _UNLIMITED else [item.strip() for item in text.split(",")]
    return [item for item in items if item and not _LIMIT.fullmatch(item)]


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

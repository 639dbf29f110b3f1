# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resource limits: QOS, accounts and their users in slurmdbd, through sacctmgr(1).

Nothing is ever deleted: deleting an account would also delete the history of its jobs.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import conf

_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]*")
#: 30, 30:00, 1:30:00, 2-12, 2-12:30 and 2-12:30:00, as everywhere in Slurm.
_TIME_PATTERN = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_SECONDS_PATTERN = re.compile(r"[0-9]{1,18}")
_NUMBER_PATTERN = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
#: cpu=64, mem=500G, gres/gpu:h100=4; -1 lifts the limit.
_LIMIT_PATTERN = re.compile(r"([a-z][^=\s]*)=(?:-1|([0-9]{1,18})([kmgtp]?))")
_UNIT_SUFFIXES = ("", "k", "m", "g", "t", "p")
#: TRES whose numbers are in MB; those of others have no unit.
_MEGABYTE_TRES = ("mem", "bb")
_TEXT_SETTINGS = ("description", "organization")
#: The only settings that can be set to an empty list.
_CLEARABLE_SETTINGS = ("preempt", "qos")
_UNLIMITED_WORDS = ("-1", "infinite", "unlimited")
#: Settings for which -1 restores the default instead of lifting a limit.
_DEFAULT_LIMITS = {"fairshare": 1.0, "gracetime": 0, "usagefactor": 1.0}

#: The options of the module slurm_accounts.
OPTIONS: Mapping[str, Any] = {
    "cluster": {"type": "str", "required": True},
    "qos": {"type": "dict", "default": {}},
    "accounts": {"type": "dict", "default": {}},
}

#: The settings of each QOS or account by its name. Keys of settings are in lower case.
SettingsByName = Mapping[str, Mapping[str, str]]


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Apply the QOS and the accounts, as the module slurm_accounts does."""
    desired_accounts = parse_desired(params["qos"], params["accounts"])
    commands = plan_commands(
        params["cluster"], read_current(run, params["cluster"], desired_accounts), desired_accounts
    )
    if not check_mode:
        run_commands(run, commands)
    command_lines = [" ".join(command) for command in commands]
    return ModuleResult(
        bool(commands), {"commands": command_lines}, "", "".join(f"{line}\n" for line in command_lines), "slurmdbd"
    )


class DesiredAccounting(NamedTuple):
    """The desired state. ``users``: pairs of an account and a user."""

    qos: SettingsByName
    accounts: SettingsByName
    users: Sequence[Tuple[str, str]]


class CurrentAccounting(NamedTuple):
    """The current state, with the requested settings."""

    qos: SettingsByName
    accounts: SettingsByName
    users: Sequence[Tuple[str, str]]


def parse_desired(qos: Mapping[str, Any], accounts: Mapping[str, Any]) -> DesiredAccounting:
    """Convert the user's mappings, in which ``users`` of an account is a list of names. Raises InputError.

    Accounts are sorted, since an account can only be added below an existing one.
    """
    account_users: List[Tuple[str, str]] = []
    settings_by_account: Dict[str, Dict[str, str]] = {}
    for name, requested_settings in accounts.items():
        remaining_settings = _require_mapping("slurm_accounts", name, requested_settings)
        user_names = remaining_settings.pop("users", None) or []
        if not isinstance(user_names, (list, tuple)):
            raise InputError(f"slurm_accounts: users of {name} is {user_names!r}, not a list.", "Give a list of names.")
        account_users += [(name, _check_name("slurm_accounts", str(user))) for user in user_names]
        settings_by_account[_check_name("slurm_accounts", name)] = _format_settings(
            "slurm_accounts", name, remaining_settings
        )
    return DesiredAccounting(
        {
            _check_name("slurm_qos", name): _format_settings(
                "slurm_qos", name, _require_mapping("slurm_qos", name, requested_settings)
            )
            for name, requested_settings in qos.items()
        },
        {name: settings_by_account[name] for name in _sort_parents_first(settings_by_account)},
        account_users,
    )


def _require_mapping(variable: str, name: str, requested_settings: Any) -> Dict[str, Any]:
    if requested_settings is not None and not isinstance(requested_settings, Mapping):
        raise InputError(
            f"{variable}: {name} is {requested_settings!r}.", "Give a mapping of settings, such as {Priority: 10}."
        )
    return dict(requested_settings or {})


def _check_name(variable_name: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name):
        raise InputError(
            f"{variable_name}: {name!r} is not a valid name of an account, a user or a QOS.",
            "Names are lower-case letters, digits, '.', '_' and '-'.",
        )
    return name


def _format_settings(variable_name: str, name: str, requested_settings: Mapping[str, Any]) -> Dict[str, str]:
    formatted_settings = {}
    for key, value in requested_settings.items():
        formatted = conf.format_value(conf.check_key(key), value)
        if "|" in formatted:
            raise InputError(
                f"{variable_name}: {key} of {name} is {formatted!r}, and '|' separates the columns of sacctmgr.",
                f"Use another character in {key}.",
            )
        invalid_limits = _find_invalid_limits(formatted) if _is_tres(key) else []
        if invalid_limits:
            raise InputError(
                f"{variable_name}: {key} of {name} contains {invalid_limits[0]!r}, which is not a limit of a resource.",
                "Write NAME=NUMBER with the names of 'sacctmgr show tres', as in cpu=64,mem=500G,gres/gpu=4. -1 lifts "
                "a limit.",
            )
        formatted_settings[key.lower()] = formatted
    return formatted_settings


def _sort_parents_first(settings_by_account: SettingsByName) -> List[str]:
    """Return the accounts, each after its parent. Raises InputError for a cycle."""
    ordered_names: List[str] = []
    for account in settings_by_account:
        ancestry: List[str] = []
        ancestor = account
        while ancestor in settings_by_account and ancestor not in ordered_names:
            if ancestor in ancestry:
                raise InputError(
                    f"slurm_accounts: the parents form a cycle: "
                    f"{' -> '.join([*ancestry[ancestry.index(ancestor) :], ancestor])}.",
                    "Correct the Parent of one of these accounts.",
                )
            ancestry.append(ancestor)
            ancestor = settings_by_account[ancestor].get("parent", "").lower()
        ordered_names += reversed(ancestry)
    return ordered_names


def check_default_qos(desired: DesiredAccounting) -> None:
    """Refuse an account whose users must request a QOS for each job, which our own programs do not.

    This is for clusters that enforce QOS. Raises InputError. Slurm uses the default QOS of the account or its parents,
    else the only QOS, else normal.
    """
    for account_name, settings in desired.accounts.items():
        allowed_qos = _split_names(settings.get("qos", ""))
        if not allowed_qos or any(qos[0] in "+-" for qos in allowed_qos):
            continue
        default_qos = _default_qos(settings) or _inherited_qos(desired.accounts, account_name)
        effective_qos = default_qos or (allowed_qos[0] if len(allowed_qos) == 1 else "normal")
        if effective_qos not in allowed_qos:
            raise InputError(
                f"slurm_accounts: a job of {account_name} without --qos gets the QOS {effective_qos}, "
                f"which is not among those of {account_name} ({', '.join(allowed_qos)}), and AccountingStorageEnforce rejects it.",
                f"Set DefaultQOS of {account_name} to one of them, or add {effective_qos} to its QOS.",
            )


def _inherited_qos(settings_by_account: SettingsByName, account_name: str) -> str:
    """Return the default QOS of the nearest parent that is among the accounts."""
    while account_name in settings_by_account and account_name != "root":
        account_name = settings_by_account[account_name].get("parent", "root").lower()
        default_qos = _default_qos(settings_by_account.get(account_name, {}))
        if default_qos:
            return default_qos
    return _default_qos(settings_by_account.get("root", {}))


def _default_qos(settings: Mapping[str, str]) -> str:
    name = settings.get("defaultqos", "").strip().lower()
    return "" if name in _UNLIMITED_WORDS else name


def _split_names(value: str) -> List[str]:
    return [name for name in value.lower().replace(" ", "").split(",") if name]


# --- The current state


def read_current(run: Runner, cluster_name: str, desired: DesiredAccounting) -> CurrentAccounting:
    """Query slurmdbd, only for the requested settings."""
    qos_rows = _query_table(run, "qos", [], ["name"], desired.qos)
    # An account would otherwise show the limits of its parents as its own.
    association_filter = ["where", f"cluster={cluster_name}", "woplimits"]
    text_settings = {
        name: {key: value for key, value in requested_settings.items() if key in _TEXT_SETTINGS}
        for name, requested_settings in desired.accounts.items()
    }
    limit_settings = {
        name: {key: value for key, value in requested_settings.items() if key not in _TEXT_SETTINGS}
        for name, requested_settings in desired.accounts.items()
    }
    row_by_account = {row["account"]: row for row in _query_table(run, "account", [], ["account"], text_settings)}
    association_rows = _query_table(
        run, "assoc", association_filter, ["account", "user"], _rename_parent_key(limit_settings)
    )
    return CurrentAccounting(
        {row["name"]: row for row in qos_rows},
        {
            row["account"]: {**row, **row_by_account.get(row["account"], {}), "parent": row.get("parentname", "")}
            for row in association_rows
            if not row["user"]
        },
        [(row["account"], row["user"]) for row in association_rows if row["user"]],
    )


def _rename_parent_key(settings: SettingsByName) -> Dict[str, Dict[str, str]]:
    """Rename the key of the parent, which sacctmgr shows under another name than it accepts."""
    return {
        name: {"parentname" if key == "parent" else key: value for key, value in account_settings.items()}
        for name, account_settings in settings.items()
    }


def _query_table(
    run: Runner, entity: str, where: Sequence[str], names: Sequence[str], settings: SettingsByName
) -> List[Dict[str, str]]:
    columns = [*names, *sorted({key for requested_settings in settings.values() for key in requested_settings})]
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", entity, *where, f"format={','.join(columns)}"]
    return parse_table(run(argv, timeout=60).stdout, columns)


def parse_table(table_text: str, columns: Sequence[str]) -> List[Dict[str, str]]:
    """Parse the output of `sacctmgr --noheader --parsable2 show … format=FIELDS`."""
    rows = []
    for line in table_text.splitlines():
        cells = line.split("|")
        if len(cells) != len(columns):
            raise ParseError(
                "sacctmgr show",
                f"{line!r} does not have the {len(columns)} fields {', '.join(columns)}",
                "If a description or an organization contains '|', set another one with 'sacctmgr modify'.",
            )
        rows.append(dict(zip(columns, cells)))
    return rows


# --- The changes


def plan_commands(cluster_name: str, current: CurrentAccounting, desired: DesiredAccounting) -> List[List[str]]:
    """Plan the commands, in the order of their dependencies: a QOS, the account that has it, its users."""
    commands = []
    for name, settings in desired.qos.items():
        if name not in current.qos:
            commands.append(
                _sacctmgr_command("add", "qos", name, *_format_pairs(_changed_settings({}, _without_preempt(settings))))
            )
    for name, settings in desired.qos.items():
        # A QOS can only preempt existing ones.
        current_settings = current.qos.get(name, _without_preempt(settings))
        changed_settings = _changed_settings(current_settings, settings)
        if changed_settings:
            commands.append(
                _sacctmgr_command("modify", "qos", "where", f"name={name}", "set", *_format_pairs(changed_settings))
            )
    for name, settings in desired.accounts.items():
        if name not in current.accounts:
            commands.append(
                _sacctmgr_command(
                    "add", "account", name, f"cluster={cluster_name}", *_format_pairs(_changed_settings({}, settings))
                )
            )
            continue
        changed_settings = _changed_settings(current.accounts[name], settings)
        if changed_settings:
            account_filter = ["where", f"name={name}", f"cluster={cluster_name}"]
            commands.append(
                _sacctmgr_command("modify", "account", *account_filter, "set", *_format_pairs(changed_settings))
            )
    commands += [
        _sacctmgr_command("add", "user", user, f"account={account}", f"cluster={cluster_name}")
        for account, user in desired.users
        if (account, user) not in current.users
    ]
    return commands


def _sacctmgr_command(*arguments: str) -> List[str]:
    return ["sacctmgr", "--immediate", *arguments]


def _without_preempt(settings: Mapping[str, str]) -> Dict[str, str]:
    return {key: value for key, value in settings.items() if key != "preempt"}


def _format_pairs(settings: Mapping[str, str]) -> List[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def _changed_settings(current_settings: Mapping[str, str], desired_settings: Mapping[str, str]) -> Dict[str, str]:
    """Return the settings that differ, formatted for sacctmgr."""
    return {
        key: _format_for_sacctmgr(key, value, current_settings.get(key, ""))
        for key, value in desired_settings.items()
        if normalise_setting(key, current_settings.get(key, "")) != normalise_setting(key, value)
    }


def _format_for_sacctmgr(key: str, value: str, displayed: str) -> str:
    """Format a value for sacctmgr. ``displayed`` is the current value, as sacctmgr shows it."""
    stripped = value.strip()
    if _is_tres(key):
        # sacctmgr merges the list with the present one, so what is not in it has to be lifted.
        limit_texts = (
            []
            if stripped.lower() in _UNLIMITED_WORDS
            else [limit_text.strip() for limit_text in stripped.split(",") if limit_text.strip()]
        )
        limit_names = {limit_text.partition("=")[0].lower() for limit_text in limit_texts}
        return ",".join([*limit_texts, *(f"{name}=-1" for name in _parse_limits(displayed) if name not in limit_names)])
    if key in _TEXT_SETTINGS:
        return stripped
    if stripped.lower() in _UNLIMITED_WORDS or (not stripped and key not in _CLEARABLE_SETTINGS):
        return "-1"
    duration = normalise_setting(key, stripped)
    # sacctmgr only accepts a number here, and would take 2:00 for two seconds.
    return str(duration) if key == "gracetime" and isinstance(duration, int) else stripped


def normalise_setting(key: str, value: str) -> object:
    """Normalise a value, so that two are equal if Slurm considers them equal.

    The order of a list, the case, and the notation of a time or number do not matter. None stands for no limit, which
    is also written as -1.
    """
    lower_text = value.strip().lower()
    if key in _TEXT_SETTINGS:
        return lower_text
    if _is_tres(key):
        return _parse_limits(lower_text)
    if lower_text in _UNLIMITED_WORDS:
        return _DEFAULT_LIMITS.get(key)
    if not lower_text:
        return None
    if key == "gracetime" and _SECONDS_PATTERN.fullmatch(lower_text):
        return int(lower_text)
    match = _TIME_PATTERN.fullmatch(lower_text) if "wall" in key or key in ("gracetime", "preemptexempttime") else None
    if match:
        seconds = _total_seconds(*match.groups())
        # slurmdbd stores these in minutes, and rounds up.
        return -(-seconds // 60) if "wall" in key else seconds
    if _NUMBER_PATTERN.fullmatch(lower_text):
        return float(lower_text)
    return frozenset(part.strip() for part in lower_text.split(","))


def _is_tres(key: str) -> bool:
    return "tres" in key.lower()


def _parse_limits(value: str) -> Dict[str, object]:
    """Parse a list of TRES into limits. Limits that are lifted are omitted."""
    limit_by_name: Dict[str, object] = {}
    for limit_text in value.lower().split(","):
        match = _LIMIT_PATTERN.fullmatch(limit_text.strip())
        if match and match.group(2):
            limit_name, number, unit = match.groups()
            base_unit = "m" if limit_name.partition("/")[0] in _MEGABYTE_TRES else ""
            limit_by_name[limit_name] = int(number) * 1024 ** max(
                0, _UNIT_SUFFIXES.index(unit) - _UNIT_SUFFIXES.index(base_unit)
            )
    return limit_by_name


def _find_invalid_limits(value: str) -> List[str]:
    text = value.strip().lower()
    limit_texts = [] if text in _UNLIMITED_WORDS else [limit_text.strip() for limit_text in text.split(",")]
    return [limit_text for limit_text in limit_texts if limit_text and not _LIMIT_PATTERN.fullmatch(limit_text)]


def _total_seconds(days: Optional[str], first: str, second: Optional[str], third: Optional[str]) -> int:
    clock_parts = [int(part) for part in (first, second, third) if part is not None]
    if days is not None:
        hours, minutes, seconds = (*clock_parts, 0, 0)[:3]
    elif len(clock_parts) == 3:
        hours, minutes, seconds = clock_parts
    else:
        hours, (minutes, seconds) = 0, (*clock_parts, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def run_commands(run: Runner, commands: Sequence[Sequence[str]]) -> None:
    """Run the commands. Raises CommandError with sacctmgr's message."""
    for command in commands:
        run(command, timeout=60)

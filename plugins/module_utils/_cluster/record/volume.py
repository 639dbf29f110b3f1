# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of a storage volume: their names, defaults and valid values.

They end up in systemd units, in /etc/fstab and in a server's exports, where a comma, a blank or a line break starts
another setting. Each check raises ValueError with only the reason.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Mapping, Sequence, cast

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.units import parse_size

RECOVERY_MODES = ("soft", "hard")
LINK_TYPES = ("fast", "lan", "tunnel", "userspace")

#: The options of all volumes, by whether they have a server.
_REQUIRED_KEYS = {True: ("name", "server", "path", "mount_point"), False: ("name", "mount_point")}

#: Options of a volume with a server, with their defaults.
SERVED_OPTIONS: Dict[str, Any] = {
    "read_only": False,
    "root_squash": True,
    "recovery": "soft",
    "options": [],
    "link": None,
    "owner": None,
    "group": None,
    "mode": None,
    "quota": None,
}
#: Options of an external file system, with their defaults.
EXTERNAL_OPTIONS: Dict[str, Any] = {"read_only": False, "filesystem": None}

_MOUNT_OPTION = re.compile(r"[A-Za-z0-9_]+(=[A-Za-z0-9_.:/@+-]+)?")
_ACCOUNT_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.@-]{0,62}[A-Za-z0-9_$-])?")
_OCTAL_MODE = re.compile(r"[0-7]{3,4}")
_FILESYSTEM_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def check_volume(volume: Mapping[str, Any]) -> None:
    """Refuse an unknown option or an invalid value. Raises ValueError."""
    is_served = "server" in volume
    valid_options = SERVED_OPTIONS if is_served else EXTERNAL_OPTIONS
    required_keys = _REQUIRED_KEYS[is_served]
    unknown_options = [key for key in volume if key not in required_keys and key not in valid_options]
    if unknown_options:
        volume_kind = "volume" if is_served else "volume without a server"
        option_names = ", ".join(sorted([*required_keys, *valid_options]))
        raise ValueError(
            f"it has the unknown option {', '.join(map(repr, unknown_options))}; the options of a {volume_kind} are {option_names}"
        )
    for key, value in volume.items():
        if key in valid_options and (value is not None or valid_options[key] is not None):
            _CHECK_BY_OPTION[key](key, value)
    if is_served and volume["path"] == volume["mount_point"]:
        raise ValueError(f"it would be mounted onto its own data: path and mount_point are both {volume['path']}")


def check_new_volume(volume: Mapping[str, Any], all_volumes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse settings that records of earlier versions may have, but nobody may set any more. Raises ValueError.

    ``all_volumes``: including this one.
    """
    mode = volume.get("mode")
    if mode is not None and mode != str(mode):
        raise ValueError(_describe_numeric_mode(mode))
    # Every volume that is not external is also mounted on its server, and hides what the directory contains. An
    # external one was mounted before.
    hiding_volumes = (
        [hiding_volume for hiding_volume in all_volumes if "server" in hiding_volume] if "server" in volume else []
    )
    for hiding_volume in hiding_volumes:
        mount_point = hiding_volume["mount_point"]
        if f"{volume['path']}/".startswith(f"{mount_point}/"):
            raise ValueError(
                f"its data at {volume['path']} would be hidden on {volume['server']}, where volume '{hiding_volume['name']}' is "
                f"mounted at {mount_point}: choose a path outside of mount points"
            )


def check_nesting(volumes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a served volume that would be mounted inside another one. Raises ValueError.

    systemd would mount the outer one for the automount of the inner one, which is before the network at boot: a cycle,
    which systemd breaks by leaving out a part of the boot.
    """
    for volume in volumes:
        for outer_volume in volumes:
            is_nested = volume["mount_point"].startswith(f"{outer_volume['mount_point']}/")
            if "server" in volume and outer_volume["name"] != volume["name"] and is_nested:
                raise ValueError(
                    f"volume '{volume['name']}' would be mounted at {volume['mount_point']}, within volume "
                    f"'{outer_volume['name']}' at {outer_volume['mount_point']}"
                )


def _check_boolean(key: str, value: object) -> None:
    if value not in (True, False) or not isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}, expected a boolean")


def _choice_check(*valid_choices: str) -> Callable[[str, object], None]:
    def check_choice(key: str, value: object) -> None:
        if value not in valid_choices:
            raise ValueError(f"{key} is {value!r}, expected one of {', '.join(valid_choices)}")

    return check_choice


def _pattern_check(pattern: re.Pattern[str], expected_form: str) -> Callable[[str, object], None]:
    def check_pattern(key: str, value: object) -> None:
        # An account may be a number.
        if isinstance(value, bool) or not isinstance(value, (str, int)) or not pattern.fullmatch(str(value)):
            raise ValueError(f"{key} is {value!r}, expected {expected_form}")

    return check_pattern


def _check_mode_setting(key: str, value: object) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and not _OCTAL_MODE.fullmatch(str(value)):
        raise ValueError(_describe_numeric_mode(value))
    _pattern_check(_OCTAL_MODE, "permissions in octal, such as '1777'")(key, value)


def _describe_numeric_mode(mode: int) -> str:
    return f"mode is the number {mode}, since YAML reads octal permissions without quotes as a number: quote it, as in '1777'"


def _check_mount_options(key: str, value: object) -> None:
    is_sequence = isinstance(value, (list, tuple))
    if not is_sequence:
        raise ValueError(f"{key} is {value!r}, expected a list")
    for option in cast("Sequence[object]", value):
        if not isinstance(option, str) or not _MOUNT_OPTION.fullmatch(option):
            raise ValueError(f"{key} has {option!r}, expected a mount option such as 'noatime' or 'rsize=1048576'")
        if option == "noresvport":
            raise ValueError(f"{key} has noresvport, but servers refuse requests from ports above 1023")


def _check_size(key: str, value: object) -> None:
    try:
        parse_size("", str(value))
    except InputError as failure:
        raise ValueError(
            f"{key} is {value!r}, expected a size in binary units, such as 500G, 1.5T or 2TiB"
        ) from failure


_check_account = _pattern_check(_ACCOUNT_NAME, "the name or number of an account")
_CHECK_BY_OPTION: Dict[str, Callable[[str, object], None]] = {
    "read_only": _check_boolean,
    "root_squash": _check_boolean,
    "recovery": _choice_check(*RECOVERY_MODES),
    "options": _check_mount_options,
    "link": _choice_check(*LINK_TYPES),
    "owner": _check_account,
    "group": _check_account,
    "mode": _check_mode_setting,
    "quota": _check_size,
    "filesystem": _pattern_check(_FILESYSTEM_TYPE, "the type of a file system, such as 'lustre'"),
}

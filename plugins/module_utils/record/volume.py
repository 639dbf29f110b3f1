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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.units import size_of

RECOVERIES = ("soft", "hard")
LINKS = ("fast", "lan", "tunnel", "userspace")

#: The options of all volumes, by whether they have a server.
_KEYS = {True: ("name", "server", "path", "mount_point"), False: ("name", "mount_point")}

#: Options of a volume with a server, with their defaults.
SERVED: Dict[str, Any] = {
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
#: The same for an external file system.
EXTERNAL: Dict[str, Any] = {"read_only": False, "filesystem": None}

_MOUNT_OPTION = re.compile(r"[A-Za-z0-9_]+(=[A-Za-z0-9_.:/@+-]+)?")
_ACCOUNT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.@-]{0,62}[A-Za-z0-9_$-])?")
_MODE = re.compile(r"[0-7]{3,4}")
_FILESYSTEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def check(volume: Mapping[str, Any]) -> None:
    """Refuse an unknown option or an invalid value. Raises ValueError."""
    served = "server" in volume
    options = SERVED if served else EXTERNAL
    keys = _KEYS[served]
    unknown = [key for key in volume if key not in keys and key not in options]
    if unknown:
        kind = "volume" if served else "volume without a server"
        known = ", ".join(sorted([*keys, *options]))
        raise ValueError(
            f"it has the unknown option {', '.join(map(repr, unknown))}; the options of a {kind} are {known}"
        )
    for key, value in volume.items():
        if key in options and (value is not None or options[key] is not None):
            _CHECKS[key](key, value)
    if served and volume["path"] == volume["mount_point"]:
        raise ValueError(f"it would be mounted onto its own data: path and mount_point are both {volume['path']}")


def check_new(volume: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what a record may have from an earlier version, but nobody may set any more. Raises ValueError.

    ``others``: all volumes.
    """
    mode = volume.get("mode")
    if mode is not None and mode != str(mode):
        raise ValueError(_of_number(mode))
    # On its server, too, every volume that is not external is mounted, and hides what the directory contains. An
    # external one is there before.
    hiding = [other for other in others if "server" in other] if "server" in volume else []
    for other in hiding:
        point = other["mount_point"]
        if f"{volume['path']}/".startswith(f"{point}/"):
            raise ValueError(
                f"its data at {volume['path']} would be hidden on {volume['server']}, where volume '{other['name']}' is "
                f"mounted at {point}: choose a path outside of mount points"
            )


def check_together(volumes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a served volume that would be mounted inside another one. Raises ValueError.

    systemd would mount the outer one for the automount of the inner one, which is before the network at boot: a cycle,
    which systemd breaks by leaving out a part of the boot.
    """
    for volume in volumes:
        for other in volumes:
            within = volume["mount_point"].startswith(f"{other['mount_point']}/")
            if "server" in volume and other["name"] != volume["name"] and within:
                raise ValueError(
                    f"volume '{volume['name']}' would be mounted at {volume['mount_point']}, within volume "
                    f"'{other['name']}' at {other['mount_point']}"
                )


def _boolean(key: str, value: object) -> None:
    if value not in (True, False) or not isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}, expected a boolean")


def _choice(*choices: str) -> Callable[[str, object], None]:
    def one_of(key: str, value: object) -> None:
        if value not in choices:
            raise ValueError(f"{key} is {value!r}, expected one of {', '.join(choices)}")

    return one_of


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str, object], None]:
    def matches(key: str, value: object) -> None:
        # An account may be a number.
        if isinstance(value, bool) or not isinstance(value, (str, int)) or not pattern.fullmatch(str(value)):
            raise ValueError(f"{key} is {value!r}, expected {what}")

    return matches


def _mode(key: str, value: object) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and not _MODE.fullmatch(str(value)):
        raise ValueError(_of_number(value))
    _matching(_MODE, "permissions in octal, such as '1777'")(key, value)


def _of_number(mode: int) -> str:
    return f"mode is the number {mode}, since YAML reads octal permissions without quotes as a number: quote it, as in '1777'"


def _mount_options(key: str, value: object) -> None:
    listed = isinstance(value, (list, tuple))
    if not listed:
        raise ValueError(f"{key} is {value!r}, expected a list")
    for option in cast("Sequence[object]", value):
        if not isinstance(option, str) or not _MOUNT_OPTION.fullmatch(option):
            raise ValueError(f"{key} has {option!r}, expected a mount option such as 'noatime' or 'rsize=1048576'")
        if option == "noresvport":
            raise ValueError(f"{key} has noresvport, but servers refuse requests from ports above 1023")


def _size(key: str, value: object) -> None:
    try:
        size_of("", str(value))
    except InputError as failure:
        raise ValueError(
            f"{key} is {value!r}, expected a size in binary units, such as 500G, 1.5T or 2TiB"
        ) from failure


_account = _matching(_ACCOUNT, "the name or number of an account")
_CHECKS: Dict[str, Callable[[str, object], None]] = {
    "read_only": _boolean,
    "root_squash": _boolean,
    "recovery": _choice(*RECOVERIES),
    "options": _mount_options,
    "link": _choice(*LINKS),
    "owner": _account,
    "group": _account,
    "mode": _mode,
    "quota": _size,
    "filesystem": _matching(_FILESYSTEM, "the type of a file system, such as 'lustre'"),
}

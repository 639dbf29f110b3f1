# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse lists of machines from a command line, a survey or another playbook. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

#: Names of Ansible's connections to the machine that runs it.
_LOCAL_CONNECTIONS = ("local", "ansible.builtin.local")


def parse_machine_names(raw_names: object) -> list[str]:
    """The names in a list, or in a text that separates them by commas, blanks or line breaks; each once, in order.

    Raises InputError for other types, and for invalid machine names.
    """
    if raw_names is None:
        return []
    if isinstance(raw_names, str):
        names: list[object] = [*raw_names.replace(",", " ").split()]
    elif isinstance(raw_names, (list, tuple)):
        names = [*raw_names]
    else:
        raise InputError(f"{raw_names!r} is not a list of machines.", "Use a list, or a string such as 'gpu1,gpu2'.")
    try:
        return list(dict.fromkeys(values.machine_name(str(name).strip()) for name in names))
    except ValueError as failure:
        raise InputError(f"{failure}.", "Use inventory hostnames, separated by commas or spaces.") from failure


def runs_ansible(machine: str, variables: Mapping[str, Any]) -> bool:
    """Whether the machine is the controller itself, according to its variables in the inventory."""
    address = str(variables.get("ansible_host") or machine)
    return variables.get("ansible_connection") in _LOCAL_CONNECTIONS or values.is_loopback(address)

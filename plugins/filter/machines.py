# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: machines
short_description: A list of machines, however it was written
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Takes a list, or a text in which the names are separated by commas, spaces or lines, as a command line, a survey or
    another playbook gives them.
  - Each name is checked, and one that is there twice is taken once.
options:
  _input:
    description: The machines.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Show them
  ansible.builtin.debug:
    msg: "{{ 'gpu1, gpu2 gpu3' | gpumesh.cluster.machines }}"

# ["gpu1", "gpu2", "gpu3"]
"""

RETURN = r"""
_value:
  description: The names, in the order given.
  type: list
  elements: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import values
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def machines(given: object) -> list[str]:
    """See DOCUMENTATION."""
    if given is None:
        return []
    if isinstance(given, str):
        names: list[object] = [*given.replace(",", " ").split()]
    elif isinstance(given, (list, tuple)):
        names = [*given]
    else:
        raise InputError(f"{given!r} is no list of machines.", "Give a list, or a text such as 'gpu1,gpu2'.")
    try:
        return list(dict.fromkeys(values.machine_name(str(name).strip()) for name in names))
    except ValueError as failure:
        raise InputError(f"{failure}.", "Give inventory hostnames, separated by commas or spaces.") from failure


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"machines": machines}

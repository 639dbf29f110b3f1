# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts our errors for Ansible's filters, as module.py does for modules."""

from __future__ import annotations

from functools import wraps
from typing import Callable, ParamSpec, TypeVar

from ansible.errors import AnsibleFilterError

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable

_Parameters = ParamSpec("_Parameters")
_Value = TypeVar("_Value")


def convert_errors(function: Callable[_Parameters, _Value]) -> Callable[_Parameters, _Value]:
    """``function`` with each GpumeshError converted to the error that a failed template shows in full."""

    @wraps(function)
    def converting_filter(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Value:
        try:
            return function(*args, **kwargs)
        except GpumeshError as error:
            raise AnsibleFilterError(printable(str(error))) from error

    return converting_filter

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base class of actions that query AWX."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import lookup_loader

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction


class AwxAction(ControllerAction):
    """Queries AWX with the lookup plugin of a collection, which logs in with the environment."""

    def query_api(self, collection: str, endpoint: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of an endpoint. ``collection``: awx.awx or ansible.controller. Raises InputError."""
        lookup_name = f"{collection}.controller_api"
        lookup = lookup_loader.get(lookup_name, loader=self._loader, templar=self._templar)
        if lookup is None:
            raise InputError(f"There is no lookup plugin {lookup_name}.", f"Install the collection {collection}.")
        api_objects: list[dict[str, Any]] = lookup.run(
            [endpoint], self.variables, query_params=query, return_all=True, return_objects=True, max_objects=100000
        )
        return api_objects

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: slurm_settings
short_description: The text of a configuration file of Slurm
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Writes one line C(Key=Value) for each setting. Booleans become C(YES) and C(NO), lists are joined by commas.
positional: wins
options:
  _input:
    description: The settings.
    type: dict
    required: true
  wins:
    description: Settings that win over those, whatever the case of their names. Null takes one out.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Configure slurmdbd
  ansible.builtin.copy:
    dest: /etc/slurm/slurmdbd.conf
    content: "{{ {'DbdHost': 'localhost'} | gpumesh.cluster.slurm_settings({'DebugLevel': 'verbose'}) }}"
    mode: "0600"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import conf
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def slurm_settings(settings: Mapping[str, Any], wins: Mapping[str, Any] | None = None) -> str:
    """See DOCUMENTATION."""
    return conf.text_of(conf.render(conf.merge(settings, wins or {})))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"slurm_settings": slurm_settings}

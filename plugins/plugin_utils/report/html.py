# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.view import (
    build,
    number,
)

_FOLDER = os.path.dirname(__file__)


def render(verdict: Mapping[str, Any]) -> str:
    """The page. Every text from the verdict is escaped by the template engine; nothing is marked safe."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template("page.html.j2").render(**build(verdict))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict as one self-contained HTML file: no network, no other file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined

from ansible_collections.gpumesh.cluster.plugins.module_utils.page_style import STYLE, THEME_BUTTON, THEME_SCRIPT
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.view import (
    build,
    number,
)

_FOLDER = os.path.dirname(__file__)
#: What this page shares with other pages.
_SHARED = {"every_page.css": STYLE, "theme.html": THEME_BUTTON, "theme.js": THEME_SCRIPT}


def render(verdict: Mapping[str, Any]) -> str:
    """The page. Every text from the verdict is escaped by the template engine; nothing is marked safe."""
    environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(_FOLDER), DictLoader(_SHARED)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template("page.html.j2").render(**build(verdict))

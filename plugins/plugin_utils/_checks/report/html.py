# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict as one self-contained HTML file: no network, no other file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.page_style import (
    PAGE_STYLE,
    THEME_BUTTON,
    THEME_SCRIPT,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.view import build_page, format_number

_TEMPLATE_DIRECTORY = os.path.dirname(__file__)
#: What this page shares with other pages.
_SHARED_FILES = {"every_page.css": PAGE_STYLE, "theme.html": THEME_BUTTON, "theme.js": THEME_SCRIPT}


def render(verdict: Mapping[str, Any]) -> str:
    """Render the page. The template engine escapes every text from the verdict; nothing is marked safe."""
    jinja_environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(_TEMPLATE_DIRECTORY), DictLoader(_SHARED_FILES)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja_environment.filters["number"] = format_number
    return jinja_environment.get_template("page.html.j2").render(**build_page(verdict))

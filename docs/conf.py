# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site of docs/build: the guides, and the reference that antsibull-docs makes from the plugins."""

from __future__ import annotations

project = "gpumesh.cluster"
author = "The gpumesh authors"
project_copyright = "2026, The gpumesh authors"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
html_theme = "furo"
html_title = "gpumesh.cluster"
html_show_sphinx = False
html_copy_source = False
pygments_style = "ansible"
highlight_language = "YAML+Jinja"
myst_heading_anchors = 3

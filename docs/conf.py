# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site of docs/build: the guides, and the reference that antsibull-docs makes from the plugins."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

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

#: A picture for both color schemes, as GitHub shows it.
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\s*</picture>'
)


def _follow_theme(_app: Sphinx, _document: str, source: list[str]) -> None:
    """Show the picture for the color scheme that the reader has chosen on the site."""
    image = "```{{image}} {}\n:alt: {}\n:class: only-{}\n```"
    source[0] = _PICTURE.sub(
        lambda match: "\n\n".join(image.format(match[scheme], match["alt"], scheme) for scheme in ("light", "dark")),
        source[0],
    )


def setup(app: Sphinx) -> None:
    """Register the above."""
    app.connect("source-read", _follow_theme)

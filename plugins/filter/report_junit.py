# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: report_junit
short_description: Write a verdict as JUnit XML
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - A test suite a layer, a test case a check, as CI servers read it.
options:
  _input:
    description: The verdict document, from the P(gpumesh.cluster.verdict#filter) filter or from C(verdict.json).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Write the report of an earlier verdict anew
  ansible.builtin.copy:
    content: "{{ lookup('ansible.builtin.file', 'verdict.json') | from_json | gpumesh.cluster.report_junit }}"
    dest: junit.xml
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.junit import render


@as_filter
def report_junit(verdict: dict[str, Any]) -> str:
    """See DOCUMENTATION."""
    return render(verdict)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"report_junit": report_junit}

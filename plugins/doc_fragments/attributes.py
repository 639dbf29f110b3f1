# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The attributes that every module states: the plain fragment names them, the others set their support."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return the expected result without changing the host.
  diff_mode:
    description: Returns in diff mode what has changed, or would change in check mode, without secrets.
  idempotent:
    description: Running it again with the same options changes nothing.
  platform:
    description: The operating systems on which it runs.
    platforms: posix
    support: full
"""

    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - It only reads.
  diff_mode:
    support: N/A
    details:
      - It only reads.
  idempotent:
    support: full
    details:
      - It only reads.
"""

    STATE_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""

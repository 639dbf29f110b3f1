# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How hypothesis searches for cases: the same ones each time in a gate, new ones with HYPOTHESIS_PROFILE=search.

There are no time limits, since on a busy machine they would test the machine.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

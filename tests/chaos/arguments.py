# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line options that all parts of `make chaos` share."""

from __future__ import annotations

import argparse
import random


def split_list(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [entry for entry in text.split(",") if entry]


def create_parser(description: str | None, default_lab: str, default_network: str) -> argparse.ArgumentParser:
    """Create a parser with the options for the seed and the lab, with these defaults for the lab."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--running", action="store_true", help="use the running hosts of the lab")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure, and keep the lab")
    parser.add_argument("--keep", action="store_true", help="keep the lab in any case")
    parser.add_argument("--lab", default=default_lab, help="name of the lab")
    parser.add_argument("--network", default=default_network, help="first three octets of the lab's network")
    return parser

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the host's key in its tailnet, or what it trusts of Slurm's REST API, expires soon. Pure.

Members that logged in on the same day lose their keys on the same day, and with them all tunnels, in jobs as well.
"""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import expiry, server_certificate

KEY_REMEDY = (
    "Run site with a valid auth key (mesh_auth_key_file), which replaces the key. Or disable the expiry of this machine's "
    "key at the control server, or use an auth key with tags (mesh_tags), whose machines do not expire."
)
_REQUIRED_DAYS = f"≥ {expiry.NOTICE_DAYS}"


def judge_key_expiry(state: str, key_expiry: str, current_time: float) -> Judgement:
    """Judge the time that a key is still valid. ``key_expiry``: as in the status of the daemon."""
    if state not in ("Running", "NeedsLogin"):
        return skipped(f"This host is not connected to its tailnet ({state}).")
    expires_at = expiry.parse_time(key_expiry)
    if expires_at is None:
        if state == "NeedsLogin":
            return skipped("This host is not logged in to its tailnet.")
        return passed("does not expire", _REQUIRED_DAYS, "days")
    days_left = expiry.days_left(expires_at, current_time)
    if days_left >= expiry.NOTICE_DAYS:
        return passed(days_left, _REQUIRED_DAYS, "days")
    verb = "expires" if expires_at > current_time else "expired"
    reason = f"The key of this host in its tailnet {verb} at {expiry.format_time(expires_at)}; without it, the host loses all its tunnels."
    return failed(days_left, _REQUIRED_DAYS, reason, KEY_REMEDY, "days")


def judge_rest_certificate(trusted: str, current_time: float) -> Judgement:
    """Judge for how long the certificates are valid with which clients on this host verify Slurm's REST API.

    The next one is there a year before the current one expires, unless this host was in no run since.
    """
    expiry_times = [
        server_certificate.expiry_time(certificate) for certificate in server_certificate.split_certificates(trusted)
    ]
    if not expiry_times:
        return skipped("Slurm's REST API has no certificate.")
    days_left = expiry.days_left(max(expiry_times), current_time)
    if days_left >= expiry.NOTICE_DAYS:
        return passed(days_left, _REQUIRED_DAYS, "days")
    reason = (
        f"The last certificate of Slurm's REST API that this host trusts is valid until {expiry.format_time(max(expiry_times))}; then "
        "clients on this host refuse to connect."
    )
    return failed(
        days_left, _REQUIRED_DAYS, reason, "Run site with this host and the manager, which renews it.", "days"
    )

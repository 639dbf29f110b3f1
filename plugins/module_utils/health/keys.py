# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the host's key in its tailnet, or what it trusts of Slurm's REST API, expires soon. Pure.

Members that logged in on the same day lose their keys on the same day, and with them all tunnels, in jobs as well.
"""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils import expiry, own_certificate
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import Judgement, failed, passed, skipped

REMEDY = (
    "Run site with a valid auth key (mesh_auth_key_file), which replaces the key. Or disable the expiry of this machine's "
    "key at the control server, or use an auth key with tags (mesh_tags), whose machines do not expire."
)
_REQUIRED = f"≥ {expiry.NOTICE}"


def judge(state: str, key_expiry: str, now: float) -> Judgement:
    """Judge the time that a key is still valid. ``key_expiry``: as in the status of the daemon."""
    if state not in ("Running", "NeedsLogin"):
        return skipped(f"This host is not connected to its tailnet ({state}).")
    end = expiry.moment(key_expiry)
    if end is None:
        if state == "NeedsLogin":
            return skipped("This host is not logged in to its tailnet.")
        return passed("does not expire", _REQUIRED, "days")
    left = expiry.days_left(end, now)
    if left >= expiry.NOTICE:
        return passed(left, _REQUIRED, "days")
    verb = "expires" if end > now else "expired"
    reason = f"The key of this host in its tailnet {verb} at {expiry.shown(end)}; without it, all its tunnels end."
    return failed(left, _REQUIRED, reason, REMEDY, "days")


def judge_rest(trusted: str, now: float) -> Judgement:
    """Judge for how long the certificates are valid with which clients on this host verify Slurm's REST API.

    The next one is there a year before the current one expires, unless this host was in no run since.
    """
    ends = [own_certificate.end_of(certificate) for certificate in own_certificate.each_in(trusted)]
    if not ends:
        return skipped("Slurm's REST API has no certificate.")
    left = expiry.days_left(max(ends), now)
    if left >= expiry.NOTICE:
        return passed(left, _REQUIRED, "days")
    reason = (
        f"The last certificate of Slurm's REST API that this host trusts is valid until {expiry.shown(max(ends))}; then "
        "clients on this host refuse to connect."
    )
    return failed(left, _REQUIRED, reason, "Run site with this host and the manager, which renews it.", "days")

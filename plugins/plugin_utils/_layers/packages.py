# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Scripts that run on a Debian host around an installation.

They are no modules, because each module costs a host 0.3 s more. Debian starts what it installs. Without a
configuration, or in a container with supervisord, that would fail, so a policy-rc.d prevents it. It is our own, not
that of the module apt: it can be recognised where an installation was interrupted, and has no effect an hour later, so
that it can never keep services of the host from starting for good.

The scripts have no line break at their end, where Ansible appends a command.
"""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.dpkg import POLICY_MARK, UNFINISHED_STATES

_PATH_SETTINGS = "policy=${ROOT:-}/usr/sbin/policy-rc.d; former=$policy.before-gpumesh; dpkg=${ROOT:-}/var/lib/dpkg"

#: The script before an installation. A policy of the administrator is kept, and consulted again once ours has expired.
BEGIN_SCRIPT = f"""set -eu; {_PATH_SETTINGS}
if test -e "$policy" && ! grep -qs '{POLICY_MARK}' "$policy"; then mv -f "$policy" "$former"; fi
cat > "$policy.new" <<END
#!/bin/sh
# {POLICY_MARK}
test "\\$(date +%s)" -ge $(($(date +%s) + 3600)) || exit 101
test ! -x "$former" || exec "$former" "\\$@"
END
chmod 755 "$policy.new"; mv -f "$policy.new" "$policy"
""".strip()

END_SCRIPT = f"""set -eu; {_PATH_SETTINGS}
if grep -qs '{POLICY_MARK}' "$policy"; then rm -f "$policy"; fi
if test -e "$former" && ! test -e "$policy"; then mv "$former" "$policy"; fi
""".strip()

#: The script that completes an interrupted installation: until then, dpkg refuses everything else.
COMPLETE_SCRIPT = f"""set -eu; {_PATH_SETTINGS}
if ls "$dpkg/updates" | grep -Eqs '^[0-9]+$' || grep -Eqs '^Status: [^ ]+ [^ ]+ ({UNFINISHED_STATES})$' "$dpkg/status"; then
  export DEBIAN_FRONTEND=noninteractive
  # This cannot configure packages whose dependencies were not unpacked, which apt-get then fetches.
  dpkg --force-confdef --force-confold --configure -a || true
  apt-get --quiet --yes --no-install-recommends -o DPkg::Lock::Timeout=300 \\
    -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold --fix-broken install
fi
""".strip()

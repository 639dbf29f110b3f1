# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on a Debian host around an installation. Scripts, because a module costs a host 0.3 s more than each of them.

Debian starts what it installs. Without a configuration, or in a container with supervisord, that would fail, so a
policy-rc.d prevents it. It is our own, not that of the module apt: it can be recognised where an installation was cut
off, and has no effect an hour later, so that it can never keep services of the host from starting for good.

Without a line break at their end, where Ansible appends a command.
"""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils.dpkg import MARK, UNFINISHED

_PATHS = "policy=${ROOT:-}/usr/sbin/policy-rc.d; former=$policy.before-gpumesh; dpkg=${ROOT:-}/var/lib/dpkg"

#: One that the administrator has written is kept, and asked again once ours has no effect.
BEGIN = f"""set -eu; {_PATHS}
if test -e "$policy" && ! grep -qs '{MARK}' "$policy"; then mv -f "$policy" "$former"; fi
cat > "$policy.new" <<END
#!/bin/sh
# {MARK}
test "\\$(date +%s)" -ge $(($(date +%s) + 3600)) || exit 101
test ! -x "$former" || exec "$former" "\\$@"
END
chmod 755 "$policy.new"; mv -f "$policy.new" "$policy"
""".strip()

END = f"""set -eu; {_PATHS}
if grep -qs '{MARK}' "$policy"; then rm -f "$policy"; fi
if test -e "$former" && ! test -e "$policy"; then mv "$former" "$policy"; fi
""".strip()

#: Of an installation that was cut off: dpkg refuses everything else until it has been completed.
COMPLETE = f"""set -eu; {_PATHS}
if ls "$dpkg/updates" | grep -Eqs '^[0-9]+$' || grep -Eqs '^Status: [^ ]+ [^ ]+ ({UNFINISHED})$' "$dpkg/status"; then
  export DEBIAN_FRONTEND=noninteractive
  # This cannot configure packages whose dependencies were not unpacked, which apt-get then fetches.
  dpkg --force-confdef --force-confold --configure -a || true
  apt-get --quiet --yes --no-install-recommends -o DPkg::Lock::Timeout=300 \\
    -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold --fix-broken install
fi
""".strip()

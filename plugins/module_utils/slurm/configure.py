# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring this host's configuration folder to the wanted files, after Slurm's own parser has accepted them."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import Places, commands_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import conf
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.config import (
    NODE,
    OPTIONS,
    SERVED,
    Documents,
    definition_in,
    options_text,
    reload_needed,
)

#: Where Debian's Slurm looks for its configuration.
FOLDER = "/etc/slurm"
_OURS = conf.text_of([]).strip()
#: The daemons of a node and of a controller, with the accounts that may run them.
_DAEMONS = (("slurmd", "root"), ("slurmctld", "root"), ("slurmctld", "slurm"))
#: What starts slurmd, on Debian and elsewhere, and the drop-ins of its unit. Ours has a file of its own for the options.
_STARTS = ("etc/default/slurmd", "etc/sysconfig/slurmd", "etc/systemd/system/slurmd.service")
_DROP_INS = "etc/systemd/system/slurmd.service.d"
_CONFIGLESS = re.compile(r"(?m)^(?!\s*[#;]).*--conf-server\b")


class Plan(NamedTuple):
    """The differences. A text of None is a file to remove. ``reload`` is for the controller, the rest for slurmd."""

    write: Dict[str, Optional[str]]
    reload: str
    node_changed: bool
    redefined: bool
    before: str
    after: str


def read_files(folder: str) -> Dict[str, Optional[str]]:
    """The current managed files."""
    return {name: read_text(os.path.join(folder, name)) for name in (*SERVED, *NODE, OPTIONS)}


def foreign(folder: str, tree: Tree) -> Optional[HostStateError]:
    """The refusal of a host that belongs to a Slurm cluster that somebody else has set up; None for any other host.

    A node that gets its configuration from its controller has no file for it, and slurmd may be stopped.
    """
    path = os.path.join(folder, "slurm.conf")
    text = read_text(path)
    if read_text(os.path.join(folder, OPTIONS)) is not None or (text or "").startswith(_OURS):
        return None
    if text is not None:
        return _foreign(path)
    drop_ins = [f"{_DROP_INS}/{name}" for name in tree.names(_DROP_INS) if name.endswith(".conf")]
    for start in (*_STARTS, *drop_ins):
        if _CONFIGLESS.search(tree.read(start) or ""):
            return HostStateError(
                f"/{start} makes this host a node of another Slurm cluster.",
                "Remove --conf-server there if that cluster is no longer used.",
            )
    for name, user in _DAEMONS:
        words = [] if _starts_ours(tree, name) else _running(tree, name, user)
        if words:
            return HostStateError(
                f"{name} runs on this host, and this collection has not set it up: {' '.join(words)}.",
                "Stop and disable it if its Slurm cluster is no longer used.",
            )
    return None


def _starts_ours(tree: Tree, name: str) -> bool:
    """Whether a daemon is started with our settings, even if somebody has deleted those of Slurm."""
    places = Places()
    return any(tree.exists(path.lstrip("/")) for path in (places.drop_in(name), places.program(name)))


def _running(tree: Tree, name: str, user: str) -> List[str]:
    try:
        return next(iter(commands_of(tree, name, pwd.getpwnam(user).pw_uid)), [])
    except KeyError:
        return []


def refuse_foreign(folder: str, tree: Tree) -> None:
    """Refuse such a host. Raises HostStateError."""
    refusal = foreign(folder, tree)
    if refusal is not None:
        raise refusal


def _foreign(path: str) -> HostStateError:
    return HostStateError(
        f"{path} was not written by this collection.",
        "Move it away if the Slurm cluster that it describes is no longer used.",
    )


def plan(
    present: Mapping[str, Optional[str]],
    wanted: Optional[Documents],
    serve: bool,
    folder: str,
    runs: Optional[Mapping[str, str]] = None,
    leave: Sequence[str] = (),
) -> Plan:
    """The files to write and to remove; without ``wanted``, all are removed. ``leave``: files that are not changed.

    ``runs``: the options with which slurmd runs, which may be older than those in the file after an interrupted run. A
    configuration that is not ours is refused, since it may belong to another cluster.
    """
    texts: Dict[str, Optional[str]] = dict.fromkeys(present)
    if wanted is not None:
        texts.update(wanted.node)
        texts[OPTIONS] = options_text(wanted.arguments)
        if serve:
            texts.update(wanted.served)
    for name in SERVED:
        text = present.get(name)
        if text is None or text.startswith(_OURS):
            continue
        if wanted is None or name not in wanted.served or _has(text, wanted.served[name]):
            # Not ours to remove or change.
            texts[name] = text
            continue
        raise _foreign(os.path.join(folder, name))
    write = {name: text for name, text in texts.items() if text != present.get(name) and name not in leave}
    new_options, old_options = texts[OPTIONS], present.get(OPTIONS)
    told = (runs or {}).get("--conf")
    return Plan(
        write,
        reload_needed(present["slurm.conf"], texts["slurm.conf"] or "") if serve and wanted is not None else "none",
        any(name in write for name in (*NODE, OPTIONS)) or _outdated(runs, wanted),
        any(known and known != definition_in(new_options) for known in (definition_in(old_options), told)),
        _shown(present, write),
        _shown(texts, write),
    )


def _has(text: str, wanted: str) -> bool:
    """Whether a file that is not ours, such as one from a package, contains the wanted settings."""
    lines = [{line.strip() for line in one.splitlines() if not line.startswith("#")} for one in (wanted, text)]
    return lines[0] - {""} <= lines[1]


def _outdated(runs: Optional[Mapping[str, str]], wanted: Optional[Documents]) -> bool:
    """Whether slurmd was started with other options."""
    if not runs or wanted is None:
        return False
    now = dict(zip(wanted.arguments, wanted.arguments[1:]))
    return any(now.get(name) != word for name, word in runs.items())


def validate(run: Runner, wanted: Documents, folder: str) -> bool:
    """Let slurmd read all files, in a temporary folder. Raises InputError with Slurm's own message.

    Returns False if it cannot be run yet: Slurm is not installed, or munge is not running, such as in check mode on a
    host that only has the packages.
    """
    if find("slurmd") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="gpumesh-slurm-") as aside:
        for name in NODE:
            os.makedirs(os.path.dirname(os.path.join(aside, name)), exist_ok=True)
        moved = {os.path.join(folder, name): os.path.join(aside, name) for name in NODE}
        for name, text in {**wanted.served, **wanted.node}.items():
            write_atomic(os.path.join(aside, name), conf.redirect_includes(text, moved), mode=0o644)
        argv = ["slurmd", "-G", "-L", "/dev/null", "-f", os.path.join(aside, "slurm.conf")]
        argv += ["-Z", "-N", wanted.arguments[2]]
        done = run([*argv, "--conf", wanted.definition], check=False)
    if done.rc != 0:
        if "Munge encode failed" in done.stderr + done.stdout:
            return False
        words = "; ".join(complaints(done.stderr + done.stdout)) or f"slurmd exited {done.rc}"
        raise InputError(
            f"Slurm rejects the configuration: {words}.",
            "Correct slurm_conf, slurm_cgroup, slurm_gres, slurm_node_conf or slurm_partitions. Old files are kept.",
        )
    return True


def complaints(output: str) -> List[str]:
    """Slurm's errors, without the program's name, the time, and the last line, which only says that it gives up."""
    found = [
        match.group(1).strip()
        for match in re.finditer(r"^\S*?:?\s*(?:\[[^\]]*\]\s*)?(?:error|fatal): (.*)$", output, re.MULTILINE)
    ]
    useful = [text for text in found if "Unable to process configuration file" not in text]
    return useful or found


def missing_programs(paths: Sequence[str]) -> List[str]:
    """The missing prologs and epilogs, without which jobs or nodes would fail."""
    return [path for path in paths if path and not os.path.exists(path)]


def make_programs(paths: Sequence[str]) -> None:
    """Create programs that do nothing, until the administrator replaces them."""
    for path in paths:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        write_atomic(path, "#!/bin/sh\nexit 0\n", mode=0o755)


def missing_folders(wanted: Mapping[str, str]) -> List[Tuple[str, str]]:
    """The missing folders, each with the account that has to own it."""
    return [(path, owner) for path, owner in wanted.items() if not os.path.isdir(path)]


def make_folders(missing: Sequence[Tuple[str, str]]) -> None:
    """Create folders that only their owners, and readers of logs, can access."""
    for path, owner in missing:
        try:
            entry = pwd.getpwnam(owner)
        except KeyError as failure:
            raise HostStateError(f"There is no user {owner}.", "Install Slurm first.") from failure
        os.makedirs(path, mode=0o755, exist_ok=True)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def apply(folder: str, planned: Plan) -> None:
    """Write and remove files. The served slurm.conf is last: a controller that starts now finds what it includes.

    It is also newer than a controller that has to pass on that a file is gone, even if this is interrupted.
    """
    if not planned.write:
        return
    main = os.path.join(folder, "slurm.conf")
    if any(planned.write.get(name, "") is None for name in SERVED) and os.path.exists(main):
        os.utime(main)
    for name in sorted(planned.write, key=lambda path: path == "slurm.conf"):
        text = planned.write[name]
        path = os.path.join(folder, name)
        if text is None:
            remove_file(path)
        else:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            write_atomic(path, text, mode=0o644)


def _shown(texts: Mapping[str, Optional[str]], names: Mapping[str, Optional[str]]) -> str:
    return "".join(f"## {name}\n{texts.get(name) or ''}" for name in sorted(names) if texts.get(name) is not None)

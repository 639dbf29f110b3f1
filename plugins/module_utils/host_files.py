# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files, folders and blocks of lines that a layer has on a host: read, planned and written together."""

from __future__ import annotations

import contextlib
import errno
import grp
import io
import os
import pwd
import re
import shutil
import stat
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_open, remove_in, write_in
from ansible_collections.gpumesh.cluster.plugins.module_utils.guarded import (
    Place,
    account_name,
    opened,
    reach,
    refuse_others,
    settle,
)

FILE, DIRECTORY, BLOCK, ABSENT = "file", "directory", "block", "absent"

#: The prefix of a line that contradicts a block, while the block exists.
HIDDEN = "# gpumesh: "

#: Text in another encoding is kept unchanged.
_ERRORS = "surrogateescape"

_NO_ID = (1 << 32) - 1

_FRESH_MODES = {FILE: 0o644, BLOCK: 0o644, DIRECTORY: 0o755}


class Wanted(NamedTuple):
    """One entry, checked.

    ``path``: absolute. Links are followed in directories that only root can write to. In a directory of another user, the
    entry is changed as that user; in a directory of root that others can write to, such as /tmp, links are refused.
    ``state``: ``file`` for exactly ``content``, ``directory``, ``block`` for lines in a file that can contain others, or
    ``absent``, which removes a file, a directory with its contents, or with ``marker`` only that block, and the file if
    nothing else is in it.
    ``mode``, ``owner``, ``group``: None if the current values may stay. A new file has mode ``new_mode``, by default 0644,
    and a new directory 0755. It belongs to this account, or to the owner of the directory.
    ``marker``: the lines before and after a block, with ``{mark}`` in place of BEGIN and END. ``at_start``: a new block comes
    first in its file. ``hide``: a regular expression of whole lines outside of the block that contradict it. They are
    commented out, and restored when the block is removed with it.
    """

    path: str
    state: str
    content: str
    mode: Optional[int]
    owner: Optional[str]
    group: Optional[str]
    marker: str
    at_start: bool
    hide: str
    new_mode: Optional[int] = None


class Current(NamedTuple):
    """The current entry at a path. ``kind`` is one of the states; ``text`` is empty for a directory."""

    kind: str
    text: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0


class Step(NamedTuple):
    """The change of one path. ``text`` is None if the content stays."""

    path: str
    before: Current
    kind: str
    text: Optional[str]
    mode: int
    uid: int
    gid: int


class Differences(NamedTuple):
    """The differences as messages. ``nothing_there``: neither a file nor a line of the entries exists."""

    words: List[str]
    nothing_there: bool


def marker(cluster: str) -> str:
    """The marker of the lines that a cluster adds to files that others write too."""
    return f"# {{mark}} gpumesh cluster {cluster}"


def see_to(entries: Sequence[Mapping[str, Any]], check_mode: bool) -> List[Step]:
    """Bring all entries to their desired state, unless ``check_mode`` is set. Returns the changes. Raises GpumeshError.

    All of them are checked before the first is changed.
    """
    steps = plan_all(entries)
    if not check_mode:
        apply_all(steps)
    return steps


def plan_all(entries: Sequence[Mapping[str, Any]]) -> List[Step]:
    """The changes that the entries need on this host. Raises GpumeshError."""
    planned = (plan(each, read(each.path), owner_ids(each)) for each in parse(entries))
    return [step for step in planned if step is not None]


def in_words(path: str) -> str:
    """A file that is not as it should be, as a message."""
    return f"{path} {'differs' if os.path.lexists(path) else 'is missing'}"


def differences(entries: Sequence[Mapping[str, Any]]) -> Differences:
    """How the host differs from the entries. Changes nothing."""
    places = {entry.path: entry for entry in parse(entries)}
    words, missing = [], 0
    for step in plan_all(entries):
        wanted = places[step.path]
        if step.kind == ABSENT:
            words.append(f"{step.path} is no longer wanted")
        elif step.before.kind == ABSENT:
            words.append(f"{step.path} is missing")
            missing += wanted.state != DIRECTORY
        elif wanted.state == BLOCK and block_in(step.path, step.before.text, wanted.marker) is None:
            words.append(f"{step.path} lacks the managed lines")
            missing += 1
        else:
            words.append(f"{step.path} differs")
    contents = sum(entry.state in (FILE, BLOCK) for entry in places.values())
    return Differences(words, 0 < contents == missing)


def parse(entries: Sequence[Mapping[str, Any]]) -> List[Wanted]:
    """Check the entries of the parameter ``files``. Raises InputError, which names the path and the problem."""
    wanted = [_parse_entry(entry) for entry in entries]
    for entry in wanted:
        if sum(other.path == entry.path for other in wanted) > 1:
            raise InputError(f"{entry.path} is listed more than once.", "List each path once.", path=entry.path)
    return wanted


def _parse_entry(entry: Mapping[str, Any]) -> Wanted:
    path, state = str(entry["path"]), str(entry.get("state") or FILE)
    content, marker = entry.get("content"), str(entry.get("marker") or "")
    if not os.path.isabs(path) or os.path.normpath(path) == "/":
        raise InputError(f"The path '{path}' is not absolute.", "Give the full path of a file or directory.", path=path)
    if state in (FILE, BLOCK) and content is None:
        raise InputError(f"{path}: the {state} has no content.", "Set content.", path=path)
    if (state == BLOCK or marker) and marker.count("{mark}") != 1:
        raise InputError(
            f"{path}: the marker '{marker}' does not contain {{mark}} exactly once.",
            "Use {mark} for BEGIN and END.",
            path=path,
        )
    return Wanted(
        path=path,
        state=state,
        content=str(content or ""),
        mode=_parse_mode(path, entry, "mode"),
        owner=_parse_account(entry.get("owner")),
        group=_parse_account(entry.get("group")),
        marker=marker,
        at_start=bool(entry.get("at_start")),
        hide=str(entry.get("hide") or ""),
        new_mode=_parse_mode(path, entry, "new_mode"),
    )


def _parse_mode(path: str, entry: Mapping[str, Any], key: str) -> Optional[int]:
    mode = entry.get(key)
    if mode is None:
        return None
    if isinstance(mode, int):
        # YAML reads 0777 without quotes as 511, whose digits are octal, too.
        raise InputError(f"{path}: {key} is the number {mode}.", "Quote it: '0644'.", path=path)
    if not re.fullmatch("[0-7]{3,4}", str(mode)):
        raise InputError(f"{path}: the mode '{mode}' is not octal.", "Write it as a string such as '0644'.", path=path)
    return int(str(mode), 8)


def _parse_account(account: Any) -> Optional[str]:
    return None if account is None else str(account)


def read(path: str) -> Current:
    """What currently exists at ``path``. A link to a file counts as that file. Raises HostStateError for other kinds.

    If nothing exists, the IDs are those of the account that can write there.
    """
    try:
        with reach(path) as place:
            if place.found is None:
                return Current(ABSENT, "", 0, os.geteuid(), os.getegid())
            if stat.S_ISDIR(place.found.st_mode):
                found = place.found
                return Current(DIRECTORY, "", stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
            with opened(place) as descriptor:
                found = os.fstat(descriptor)
                text = read_open(path, descriptor).decode("utf-8", _ERRORS)
                return Current(FILE, text, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
    except NotADirectoryError:
        return Current(ABSENT, "", 0, os.geteuid(), os.getegid())
    except OSError as failure:
        raise HostStateError(f"{path} cannot be read: {failure.strerror}.", path=path) from failure


def plan(wanted: Wanted, current: Current, ids: Tuple[Optional[int], Optional[int]]) -> Optional[Step]:
    """The change that ``wanted`` requires, or None.

    ``ids``: those of the wanted owner and group, None to keep the current.
    """
    is_block = bool(wanted.marker)
    if ABSENT not in (current.kind, wanted.state) and current.kind != _kind(wanted.state):
        raise HostStateError(
            f"{wanted.path} is a {current.kind}, but a {_kind(wanted.state)} is required.",
            "Move it away, and run again.",
            path=wanted.path,
        )
    if wanted.state == ABSENT:
        if current.kind == ABSENT:
            return None
        if not is_block:
            return Step(wanted.path, current, ABSENT, None, 0, 0, 0)
        rest = without_block(wanted.path, current.text, wanted.marker)
        if not rest and current.text:
            # It contained only our lines, so it was ours.
            return Step(wanted.path, current, ABSENT, None, 0, 0, 0)
        text: Optional[str] = shown(rest) if wanted.hide else rest
    elif wanted.state == DIRECTORY:
        text = None
    else:
        text = with_block(current.text, wanted) if is_block else wanted.content
    fresh = current.kind == ABSENT
    mode = wanted.mode if wanted.mode is not None else _fresh_mode(wanted) if fresh else current.mode
    uid = ids[0] if ids[0] is not None else current.uid
    gid = ids[1] if ids[1] is not None else current.gid
    same_text = text is None or text == current.text
    if not fresh and same_text and (mode, uid, gid) == (current.mode, current.uid, current.gid):
        return None
    return Step(wanted.path, current, _kind(wanted.state), None if same_text and not fresh else text, mode, uid, gid)


def _fresh_mode(wanted: Wanted) -> int:
    return wanted.new_mode if wanted.new_mode is not None else _FRESH_MODES[wanted.state]


def _kind(state: str) -> str:
    return FILE if state in (BLOCK, ABSENT) else state


class _Parts(NamedTuple):
    """A text, divided by a marker.

    ``ours``: the lines between BEGIN and END, None if there are none. ``others``: the lines outside; ``place`` is where
    the first block is in them, or their end.
    """

    others: str
    ours: Optional[str]
    place: int


def _parts(path: str, text: str, marker: str) -> _Parts:
    """Divide ``text``. Raises HostStateError for a BEGIN without its END, or the other way round.

    In that case, it is unknown which of the lines are ours. Those of others must not be lost, and ours must not stay:
    they could let in a machine that was removed.
    """
    begin, end = _marks(marker)
    others: List[str] = []
    ours: List[str] = []
    # How many of the others' lines are before the first block, and the number of the line that begins the current one.
    before: Optional[int] = None
    inside = 0
    # Unlike splitlines(), this divides only at newlines.
    for number, line in enumerate(io.StringIO(text), 1):
        mark = line.rstrip()
        if mark not in (begin, end):
            (ours if inside else others).append(line)
        elif inside and mark == begin:
            raise _unpaired(path, inside, begin, end)
        elif not inside and mark == end:
            raise _unpaired(path, number, end, begin)
        else:
            inside = 0 if inside else number
            before = len(others) if before is None else before
    if inside:
        raise _unpaired(path, inside, begin, end)
    return _Parts("".join(others), None if before is None else "".join(ours), len("".join(others[:before])))


def _marks(marker: str) -> Tuple[str, str]:
    return marker.replace("{mark}", "BEGIN"), marker.replace("{mark}", "END")


def _unpaired(path: str, number: int, line: str, missing: str) -> HostStateError:
    return HostStateError(
        f"{path}: line {number}, '{line}', has no '{missing}', so it is unclear which lines are the cluster's.",
        f"Remove the cluster's lines from {path}, including all that begin or end them, and run again.",
        path=path,
    )


def block_in(path: str, text: str, marker: str) -> Optional[str]:
    """The lines between the BEGIN and the END of a marker, or None where they are missing. Raises HostStateError."""
    return _parts(path, text, marker).ours


def without_block(path: str, text: str, marker: str) -> str:
    """``text`` without any lines from a BEGIN to an END marker, however often they occur. Raises HostStateError."""
    return _parts(path, text, marker).others


def with_block(text: str, wanted: Wanted) -> str:
    """``text`` with the block at its current place, or else the start or end, and with lines that match ``hide``
    hidden. Raises HostStateError.
    """
    begin, end = _marks(wanted.marker)
    body = wanted.content if wanted.content.endswith("\n") or not wanted.content else wanted.content + "\n"
    rest, ours, place = _parts(wanted.path, text, wanted.marker)
    if ours is None and wanted.at_start:
        place = 0
    head, tail = rest[:place], rest[place:]
    if head and not head.endswith("\n"):
        head += "\n"
    if wanted.hide:
        head, tail = hidden(head, wanted.hide), hidden(tail, wanted.hide)
    return f"{head}{begin}\n{body}{end}\n{tail}"


def hidden(text: str, pattern: str) -> str:
    """``text`` with each whole line that matches commented out."""
    return re.sub(rf"(?m)^({pattern})$", lambda line: HIDDEN + line.group(1), text)


def shown(text: str) -> str:
    """``text`` with each hidden line restored."""
    return re.sub(rf"(?m)^{re.escape(HIDDEN)}", "", text)


def owner_ids(wanted: Wanted) -> Tuple[Optional[int], Optional[int]]:
    """The IDs of the wanted owner and group. If no group is given, it is the owner's primary group.

    Digits are an ID, which need not have an account.
    """
    uid = _number(wanted.path, "owner", wanted.owner)
    group = _number(wanted.path, "group", wanted.group)
    gid: Optional[int] = None
    try:
        if uid is not None:
            with contextlib.suppress(KeyError):
                gid = pwd.getpwuid(uid).pw_gid
        elif wanted.owner is not None:
            account = pwd.getpwnam(wanted.owner)
            uid, gid = account.pw_uid, account.pw_gid
        if wanted.group is not None:
            gid = grp.getgrnam(wanted.group).gr_gid if group is None else group
    except KeyError as missing:
        raise HostStateError(
            f"{wanted.path}: {missing.args[0]}.", "Create the account, and run again.", path=wanted.path
        ) from missing
    return uid, gid


def _number(path: str, key: str, account: Optional[str]) -> Optional[int]:
    if account is None or not re.fullmatch("[0-9]+", account):
        return None
    # The kernel takes the largest number as a request to keep the present owner.
    if int(account) >= _NO_ID:
        raise InputError(f"{path}: the {key} {account} is not a valid ID.", f"IDs are below {_NO_ID}.", path=path)
    return int(account)


def apply_all(steps: Iterable[Step]) -> None:
    """Apply the changes in their order."""
    for step in steps:
        apply(step)


def apply(step: Step) -> None:
    """Apply one change. A file is always either the old or the new one, except if it is a mount point."""
    try:
        try:
            _apply(step)
        except FileExistsError:
            # Another member has created the directory meanwhile, in a home directory on a volume.
            _apply(step)
    except OSError as failure:
        raise HostStateError(f"{step.path} cannot be written: {failure.strerror}.", path=step.path) from failure


def _apply(step: Step) -> None:
    with reach(step.path, follow=step.kind != ABSENT, make=step.kind == DIRECTORY) as place:
        if step.kind == ABSENT:
            _remove(place)
            return
        if place.folder < 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if step.text is not None and step.kind == FILE:
            _write(place, step)
            return
        if step.kind == DIRECTORY and place.found is None:
            os.mkdir(place.name, 0o700, dir_fd=place.folder)
        refuse_others(place)
        with opened(place, os.O_DIRECTORY if step.kind == DIRECTORY else 0) as descriptor:
            settle(place, descriptor, step.mode, (step.uid, step.gid))


def _remove(place: Place) -> None:
    if place.found is None:
        return
    if not stat.S_ISDIR(place.found.st_mode):
        remove_in(place.folder, place.name)
        return
    if place.shared and place.found.st_uid != 0:
        raise HostStateError(
            f"{place.path} belongs to {account_name(place.found.st_uid)}, in a directory that others can write to.",
            "Remove it, and run again.",
            path=place.path,
        )
    # This path refers to the open folder, whatever is at its original path by now.
    shutil.rmtree(f"/proc/self/fd/{place.folder}/{place.name}")


def _write(place: Place, step: Step) -> None:
    text, owner = (step.text or "").encode("utf-8", _ERRORS), (step.uid, step.gid)
    own = os.geteuid()
    if own not in (0, step.uid):
        if step.uid != step.before.uid:
            raise HostStateError(
                f"{step.path} cannot belong to {account_name(step.uid)}: it is in a directory of {account_name(own)}.",
                "Choose a directory that only root can write to, or another owner.",
                path=step.path,
            )
        # The owner of the folder could have replaced it as well.
        owner = own, os.getegid()
    try:
        write_in(place.folder, place.name, text, step.mode, owner)
    except OSError as failure:
        # In a container /etc/hosts is a mount point, which no rename can replace.
        if failure.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        with opened(place, os.O_WRONLY) as descriptor:
            settle(place, descriptor, step.mode, owner)
            os.ftruncate(descriptor, 0)
            with open(descriptor, "wb", closefd=False) as stream:
                stream.write(text)


def as_diff(steps: Sequence[Step]) -> Tuple[str, str]:
    """The files before and after, one after the other, for the diff."""
    before = "".join(_shown_file(step.path, step.before.kind, step.before.text, step.before.mode) for step in steps)
    after = "".join(
        _shown_file(step.path, step.kind, step.before.text if step.text is None else step.text, step.mode)
        for step in steps
    )
    return before, after


def _shown_file(path: str, kind: str, text: str, mode: int) -> str:
    if kind == ABSENT:
        return f"{path}: absent\n"
    body = text if text.endswith("\n") or not text else text + "\n"
    return f"{path}: {kind} {mode:04o}\n{body}".encode("utf-8", "replace").decode("utf-8")

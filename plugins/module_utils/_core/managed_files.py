# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manage the files, directories and blocks of lines of a layer on a host: read, plan and write them together."""

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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_open_file,
    remove_in_directory,
    write_in_directory,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.safe_path import (
    SafePath,
    account_name,
    open_descriptor,
    open_safe_path,
    refuse_foreign_file,
    set_mode_and_owner,
)

FILE, DIRECTORY, BLOCK, ABSENT = "file", "directory", "block", "absent"

#: This prefix hides a line that contradicts a block, while the block exists.
HIDDEN_PREFIX = "# gpumesh: "

#: This error handler keeps text in another encoding unchanged.
_DECODE_ERRORS = "surrogateescape"

_INVALID_ID = (1 << 32) - 1

_DEFAULT_MODES = {FILE: 0o644, BLOCK: 0o644, DIRECTORY: 0o755}


class FileEntry(NamedTuple):
    """A checked entry.

    ``path``: absolute. Links are followed in directories that only root can write to. In a directory of another user, the
    entry is changed as that user; in a directory of root that others can write to, such as /tmp, links are refused.
    ``state``: ``file`` for exactly ``content``, ``directory``, ``block`` for lines in a file that can contain others, or
    ``absent``, which removes a file, a directory with its contents, or with ``marker`` only that block, and the file if
    nothing else is in it.
    ``mode``, ``owner``, ``group``: None if the current values may stay. A new file has mode ``new_mode``, by default 0644,
    and a new directory 0755. It belongs to this account, or to the owner of the directory.
    ``marker``: the lines before and after a block, with ``{mark}`` in place of BEGIN and END. ``at_start``: a new block comes
    first in its file. ``hide_pattern``: a regular expression of whole lines outside of the block that contradict it. They are
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
    hide_pattern: str
    new_mode: Optional[int] = None


class CurrentFile(NamedTuple):
    """The current state of a path. ``kind`` is one of the states; ``text`` is empty for a directory."""

    kind: str
    text: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0


class FileChange(NamedTuple):
    """A change of one path. ``text`` is None if the content stays."""

    path: str
    previous: CurrentFile
    kind: str
    text: Optional[str]
    mode: int
    uid: int
    gid: int


class LayerDifferences(NamedTuple):
    """Differences as messages. ``nothing_exists``: neither a file nor a line of the entries exists."""

    messages: List[str]
    nothing_exists: bool


def block_marker(cluster_name: str) -> str:
    """Return the marker of the lines that a cluster adds to files that others write too."""
    return f"# {{mark}} gpumesh cluster {cluster_name}"


def ensure_files(entries: Sequence[Mapping[str, Any]], check_mode: bool) -> List[FileChange]:
    """Bring all entries to their desired state, unless ``check_mode`` is set. Return the changes. Raises GpumeshError.

    All entries are checked before the first one is changed.
    """
    file_changes = plan_changes(entries)
    if not check_mode:
        apply_file_changes(file_changes)
    return file_changes


def plan_changes(entries: Sequence[Mapping[str, Any]]) -> List[FileChange]:
    """Plan the changes that the entries need on this host. Raises GpumeshError."""
    planned_changes = (
        plan_change(entry, read_current(entry.path), resolve_owner(entry)) for entry in parse_entries(entries)
    )
    return [file_change for file_change in planned_changes if file_change is not None]


def describe_difference(path: str) -> str:
    """Describe how a file that is not as desired differs."""
    return f"{path} {'differs' if os.path.lexists(path) else 'is missing'}"


def differences(entries: Sequence[Mapping[str, Any]]) -> LayerDifferences:
    """Compare the host with the entries. Changes nothing."""
    entries_by_path = {entry.path: entry for entry in parse_entries(entries)}
    messages, missing_count = [], 0
    for file_change in plan_changes(entries):
        file_entry = entries_by_path[file_change.path]
        if file_change.kind == ABSENT:
            messages.append(f"{file_change.path} is no longer wanted")
        elif file_change.previous.kind == ABSENT:
            messages.append(f"{file_change.path} is missing")
            missing_count += file_entry.state != DIRECTORY
        elif (
            file_entry.state == BLOCK
            and find_block(file_change.path, file_change.previous.text, file_entry.marker) is None
        ):
            messages.append(f"{file_change.path} lacks the managed lines")
            missing_count += 1
        else:
            messages.append(f"{file_change.path} differs")
    content_count = sum(entry.state in (FILE, BLOCK) for entry in entries_by_path.values())
    return LayerDifferences(messages, 0 < content_count == missing_count)


def parse_entries(entries: Sequence[Mapping[str, Any]]) -> List[FileEntry]:
    """Check the entries of the parameter ``files``. Raises InputError, which names the path and the problem."""
    parsed_entries = [_parse_entry(entry) for entry in entries]
    for entry in parsed_entries:
        if sum(other_entry.path == entry.path for other_entry in parsed_entries) > 1:
            raise InputError(f"{entry.path} is listed more than once.", "List each path once.", path=entry.path)
    return parsed_entries


def _parse_entry(raw_entry: Mapping[str, Any]) -> FileEntry:
    path, state = str(raw_entry["path"]), str(raw_entry.get("state") or FILE)
    content, marker = raw_entry.get("content"), str(raw_entry.get("marker") or "")
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
    return FileEntry(
        path=path,
        state=state,
        content=str(content or ""),
        mode=_parse_mode(path, raw_entry, "mode"),
        owner=_parse_account(raw_entry.get("owner")),
        group=_parse_account(raw_entry.get("group")),
        marker=marker,
        at_start=bool(raw_entry.get("at_start")),
        hide_pattern=str(raw_entry.get("hide") or ""),
        new_mode=_parse_mode(path, raw_entry, "new_mode"),
    )


def _parse_mode(path: str, raw_entry: Mapping[str, Any], option_name: str) -> Optional[int]:
    mode = raw_entry.get(option_name)
    if mode is None:
        return None
    if isinstance(mode, int):
        # YAML reads 0777 without quotes as 511, and all digits of that are octal, too.
        raise InputError(f"{path}: {option_name} is the number {mode}.", "Quote it: '0644'.", path=path)
    if not re.fullmatch("[0-7]{3,4}", str(mode)):
        raise InputError(f"{path}: the mode '{mode}' is not octal.", "Write it as a string such as '0644'.", path=path)
    return int(str(mode), 8)


def _parse_account(account: Any) -> Optional[str]:
    return None if account is None else str(account)


def read_current(path: str) -> CurrentFile:
    """Read what currently exists at ``path``. A link to a file counts as that file. Raises HostStateError.

    If nothing exists, the IDs are those of the account that can write there.
    """
    try:
        with open_safe_path(path) as safe_path:
            if safe_path.status is None:
                return CurrentFile(ABSENT, "", 0, os.geteuid(), os.getegid())
            if stat.S_ISDIR(safe_path.status.st_mode):
                file_status = safe_path.status
                return CurrentFile(
                    DIRECTORY, "", stat.S_IMODE(file_status.st_mode), file_status.st_uid, file_status.st_gid
                )
            with open_descriptor(safe_path) as descriptor:
                file_status = os.fstat(descriptor)
                text = read_open_file(path, descriptor).decode("utf-8", _DECODE_ERRORS)
                return CurrentFile(
                    FILE, text, stat.S_IMODE(file_status.st_mode), file_status.st_uid, file_status.st_gid
                )
    except NotADirectoryError:
        return CurrentFile(ABSENT, "", 0, os.geteuid(), os.getegid())
    except OSError as failure:
        raise HostStateError(f"{path} cannot be read: {failure.strerror}.", path=path) from failure


def plan_change(
    entry: FileEntry, current_file: CurrentFile, desired_ids: Tuple[Optional[int], Optional[int]]
) -> Optional[FileChange]:
    """Plan the change that ``entry`` requires; None if there is none.

    ``desired_ids``: the IDs of the desired owner and group, None to keep the current one.
    """
    is_block = bool(entry.marker)
    if ABSENT not in (current_file.kind, entry.state) and current_file.kind != _required_kind(entry.state):
        raise HostStateError(
            f"{entry.path} is a {current_file.kind}, but a {_required_kind(entry.state)} is required.",
            "Move it away, and run again.",
            path=entry.path,
        )
    if entry.state == ABSENT:
        if current_file.kind == ABSENT:
            return None
        if not is_block:
            return FileChange(entry.path, current_file, ABSENT, None, 0, 0, 0)
        remaining_text = remove_block(entry.path, current_file.text, entry.marker)
        if not remaining_text and current_file.text:
            # The file contained only our lines, so it was ours.
            return FileChange(entry.path, current_file, ABSENT, None, 0, 0, 0)
        new_text: Optional[str] = restore_lines(remaining_text) if entry.hide_pattern else remaining_text
    elif entry.state == DIRECTORY:
        new_text = None
    else:
        new_text = insert_block(current_file.text, entry) if is_block else entry.content
    is_new = current_file.kind == ABSENT
    new_mode = entry.mode if entry.mode is not None else _initial_mode(entry) if is_new else current_file.mode
    new_uid = desired_ids[0] if desired_ids[0] is not None else current_file.uid
    new_gid = desired_ids[1] if desired_ids[1] is not None else current_file.gid
    text_unchanged = new_text is None or new_text == current_file.text
    if (
        not is_new
        and text_unchanged
        and (new_mode, new_uid, new_gid) == (current_file.mode, current_file.uid, current_file.gid)
    ):
        return None
    return FileChange(
        entry.path,
        current_file,
        _required_kind(entry.state),
        None if text_unchanged and not is_new else new_text,
        new_mode,
        new_uid,
        new_gid,
    )


def _initial_mode(entry: FileEntry) -> int:
    return entry.new_mode if entry.new_mode is not None else _DEFAULT_MODES[entry.state]


def _required_kind(state: str) -> str:
    return FILE if state in (BLOCK, ABSENT) else state


class _DividedText(NamedTuple):
    """A text, divided by a marker.

    ``block_text``: the lines between BEGIN and END, None if there are none. ``outside_text``: the lines outside;
    ``block_offset`` is where the first block is in them, or their end.
    """

    outside_text: str
    block_text: Optional[str]
    block_offset: int


def _divide_text(path: str, text: str, marker: str) -> _DividedText:
    """Divide ``text``. Raises HostStateError for a BEGIN without its END, or the other way round.

    In that case, nobody can know which lines are ours. Lines of others must not be lost, and ours must not stay: they
    could admit a machine that was removed.
    """
    begin_line, end_line = _marker_lines(marker)
    outside_lines: List[str] = []
    block_lines: List[str] = []
    # The count of outside lines before the first block, and the number of the line that begins the current block.
    lines_before_block: Optional[int] = None
    open_block_line = 0
    # StringIO divides only at newlines, unlike splitlines().
    for line_number, line in enumerate(io.StringIO(text), 1):
        stripped_line = line.rstrip()
        if stripped_line not in (begin_line, end_line):
            (block_lines if open_block_line else outside_lines).append(line)
        elif open_block_line and stripped_line == begin_line:
            raise _unpaired_error(path, open_block_line, begin_line, end_line)
        elif not open_block_line and stripped_line == end_line:
            raise _unpaired_error(path, line_number, end_line, begin_line)
        else:
            open_block_line = 0 if open_block_line else line_number
            lines_before_block = len(outside_lines) if lines_before_block is None else lines_before_block
    if open_block_line:
        raise _unpaired_error(path, open_block_line, begin_line, end_line)
    return _DividedText(
        "".join(outside_lines),
        None if lines_before_block is None else "".join(block_lines),
        len("".join(outside_lines[:lines_before_block])),
    )


def _marker_lines(marker: str) -> Tuple[str, str]:
    return marker.replace("{mark}", "BEGIN"), marker.replace("{mark}", "END")


def _unpaired_error(path: str, line_number: int, marker_line: str, missing_line: str) -> HostStateError:
    return HostStateError(
        f"{path}: line {line_number}, '{marker_line}', has no '{missing_line}', so it is unclear which lines are the cluster's.",
        f"Remove the cluster's lines from {path}, including all that begin or end them, and run again.",
        path=path,
    )


def find_block(path: str, text: str, marker: str) -> Optional[str]:
    """Return the lines between the BEGIN and the END of a marker; None if these are missing. Raises HostStateError."""
    return _divide_text(path, text, marker).block_text


def remove_block(path: str, text: str, marker: str) -> str:
    """Remove all lines from a BEGIN to an END marker, however often these occur. Raises HostStateError."""
    return _divide_text(path, text, marker).outside_text


def insert_block(text: str, entry: FileEntry) -> str:
    """Return ``text`` with the block at its current position, or else at the start or end, and with hidden lines.

    The lines that match ``hide_pattern`` are hidden. Raises HostStateError.
    """
    begin_line, end_line = _marker_lines(entry.marker)
    block_body = entry.content if entry.content.endswith("\n") or not entry.content else entry.content + "\n"
    outside_text, block_text, block_offset = _divide_text(entry.path, text, entry.marker)
    if block_text is None and entry.at_start:
        block_offset = 0
    text_before, text_after = outside_text[:block_offset], outside_text[block_offset:]
    if text_before and not text_before.endswith("\n"):
        text_before += "\n"
    if entry.hide_pattern:
        text_before, text_after = (
            hide_lines(text_before, entry.hide_pattern),
            hide_lines(text_after, entry.hide_pattern),
        )
    return f"{text_before}{begin_line}\n{block_body}{end_line}\n{text_after}"


def hide_lines(text: str, hide_pattern: str) -> str:
    """Comment out each whole line of ``text`` that matches."""
    return re.sub(rf"(?m)^({hide_pattern})$", lambda line: HIDDEN_PREFIX + line.group(1), text)


def restore_lines(text: str) -> str:
    """Restore each hidden line of ``text``."""
    return re.sub(rf"(?m)^{re.escape(HIDDEN_PREFIX)}", "", text)


def resolve_owner(entry: FileEntry) -> Tuple[Optional[int], Optional[int]]:
    """Return the IDs of the desired owner and group. Without a group, it is the primary group of the owner.

    Digits are an ID, which need not have an account.
    """
    uid = _parse_id(entry.path, "owner", entry.owner)
    numeric_gid = _parse_id(entry.path, "group", entry.group)
    gid: Optional[int] = None
    try:
        if uid is not None:
            with contextlib.suppress(KeyError):
                gid = pwd.getpwuid(uid).pw_gid
        elif entry.owner is not None:
            account = pwd.getpwnam(entry.owner)
            uid, gid = account.pw_uid, account.pw_gid
        if entry.group is not None:
            gid = grp.getgrnam(entry.group).gr_gid if numeric_gid is None else numeric_gid
    except KeyError as missing:
        raise HostStateError(
            f"{entry.path}: {missing.args[0]}.", "Create the account, and run again.", path=entry.path
        ) from missing
    return uid, gid


def _parse_id(path: str, option_name: str, account: Optional[str]) -> Optional[int]:
    if account is None or not re.fullmatch("[0-9]+", account):
        return None
    # The kernel treats the largest number as a request to keep the current owner.
    if int(account) >= _INVALID_ID:
        raise InputError(
            f"{path}: the {option_name} {account} is not a valid ID.", f"IDs are below {_INVALID_ID}.", path=path
        )
    return int(account)


def apply_file_changes(file_changes: Iterable[FileChange]) -> None:
    """Apply the changes in their order."""
    for file_change in file_changes:
        apply_file_change(file_change)


def apply_file_change(file_change: FileChange) -> None:
    """Apply one change. A file always has either the old or the new content, except if it is a mount point."""
    try:
        try:
            _apply_once(file_change)
        except FileExistsError:
            # Another member has created the directory in the meantime, in a home directory on a volume.
            _apply_once(file_change)
    except OSError as failure:
        raise HostStateError(
            f"{file_change.path} cannot be written: {failure.strerror}.", path=file_change.path
        ) from failure


def _apply_once(file_change: FileChange) -> None:
    with open_safe_path(
        file_change.path, follow_link=file_change.kind != ABSENT, create_directories=file_change.kind == DIRECTORY
    ) as safe_path:
        if file_change.kind == ABSENT:
            _remove_path(safe_path)
            return
        if safe_path.directory_fd < 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if file_change.text is not None and file_change.kind == FILE:
            _write_file(safe_path, file_change)
            return
        if file_change.kind == DIRECTORY and safe_path.status is None:
            os.mkdir(safe_path.name, 0o700, dir_fd=safe_path.directory_fd)
        refuse_foreign_file(safe_path)
        with open_descriptor(safe_path, os.O_DIRECTORY if file_change.kind == DIRECTORY else 0) as descriptor:
            set_mode_and_owner(safe_path, descriptor, file_change.mode, (file_change.uid, file_change.gid))


def _remove_path(safe_path: SafePath) -> None:
    if safe_path.status is None:
        return
    if not stat.S_ISDIR(safe_path.status.st_mode):
        remove_in_directory(safe_path.directory_fd, safe_path.name)
        return
    if safe_path.in_shared_directory and safe_path.status.st_uid != 0:
        raise HostStateError(
            f"{safe_path.path} belongs to {account_name(safe_path.status.st_uid)}, in a directory that others can write to.",
            "Remove it, and run again.",
            path=safe_path.path,
        )
    # This path refers to the open directory, whatever is at its original path by now.
    shutil.rmtree(f"/proc/self/fd/{safe_path.directory_fd}/{safe_path.name}")


def _write_file(safe_path: SafePath, file_change: FileChange) -> None:
    encoded_text, owner_ids = (
        (file_change.text or "").encode("utf-8", _DECODE_ERRORS),
        (file_change.uid, file_change.gid),
    )
    effective_uid = os.geteuid()
    if effective_uid not in (0, file_change.uid):
        if file_change.uid != file_change.previous.uid:
            raise HostStateError(
                f"{file_change.path} cannot belong to {account_name(file_change.uid)}: it is in a directory of {account_name(effective_uid)}.",
                "Choose a directory that only root can write to, or another owner.",
                path=file_change.path,
            )
        # The owner of the directory could have replaced the file as well.
        owner_ids = effective_uid, os.getegid()
    try:
        write_in_directory(safe_path.directory_fd, safe_path.name, encoded_text, file_change.mode, owner_ids)
    except OSError as failure:
        # In a container, /etc/hosts is a mount point, which no rename can replace.
        if failure.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        with open_descriptor(safe_path, os.O_WRONLY) as descriptor:
            set_mode_and_owner(safe_path, descriptor, file_change.mode, owner_ids)
            os.ftruncate(descriptor, 0)
            with open(descriptor, "wb", closefd=False) as stream:
                stream.write(encoded_text)


def format_diff(file_changes: Sequence[FileChange]) -> Tuple[str, str]:
    """Return the files before and after the changes for the diff."""
    diff_before = "".join(
        _format_file(file_change.path, file_change.previous.kind, file_change.previous.text, file_change.previous.mode)
        for file_change in file_changes
    )
    diff_after = "".join(
        _format_file(
            file_change.path,
            file_change.kind,
            file_change.previous.text if file_change.text is None else file_change.text,
            file_change.mode,
        )
        for file_change in file_changes
    )
    return diff_before, diff_after


def _format_file(path: str, kind: str, text: str, mode: int) -> str:
    if kind == ABSENT:
        return f"{path}: absent\n"
    file_body = text if text.endswith("\n") or not text else text + "\n"
    return f"{path}: {kind} {mode:04o}\n{file_body}".encode("utf-8", "replace").decode("utf-8")

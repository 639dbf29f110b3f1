# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tracking. Its documentation is in the module of the same name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.own_certificate import certificates_in
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import certificate
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tracking import (
    asked,
    desired,
    makes_own,
    moved_from,
    parse_users,
    was_on,
    with_certificates,
)

_MODULE = "gpumesh.cluster.tracking"
_STATES = ["asked", "movable", "certified", "trusted", "agreed", "installed", "present", "saved", "retired", "absent"]
_FILES = {"users": "users_file", "certificate": "certificate_file", "key": "key_file", "trust": "ca_file"}


class _File(NamedTuple):
    """A file on the controller. ``shown``: the option with the path that was given. ``path``: decrypted."""

    shown: str
    path: str
    text: str


class ActionModule(HostAction):
    """Derives from the record whether the host runs the server, and passes it the controller's files."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        text = {"type": "str", "default": ""}
        given = self.arguments(
            record=RECORD,
            state={"type": "str", "choices": _STATES, "default": "present"},
            tracked={"type": "str", "choices": ["present", "absent"], "default": "present"},
            start={"type": "bool", "default": False},
            server=text,
            port={"type": "int", "default": 0},
            volume=text,
            tls={"type": "raw"},
            own={"type": "bool", "default": False},
            wanted={"type": "raw"},
            former=text,
            registered={"type": "str"},
            force={"type": "bool", "default": False},
            uid={"type": "int", "default": settings.UID},
            unconfined={"type": "bool", "default": False},
            **{name: {**text, "no_log": False} for name in _FILES.values()},
        )
        record = self.record()
        if given["state"] == "asked":
            chosen = {**given, "state": given["tracked"], "tls": _optional(given["tls"])}
            wanted = asked(record, chosen)
            tracking = record["tracking"]
            former = tracking["server"] if tracking else ""
            own = makes_own(record, chosen)
            return {"changed": False, "settings": wanted, "own": own, "former": former, "was_on": was_on(record)}
        if given["state"] in ("agreed", "trusted", "movable"):
            self._refuse_failed(given["registered"])
        if given["state"] == "agreed":
            return {"changed": False}
        if given["state"] == "trusted":
            found = self.registered(given["registered"], self.present).values()
            made = next((one["certificates"] for one in found if one.get("certificates")), None)
            return {"changed": False, "settings": with_certificates(record, given["wanted"] or None, made)}
        if given["state"] == "movable":
            # They are in the play, but run nothing of this layer.
            taking_part = [machine for machine in self.present if machine not in self.userspace_only]
            previews = self.registered(given["registered"], taking_part)
            return {"changed": False, "leaves": moved_from(record, given["former"], previews, given["force"])}
        parameters = {
            **desired(record, self.machine, given["uid"], given["unconfined"], given["own"]),
            **self.supervisor(),
            "state": given["state"],
        }
        if given["state"] in ("certified", "installed"):
            return self.equipped_module(_MODULE, parameters, self._lacking)
        if given["state"] != "present":
            return self.module(_MODULE, parameters)
        if record["tracking"] is None:
            # It reports whether there is a server to remove.
            return self.module(_MODULE, parameters)
        return self.equipped_module(_MODULE, {**parameters, **self._files(given, parameters)}, self._lacking)

    def _refuse_failed(self, name: str) -> None:
        """Refuse to go on, on every host, if a task has failed on one of them. Raises InputError."""
        for machine, result in self.registered(name, self.present).items():
            if result.get("failed"):
                raise InputError(
                    f"{machine}: {result.get('msg', 'It failed.')}",
                    "The cluster record was not changed. Correct this, and run the playbook tracking again.",
                )

    def _files(self, given: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The files for this host. If no CA certificate is given, the members trust the certificate itself.

        They are tried here, so that a wrong one changes nothing, neither on the server nor on a member that trusts it.
        """
        files = {name: self._read(option, given[option]) for name, option in _FILES.items() if given[option]}
        if ("certificate" in files) != ("key" in files):
            raise InputError(
                "tracking_certificate_file and tracking_key_file belong together.", "Set both, or none of them."
            )
        if "trust" in files and parameters["own_certificate"]:
            raise InputError(
                "tracking_ca_file is set, but the server makes its own certificate, which no CA has signed.",
                "Remove tracking_ca_file, or set tracking_certificate_file and tracking_key_file as well.",
            )
        # Everybody can read what a member trusts, and a certificate's file may have its private key as well.
        public = {name: _certificates(files[name]) for name in ("certificate", "trust") if name in files}
        trust = public.get("trust", public.get("certificate"))
        shared = {} if trust is None else {"trust": trust}
        if "certificate" in files:
            own, key, ca = files["certificate"], files["key"], files["trust"].shown if "trust" in files else ""
            offered = certificate.Offered(own.path, key.path, trust or "", own.shown, key.shown, ca)
            certificate.refuse_unusable(offered, parameters["machine"])
        if not parameters["serves"]:
            return shared
        users = {}
        if "users" in files:
            users["users"] = json.dumps(parse_users(files["users"].text, given["users_file"]))
        pair = {} if "key" not in files else {"certificate": public["certificate"], "key": files["key"].text}
        return {**shared, **users, **pair}

    def _read(self, option: str, path: str) -> _File:
        """A file on the controller, which may be encrypted with Ansible Vault. Raises InputError."""
        shown = f"tracking_{option}: {path}"
        try:
            real = self._loader.get_real_file(self.controller_path(path))
            return _File(shown, real, Path(real).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, AnsibleError) as failure:
            # Below it, Ansible advises users of modules.
            reason = str(failure).partition("\n")[0].rstrip(".")
            raise InputError(f"{shown} cannot be read: {reason}.", "Correct the path.") from failure

    def _lacking(self, result: Mapping[str, Any]) -> list[str]:
        """The packages that the module reported as missing."""
        packages = list(result["missing"])
        if packages and self.package_manager != "apt":
            raise InputError(
                f"{self.machine} cannot run the tracking server: it is not Debian.", "Choose another tracking_server."
            )
        return packages


def _optional(value: Any) -> bool | None:
    """A truth value; None for an option that is not set, which AWX passes as an empty text."""
    return None if value in (None, "") else boolean(value)


def _certificates(file: _File) -> str:
    """The certificates in a file. Raises InputError if there are none."""
    found = certificates_in(file.text)
    if not found:
        raise InputError(f"{file.shown} contains no certificate.", "Provide certificates in PEM format.")
    return found

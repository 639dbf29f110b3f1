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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.server_certificate import extract_certificates
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import certificate
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.tracking import desired_parameters, parse_users

_MODULE = "gpumesh.cluster.tracking"
_STATES = ["certified", "installed", "present", "saved", "retired", "absent"]
_FILE_OPTIONS = {
    "users": "tracking_users_file",
    "certificate": "tracking_certificate_file",
    "key": "tracking_key_file",
    "trust": "tracking_ca_file",
}


class _ControllerFile(NamedTuple):
    """A file on the controller.

    ``display_name``: the option with the given path. ``decrypted_path``: that of a copy if the file is in a vault.
    """

    display_name: str
    decrypted_path: str
    text: str


class ActionModule(HostAction):
    """Derives from the record whether the host runs the server, and passes it the controller's files."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            state={"type": "str", "choices": _STATES, "default": "present"},
            own_certificate={"type": "bool", "default": False},
            pass_files={"type": "bool", "default": True},
        )
        record = self.record()
        options = self.options("tracking_uid", "tracking_unconfined")
        module_args = {
            **desired_parameters(
                record,
                self.machine,
                options["tracking_uid"],
                options["tracking_unconfined"],
                task_args["own_certificate"],
            ),
            **self.supervisor_options(),
            "state": task_args["state"],
        }
        if task_args["state"] in ("certified", "installed"):
            return self.ensure_packages(_MODULE, module_args, self._missing_packages)
        if task_args["state"] != "present":
            return self.run_module(_MODULE, module_args)
        if record["tracking"] is None:
            # The module reports whether there is a server to remove.
            return self.run_module(_MODULE, module_args)
        file_args = self._file_args(module_args) if task_args["pass_files"] else {}
        return self.ensure_packages(_MODULE, {**module_args, **file_args}, self._missing_packages)

    def _file_args(self, module_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the files for this host. If no CA certificate is given, the members trust the certificate itself.

        The files are verified here, so that a wrong one changes nothing on the server and on the members.
        """
        options = self.options(*_FILE_OPTIONS.values())
        files_by_name = {
            name: self._read_file(option_name, options[option_name])
            for name, option_name in _FILE_OPTIONS.items()
            if options[option_name]
        }
        if ("certificate" in files_by_name) != ("key" in files_by_name):
            raise InputError(
                "tracking_certificate_file and tracking_key_file must be set together.", "Set both, or neither of them."
            )
        if "trust" in files_by_name and module_args["own_certificate"]:
            raise InputError(
                "tracking_ca_file is set, but the server makes its own certificate, which no CA has signed.",
                "Remove tracking_ca_file, or set tracking_certificate_file and tracking_key_file as well.",
            )
        # Every user can read the certificates that a member trusts, and a certificate file may have a private key.
        public_certificates = {
            name: _extract_certificates(files_by_name[name])
            for name in ("certificate", "trust")
            if name in files_by_name
        }
        trusted_certificates = public_certificates.get("trust", public_certificates.get("certificate"))
        shared_args = {} if trusted_certificates is None else {"trust": trusted_certificates}
        if "certificate" in files_by_name:
            certificate_file, key_file, ca_name = (
                files_by_name["certificate"],
                files_by_name["key"],
                files_by_name["trust"].display_name if "trust" in files_by_name else "",
            )
            offered_pair = certificate.OfferedCertificate(
                certificate_file.decrypted_path,
                key_file.decrypted_path,
                trusted_certificates or "",
                certificate_file.display_name,
                key_file.display_name,
                ca_name,
            )
            certificate.refuse_unusable_certificate(offered_pair, module_args["machine"])
        if not module_args["serves"]:
            return shared_args
        user_args = {}
        if "users" in files_by_name:
            user_args["users"] = json.dumps(parse_users(files_by_name["users"].text, options["tracking_users_file"]))
        pair_args = (
            {}
            if "key" not in files_by_name
            else {"certificate": public_certificates["certificate"], "key": files_by_name["key"].text}
        )
        return {**shared_args, **user_args, **pair_args}

    def _read_file(self, option_name: str, path: str) -> _ControllerFile:
        """Read a file on the controller, which may be encrypted with Ansible Vault. Raises InputError."""
        display_name = f"{option_name}: {path}"
        try:
            decrypted_path = self._loader.get_real_file(self.controller_path(path))
            return _ControllerFile(display_name, decrypted_path, Path(decrypted_path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, AnsibleError) as failure:
            # Only the first line is about the file; Ansible's advice for users of modules follows.
            reason = str(failure).partition("\n")[0].rstrip(".")
            raise InputError(f"{display_name} cannot be read: {reason}.", "Correct the path.") from failure

    def _missing_packages(self, result: Mapping[str, Any]) -> list[str]:
        """Return the packages that the module reported as missing. Raises InputError on other systems than Debian."""
        packages = list(result["missing"])
        if packages and self.package_manager != "apt":
            raise InputError(
                f"{self.machine} cannot run the tracking server: it is not Debian.", "Choose another tracking_server."
            )
        return packages


def _extract_certificates(certificate_file: _ControllerFile) -> str:
    """Return the certificates in a file. Raises InputError if there are none."""
    certificates = extract_certificates(certificate_file.text)
    if not certificates:
        raise InputError(
            f"{certificate_file.display_name} contains no certificate.", "Provide certificates in PEM format."
        )
    return certificates

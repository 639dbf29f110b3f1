# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The zone and the policies of a cluster in firewalld. Pure.

firewalld has no comments, so what is ours is in objects of our own, whose names begin with gpumesh: a zone for the
interface of the mesh, one for those of sessions, a policy for packets to the host, and one for those that it forwards. The
policies come after the zones, so that what the administrator rejects stays rejected. Sessions need a zone, since firewalld
2.3 uses no policy between two interfaces of which neither is bound to one.

Source: firewall-cmd(1), firewalld.policies(5). Objects can only be created permanently, and are used after a reload.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import shlex
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import HostRule, is_part_of

ZONE, POLICY = "zone", "policy"
RELOAD_COMMAND = ("firewall-cmd", "--reload")
_NAME_PREFIX = "gpumesh-"
#: The zones of daemons that bind their interfaces again when firewalld has been reloaded.
_REBINDING_ZONES = ("docker", "libvirt", "libvirt-routed")
#: Names of policies have at most 18 characters, those of zones 17.
_MAX_LABEL = 6
#: After the zones, whose priority is 0.
_PRIORITY = "100"
_RULES, _INTERFACES = "rich rules", "interfaces"
#: What can be changed without a reload, with the option that adds or removes it.
_LIST_OPTIONS = {_RULES: "rich-rule", _INTERFACES: "interface"}
#: The settings of an object that are made when it is created, with their options.
_FIXED_OPTIONS = {
    "priority": "set-priority",
    "ingress-zones": "add-ingress-zone",
    "egress-zones": "add-egress-zone",
    "forward": "add-forward",
}
#: The zones between which a policy applies, with the options that remove one.
_ZONE_REMOVALS = {"ingress-zones": "ingress-zone", "egress-zones": "egress-zone"}
DEFAULT_ZONE_SETTING = "DefaultZone"
#: These cannot be changed in the running configuration.
_PERMANENT_ONLY = ("target", "priority", "ingress-priority", "egress-priority", DEFAULT_ZONE_SETTING)
_ACCEPTING_RULE = re.compile(r'^rule family="ipv[46]" source address="(?P<network>[^"]+)" accept$')
_DEFAULT_ZONE_LINE = re.compile(rf"^\s*{DEFAULT_ZONE_SETTING}\s*=\s*(?P<zone>[^\s=]+)\s*$")
_OBJECT_LINE = re.compile(r"^(?P<name>\S+)(?: \([^)]*\))?$")

#: The settings of an object by their names in the output of firewall-cmd.
Settings = Mapping[str, FrozenSet[str]]
#: The objects by kind and name.
Objects = Mapping[Tuple[str, str], Settings]


class FirewalldChange(NamedTuple):
    """A call of firewall-cmd. ``verb``: new, delete, add, remove or set."""

    kind: str
    name: str
    verb: str
    option: str = ""
    value: str = ""
    permanent: bool = True

    def argv(self) -> List[str]:
        """Return the command."""
        argv = ["firewall-cmd", *(["--permanent"] if self.permanent else [])]
        if not self.option:
            return [*argv, f"--{self.verb}-{self.kind}={self.name}"]
        option = f"--{self.verb}-{self.option}"
        return [*argv, f"--{self.kind}={self.name}", f"{option}={self.value}" if self.value else option]

    def zone_arguments(self) -> Optional[Dict[str, Any]]:
        """Return the arguments for ansible.posix.firewalld, which knows zones, but no policies, which have to go first."""
        if self.kind != ZONE or self.verb == "delete":
            return None
        arguments: Dict[str, Any] = {"zone": self.name, "permanent": self.permanent}
        if not self.option:
            return {**arguments, "state": "present"}
        arguments["state"] = "disabled" if self.verb == "remove" else "enabled"
        return {**arguments, self.option.replace("-", "_"): self.value or True}


class FirewalldPlan(NamedTuple):
    """The changes, and whether firewalld has to be reloaded between those that are permanent and those that are not."""

    changes: List[FirewalldChange]
    reload: bool

    def commands(self) -> List[str]:
        """Return the commands, as an administrator would type them."""
        return [" ".join(shlex.quote(argument) for argument in argv) for argv in self.argvs()]

    def argvs(self) -> List[Sequence[str]]:
        """Return the commands, in order."""
        permanent_argvs: List[Sequence[str]] = [change.argv() for change in self.changes if change.permanent]
        runtime_argvs = [change.argv() for change in self.changes if not change.permanent]
        return [*permanent_argvs, *([RELOAD_COMMAND] if self.reload else []), *runtime_argvs]


class ReloadEffects(NamedTuple):
    """What a reload would lose, since it is only running, and what it would activate, since it is only permanent."""

    lost: List[str]
    activated: List[str]


def object_names(cluster: str) -> Dict[str, Tuple[str, str]]:
    """Return the kind and name of each object of a cluster, those that others refer to first.

    ``mesh``, ``session``, ``host`` and ``forward``. No cluster has a capital letter in its name.
    """
    label = cluster if len(cluster) <= _MAX_LABEL else hashlib.sha256(cluster.encode()).hexdigest()[:_MAX_LABEL]
    return {
        "mesh": (ZONE, f"{_NAME_PREFIX}{label}"),
        "session": (ZONE, f"{_NAME_PREFIX}S-{label}"),
        "host": (POLICY, f"{_NAME_PREFIX}in-{label}"),
        "forward": (POLICY, f"{_NAME_PREFIX}via-{label}"),
    }


def desired_objects(cluster: str, rules: Iterable[HostRule]) -> Dict[Tuple[str, str], Dict[str, FrozenSet[str]]]:
    """Return the objects with the rules of a cluster."""
    names, objects = object_names(cluster), {}
    mesh_rules = [rule for rule in rules if rule.mesh and not rule.forward]
    host_rules = [rule for rule in rules if not rule.mesh and not rule.forward]
    # Between the members, the zone of the mesh forwards.
    forward_rules = [rule for rule in rules if rule.forward and not rule.mesh]
    if mesh_rules:
        objects[names["mesh"]] = {
            "forward": frozenset(["yes"]),
            _INTERFACES: frozenset(rule.interface for rule in mesh_rules),
            _RULES: frozenset(_format_rule(rule) for rule in mesh_rules),
        }
    if forward_rules:
        objects[names["session"]] = {_INTERFACES: frozenset(rule.interface for rule in forward_rules)}
    for name, policy_rules, ingress_zone, egress_zone in (
        ("host", host_rules, "ANY", "HOST"),
        ("forward", forward_rules, names["session"][1], "ANY"),
    ):
        if policy_rules:
            objects[names[name]] = {
                "priority": frozenset([_PRIORITY]),
                "ingress-zones": frozenset([ingress_zone]),
                "egress-zones": frozenset([egress_zone]),
                _RULES: frozenset(_format_rule(rule) for rule in policy_rules),
            }
    return objects


def parse_objects(kind: str, listing: str) -> Dict[Tuple[str, str], Dict[str, FrozenSet[str]]]:
    """Parse the zones or policies of firewall-cmd: ``--list-all-zones``, ``--list-all-policies``, ``--info-zone``."""
    objects: Dict[Tuple[str, str], Dict[str, FrozenSet[str]]] = {}
    settings: Dict[str, FrozenSet[str]] = {}
    setting_name = ""
    for line in listing.splitlines():
        name_match = _OBJECT_LINE.match(line)
        if name_match:
            settings = objects.setdefault((kind, name_match["name"]), {})
        elif line.startswith("\t"):
            settings[setting_name] = settings[setting_name] | {line.strip()}
        elif line.strip():
            setting_name, _colon, value = line.strip().partition(":")
            settings[setting_name] = frozenset(value.split())
    return objects


def plan_changes(cluster: str, rules: Sequence[HostRule], permanent: Objects, running: Objects) -> FirewalldPlan:
    """Return what is to be changed so that firewalld has the objects of the cluster, now and at boot.

    ``permanent``, ``running``: the objects in the two configurations of firewalld. An object that is not needed any more
    is emptied in the running one, since only a reload removes it.
    """
    desired = desired_objects(cluster, rules)
    reload = any(not _has_fixed_settings(running.get(name), settings) for name, settings in desired.items())
    names = list(object_names(cluster).values())
    # A policy whose zone is gone would prevent a reload, so it goes first.
    changes = [
        FirewalldChange(kind, name, "delete")
        for kind, name in reversed(names)
        if (kind, name) in permanent and (kind, name) not in desired
    ]
    for kind, name in names:
        settings = desired.get((kind, name))
        if settings is not None:
            changes += _plan_permanent(kind, name, permanent.get((kind, name)), settings)
        if not reload:
            changes += _plan_lists(kind, name, running.get((kind, name), {}), settings or {}, False)
    return FirewalldPlan(changes, reload)


def find_references(cluster: str, changes: Iterable[FirewalldChange], permanent: Objects) -> Dict[str, List[str]]:
    """Return the options that remove zones which are to be deleted from the policies of others, by policy.

    firewalld does not reload as long as a policy names a zone that is gone.
    """
    own_objects = object_names(cluster).values()
    deleted_zones = {change.name for change in changes if (change.kind, change.verb) == (ZONE, "delete")}
    options_by_policy = {
        name: [
            f"--remove-{option}={zone}"
            for key, option in _ZONE_REMOVALS.items()
            for zone in sorted(deleted_zones & settings.get(key, frozenset()))
        ]
        for (kind, name), settings in permanent.items()
        if kind == POLICY and (kind, name) not in own_objects
    }
    return {name: options for name, options in options_by_policy.items() if options}


def parse_default_zone(configuration: str) -> str:
    """Return the default zone in firewalld.conf, of which firewalld takes the first that is set, or its own."""
    zones = (match["zone"] for match in map(_DEFAULT_ZONE_LINE.match, configuration.splitlines()) if match is not None)
    return next(zones, "public")


def bind_interfaces(permanent: Objects, running: Objects, rebound_interfaces: FrozenSet[str]) -> Objects:
    """Return permanent zones with the interfaces that NetworkManager binds to them, in firewalld's memory only."""
    return {
        key: {
            **settings,
            _INTERFACES: settings.get(_INTERFACES, frozenset())
            | (running.get(key, {}).get(_INTERFACES, frozenset()) & rebound_interfaces),
        }
        for key, settings in permanent.items()
    }


def is_accepted(rule: HostRule, zones: Objects, default_zone: str) -> bool:
    """Whether the zones of the administrator accept all that a rule does. Those of a source precede an interface's."""
    if not (rule.interface and rule.source) or rule.mesh or rule.forward:
        return False
    source = rule.source

    def sources(settings: Settings) -> FrozenSet[str]:
        return settings.get("sources", frozenset())

    deciding_zones = [
        settings
        for settings in zones.values()
        if any(is_part_of(source, network) or is_part_of(network, source) for network in sources(settings))
    ]
    if not any(is_part_of(source, network) for settings in deciding_zones for network in sources(settings)):
        interface_zones = [settings for settings in zones.values() if rule.interface in settings.get(_INTERFACES, ())]
        deciding_zones += interface_zones or [zones.get((ZONE, default_zone), {})]
    return all(
        "ACCEPT" in settings.get("target", ())
        or any(
            is_part_of(source, match["network"])
            for match in map(_ACCEPTING_RULE.match, settings.get(_RULES, ()))
            if match
        )
        for settings in deciding_zones
    )


def find_reload_effects(
    cluster: str, permanent: Objects, running: Objects, rebound_interfaces: FrozenSet[str]
) -> ReloadEffects:
    """Return what a reload would do besides loading the objects of a cluster.

    By default, firewalld also forgets to which zones interfaces belong. ``rebound_interfaces``: those that
    NetworkManager binds again. What clusters have in the permanent configuration may be loaded at any time.
    """
    own_objects = object_names(cluster).values()
    lost, activated = set(), set()
    for key in {*permanent, *running}.difference(own_objects):
        permanent_settings, running_settings = permanent.get(key), running.get(key)
        if running_settings is not None and not (permanent_settings is None and _is_emptied(key, running_settings)):
            changeable = {name: values for name, values in running_settings.items() if name not in _PERMANENT_ONLY}
            lost |= _describe_additions(key, changeable, permanent_settings)
        if permanent_settings is not None and not key[1].startswith(_NAME_PREFIX):
            activated |= _describe_additions(key, permanent_settings, running_settings)
    rebound = {_describe_interface(interface, key[1]) for key in running for interface in rebound_interfaces}
    rebound |= {
        _describe_interface(interface, name)
        for (_kind, name), settings in running.items()
        if name in _REBINDING_ZONES
        for interface in settings.get(_INTERFACES, ())
    }
    return ReloadEffects(sorted(lost - rebound), sorted(activated))


def _is_emptied(key: Tuple[str, str], settings: Settings) -> bool:
    """Whether an object is what a cluster that has left leaves until the next reload."""
    return key[1].startswith(_NAME_PREFIX) and not any(settings.get(list_name) for list_name in _LIST_OPTIONS)


def _describe_additions(key: Tuple[str, str], settings: Settings, counterpart: Optional[Settings]) -> Set[str]:
    """Describe what an object has in one configuration, and not in the other."""
    if counterpart is None:
        return {" ".join(key)}
    descriptions = set()
    for name, values in settings.items():
        # What is switched off adds nothing.
        additions = values - counterpart.get(name, frozenset()) - {"no"}
        if name == _INTERFACES:
            descriptions |= {_describe_interface(interface, key[1]) for interface in additions}
        elif additions:
            descriptions.add(" ".join(key))
    return descriptions


def _describe_interface(interface: str, zone: str) -> str:
    return f"interface {interface} of zone {zone}"


def _has_fixed_settings(current: Optional[Settings], desired: Settings) -> bool:
    return current is not None and all(current.get(key) == desired[key] for key in _FIXED_OPTIONS if key in desired)


def _plan_permanent(kind: str, name: str, current: Optional[Settings], desired: Settings) -> List[FirewalldChange]:
    changes = [] if current is not None else [FirewalldChange(kind, name, "new")]
    for key, option in _FIXED_OPTIONS.items():
        current_values = (current or {}).get(key, frozenset())
        if key in _ZONE_REMOVALS and key in desired:
            # These come first, since ANY and HOST go with no other zone.
            surplus_zones = sorted(current_values - desired[key])
            changes += [FirewalldChange(kind, name, "remove", _ZONE_REMOVALS[key], zone) for zone in surplus_zones]
        if key in desired and not desired[key] <= current_values:
            (value,) = desired[key]
            verb, _dash, option_name = option.partition("-")
            changes.append(FirewalldChange(kind, name, verb, option_name, "" if key == "forward" else value))
    return changes + _plan_lists(kind, name, current or {}, desired, True)


def _plan_lists(kind: str, name: str, current: Settings, desired: Settings, permanent: bool) -> List[FirewalldChange]:
    changes = []
    for key, option in _LIST_OPTIONS.items():
        current_values, desired_values = current.get(key, frozenset()), desired.get(key, frozenset())
        for verb, changed_values in (
            ("add", desired_values - current_values),
            ("remove", current_values - desired_values),
        ):
            changes += [FirewalldChange(kind, name, verb, option, value, permanent) for value in sorted(changed_values)]
    return changes


def _format_rule(rule: HostRule) -> str:
    """Return a rule as firewall-cmd prints it."""
    if rule.port:
        return f'rule port port="{rule.port}" protocol="{rule.protocol}" accept'
    version = ipaddress.ip_network(rule.source).version
    return f'rule family="ipv{version}" source address="{rule.source}" accept'

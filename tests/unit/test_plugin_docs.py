# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each plugin is documented so that ansible-doc can show it, and examples use only existing names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "gpumesh.cluster."
# Plugin types as named by ansible-doc. An action is documented by the module with its name.
TYPES = {"module": "modules", "filter": "filter", "callback": "callback", "inventory": "inventory", "lookup": "lookup"}
PLUGINS = [
    (kind, path.stem)
    for kind, folder in TYPES.items()
    for path in sorted((ROOT / "plugins" / folder).glob("*.py"))
    if not path.name.startswith("_")
]
EXAMPLES_WANTED = {"module", "filter", "inventory", "lookup"}
RETURN_WANTED = {"module", "filter", "lookup"}


@pytest.fixture(scope="session")
def documentation():
    """The output of ansible-doc, for all plugins of a type in one call: {type: {name: document}}."""
    found = {}
    for kind in TYPES:
        names = [PREFIX + name for of, name in PLUGINS if of == kind]
        if not names:
            continue
        command = [sys.executable, "-m", "ansible", "doc", "--json", "--type", kind, *names]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        )
        assert done.returncode == 0, done.stderr
        found[kind] = json.loads(done.stdout)
    return found


def test_there_are_plugins():
    assert PLUGINS


@pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=lambda value: value)
def test_is_documented(documentation, kind, name):
    document = documentation[kind].get(PREFIX + name)
    assert document, f"ansible-doc cannot show {kind} {name}"
    doc = document["doc"]
    assert doc["short_description"]
    assert doc["description"]
    assert doc["author"]
    assert doc.get("version_added") == "1.0.0"
    if kind in RETURN_WANTED:
        assert document["return"], "no RETURN"
    if kind in EXAMPLES_WANTED:
        assert document["examples"], "no EXAMPLES"


@pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=lambda value: value)
def test_examples_are_yaml_and_name_what_exists(documentation, kind, name):
    examples = documentation[kind][PREFIX + name]["examples"]
    if kind not in EXAMPLES_WANTED:
        return
    assert yaml.safe_load(examples), "the examples say nothing"
    known = {PREFIX + other for _kind, other in PLUGINS}
    known |= {PREFIX + path.name for path in (ROOT / "roles").iterdir()}
    known |= {PREFIX + path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    named = set(re.findall(r"\bgpumesh\.cluster\.\w+", examples))
    assert named <= known, f"named in the examples, and there is none: {sorted(named - known)}"


def test_every_module_is_in_the_action_group():
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    modules = sorted(name for kind, name in PLUGINS if kind == "module")
    assert sorted(runtime["action_groups"]["all"]) == modules


#: Words with which a sentence refers to the text before it. ansible-doc sorts options and results, so that they would
#: refer to something else. "The former manager" and "the previous verdict" name what they mean.
BACK_REFERENCE = re.compile(
    r"""^(?:As|Also|And|But|Its|It|Likewise|Otherwise|So|Their|Then|These|They|Those|The\ same)\b
    |\bin\ the\ same\ way\b|\blikewise\b|\bthe\ (?:former|latter)(?=[.,;:]|\ (?:is|are|has|have)\b)
    |\b(?:above|preceding|previous|next|following)\ (?:option|parameter|value)s?\b|\b(?:see|described|listed)\ (?:above|below)\b
    |\b(?:of|for|to|in|on|with|from)\ (?:that|those|these)\ (?:option|proxy|server|file|key|port|address|volume|account|package|user)s?\b
    """,
    re.VERBOSE,
)


def first_sentences(entries, place):
    """Yield the first sentence of each option and result, with its place: what follows can refer to it."""
    for name, entry in (entries or {}).items():
        description = entry.get("description") or ""
        text = description if isinstance(description, str) else " ".join(description)
        yield f"{place}.{name}", re.split(r"(?<=[.:])\s", text, maxsplit=1)[0]
        for key in ("suboptions", "contains", "options"):
            yield from first_sentences(entry.get(key), f"{place}.{name}")


def test_descriptions_do_not_depend_on_their_order(documentation):
    sentences = []
    for kind, name in PLUGINS:
        document = documentation[kind][PREFIX + name]
        sentences += first_sentences(document["doc"].get("options"), name)
        sentences += first_sentences(document["return"], name)
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml")):
        specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        sentences += first_sentences(specs, path.parts[-3])
    assert len(sentences) > 1000
    assert [found for found in sentences if BACK_REFERENCE.search(found[1])] == []


@pytest.mark.parametrize(
    ("sentence", "refers"),
    [
        ("The port of that proxy.", True),
        ("The settings of slurmdbd, in the same way.", True),
        ("As O(tags) of the module tailscale.", True),
        ("Its public key.", True),
        ("The port of the proxy of a userspace-only member.", False),
        ("Nodes that the former manager has lost.", False),
        ("Assets of the members.", False),
    ],
)
def test_a_reference_to_another_description_is_found(sentence, refers):
    assert bool(BACK_REFERENCE.search(sentence)) == refers

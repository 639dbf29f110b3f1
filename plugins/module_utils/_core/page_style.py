# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The appearance of all pages of the collection: the report of the check, and that of a profile."""

from __future__ import annotations

_LIGHT_THEME = """\
:root {
  --paper: #fbfbf9; --card: #ffffff; --ink: #1c2127; --soft: #59636e; --line: #e3e5e4; --faint: #f1f2f0;
  --good: #14713f; --bad: #b3261e; --warn: #8a5800; --none: #5c656e; --accent: #1f5f99;
  --good-wash: #eaf5ee; --bad-wash: #fcefed; --warn-wash: #fbf3e2;
  --h0: #e6eff7; --h1: #c3d9ec; --h2: #92badd; --h3: #2f76b3; --h4: #184e80;
  --t0: #1c2127; --t1: #1c2127; --t2: #10202e; --t3: #ffffff; --t4: #ffffff;
  --c0: #1f5f99; --c1: #b35a00; --c2: #14713f; --c3: #8a3c8f; --c4: #0f7a80; --c5: #6b5b1e;
}
"""
#: These colours apply on systems with a dark theme if the user has chosen none, and for users who have chosen it.
_DARK_THEME = """\
  color-scheme: dark;
  --paper: #101315; --card: #171b1e; --ink: #e7eaec; --soft: #9ba6b0; --line: #2a3035; --faint: #1d2226;
  --good: #5cc98b; --bad: #ff8a80; --warn: #e6b45c; --none: #8b959e; --accent: #7db8ec;
  --good-wash: #14251b; --bad-wash: #2c1917; --warn-wash: #2a2213;
  --h0: #18242f; --h1: #1d3a55; --h2: #255a88; --h3: #3f87c2; --h4: #79b4e6;
  --t0: #dfe6ec; --t1: #e7eef4; --t2: #ffffff; --t3: #06121c; --t4: #06121c;
  --c0: #7db8ec; --c1: #f0a35e; --c2: #5cc98b; --c3: #d79adb; --c4: #5fc9cf; --c5: #d3c27a;
"""
_PAGE_RULES = """\
:root[data-theme="light"] { color-scheme: light; }
* { box-sizing: border-box; }
html { scroll-padding-top: 4rem; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 Inter, ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums;
}
code, pre { font: 0.9em/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
.jump { position: absolute; left: -999px; }
.jump:focus { left: 1rem; top: .6rem; z-index: 9; background: var(--card); padding: .3rem .6rem; }
.sr { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

.bar { position: sticky; top: 0; z-index: 5; background: color-mix(in srgb, var(--paper) 88%, transparent);
  backdrop-filter: blur(10px); border-bottom: 1px solid var(--line); }
.bar .inner { max-width: 1060px; margin: 0 auto; padding: 0 1.5rem; height: 3.1rem; display: flex; align-items: center; gap: 1.5rem; }
.bar .brand { font-weight: 600; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; min-width: 3rem; }
.bar nav { display: flex; gap: 1.15rem; margin-left: auto; font-size: .88rem; }
.bar nav a { color: var(--soft); text-decoration: none; padding: .3rem 0; }
.bar nav a:hover { color: var(--ink); }
#theme { border: 1px solid var(--line); background: var(--card); color: var(--soft); width: 2rem; height: 2rem;
  border-radius: 50%; cursor: pointer; display: grid; place-items: center; padding: 0; flex: none; }
#theme:hover { color: var(--ink); }

main, footer { max-width: 1060px; margin: 0 auto; padding: 0 1.5rem; }
section { padding: 2.6rem 0 0; }
h1, h2, h3, p, figure, dl, ol, ul { margin: 0; }
h1 { font-size: clamp(1.45rem, 1.1rem + 1.7vw, 2.1rem); line-height: 1.22; font-weight: 640; letter-spacing: -.02em;
  display: flex; gap: .7rem; align-items: baseline; text-wrap: balance; }
h2 { font-size: 1.2rem; font-weight: 620; letter-spacing: -.01em; }
h3 { font-size: 1rem; font-weight: 600; }
.sub { margin: 1.8rem 0 .6rem; }
.intro { color: var(--soft); max-width: 52rem; margin: .25rem 0 1.1rem; text-wrap: pretty; }
.eyebrow { color: var(--soft); font-size: .88rem; margin-bottom: .35rem; }
.meta { color: var(--soft); font-size: .9rem; margin-top: .55rem; }
.meta b { font-weight: 600; color: var(--ink); }
small { font-size: .8rem; font-weight: 400; color: var(--soft); margin-left: .55rem; }
small.bad { color: var(--bad); }

.mark { display: inline-grid; place-items: center; flex: none; width: 1.3em; height: 1.3em; border-radius: 50%;
  font-size: .78em; font-weight: 700; line-height: 1; }
.mark.pass { color: var(--good); background: var(--good-wash); }
.mark.fail { color: var(--bad); background: var(--bad-wash); }
.mark.error { color: var(--warn); background: var(--warn-wash); }
.mark.skipped, .mark.none { color: var(--none); background: var(--faint); }
h1 .mark { font-size: .72em; transform: translateY(-.1em); }

.lead { padding-top: 3rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1px; margin-top: 1.8rem;
  border: 1px solid var(--line); border-radius: 10px; overflow: hidden; background: var(--line); }
.facts > div { background: var(--card); padding: 1rem 1.15rem; }
.facts dt { color: var(--soft); font-size: .84rem; }
.facts dd { margin: .1rem 0 0; font-size: 1.5rem; font-weight: 600; letter-spacing: -.02em; line-height: 1.3; }
.facts dd.note { font-size: .84rem; font-weight: 400; color: var(--soft); letter-spacing: 0; }

.findings { list-style: none; padding: 0; display: grid; gap: .7rem; }
.findings li { display: flex; gap: .85rem; background: var(--card); border: 1px solid var(--line);
  border-left: 3px solid var(--bad); border-radius: 8px; padding: .95rem 1.15rem; }
.findings li.error { border-left-color: var(--warn); }
.findings li > div { min-width: 0; overflow-wrap: anywhere; }
.findings h3 details { display: inline; margin: 0; font-weight: 450; } .findings h3 summary { display: inline;
  list-style: none; text-decoration: underline dotted; }
.findings .reason { margin-top: .15rem; }
.findings .values { display: flex; flex-wrap: wrap; gap: .1rem 1.4rem; color: var(--soft); font-size: .88rem; margin-top: .3rem; }
.findings .values b { color: var(--ink); font-weight: 550; }
.findings .remedy { margin-top: .45rem; padding-left: 1.2rem; position: relative; max-width: 46rem; text-wrap: pretty; }
.findings .remedy::before { content: "→"; position: absolute; left: 0; color: var(--accent); }

.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; color: var(--soft); font-size: .84rem; }
.legend li { display: inline-flex; align-items: center; gap: .45rem; }
.legend i { font-style: normal; width: 1.1rem; height: 1.1rem; border-radius: 3px; display: inline-grid; place-items: center; font-size: .72rem; }
.legend .swatch { width: .8rem; height: .8rem; border-radius: 50%; }

.scroll { overflow-x: auto; max-width: 100%; position: relative; }
.scroll.tall, .members { max-height: 30rem; overflow-y: auto; }
table { border-collapse: collapse; }
.plain { width: 100%; font-size: .9rem; }
.plain th, .plain td { text-align: left; padding: .5rem .9rem .5rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.plain thead th { color: var(--soft); font-weight: 450; font-size: .84rem; position: sticky; top: 0; background: var(--paper); white-space: nowrap; }
.plain tbody th { font-weight: 550; white-space: nowrap; }
.plain .num { text-align: right; }
.plain tr > :last-child { padding-right: 0; }
.plain .second { color: var(--soft); }
.plain td { min-width: 3.5rem; }

.chart svg { display: block; width: 100%; min-width: 34rem; max-width: 50rem; height: auto; }
.rule { stroke: var(--line); stroke-width: 1; }
.tick { fill: var(--soft); font-size: 12px; }
.series { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.chart { margin-bottom: 1.2rem; }
.chart figcaption { margin-top: .5rem; }

details { margin-top: .9rem; } summary { cursor: pointer; color: var(--accent); padding: .2rem 0; }
footer { padding-top: 3rem; padding-bottom: 3rem; color: var(--soft); font-size: .86rem; }

@media (max-width: 760px) {
  .bar .inner, main, footer { padding-left: 1.05rem; padding-right: 1.05rem; }
  .bar nav { gap: .9rem; overflow-x: auto; scrollbar-width: none; }
  .lead { padding-top: 1.8rem; } section { padding-top: 2.2rem; }
  .facts { grid-template-columns: 1fr 1fr; } .facts > div { padding: .8rem .9rem; } .facts dd { font-size: 1.25rem; }
}
@media print { .bar { display: none; } section { break-inside: avoid-page; } body { background: #fff; } }
@media (prefers-reduced-motion: no-preference) { html { scroll-behavior: smooth; } }
"""

PAGE_STYLE = (
    _LIGHT_THEME
    + '@media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) {\n'
    + _DARK_THEME
    + "} }\n"
    + ':root[data-theme="dark"] {\n'
    + _DARK_THEME
    + "}\n"
    + _PAGE_RULES
)

#: The button that switches between light and dark on every page.
THEME_BUTTON = (
    '<button type="button" id="theme" aria-label="Switch between light and dark">'
    '<svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">'
    '<circle cx="7" cy="7" r="6" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    '<path d="M7 1a6 6 0 0 1 0 12z" fill="currentColor"/></svg></button>'
)
THEME_SCRIPT = """\
"use strict";
(function () {
  const root = document.documentElement;
  const stored = (function () {
    // A page opened from a file may be refused storage; the toggle then lasts as long as the page.
    try { return window.localStorage; } catch (refused) { return null; }
  })();
  const chosen = stored && stored.getItem("gpumesh-theme");
  if (chosen === "light" || chosen === "dark") { root.dataset.theme = chosen; }
  document.getElementById("theme").addEventListener("click", function () {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    if (stored) { stored.setItem("gpumesh-theme", root.dataset.theme); }
  });
}());
"""

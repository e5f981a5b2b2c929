"""The look of a report: quiet, for light and dark, a phone and paper. Colour never says anything alone."""

from __future__ import annotations

from impyard.runner.report.markup import Style

CSS = """
:root {
  color-scheme: light dark;
  --page: #fafaf8; --card: #ffffff; --text: #1c1e21; --quiet: #5a6068; --edge: #e2e2de; --soft: #f1f1ee;
  --good: #17663a; --bad: #b0241b; --warn: #7d4e00; --link: #1f5a96; --bad-soft: #fdf1ef; --warn-soft: #fdf6e7;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #141618; --card: #1b1e21; --text: #e4e6e8; --quiet: #a3aab2; --edge: #2e3338; --soft: #23272b;
    --good: #74cf9a; --bad: #ff9489; --warn: #f0bd68; --link: #8fc0f2; --bad-soft: #2c1d1c; --warn-soft: #2b2418;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--page); color: var(--text); overflow-wrap: anywhere;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main, header, footer { max-width: 58rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 3rem; }
footer { padding-top: 2.5rem; padding-bottom: 4rem; color: var(--quiet); font-size: .875rem; }
h1 { font-size: 1.75rem; line-height: 1.25; font-weight: 650; letter-spacing: -.012em; margin: .4rem 0 .9rem; }
h2 { font-size: 1.2rem; line-height: 1.3; font-weight: 650; margin: 3.25rem 0 .35rem; letter-spacing: -.006em; }
h3 { font-size: 1rem; line-height: 1.45; font-weight: 400; margin: 0; }
p { margin: .35rem 0; }
a { color: var(--link); text-underline-offset: .15em; }
a:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 3px; }
code, pre { font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
/* A name must not be able to swap places with what stands beside it, nor be drawn over it. */
code, pre, .said { unicode-bidi: isolate; overflow: clip; overflow-clip-margin: 2px; }
code { direction: ltr; unicode-bidi: isolate-override; }
pre { margin: .35rem 0; white-space: pre-wrap; }
.eyebrow, .note, .quiet { color: var(--quiet); }
.eyebrow, .note { font-size: .875rem; }
.eyebrow { margin: 0; }
.note { max-width: 46rem; margin: 0 0 .9rem; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.warn { color: var(--warn); }
.mark { font-weight: 600; white-space: nowrap; }
.timeline .mark.good { font-weight: 400; }
.outcome { margin: 0; }
.prompt { border-left: 3px solid var(--edge); padding: .1rem 0 .1rem 1rem; margin: 1.25rem 0 0; }
.prompt pre { margin: 0; font: inherit; }
nav ul {
  list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.25rem; margin: 1.5rem 0 0; padding: 0;
  font-size: .9375rem;
}

.figures {
  display: grid; grid-template-columns: repeat(4, 1fr); margin: 1.75rem 0 0; background: var(--card); border:
  1px solid var(--edge); border-radius: 10px; overflow: hidden;
}
.figures div { background: var(--card); padding: .8rem 1rem .75rem; box-shadow: 0 0 0 1px var(--edge); }
.figures.five { grid-template-columns: repeat(5, 1fr); }
.figures dt { font-size: .8125rem; color: var(--quiet); }
.figures dd {
  margin: .1rem 0 0; font-size: 1.3rem; line-height: 1.3; font-weight: 600; font-variant-numeric:
  tabular-nums;
}
.figures small { display: block; font-size: .8125rem; font-weight: 400; color: var(--quiet); }

.alerts { list-style: none; margin: 1.25rem 0 0; padding: 0; }
.alerts li {
  padding: .65rem 1rem; margin: .5rem 0; border-radius: 8px; border-left: 4px solid var(--warn); background:
  var(--warn-soft);
}
.alerts li.is-bad { border-color: var(--bad); background: var(--bad-soft); }

.picture {
  margin: 1rem 0 1.25rem; padding: .9rem 1rem .6rem; background: var(--card); border: 1px solid var(--edge);
  border-radius: 10px;
}
.picture svg { display: block; width: 100%; height: 84px; }
.picture rect.a { fill: var(--good); }
.picture rect.d { fill: var(--bad); }
.picture line { stroke: var(--quiet); stroke-width: 1px; vector-effect: non-scaling-stroke; }
.picture p {
  display: flex; justify-content: space-between; gap: 1rem; margin: .4rem 0 0; font-size: .8125rem; color:
  var(--quiet);
}

.card {
  background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: .85rem 1rem; margin:
  .6rem 0;
}
.card p { font-size: .9375rem; }
.card h3 .times { white-space: nowrap; }
ul { margin: .35rem 0; padding-left: 1.25rem; }
.command {
  display: block; margin: .5rem 0 0; padding: .45rem .7rem; background: var(--soft); border-radius: 6px;
  user-select: all;
}

.timeline { list-style: none; margin: 0; padding: 0; }
.timeline > li { display: grid; grid-template-columns: 3.6rem minmax(0, 1fr); column-gap: .6rem; padding: .18rem 0; }
.timeline time {
  color: var(--quiet); font-size: .8125rem; line-height: 1.9; font-variant-numeric: tabular-nums; white-space:
  nowrap;
}
.timeline .box { border-left: 3px solid var(--edge); padding: .15rem 0 .15rem .9rem; margin: .3rem 0; }
.timeline .who { display: block; font-size: .8125rem; color: var(--quiet); }
.timeline .said { white-space: pre-wrap; margin: 0; font: inherit; }
.timeline .request { line-height: 1.7; }
.timeline .more { font-size: .875rem; color: var(--quiet); }
.timeline summary { cursor: pointer; }
.timeline details pre { background: var(--soft); border-radius: 6px; padding: .5rem .75rem; }
.timeline .call { font-weight: 600; }

table { width: 100%; border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .45rem .6rem; border-bottom: 1px solid var(--edge); vertical-align: baseline; }
thead th { font-size: .8125rem; font-weight: 500; color: var(--quiet); white-space: nowrap; }
th:first-child { text-align: left; font-weight: 500; }
tr > :first-child { padding-left: 0; }
tr > :last-child { padding-right: 0; }
td { white-space: nowrap; }

.facts {
  display: grid; grid-template-columns: minmax(7rem, max-content) minmax(0, 1fr); gap: .3rem 1.25rem; margin:
  .75rem 0; font-size: .9375rem;
}
.facts dt { color: var(--quiet); }
.facts dd { margin: 0; }
.facts dd ul { margin: 0; padding: 0; list-style: none; }
.raw summary { cursor: pointer; margin-top: .75rem; }
.raw pre {
  background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: .75rem 1rem; font-size:
  .8125rem;
}

@media (max-width: 40rem) {
  main, header, footer { padding-left: 1rem; padding-right: 1rem; }
  header { padding-top: 1.5rem; }
  h1 { font-size: 1.4rem; }
  h2 { margin-top: 2.5rem; }
  .figures, .figures.five { grid-template-columns: 1fr 1fr; }
  .timeline > li { grid-template-columns: 3rem minmax(0, 1fr); column-gap: .4rem; }
  .timeline time { font-size: .75rem; line-height: 2.1; }
  .facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .facts dd { margin-bottom: .6rem; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody, tr, th, td { display: block; text-align: left; }
  tbody tr { padding: .6rem 0; border-bottom: 1px solid var(--edge); }
  tbody tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 2rem; }
  tbody th { grid-column: 1 / -1; }
  .card h3 code { display: block; }
  tbody th, td { border: 0; padding: .1rem 0; }
  tbody th { font-weight: 600; }
  td { display: flex; justify-content: space-between; gap: 1rem; }
  td::before { content: attr(data-label); color: var(--quiet); }
}
@media print {
  :root { --page: #fff; --card: #fff; --soft: #f4f4f2; }
  body { font-size: 10.5pt; }
  header { padding-top: 0; }
  nav, .json { display: none; }
  h2, h3 { break-after: avoid; }
  .card, .figures, .timeline > li, tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""

STYLE = Style(CSS)

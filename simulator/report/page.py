"""The page: tiles with the main figures, plots, tables, notes. One file, nothing fetched, readable without scripts."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_LONG = 24
"""Characters from which on a cell may break, and its column is text: aligned to the left, its header too."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #5c6670; --line: #dfe3e7; --page: #f6f7f8; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #333a41; --page: #16191c; --card: #1f2428; }
  figure svg { filter: invert(0.92) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 34px 0 12px; }
.intro { color: var(--soft); margin: 0 0 20px; max-width: 75ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); gap: 12px; }
.tile, figure, .table { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 10px 14px; } .tile b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 12.5px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px 14px; } figure svg { width: 100%; height: auto; display: block; }
figcaption { font-weight: 600; margin-bottom: 6px; } figcaption small { font-weight: 400; color: var(--soft); }
td.long { white-space: normal; min-width: 9ch; overflow-wrap: anywhere; }
.table { overflow-x: auto; padding: 4px 14px; } table { border-collapse: collapse; width: 100%; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; } tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 600; font-size: 13px; } td { font-variant-numeric: tabular-nums; }
.notes { color: var(--soft); font-size: 13.5px; }
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that matters, already formatted."""

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot (SVG text) with its caption."""

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header; the first column names the row."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def page(
    title: str,
    *,
    intro: str = "",
    tiles: Sequence[Tile] = (),
    figures: Sequence[Figure] = (),
    tables: Sequence[Table] = (),
    notes: Sequence[str] = (),
) -> str:
    """The HTML of a report. All text is escaped; SVG is taken as it is."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><main>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="intro">{escape(intro)}</p>' if intro else "",
        f'<div class="tiles">{"".join(map(_tile, tiles))}</div>' if tiles else "",
        *(_table(t) for t in tables),
        "<h2>Plots</h2>" if figures else "",
        f'<div class="figures">{"".join(map(_figure, figures))}</div>' if figures else "",
        f'<h2>Notes</h2><ul class="notes">{"".join(f"<li>{escape(n)}</li>" for n in notes)}</ul>' if notes else "",
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _tile(tile: Tile) -> str:
    return f'<div class="tile"><b>{escape(tile.value)}</b><span>{escape(tile.label)}</span></div>'


def _figure(figure: Figure) -> str:
    small = f" <small>{escape(figure.caption)}</small>" if figure.caption else ""
    return f"<figure><figcaption>{escape(figure.title)}{small}</figcaption>{figure.svg}</figure>"


def _table(table: Table) -> str:
    text = [any(len(row[i]) > _LONG for row in table.rows) for i in range(len(table.header))]
    head = "".join(map(_head, table.header, text))
    rows = "".join("<tr>" + "".join(map(_cell, row, text)) + "</tr>" for row in table.rows)
    return f'<h2>{escape(table.title)}</h2><div class="table"><table><tr>{head}</tr>{rows}</table></div>'


def _head(name: str, text: bool) -> str:
    return f'<th class="text">{escape(name)}</th>' if text else f"<th>{escape(name)}</th>"


def _cell(said: str, text: bool) -> str:
    """Numbers stay on their line; sentences and lists break, or columns behind them would be out of sight."""
    if not text:
        return f"<td>{escape(said)}</td>"
    return f'<td class="text{" long" * (len(said) > _LONG)}">{escape(said)}</td>'

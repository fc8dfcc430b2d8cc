"""A map drawn as one SVG without a script: for a browser, a page, or a mail. Slow cables march in red."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from xml.sax.saxutils import escape

from llmgw.fabric.bundles import Bundle, bundles, count_rates
from llmgw.fabric.curves import Curve, Curves, path_of, point_on
from llmgw.fabric.expected_rate import SlowCable
from llmgw.fabric.layout import (
    GROUP_HEIGHT,
    GROUP_WIDTH,
    MARGIN,
    SWITCH_HEIGHT,
    SWITCH_WIDTH,
    Group,
    PlacedSwitch,
    lay_out,
)
from llmgw.fabric.names import short_name
from llmgw.fabric.rates import format_rate
from llmgw.fabric.report import Analysis, map_text
from llmgw.fabric.topology import Link

RATE_COLOURS = {
    **dict.fromkeys(("SDR", "DDR", "QDR"), "#8d6a58"),
    **dict.fromkeys(("FDR10", "FDR"), "#8159c4"),
    "EDR": "#3179d0",
    "HDR": "#0b918d",
    "NDR": "#2b9150",
    "XDR": "#a97f00",
}
UNKNOWN_COLOUR = "#97a1ad"
SWITCH_CHARS_MAX = 20
GROUP_CHARS_MAX = 13
HEAD_HEIGHT = 84.0
LEGEND_PITCH = 110.0
WIDTH_MIN = 760.0
SEEN_WIDTH = 1400.0
"""So wide a wide map is when all of it is on a screen: its head grows with it, to be read there."""
TIER_WORDS = {"leaf": "leaves", "spine": "spines", "core": "cores", "untiered": "no adapter in reach"}

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE = """
svg{font:10px system-ui,sans-serif;background:#fcfdfe}
text{fill:#1a2430}
.title{font-size:18px}
.tier{font-size:12px;font-weight:600;fill:#566373}
.switch rect{fill:#fff;stroke:#8291a4;stroke-width:1.4}
.switch text{text-anchor:middle;font-size:12px;font-weight:600}
.group rect{fill:#fff;stroke:#d3dae2}
.group text{text-anchor:middle}
.cable{fill:none;stroke-opacity:.4}
.fan{fill:none;stroke-opacity:.6}
.slow{fill:none;stroke:#c9232d;stroke-width:2.5;stroke-dasharray:9 6;animation:march .8s linear infinite;\
vector-effect:non-scaling-stroke}
.marker rect{fill:#c9232d}
.marker text{fill:#fff;text-anchor:middle;font-weight:600}
@keyframes march{to{stroke-dashoffset:-15}}
@media (prefers-reduced-motion:reduce){.slow{animation:none}}
""".strip()


def draw_svg(analysis: Analysis) -> str:
    """The whole map. Text is escaped, and characters that XML forbids are replaced."""
    layout = lay_out(analysis)
    curves = Curves(layout)
    cables = bundles(analysis)
    legend = _rates(analysis.topology.links)
    # The legend's entries follow each other on one line; a narrow map is widened for them.
    width = max(layout.width, 2 * MARGIN + LEGEND_PITCH * (len(legend) + 1), WIDTH_MIN)
    scale = max(1.0, width / SEEN_WIDTH)
    head = scale * HEAD_HEIGHT + _above(curves, cables)
    height = head + layout.height
    ports = _cables_of_adapters(analysis.topology.links)
    tiers = Counter(place.level for place in layout.switches)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">',
        f"<title>{_text(map_text(analysis))}</title>",
        f"<style>{_STYLE}</style>",
        f'<g transform="scale({scale:.2f})">',
        f'<text class="title" x="{MARGIN}" y="34">{_text(map_text(analysis))}</text>',
        *_legend(legend),
        "</g>",
        f'<g transform="translate({(width - layout.width) / 2:.1f} {head:.1f})">',
        *_healthy(curves, cables),
        *(part for place in layout.switches for part in _switch(place)),
        *(_group(group, ports) for group in layout.groups),
        *_slow(curves, cables),
        "</g>",
        *(
            f'<text class="tier" transform="translate(10 {head + y - 6 * scale:.0f}) scale({scale:.2f})">'
            f"{_tier(level, tiers[level])}</text>"
            for level, y in layout.levels.items()
        ),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _above(curves: Curves, cables: Iterable[Bundle]) -> float:
    """How far cables between switches side by side (a ring) bow above the layout."""
    switches = [bundle for bundle in cables if bundle.a.kind == bundle.b.kind == "switch"]
    found = [curve for bundle in switches if (curve := curves.between(bundle.a, bundle.b)) is not None]
    return max([0.0, *(-point_on(curve, 0.5)[1] for curve in found)])


def _tier(level: str, count: int) -> str:
    return f"{count} {level if count == 1 and level != 'untiered' else TIER_WORDS[level]}"


def _rates(links: Iterable[Link]) -> list[tuple[str, str]]:
    """(rate, colour) of all rates, the most common first."""
    seen = Counter((link.rate_text, _colour(link)) for link in links)
    return [rate for rate, _ in seen.most_common(8)]


def _legend(rates: list[tuple[str, str]]) -> list[str]:
    found = []
    for at, (rate, colour) in enumerate(rates):
        x = MARGIN + at * LEGEND_PITCH
        found.append(
            f'<line x1="{x:.0f}" y1="56" x2="{x + 28:.0f}" y2="56" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{x + 34:.0f}" y="60">{_text(rate)}</text>'
        )
    return found


def _healthy(curves: Curves, cables: Iterable[Bundle]) -> list[str]:
    """Trunks, each with what it is made of; the cables of adapters lie close, and their dots tell of them."""
    trunks: list[str] = []
    fans: dict[str, list[str]] = {}
    for bundle in cables:
        curve = curves.between(bundle.a, bundle.b) if bundle.healthy else None
        if curve is None:
            continue
        colour = _colour(bundle.healthy[0])
        if bundle.a.kind == bundle.b.kind == "switch":
            what = f"{bundle.a.label} to {bundle.b.label}: {count_rates(bundle.healthy)}"
            trunks.append(
                f'<path class="cable" d="{path_of(curve)}" stroke="{colour}" '
                f'stroke-width="{1 + math.log2(len(bundle.healthy)):.1f}"><title>{_text(what)}</title></path>'
            )
        else:
            fans.setdefault(colour, []).append(path_of(curve))
    return [
        *trunks,
        *(f'<path class="fan" d="{"".join(paths)}" stroke="{colour}"/>' for colour, paths in fans.items()),
    ]


def _slow(curves: Curves, cables: Iterable[Bundle]) -> list[str]:
    """Each by itself, beside its bundle, with a marker on it; markers are drawn above all cables."""
    paths: list[str] = []
    markers: list[str] = []
    for bundle in cables:
        for at, cable in enumerate(bundle.slow):
            curve = curves.between(bundle.a, bundle.b, (at + 1) * 9.0)
            if curve is None:
                continue
            link = cable.link
            what = f"{link.a.label}[{link.a_port}] to {link.b.label}[{link.b_port}]: {cable.why}"
            paths.append(f'<path class="slow" d="{path_of(curve)}"><title>{_text(what)}</title></path>')
            markers.append(_marker(curve, 0.5 + 0.08 * (len(markers) % 5 - 2), cable, what))
    return paths + markers


def _marker(curve: Curve, part: float, cable: SlowCable, what: str) -> str:
    # Markers on neighbouring cables stand apart.
    x, y = point_on(curve, part)
    label = f"{format_rate(cable.rate)} of {format_rate(cable.expected)}"
    half = 3.2 * len(label) + 6
    return (
        f'<g class="marker"><title>{_text(what)}</title>'
        f'<rect x="{x - half:.1f}" y="{y - 8:.1f}" width="{2 * half:.1f}" height="16" rx="8"/>'
        f'<text x="{x:.1f}" y="{y + 3.5:.1f}">{label}</text></g>'
    )


def _switch(place: PlacedSwitch) -> list[str]:
    node, left = place.node, place.x - SWITCH_WIDTH / 2
    return [
        f'<g class="switch"><title>{_text(node.label)} {node.guid_text}</title>'
        f'<rect x="{left:.1f}" y="{place.y:.1f}" width="{SWITCH_WIDTH}" height="{SWITCH_HEIGHT}" rx="6"/>'
        f'<text x="{place.x:.1f}" y="{place.y + SWITCH_HEIGHT / 2 + 4:.1f}">'
        f"{_text(_cut(short_name(place.label), SWITCH_CHARS_MAX))}</text></g>"
    ]


def _cables_of_adapters(links: Iterable[Link]) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    for link in links:
        for end in (link.a, link.b):
            if end.kind != "switch":
                found.setdefault(end.id, []).append(link)
    return found


def _group(group: Group, cables: dict[str, list[Link]]) -> str:
    dots = []
    for adapter, x in zip(group.adapters, group.dots, strict=True):
        links = cables.get(adapter.id, [])
        ends = ", ".join(f"{link.other(adapter).label} at {link.rate_text}" for link in links) or "no cable"
        dots.append(
            f'<circle cx="{x:.1f}" cy="{group.y:.1f}" r="3.4" '
            f'fill="{_colour(links[0]) if links else UNKNOWN_COLOUR}">'
            f"<title>{_text(adapter.label)}: {_text(ends)}</title></circle>"
        )
    return (
        f'<g class="group"><rect x="{group.x:.1f}" y="{group.y:.1f}" width="{GROUP_WIDTH}" '
        f'height="{GROUP_HEIGHT}" rx="4"/>'
        f'<text x="{group.x + GROUP_WIDTH / 2:.1f}" y="{group.y + GROUP_HEIGHT / 2 + 6:.1f}">'
        f"{_text(_cut(group.label, GROUP_CHARS_MAX))}</text>{''.join(dots)}</g>"
    )


def _colour(link: Link) -> str:
    return UNKNOWN_COLOUR if link.rate is None else RATE_COLOURS.get(link.rate[1], UNKNOWN_COLOUR)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _text(text: str) -> str:
    """Escaped, and without what XML 1.0 cannot hold (control characters, surrogates)."""
    return escape(_NOT_XML.sub("\ufffd", text))

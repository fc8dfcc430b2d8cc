"""A map drawn as one SVG without a script: for a browser, a page, or a mail. Slow cables march in red."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from xml.sax.saxutils import escape

from llmgw.fabric.expected_rate import SlowCable
from llmgw.fabric.layout import (
    MARGIN,
    ROW,
    SWITCH_HEIGHT,
    SWITCH_WIDTH,
    Bundle,
    Layout,
    PlacedSwitch,
    Slot,
    count_rates,
    lay_out,
)
from llmgw.fabric.names import short_name
from llmgw.fabric.rates import format_rate
from llmgw.fabric.report import Analysis
from llmgw.fabric.topology import Link

RATE_COLOURS = {
    **dict.fromkeys(("SDR", "DDR", "QDR"), "#8d6e63"),
    **dict.fromkeys(("FDR10", "FDR"), "#7e57c2"),
    "EDR": "#1e88e5",
    "HDR": "#00897b",
    "NDR": "#43a047",
    "XDR": "#c0a000",
}
UNKNOWN_COLOUR = "#9e9e9e"
LABEL_CHARS_MAX = 24

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE = """
svg{font:10px system-ui,sans-serif;background:#fff}
text{fill:#222}
.tier{font-size:13px;fill:#777}
.title{font-size:18px}
.switch rect{fill:#eef2f7;stroke:#5b6b7c}
.switch text{text-anchor:middle;font-size:10px}
.cable{fill:none;stroke-opacity:.45}
.count{font-size:9px;fill:#555;text-anchor:middle}
.row line{stroke:#b8c2cc}
.slow{fill:none;stroke:#e53935;stroke-width:2.5;stroke-dasharray:9 6;animation:march .8s linear infinite}
.marker rect{fill:#e53935}
.marker text{fill:#fff;text-anchor:middle;font-size:10px;font-weight:600}
.bad text{fill:#c62828;font-weight:600}
@keyframes march{to{stroke-dashoffset:-15}}
@media (prefers-reduced-motion:reduce){.slow{animation:none}}
""".strip()


def draw_svg(analysis: Analysis) -> str:
    """The whole map. Text is escaped, and characters that XML forbids are replaced."""
    layout = lay_out(analysis)
    legend = _rates(analysis.topology.links)
    # The legend's entries follow each other on one line; a narrow map is widened for them.
    width = max(layout.width, 2 * MARGIN + 110.0 * (len(legend) + 1), 760.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {layout.height:.0f}" '
        f'width="{width:.0f}" height="{layout.height:.0f}" role="img">',
        f"<title>{_text(_summary(analysis))}</title>",
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{MARGIN}" y="34">{_text(_summary(analysis))}</text>',
        *_legend(legend),
        *(
            f'<text class="tier" x="6" y="{y - 8:.0f}">{_tier_name(level)}</text>'
            for level, y in layout.levels.items()
        ),
        *_cables(layout),
        *(part for place in layout.switches for part in _switch(place)),
        *_slow_cables(layout),
        *_loose(layout),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _summary(analysis: Analysis) -> str:
    topology = analysis.topology
    slow = f", {len(analysis.slow)} below their rate" if analysis.slow else ""
    return (
        f"{len(topology.of_kind('switch'))} switches, {len(topology.of_kind('adapter'))} adapters, "
        f"{len(topology.links)} cables{slow}"
    )


def _tier_name(level: str) -> str:
    return "no adapter in reach" if level == "untiered" else level


def _rates(links: Iterable[Link]) -> list[tuple[str, str]]:
    """(rate, colour) of all rates, the most common first."""
    seen = Counter((link.rate_text, _colour(link)) for link in links)
    return [rate for rate, _ in seen.most_common(8)]


def _legend(rates: list[tuple[str, str]]) -> list[str]:
    found = []
    for at, (rate, colour) in enumerate(rates):
        x = MARGIN + at * 110
        found.append(
            f'<line x1="{x:.0f}" y1="56" x2="{x + 28:.0f}" y2="56" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{x + 34:.0f}" y="60">{_text(rate)}</text>'
        )
    return found


def _cables(layout: Layout) -> list[str]:
    found = []
    for bundle in layout.bundles:
        slow = {id(cable.link) for cable in bundle.slow}
        healthy = [link for link in bundle.links if id(link) not in slow]
        if healthy:
            width = 1 + math.log2(len(healthy))
            what = f"{bundle.a.node.label} to {bundle.b.node.label}: {count_rates(healthy)}"
            found.append(
                f'<path class="cable" d="{_path(bundle, 0)}" stroke="{_colour(healthy[0])}" '
                f'stroke-width="{width:.1f}"><title>{_text(what)}</title></path>'
            )
    return found


def _slow_cables(layout: Layout) -> list[str]:
    """Each by itself, beside its bundle, with a marker on it; markers are drawn above all cables."""
    paths: list[str] = []
    markers: list[str] = []
    for bundle in layout.bundles:
        for at, cable in enumerate(bundle.slow):
            shift = (at + 1) * 9.0
            link = cable.link
            what = f"{link.a.label}[{link.a_port}] to {link.b.label}[{link.b_port}]: {cable.why}"
            paths.append(f'<path class="slow" d="{_path(bundle, shift)}"><title>{_text(what)}</title></path>')
            x, y = _point(bundle, shift, 0.5 + 0.08 * (len(markers) % 5 - 2))
            markers.append(_marker(x, y, cable, what))
    return paths + markers


def _marker(x: float, y: float, cable: SlowCable, what: str) -> str:
    label = f"{format_rate(cable.rate)} of {format_rate(cable.expected)}"
    half = 3.2 * len(label) + 6
    return (
        f'<g class="marker"><title>{_text(what)}</title>'
        f'<rect x="{x - half:.1f}" y="{y - 8:.1f}" width="{2 * half:.1f}" height="16" rx="8"/>'
        f'<text x="{x:.1f}" y="{y + 3.5:.1f}">{label}</text></g>'
    )


def _switch(place: PlacedSwitch) -> list[str]:
    node, left = place.node, place.x - SWITCH_WIDTH / 2
    found = [
        f'<g class="switch"><title>{_text(node.label)} {node.guid_text}</title>'
        f'<rect x="{left:.1f}" y="{place.y:.1f}" width="{SWITCH_WIDTH}" height="{SWITCH_HEIGHT}" rx="4"/>'
        f'<text x="{place.x:.1f}" y="{place.y + 16:.1f}">{_text(_short(short_name(place.label)))}</text></g>'
    ]
    for at, slot in enumerate(place.slots):
        found.append(_row(slot, left + 8, place.y + SWITCH_HEIGHT + (at + 0.5) * ROW))
    if place.slots:
        # One line down from the switch carries all rows.
        end = place.y + SWITCH_HEIGHT + (len(place.slots) - 0.5) * ROW
        found.append(
            f'<path class="cable" d="M{left + 8:.1f} {place.y + SWITCH_HEIGHT:.1f}V{end:.1f}" '
            f'stroke="{_colour(place.slots[0].links[0])}" stroke-width="1.5"/>'
        )
    return found


def _row(slot: Slot, x: float, y: float) -> str:
    squares = "".join(
        f'<rect x="{x + 8 + at * 7:.1f}" y="{y - 3:.1f}" width="5" height="6" fill="{_colour(link)}"/>'
        for at, link in enumerate(slot.links[:8])
    )
    text_x = x + 12 + min(len(slot.links), 8) * 7
    slow = slot.slow[0] if slot.slow else None
    label = _short(slot.label)
    if slow is not None:
        label = f"{label}: {format_rate(slow.rate)} of {format_rate(slow.expected)}"
    ports = ", ".join(
        str(link.other(adapter).label) for link, adapter in zip(slot.links, slot.adapters, strict=True)
    )
    title = f"{slot.label} on {ports}: {count_rates(slot.links)}"
    if slow is not None:
        title += f"; {slow.why}"
    reach = (
        f'<path class="slow" d="M{x:.1f} {y:.1f}h8"/>'
        if slow is not None
        else f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + 8:.1f}" y2="{y:.1f}"/>'
    )
    return (
        f'<g class="row{" bad" if slow is not None else ""}"><title>{_text(title)}</title>{reach}{squares}'
        f'<text x="{text_x:.1f}" y="{y + 3.5:.1f}">{_text(label)}</text></g>'
    )


def _loose(layout: Layout) -> list[str]:
    """Adapters that no cable joins to a switch, on lines of their own at the bottom."""
    return [
        f'<text x="{MARGIN}" y="{layout.height - MARGIN + (at - len(layout.loose)) * ROW:.1f}">'
        f"{_text(node.label)}: no cable to a switch</text>"
        for at, node in enumerate(layout.loose)
    ]


def _ends(bundle: Bundle) -> tuple[float, float, float, float]:
    """From the lower edge of the upper switch to the upper edge of the lower one; side by side, edge to edge."""
    upper, lower = (bundle.a, bundle.b) if bundle.a.y <= bundle.b.y else (bundle.b, bundle.a)
    if upper.y == lower.y:
        return upper.x, upper.y, lower.x, lower.y
    return upper.x, upper.y + SWITCH_HEIGHT, lower.x, lower.y


def _path(bundle: Bundle, shift: float) -> str:
    x1, y1, x2, y2 = _ends(bundle)
    if y1 == y2:
        bow = 30 + min(abs(x2 - x1) / 12, 60) + shift
        return f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {y1 - 2 * bow:.1f} {x2:.1f} {y2:.1f}"
    x1, x2, middle = x1 + shift, x2 + shift, (y1 + y2) / 2
    return f"M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"


def _point(bundle: Bundle, shift: float, part: float) -> tuple[float, float]:
    """Where a cable is after this part of its way: markers on neighbouring cables stand apart."""
    x1, y1, x2, y2 = _ends(bundle)
    if y1 == y2:
        return x1 + (x2 - x1) * part, y1 - 4 * part * (1 - part) * (30 + min(abs(x2 - x1) / 12, 60) + shift)
    bend = 3 * part * (1 - part)
    along = 3 * part**2 - 2 * part**3
    y = y1 * (1 - part) ** 3 + (y1 + y2) / 2 * bend + y2 * part**3
    return x1 + shift + (x2 - x1) * along, y


def _colour(link: Link) -> str:
    return UNKNOWN_COLOUR if link.rate is None else RATE_COLOURS.get(link.rate[1], UNKNOWN_COLOUR)


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARS_MAX else f"{text[: LABEL_CHARS_MAX - 1]}…"


def _text(text: str) -> str:
    """Escaped, and without what XML 1.0 cannot hold (control characters, surrogates)."""
    return escape(_NOT_XML.sub("\ufffd", text))

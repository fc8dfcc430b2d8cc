"""Figures of a bench: a value with its unit, and the limit that was promised for it, if any."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured value. Beyond `limit` (at most) or below `least` the bench fails."""

    what: str
    value: float
    unit: str
    limit: float | None = None
    least: float | None = None

    @property
    def beyond_limit(self) -> bool:
        return (self.limit is not None and self.value > self.limit) or (
            self.least is not None and self.value < self.least
        )

    @property
    def promise(self) -> str:
        """The limit in words."""
        if self.limit is not None:
            return f"at most {self.limit:g}"
        return "" if self.least is None else f"at least {self.least:g}"

    @property
    def shown(self) -> str:
        """The value with as many digits as say something."""
        return _short(self.value)


@dataclass
class Figures:
    """All figures of one run, and tables that show how they grow."""

    bench: str
    figures: list[Figure] = field(default_factory=list)
    growth: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)
    """(title, column names, rows)."""
    notes: list[str] = field(default_factory=list)
    """Sentences that belong below the tables."""
    measurements: list[dict[str, Any]] = field(default_factory=list)
    """What the figures were made of, for programs."""

    def add(
        self, what: str, value: float, unit: str, limit: float | None = None, *, least: float | None = None
    ) -> None:
        """Keep one figure."""
        self.figures.append(Figure(what, value, unit, limit, least))

    def beyond_limits(self) -> list[Figure]:
        """Figures that break a promise."""
        return [figure for figure in self.figures if figure.beyond_limit]

    def show(self) -> None:
        """Print the table, and the machine's load, without which no figure means much."""
        console = Console(width=110)
        table = Table("what", "value", "unit", "limit", title=f"bench {self.bench}", title_justify="left")
        for figure in self.figures:
            limit = f"beyond: {figure.promise}" if figure.beyond_limit else figure.promise
            table.add_row(figure.what, figure.shown, figure.unit, limit)
        console.print(table)
        for title, columns, rows in self.growth:
            grown = Table(*columns, title=title, title_justify="left")
            for row in rows:
                grown.add_row(*row)
            console.print(grown)
        for note in self.notes:
            console.print(note)
        console.print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")

    def write_json(self, path: Path) -> None:
        """The same for programs."""
        path.write_text(
            json.dumps(
                {
                    "bench": self.bench,
                    "at": time.time(),
                    "python": platform.python_version(),
                    "cpus": os.cpu_count(),
                    "load": os.getloadavg()[0],
                    "figures": [
                        {"what": f.what, "value": f.value, "unit": f.unit, "limit": f.limit, "least": f.least}
                        for f in self.figures
                    ],
                    "growth": [
                        {"title": title, "columns": columns, "rows": rows} for title, columns, rows in self.growth
                    ],
                    "notes": self.notes,
                    "measurements": self.measurements,
                },
                indent=2,
            )
            + "\n"
        )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.3g}"

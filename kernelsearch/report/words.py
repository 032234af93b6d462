"""Numbers as a report writes them, the same in every format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

MISSING = "-"
# What no page, terminal or spreadsheet should be sent: controls, and halves of characters.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """Return a text of a candidate's with what cannot be printed made visible."""
    return _UNPRINTABLE.sub("\ufffd", text)


def speedup(value: float | None) -> str:
    """Return a ratio of times: ``1.80x``."""
    return MISSING if value is None else f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def percent(value: float | None) -> str:
    """Return a fraction in percent; below ten with one decimal."""
    if value is None:
        return MISSING
    return f"{100 * value:.1f} %" if value < 0.0995 else f"{100 * value:.0f} %"


def microseconds(value: float | None) -> str:
    """Return a device time, given in microseconds."""
    if value is None:
        return MISSING
    if value >= 1e6:
        return f"{value / 1e6:.3g} s"
    return f"{value / 1e3:.4g} ms" if value >= 1e3 else f"{value:.4g} µs"


def duration(seconds: float | None) -> str:
    """Return how long something took."""
    if seconds is None:
        return MISSING
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def dollars(value: float) -> str:
    """Return an amount of US dollars."""
    return f"{value:.2f} USD" if value >= 1 or value == 0 else f"{value:.4f} USD"


def params(values: Mapping[str, object]) -> str:
    """Return params as ``NAME=VALUE`` words."""
    return " ".join(f"{k}={v}" for k, v in values.items())


def quantity(value: float | None, unit: str) -> str:
    """Return a number with a unit and its thousands: ``12.4 GB``."""
    if value is None:
        return MISSING
    for limit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {sign}{unit}"
    return f"{value:.3g} {unit}"


def moment(seconds: float) -> str:
    """Return a date and time (UTC) from seconds since the epoch."""
    if not seconds:
        return MISSING
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def plain(name: str) -> str:
    """Return an identifier as words."""
    return name.replace("_", " ")


def short(name: str) -> str:
    """Return a variant's name with the middle of a long line of changes left out."""
    parts = clean(name).split("+")
    shown = parts if len(parts) <= 4 else [parts[0], "…", *parts[-2:]]
    text = "+".join(shown)
    return text if len(text) <= 60 else f"{text[:24]}…{text[-35:]}"

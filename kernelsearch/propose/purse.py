"""Money for model calls: a dated table of prices, reserved before a call, settled after it."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelsearch.errors import SpecError, UnknownNameError
from kernelsearch.propose.exchange import Prompt, Usage

PRICES_FILE = Path(__file__).with_name("prices.toml")
CACHE_WRITE_FACTOR = 1.25
MILLION = 1e6
# Estimated tokens may be too few: what is reserved must not be.
SAFETY = 1.5


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens."""

    input: float
    output: float
    cache_read: float

    def cost(self, usage: Usage) -> float:
        """Return what tokens cost, US dollars."""
        return (
            usage.input_tokens * self.input + usage.output_tokens * self.output
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.input * CACHE_WRITE_FACTOR
        ) / MILLION  # fmt: skip

    def at_most(self, prompt: Prompt) -> float:
        """Return what one request can cost: nothing cached, the longest answer."""
        tokens = int(SAFETY * prompt.tokens)
        return self.cost(Usage(cache_write_tokens=tokens, output_tokens=prompt.max_tokens))


def read_prices(*paths: Path) -> dict[str, Price]:
    """Read tables of prices; later ones override earlier ones, a missing file is an empty one.

    Raises:
        SpecError: a file is no such table.
    """
    found: dict[str, Price] = {}
    for path in paths:
        if not path.is_file():
            continue
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
            for name, row in document["models"].items():
                price = Price(**{k: float(v) for k, v in row.items()})
                if min(price.input, price.output, price.cache_read) < 0:
                    raise ValueError(f"{name} has a negative price")
                found[name] = price
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpecError(
                f"{path}: must be a table of prices like {PRICES_FILE} ({error})"
            ) from error
    return found


def price_of(model: str, prices: Mapping[str, Price]) -> Price:
    """Return the price of a model, a dated name counting as its undated one.

    Raises:
        UnknownNameError: the table has no such model, so that no limit could be kept.
    """
    if model in prices:
        return prices[model]
    undated = model.rsplit("-", 1)[0]
    if undated in prices and model.rsplit("-", 1)[1].isdigit():
        return prices[undated]
    raise UnknownNameError(
        "model", model, prices,
        "(its price is not known: add it to prices.toml in KERNELSEARCH_HOME)",
    )  # fmt: skip


class Purse:
    """The money one run may spend on model calls; usable from several threads.

    Args:
        limit_usd: most that may be spent.
    """

    def __init__(self, limit_usd: float) -> None:
        if not limit_usd > 0:
            raise SpecError(f"--spend must be above 0 US dollars (got {limit_usd!r})")
        self.limit_usd = limit_usd
        self._spent = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    @property
    def spent_usd(self) -> float:
        return self._spent

    def reserve(self, amount: float) -> bool:
        """Set an amount aside for a call; False if what is left does not cover it."""
        with self._lock:
            if self._spent + self._reserved + amount > self.limit_usd:
                return False
            self._reserved += amount
            return True

    def settle(self, reserved: float, cost: float) -> None:
        """Put back what was reserved and take what the call did cost."""
        with self._lock:
            self._reserved = max(0.0, self._reserved - reserved)
            self._spent += cost

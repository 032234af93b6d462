"""The fixed texts of requests: templates, guides and the meaning of directions, from files."""

from __future__ import annotations

import re
import tomllib
from functools import cache

from kernelsearch.resources import resource_folder

# Examples that tests compile.
_SNIPPET = re.compile(r"^```(cuda|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@cache
def prompt_text(name: str) -> str:
    """Return the text of ``templates/prompts/<name>.md``."""
    path = resource_folder("templates") / "prompts" / f"{name}.md"
    return path.read_text(encoding="utf-8")


@cache
def direction_texts() -> dict[str, str]:
    """Return what each direction of a diagnosis means."""
    path = resource_folder("templates") / "prompts" / "directions.toml"
    return {str(k): str(v) for k, v in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def guide_names(language: str, arch: str) -> tuple[str, ...]:
    """Return the guides for a target's language and architecture, general ones first."""
    if language != "cuda":
        return ("guides/cpu",)
    return ("guides/cuda", "guides/sm_90") if arch.startswith("sm_90") else ("guides/cuda",)


def snippets(name: str) -> list[tuple[str, str]]:
    """Return the code examples of a guide: (``cuda`` or ``python``, text)."""
    return [(m[1], m[2]) for m in _SNIPPET.finditer(prompt_text(name))]

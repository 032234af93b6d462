"""Import a user's CUDA file: its host code becomes a launch plan, its kernels a variant file."""

from __future__ import annotations

from importlib.util import find_spec

from kernelsearch.errors import MissingExtraError

for _module in ("tree_sitter", "tree_sitter_cuda", "pcpp", "sympy"):
    if find_spec(_module) is None:
        raise MissingExtraError("importing a CUDA file", "import", _module.replace("_", "-"))

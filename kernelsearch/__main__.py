"""``python -m kernelsearch`` is the ``kernelsearch`` command."""

from __future__ import annotations

from kernelsearch.cli import main

if __name__ == "__main__":
    main()

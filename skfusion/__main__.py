"""`skfusion` and `python -m skfusion`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with 0, 1 (failed) or 2 (bad input)."""
    try:
        from .cli import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "click", "rich"):
            raise
        sys.exit(f'{error}. Install it with pip install "skfusion[cli]".')  # and exit code 1
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()

"""The command `penaltybox`: runs it, and makes every expected failure one sentence and exit code 2."""

from __future__ import annotations

import logging
import sys
from asyncio import CancelledError

from penaltybox.contracts.errors import PenaltyboxError

_INTERRUPTED = 130


def run() -> None:
    """The console script."""
    try:
        from penaltybox.cli.commands import app  # a light install has no typer: told below
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == "penaltybox":
            raise
        sys.exit(f"The command line needs {error.name}: pip install 'penaltybox[worker]' (or [embedded], for the demo)")
    except KeyboardInterrupt:  # reading so many modules takes a second, and nobody asked for a traceback
        sys.exit(_INTERRUPTED)
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' own complaints: we say it in a sentence
    try:
        app(prog_name="penaltybox")
    except PenaltyboxError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
    except (KeyboardInterrupt, CancelledError):
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:  # `penaltybox blocks | head`
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    run()

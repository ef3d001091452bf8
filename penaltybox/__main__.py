"""`python -m penaltybox`: the same as the command `penaltybox`."""

from penaltybox.cli.main import run

if __name__ == "__main__":
    run()

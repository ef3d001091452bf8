"""What `penaltybox run` logs."""

from __future__ import annotations

import subprocess
import sys

import pytest

SPEAK = """
import logging, sys
from aiokafka.protocol.admin import SaslAuthenticateRequest
from penaltybox.cli.roles import log_as

log_as(sys.argv[1])
# As aiokafka/conn.py does with every request that it sends.
logging.getLogger("aiokafka.conn").debug("Request to %s:%d %d: %s", "h", 1, 1, SaslAuthenticateRequest(b"u\\0s3cret"))
logging.getLogger("penaltybox.x").debug("ours")
"""


@pytest.mark.parametrize(("level", "ours"), [("DEBUG", True), ("INFO", False), ("ERROR", False)])
def test_no_level_of_logging_tells_a_password(level: str, ours: bool) -> None:
    """aiokafka's DEBUG lines hold SASL passwords and whole records: only our own loggers go below INFO."""
    done = subprocess.run([sys.executable, "-c", SPEAK, level], capture_output=True, text=True, check=True, timeout=60)
    assert "s3cret" not in done.stderr
    assert ("ours" in done.stderr) == ours

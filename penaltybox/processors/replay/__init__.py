"""Replay: recorded traffic through the live engine, in memory, under another policy. It writes nothing anywhere."""

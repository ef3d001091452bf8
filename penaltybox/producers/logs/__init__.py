"""Log files read as the formats of `producers/adapters` say: once through, or followed as they are written."""

"""Real servers from PyPI wheels on one machine: broker, Valkey, ClickHouse's engine."""

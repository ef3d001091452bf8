"""Where results go: the Redis subject store and blocklist, and ClickHouse."""

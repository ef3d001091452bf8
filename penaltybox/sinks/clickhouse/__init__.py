"""ClickHouse: schema by versioned migrations, a columnar writer that stores each event once, the shipped queries."""

"""HTTP without I/O: what a client is told, whose address a request has, and what a limiter is asked about it."""

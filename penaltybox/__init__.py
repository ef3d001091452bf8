"""penaltybox: the event-driven processor behind your rate limiter."""

__version__ = "0.1.0"

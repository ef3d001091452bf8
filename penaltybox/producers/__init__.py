"""Where decisions come from: limiter, log adapters, publisher."""

"""Envoy's rate limit service (v3), in front of the limiter, or beside another service of the kind."""

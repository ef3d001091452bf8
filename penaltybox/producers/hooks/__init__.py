"""Hooks into other people's limiters for Python: each publishes what they decide, and changes nothing about it."""

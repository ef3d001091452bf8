"""The decision service: gateways and programs in any language ask it over HTTP about each request."""

-- Leaky bucket, as a meter: room for `burst`, drains by `limit` per window. An empty one is no key.

algorithms.leaky_bucket = draining('leaky')

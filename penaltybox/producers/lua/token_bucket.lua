-- Token bucket: holds `burst` tokens, refilled by `limit` per window. Stored is what is missing, so a full one is no key.

algorithms.token_bucket = draining('token')

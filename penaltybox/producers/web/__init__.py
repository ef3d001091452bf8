"""Ways in for Python programs: ASGI, WSGI, Django, Flask, and a decorator for functions."""

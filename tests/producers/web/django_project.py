"""The settings of Django in the tests' process: it can be told them once."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings

from tests.producers.web.shop import POLICY

SHOP = "tests.producers.web.django_shop"
CONFIGURED: dict[str, Any] = {
    "policy": POLICY,
    "limiter": f"{SHOP}.LIMITER",
    "user": f"{SHOP}.user_of",
    "exclude": ["/health"],
}


def configure() -> None:
    """Django is configured once per process."""
    if not settings.configured:
        settings.configure(
            ROOT_URLCONF=SHOP,
            MIDDLEWARE=["penaltybox.producers.web.django.PenaltyboxMiddleware"],
            PENALTYBOX=CONFIGURED,
            ALLOWED_HOSTS=["*"],
            USE_TZ=True,
        )
        django.setup()

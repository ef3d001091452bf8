"""The quick starts of docs/limiter.md are followed to the letter, each in an empty directory, on a real Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.fenced_blocks import Block, fenced_blocks
from tests.ports import free_port
from tests.redis_servers import BINARIES, single

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "limiter.md"
NAMED = {
    match[1]: block
    for block in fenced_blocks(PAGE)
    if block.language == "python" and (match := re.match(r"# (\w+\.py)\n", block.text))
}

# What somebody does with each page's application: three claims pass, the fourth is refused.
DRIVEN = {
    "fastapi_app.py": """
import asyncio, httpx
from fastapi_app import app

async def login(scope, receive, send):  # stands for SessionMiddleware
    await app({**scope, "session": {"user_id": "eve"}}, receive, send)

async def main():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(login), base_url="http://shop.test") as client:
        for _ in range(4):
            answer = await client.post("/coupons/7/claim")
            print(answer.status_code, answer.text if answer.status_code == 200 else answer.headers["retry-after"] > "0")

asyncio.run(main())
""",
    "flask_app.py": """
from flask_app import app
client = app.test_client()
with client.session_transaction() as session:
    session["user_id"] = "eve"
print([client.post("/coupons/7/claim").status_code for _ in range(4)])
print([client.post("/invitations").status_code for _ in range(3)])
""",
    "django_settings.py": """
import django, django_settings
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.urls import path

def claim(request, pk):
    return HttpResponse(str(request.penaltybox.allowed))

class SomebodyMiddleware:  # stands for AuthenticationMiddleware
    def __init__(self, get_response):
        self.get_response = get_response
    def __call__(self, request):
        request.user = type("User", (), {"pk": "eve", "is_authenticated": True})
        return self.get_response(request)

urlpatterns = [path("coupons/<int:pk>/claim", claim)]
settings.configure(
    MIDDLEWARE=["__main__.SomebodyMiddleware", *django_settings.MIDDLEWARE], PENALTYBOX=django_settings.PENALTYBOX,
    ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"],
)
django.setup()
print([Client().post("/coupons/7/claim").status_code for _ in range(4)])
""",
    "wsgi_app.py": """
from wsgi_app import app
seen = []
for _ in range(4):
    app(
        {"PATH_INFO": "/coupons/7", "REQUEST_METHOD": "POST", "REMOTE_USER": "eve"},
        lambda status, headers: seen.append(int(status[:3])),
    )
print(seen)
""",
    "mails.py": "import mails",
}
SHOWN = {
    "fastapi_app.py": "".join(f'200 {{"coupon":7,"left":[{left}]}}\n' for left in (2, 1, 0)) + "429 True\n",
    "flask_app.py": "[200, 200, 200, 429]\n[200, 200, 429]\n",
    "django_settings.py": "[200, 200, 200, 429]\n",
    "wsgi_app.py": "[200, 200, 200, 429]\n",
}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory with everything that the page says to save, and a Redis that `redis_url` there names."""
    (policy,) = [block for block in fenced_blocks(PAGE) if block.language == "yaml" and "send_email" in block.text]
    patient = policy.text.replace("failure: closed", "failure: closed, deadline: 5s")  # tests share their machine
    (tmp_path / "policy.yaml").write_text(f"{patient}  send_email: {{deadline: 5s}}\n")
    for name, block in NAMED.items():
        (tmp_path / name).write_text(block.text)
    server = single(next(iter(BINARIES.values())), tmp_path / "redis")
    (tmp_path / "redis_url").write_text(f"redis://127.0.0.1:{server.port}/0")
    yield tmp_path
    server.kill()


def test_every_quick_start_is_followed() -> None:
    """No program of the page is left out."""
    assert set(NAMED) == {"limits.py", *DRIVEN}


@pytest.mark.parametrize("name", DRIVEN)
def test_a_quick_start_works(name: str, home: Path) -> None:
    """Three claims pass, the fourth is refused, as the page has it, though Kafka is away."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENALTYBOX_")} | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{home}",
        "PENALTYBOX_REDIS_URL": (home / "redis_url").read_text(),
        "PENALTYBOX_KAFKA": f"127.0.0.1:{free_port()}",
        "PENALTYBOX_SPILL_DIR": str(home / "spill"),
        "PENALTYBOX_PUBLISHER_STOP_S": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", DRIVEN[name]],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    block: Block = NAMED[name]
    if block.expected:
        assert block.meets(ran.stdout), ran.stdout
    else:
        assert ran.stdout == SHOWN[name], ran.stderr
    assert list((home / "spill").rglob("*")), "the refusal waits on disk for Kafka"

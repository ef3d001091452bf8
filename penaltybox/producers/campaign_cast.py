"""Who takes part in the simulated campaign and what each of them asks for, drawn from a seed.

Everybody's nature is known here and nowhere else: the limiter, the workers and ClickHouse see requests and, of a stated
fraction, outcomes.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OFFICE_IP: Final = "203.0.113.7"
FARM_DEVICE: Final = "farm-phone"
STUFFING_IP: Final = "192.0.2.99"
_PHONE_FARM_IP: Final = "192.0.2.77"
_FARM_IP: Final = "192.0.2.66"


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """One participant. `told`: outcomes about them are reported. `established`: known and trusted before."""

    role: str
    legitimate: bool
    subjects: dict[str, str]
    established: bool | None = None
    told: bool = False


class Call(NamedTuple):
    """One request that a participant will send; `number` makes the order and the id definite."""

    ts_ms: int
    number: int
    person: Person
    scenario: str
    route: str
    login_name: str = ""


class _Draft(NamedTuple):
    at_ms: int
    person: Person
    scenario: str
    login_name: str = ""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each, and which fraction is labelled by outcomes."""

    normal: int = 1_600
    office: int = 200
    cafes: int = 6
    cafe_guests: int = 30
    families: int = 30
    farm_accounts: int = 300
    phones: int = 25
    accounts_per_phone: int = 8
    scrapers: int = 25
    greedy: int = 50
    stuffing_per_s: int = 10
    labelled: float = 0.4


ROUTES: Final = {"login": "POST /login", "coupon_claim": "POST /coupons/{n}/claim", "web": "GET /offers/{text}"}


class Cast:
    """Draws participants and their requests for `length_ms` from the start of the campaign.

    Args:
        sizes: how many of whom.
        seed: the same seed gives the same campaign.
        length_ms: duration.
    """

    def __init__(self, sizes: Sizes, seed: int, length_ms: int) -> None:
        self._sizes = sizes
        self._random = random.Random(seed)  # noqa: S311 - a simulation that must repeat, no secret
        self._length_ms = length_ms
        self.people: list[Person] = []

    def calls(self, start_ms: int) -> list[Call]:
        """All requests in the order of their times."""
        drafts: list[_Draft] = []
        groups: tuple[Callable[[], Iterator[_Draft]], ...] = (
            self._normal,
            self._office,
            self._cafes,
            self._families,
            self._farm,
            self._phone_farm,
            self._stuffing,
            self._greedy,
            self._scrapers,
        )
        for group in groups:
            drafts += group()
        drafts.sort(key=lambda draft: draft.at_ms)
        return [
            Call(start_ms + draft.at_ms, number, draft.person, draft.scenario, ROUTES[draft.scenario], draft.login_name)
            for number, draft in enumerate(drafts)
            if draft.at_ms < self._length_ms
        ]

    def _person(
        self, role: str, subjects: dict[str, str], *, legitimate: bool, established: float | None = None
    ) -> Person:
        person = Person(
            role=role,
            legitimate=legitimate,
            subjects=subjects,
            established=None if established is None else self._random.random() < established,
            told=self._random.random() < self._sizes.labelled,
        )
        self.people.append(person)
        return person

    def _browse(self, person: Person, start_ms: float, end_ms: float, gap_ms: float) -> Iterator[_Draft]:
        """Pages at random gaps around a mean."""
        at_ms = start_ms + self._random.random() * gap_ms
        while at_ms < end_ms:
            yield _Draft(int(at_ms), person, "web")
            at_ms += gap_ms * (0.3 + 1.4 * self._random.random())

    def _claims(self, person: Person, at_ms: float, times: int, gap_ms: float) -> Iterator[_Draft]:
        for _ in range(times):
            yield _Draft(int(at_ms), person, "coupon_claim")
            at_ms += gap_ms * (0.5 + self._random.random())

    def _normal(self) -> Iterator[_Draft]:
        """At home, one device each: log in, look around, claim one to three coupons. Some click too often."""
        draw = self._random.random
        for number in range(self._sizes.normal):
            subjects = {
                "user": f"ann-{number}",
                "device": f"home-{number}",
                "ip": f"198.18.{number // 250}.{number % 250 + 1}",
            }
            person = self._person("normal users", subjects, legitimate=True, established=0.5)
            start = draw() * self._length_ms * 0.8
            yield _Draft(int(start), person, "login", subjects["user"])
            yield from self._browse(person, start + 2_000, start + 60_000 + draw() * 120_000, 10_000)
            impatient = draw() < 0.03  # noqa: PLR2004 - one of 33 double-clicks
            yield from self._claims(person, start + 20_000, 5 if impatient else int(1 + draw() * 3), 4_000)

    def _office(self) -> Iterator[_Draft]:
        """Two hundred colleagues behind one address; the newsletter's coupon is claimed within two minutes."""
        for number in range(self._sizes.office):
            subjects = {"user": f"office-{number}", "device": f"desk-{number}", "ip": OFFICE_IP}
            person = self._person("NAT office", subjects, legitimate=True, established=0.6)
            yield from self._browse(person, 0, self._length_ms, 80_000)
            claim_ms = self._length_ms * 0.4 + self._random.random() * 90_000
            yield from self._claims(person, claim_ms, int(1 + self._random.random() * 3), 5_000)

    def _cafes(self) -> Iterator[_Draft]:
        """Small shared addresses of people nobody knows yet."""
        for cafe in range(self._sizes.cafes):
            for guest in range(self._sizes.cafe_guests):
                subjects = {
                    "user": f"guest-{cafe}-{guest}",
                    "device": f"laptop-{cafe}-{guest}",
                    "ip": f"203.0.113.{100 + cafe}",
                }
                person = self._person("café guests", subjects, legitimate=True, established=0.1)
                yield from self._browse(person, self._random.random() * 200_000, self._length_ms, 30_000)

    def _families(self) -> Iterator[_Draft]:
        """Three people with one tablet: together they claim more than a device may."""
        for family in range(self._sizes.families):
            start = self._random.random() * self._length_ms * 0.7
            for member in range(3):
                subjects = {
                    "user": f"family-{family}-{member}",
                    "device": f"tablet-{family}",
                    "ip": f"198.19.0.{family + 1}",
                }
                person = self._person("families", subjects, legitimate=True, established=0.3)
                yield from self._claims(person, start + member * 25_000, 2, 6_000)

    def _farm(self) -> Iterator[_Draft]:
        """The coupon farm: hundreds of accounts, one device."""
        people = [
            self._person(
                "coupon farm",
                {"user": f"farm-{number}", "device": FARM_DEVICE, "ip": _FARM_IP},
                legitimate=False,
                established=0.0,
            )
            for number in range(self._sizes.farm_accounts)
        ]
        for at_ms in range(30_000, self._length_ms, 900):
            yield _Draft(at_ms, self._random.choice(people), "coupon_claim")

    def _phone_farm(self) -> Iterator[_Draft]:
        """A rack of phones, a few accounts on each, one address."""
        for phone in range(self._sizes.phones):
            start = 20_000 + self._random.random() * self._length_ms * 0.5
            for account in range(self._sizes.accounts_per_phone):
                subjects = {
                    "user": f"rack-{phone}-{account}",
                    "device": f"rack-{phone}",
                    "ip": _PHONE_FARM_IP,
                }
                person = self._person("phone farm", subjects, legitimate=False, established=0.0)
                yield from self._claims(person, start + account * 8_000, 3, 15_000)

    def _stuffing(self) -> Iterator[_Draft]:
        """Leaked names tried from one address; among them are those of honest users."""
        person = self._person("credential stuffing", {"ip": STUFFING_IP}, legitimate=False)
        gap_ms = 1000 / self._sizes.stuffing_per_s
        for attempt in range(int((self._length_ms - 45_000) / gap_ms)):
            name = self._random.randrange(20_000)
            yield _Draft(int(45_000 + attempt * gap_ms), person, "login", f"ann-{name}")

    def _greedy(self) -> Iterator[_Draft]:
        """Single accounts that claim again and again, whatever the answer."""
        for number in range(self._sizes.greedy):
            subjects = {"user": f"greedy-{number}", "device": f"script-{number}", "ip": f"198.19.1.{number + 1}"}
            person = self._person("greedy accounts", subjects, legitimate=False, established=0.0)
            start = self._random.random() * self._length_ms * 0.5
            yield from self._claims(person, start, int((self._length_ms - start) / 2_500), 2_500)

    def _scrapers(self) -> Iterator[_Draft]:
        """Robots that fetch pages a little faster than an address may."""
        for number in range(self._sizes.scrapers):
            person = self._person("scrapers", {"ip": f"198.19.2.{number + 1}"}, legitimate=False)
            start = self._random.random() * self._length_ms * 0.6
            yield from self._browse(person, start, start + 150_000, 380)

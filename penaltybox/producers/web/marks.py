"""What a view says about itself: its scenario, what it costs, or that nobody should ask about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTRIBUTE: Final = "penaltybox_mark"

View = TypeVar("View", bound="Callable[..., Any]")


class Mark(NamedTuple):
    """What a view's decorator says."""

    scenario: str | None = None
    cost: int | None = None
    exempt: bool = False


_UNMARKED: Final = Mark()


def scenario(name: str, *, cost: int | None = None) -> Callable[[View], View]:
    """Decorates a view of any framework here: its requests belong to this scenario, whatever their path.

    Put it nearest to the function, below the decorators that register the view.
    """
    return _marking(Mark(name, cost))


def exempt(view: View) -> View:
    """Decorates a view about which the limiter is not asked."""
    return _marking(Mark(exempt=True))(view)


def mark_of(view: object) -> Mark:
    """What a view says, through decorators that used `functools.wraps`; what a class of views says holds as well."""
    found = getattr(view, _ATTRIBUTE, None) or getattr(getattr(view, "view_class", None), _ATTRIBUTE, None)
    return found if isinstance(found, Mark) else _UNMARKED


def _marking(mark: Mark) -> Callable[[View], View]:
    def decorate(view: View) -> View:
        setattr(view, _ATTRIBUTE, mark)
        return view

    return decorate

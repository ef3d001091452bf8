"""A place in a policy document: reads typed values and words errors with their path."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import yaml

from penaltybox.contracts.durations import LONGEST_MS, parse_duration
from penaltybox.contracts.errors import SHOWN, ConfigurationError, cause, shown
from penaltybox.contracts.subjects import DIMENSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


MAX_BYTES: Final = 1 << 20
"""A policy is written by people; pure Python reads about as much YAML in ten seconds."""
MAX_VALUES: Final = MAX_BYTES // 4
"""More values than that are aliases of aliases."""


def read_policy_text(path: Path, name: str) -> str:
    """The text of a policy file, never more of it than a policy may have: it may be a device, or a pipe.

    Raises:
        ConfigurationError: unreadable, no UTF-8, or too large.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigurationError(f"{name}: got more than {MAX_BYTES:,} bytes, wanted a policy of at most that")
        return raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name}: cannot be read: {cause(error)}") from error


class _Loader(yaml.SafeLoader):
    """YAML in which `on`, `off`, `yes` and `no` are words, as in YAML 1.2, and a key may stand only once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - theirs
        """As the base does, refusing a key that stands twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no text", key.start_mark)
            meant = {key.value}
            if key.tag != _MERGE:  # 4, 0x4 and "4" are one key to those who read it
                meant.add(str(self.construct_object(key)))
            if meant & seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen |= meant
        return super().construct_mapping(node, deep)


_MERGE: Final = "tag:yaml.org,2002:merge"
_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != _BOOL] for first, pairs in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|false)$"), list("tf"))


def read_yaml(text: str, name: str) -> object:
    """Plain data from YAML.

    Raises:
        ConfigurationError: not YAML, with line and column.
    """
    if len(text) > MAX_BYTES:
        raise ConfigurationError(f"{name}: got {len(text):,} characters, wanted a policy of at most {MAX_BYTES:,}")
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    except (LookupError, AttributeError, TypeError, OverflowError) as error:
        # What PyYAML's own constructors raise for a value that does not fit its tag, such as `!!bool maybe`.
        raise ConfigurationError(f"{name}: a value does not fit its !!tag ({error!r}); leave the tag out") from error
    except RecursionError as error:
        raise ConfigurationError(f"{name}: nested too deeply to be a policy") from error
    if _is_bomb(document):
        raise ConfigurationError(f"{name}: its aliases (*name) make more than {MAX_VALUES:,} values of it")
    return document


def _is_bomb(document: object) -> bool:
    """Whether aliases make far more values of a document than a file of its size could spell out."""
    waiting, values = [document], 0
    while waiting and values <= MAX_VALUES:
        value = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += inner
        values += len(inner)
    return values > MAX_VALUES


class Node:
    """A value and where it stands, e.g. ``policy.yaml: rules.device_farm.window``."""

    def __init__(self, value: object, where: str) -> None:
        self.value: Any = value
        self.where = where

    def error(self, got: object, wanted: str) -> ConfigurationError:
        """The error for this place."""
        return ConfigurationError(f"{self.where}: got {_short(got)}, wanted {wanted}")

    def mapping(self, allowed: Iterable[str]) -> Node:
        """This node, after checking that it is a mapping with none but the allowed keys."""
        known = tuple(allowed)
        for key, _ in self.pairs():
            if key not in known:
                raise self.error(f"the unknown key {key!r}", f"one of {', '.join(known)}")
        return self

    def pairs(self) -> Iterator[tuple[str, Node]]:
        """Keys (as text) and their nodes."""
        if not isinstance(self.value, Mapping):
            raise self.error(self.value, "a mapping (key: value)")
        for key, value in self.value.items():
            if not str(key).isprintable():
                raise self.error(repr(key), "names that can be printed")
            yield str(key), self._at(str(key), value)

    def items(self) -> Iterator[Node]:
        """The nodes of a list."""
        if isinstance(self.value, str) or not isinstance(self.value, Sequence):
            raise self.error(self.value, "a list")
        for index, value in enumerate(self.value):
            yield Node(value, f"{self.where}[{index}]")

    def has(self, key: str) -> bool:
        """Whether the mapping has this key."""
        return key in self.value

    def child(self, key: str, default: object) -> Node:
        """The node of a key, or of the default (None stands for 'not given')."""
        return self._at(key, self.value.get(key, default))

    def integer(self, key: str, default: int | None, *, least: int, most: int) -> int:
        """A whole number within bounds; required without a default."""
        return self.child(key, default).whole(least=least, most=most)

    def whole(self, *, least: int, most: int) -> int:
        """This value as a whole number within bounds."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not least <= self.value <= most:
            raise self.error(self.value, f"a whole number from {least} to {most}")
        return self.value

    def boolean(self, key: str, *, default: bool) -> bool:
        """A yes or no."""
        child = self.child(key, default)
        if not isinstance(child.value, bool):
            raise child.error(child.value, "true or false")
        return child.value

    def duration(self, key: str, default: str | None, *, most_ms: int = LONGEST_MS) -> int:
        """A duration in ms, of at most `most_ms`; required without a default."""
        child = self.child(key, default)
        return parse_duration(child.value, child.where, most_ms)

    def text(self, *, allow_empty: bool = False) -> str:
        """This value as a text."""
        if not isinstance(self.value, str) or not (self.value or allow_empty) or not self.value.isprintable():
            raise self.error(self.value, "a text")
        return self.value

    def one_of(self, choices: Sequence[str]) -> str:
        """This value as one of the choices."""
        if self.value not in choices:
            raise self.error(self.value, f"one of {', '.join(choices)}")
        # Our own object, not an equal one: what is a default must be seen to be one, or the version would differ.
        return choices[choices.index(self.value)]

    def dimensions(self, text: str) -> str:
        """Checks a dimension or a combination such as ``device+route``."""
        if not all(DIMENSION.fullmatch(part) for part in text.split("+")):
            raise self.error(text, "a dimension such as user, device, ip, or a combination such as device+route")
        return text

    def _at(self, key: str, value: object) -> Node:
        separator = ": " if ": " not in self.where else "."
        return Node(value, f"{self.where}{separator}{key}")


def _short(value: object) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) and value.isprintable() and len(value) <= SHOWN else shown(value)

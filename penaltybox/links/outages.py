"""What a Redis failure means: an outage to wait out, or a mistake in somebody's configuration."""

from __future__ import annotations

import os
import ssl

from redis import exceptions

from penaltybox.contracts.errors import ConfigurationError, NoAnswerInTime, PenaltyboxError, StoreUnavailable, WrongType

# First word of an error reply -> what it means. The server did nothing in any of these cases.
_OUTAGES = {
    "LOADING": "is still loading its data",
    "READONLY": "is a replica now and takes no writes",
    "MASTERDOWN": "is a replica that lost its master",
    "OOM": "is out of memory and takes no writes; raise maxmemory (policy noeviction)",
    "NOREPLICAS": "has too few replicas to take writes (min-replicas-to-write)",
    "MISCONF": "cannot write its snapshot to disk and takes no writes",
    "BUSY": "is busy with another client's script",
    "CLUSTERDOWN": "belongs to a cluster that is down",
    "TRYAGAIN": "is migrating this slot",
    "MOVED": "no longer serves this slot",
    "ASK": "is migrating this slot",
    "UNBLOCKED": "changed its role in mid-call",
    "NOMASTERLINK": "is a replica without its master",
    "NOSCRIPT": "keeps forgetting the script; does another program run SCRIPT FLUSH?",
}
_REFUSALS = {
    "NOAUTH": "wants a password; set redis_password",
    "WRONGPASS": "refused the user name or password; check redis_username and redis_password",
    "NOPERM": "refused a command or key to this user; docs/keys.md has the ACL line",
}
# redis-py strips the code of the errors that it has a class for.
_CODES: dict[type[Exception], str] = {
    exceptions.BusyLoadingError: "LOADING",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.AuthenticationError: "WRONGPASS",
    exceptions.AuthorizationError: "NOAUTH",
}


def code_of(error: BaseException) -> str:
    """The code of a server's error reply (``OOM``, ``NOSCRIPT``, ``GENERATION``, …); ``""`` for other failures."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, exceptions.ResponseError):
        return str(error).split(" ", 1)[0]
    return ""


def explained(error: BaseException, where: str, deadline_s: float) -> PenaltyboxError:
    """Our error for one of redis-py's or the socket's, as a sentence; `where` must be free of secrets.

    Returns:
        `StoreUnavailable` for everything that passes by itself, `ConfigurationError` for a refused login, key or
        command, `WrongType` for a key that another program uses, `PenaltyboxError` for a reply that nobody expects.
    """
    code = code_of(error)
    if code in _OUTAGES:
        soon = code in {"TRYAGAIN", "MOVED", "ASK", "BUSY"}
        return StoreUnavailable(f"Redis at {where} {_OUTAGES[code]} ({code}).", retry_after_ms=100 if soon else 1000)
    if code in _REFUSALS:
        return ConfigurationError(f"Redis at {where} {_REFUSALS[code]} ({code}).")
    if isinstance(error, exceptions.ResponseError):
        kind = WrongType if code == "WRONGTYPE" else PenaltyboxError
        return kind(f"Redis at {where} answered with an unexpected error: {error}.")
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return NoAnswerInTime(f"Redis at {where} did not answer within {deadline_s:g} s.")
    if isinstance(error, exceptions.MaxConnectionsError):
        return StoreUnavailable(f"All connections to Redis at {where} are in use.", retry_after_ms=100)
    return StoreUnavailable(f"Redis at {where} cannot be reached: {_told(error).rstrip('.')}.")


def _told(error: BaseException) -> str:
    """What the system said, if it was the system that refused; else what the library says."""
    for one in (error, error.__cause__, error.__context__):
        if isinstance(one, OSError) and one.errno is not None and not isinstance(one, ssl.SSLError):
            return os.strerror(one.errno) if one.errno > 0 else str(one.strerror)
    return str(error)

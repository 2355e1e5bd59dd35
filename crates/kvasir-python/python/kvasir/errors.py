"""Errors, classified by what the caller can do about them."""

from __future__ import annotations

__all__ = [
    "AuthError",
    "DataError",
    "ForkError",
    "InputError",
    "KvasirError",
    "ServiceError",
    "UnavailableError",
]


class KvasirError(Exception):
    """Base of all errors of this package.

    Attributes
    ----------
    message : str
        What happened.
    code : str
        A stable text: the service's code, or ``wrong_shape``, ``wrong_dtype``, ``unavailable``, ``forked`` and the like.
    remedy : str
        What to do.
    retryable : bool
        Whether the same call may succeed later.
    status : int or None
        HTTP status, if the service responded.

    Examples
    --------
    >>> try:
    ...     kvasir.connect("http://127.0.0.1:1")
    ... except kvasir.KvasirError as error:
    ...     print(error.code, error.retryable)
    unavailable True
    """

    def __init__(
        self, message: str, code: str = "internal", remedy: str = "", retryable: bool = False, status: int | None = None
    ) -> None:
        super().__init__(message, code, remedy, retryable, status)
        self.message = message
        self.code = code
        self.remedy = remedy
        self.retryable = retryable
        self.status = status

    def __str__(self) -> str:
        return f"{self.message}\n  to do: {self.remedy}" if self.remedy else self.message


class InputError(KvasirError, ValueError):
    """Invalid input: a shape, a dtype, a configuration, a setting."""


class DataError(KvasirError, ValueError):
    """Bytes that are damaged, or belong to another model or profile."""


class ServiceError(KvasirError):
    """The service responded with an error; `code` and `status` are the service's."""


class AuthError(ServiceError):
    """The service does not accept the token, or the token's role does not allow the call."""


class UnavailableError(KvasirError):
    """No response from the service, or an incomplete one, or one that came too slowly."""


class ForkError(KvasirError, RuntimeError):
    """The process was forked from one that uses this package."""

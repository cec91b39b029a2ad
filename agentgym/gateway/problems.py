"""What is answered where a request cannot be: OpenAI's error shapes and codes."""

from __future__ import annotations

from typing import Any

HANG_UP = {"Connection": "close"}  # what is left of the body is not read


class Problem(Exception):
    """A request that is answered by an error: status, OpenAI's type and code, and which parameter is at fault."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.code, self.param = message, status, kind, code, param
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI has it."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> Problem:
    """The request is wrong (400)."""
    return Problem(message, param=param, code=code)


def unsupported(param: str, why: str) -> Problem:
    """The parameter is known and cannot be served (400)."""
    return Problem(f"Unsupported parameter: '{param}' {why}.", param=param, code="unsupported_parameter")


def not_found(what: str, code: str = "not_found", param: str | None = None) -> Problem:
    """There is no such thing (404)."""
    return Problem(what, status=404, code=code, param=param)


def no_model(name: str, known: list[str]) -> Problem:
    """An unknown model (404)."""
    message = f"The model '{name[:200]}' does not exist; this server has: {', '.join(known)}."
    return Problem(message, status=404, code="model_not_found", param="model")


def too_long(tokens: int, limit: int) -> Problem:
    """The prompt leaves no room for an answer (400)."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages."
    )
    return Problem(message, code="context_length_exceeded", param="messages")


def unauthorised(message: str) -> Problem:
    """No key, or a wrong one (401)."""
    headers = {"WWW-Authenticate": "Bearer"}
    return Problem(message, status=401, code="invalid_api_key", headers=headers)


def limited(message: str, retry_s: float) -> Problem:
    """Too many requests (429)."""
    headers = {"Retry-After": str(max(1, round(retry_s + 0.5))), "retry-after-ms": str(max(1, int(retry_s * 1000)))}
    return Problem(message, status=429, kind="rate_limit_error", code="rate_limit_exceeded", headers=headers)


def too_large(message: str) -> Problem:
    """The body is larger than allowed (413)."""
    return Problem(message, status=413, code="request_too_large", headers=HANG_UP)


def too_slow(message: str) -> Problem:
    """The body did not come in time (408)."""
    return Problem(message, status=408, code="request_timeout", headers=HANG_UP)


def failed(message: str, status: int = 500) -> Problem:
    """The server's fault (500, or 503 where asking again helps)."""
    kind = "server_error" if status == 500 else "service_unavailable"
    return Problem(message, status=status, kind=kind, code=kind)

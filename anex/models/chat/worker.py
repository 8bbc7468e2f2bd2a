"""The child process that renders chat templates; started by its path, it imports nothing of anex.

One JSON object a line on standard input: first {"source", "cpu_seconds", "memory", "characters"}, then one
{"variables"} for each render. One line answers each: {"text"} or {"error": kind, "what", "line"}.
The kinds are "syntax", "refused" (the template itself raised), "forbidden", "memory" and "failed".

The environment is that of transformers' apply_chat_template. What Python code can stop is stopped by the
sandbox; computing for too long ends in a signal that the parent recognises, since no Python code runs
while a large number is being computed.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from math import ceil
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_BITS = 1 << 16
"""Numbers in templates count messages and characters; no honest one is longer."""


class Refused(Exception):
    """The template called raise_exception."""


class _Generation(Extension):
    """{% generation %} … {% endgeneration %}: marks the assistant's words, and renders them as they are."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - the base class has it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self, characters: int) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        self._characters = characters
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_raise, strftime_now=_now)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        # The sandbox gives a value that raises when it is used, but not when it is printed.
        raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__}")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _length(operator, left, right) > self._characters or _bits(operator, left, right) > _BITS:
            raise SecurityError(f"a result of {operator} that is too large")
        return super().call_binop(context, operator, left, right)


def _length(operator: str, left: Any, right: Any) -> int:
    """Length of the sequence that an operator makes; 0 if it makes none."""
    sequences = [value for value in (left, right) if isinstance(value, (str, list, tuple))]
    counts = [value for value in (left, right) if isinstance(value, int)]
    if operator == "*" and sequences and counts:
        return len(sequences[0]) * max(counts[0], 0)
    return sum(map(len, sequences)) if operator == "+" else 0


def _bits(operator: str, left: Any, right: Any) -> int:
    """At least the bits of the number that an operator makes; 0 if it makes no whole number."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return 0
    bits = left.bit_length()
    return bits * max(right, 0) if operator == "**" else bits + right.bit_length()


def _raise(message: object) -> None:
    raise Refused(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike jinja2's own, for prompts and not for HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _lower(limit: int, value: int) -> None:
    # A system may not know a limit, or have a lower one already.
    with suppress(ValueError, OSError):
        resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))


def _start_clock(cpu_seconds: float) -> None:
    """Gives the process that much more CPU time; the timer is exact, the limit has whole seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, ceil(usage.ru_utime + usage.ru_stime + cpu_seconds) + 1)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Refused as error:
        return {"error": "refused", "what": str(error)}
    except (SecurityError, OverflowError) as error:  # the second one for ranges that are too long
        return {"error": "forbidden", "what": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": "syntax", "what": str(error.message), "line": error.lineno}
    except MemoryError:
        return {"error": "memory", "what": ""}
    except Exception as error:
        return {"error": "failed", "what": f"{type(error).__name__}: {error}"}


class Worker:
    """One template, compiled once."""

    def __init__(self, source: str, cpu_seconds: float, memory: int, characters: int) -> None:
        self._source = source
        self._cpu_seconds = cpu_seconds
        self._characters = characters
        self._template: jinja2.Template | None = None
        for limit, value in (
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, 0),
        ):
            _lower(limit, value)

    def answer(self, variables: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        _start_clock(self._cpu_seconds)
        try:
            return _answer(lambda: {"text": "".join(self._rendered(variables))})
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _rendered(self, variables: dict[str, Any]) -> Iterator[str]:
        if self._template is None:
            self._template = _Environment(self._characters).from_string(self._source)
        written = 0
        for part in self._template.generate(**variables):
            written += len(part)
            if written > self._characters:
                raise SecurityError(f"more than {self._characters:,} characters of text")
            yield part


def main() -> None:
    """Serves one template until standard input ends."""
    requests = iter(sys.stdin.buffer)
    worker = Worker(**json.loads(next(requests)))
    for request in requests:
        reply = json.dumps(worker.answer(json.loads(request)["variables"]))
        sys.stdout.buffer.write(reply.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

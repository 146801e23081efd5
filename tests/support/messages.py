"""Every message that the package can print, read from its source.

A text is a message because of where it goes, never because of what it says: it is an argument of an exception, of
``report_once``, of ``note`` (what ``areal-callbacks verify`` could not read), ``logger.warning`` or ``sys.exit``, or of
a write to the error stream; or of a function of the package that hands that parameter on to one of these.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from support.source_texts import Function, Module, Package, Scope, index, name_of

ROOT = Path(__file__).parents[2]
_FOLDERS = ("areal_callbacks", "integrations")
_EXCEPTION = re.compile(r"(Error|Exception|Exit|BadParameter|BadOptionUsage)$")
_PRINTERS = {"warning", "error", "info", "warn", "exit"}


@dataclass(frozen=True, order=True)
class Message:
    """One text and where it stands."""

    text: str
    path: str
    line: int


def collect_messages() -> list[Message]:
    """Those of the whole package, sorted by text."""
    return _collect(index(str(path.relative_to(ROOT)), path.read_text()) for path in _find_sources())


def collect_from(source: str) -> list[str]:
    """The texts of one module that is given as text."""
    return sorted({message.text for message in _collect([index("source.py", source)])})


def _collect(modules: Iterable[Module]) -> list[Message]:
    return sorted(set(_Messages(Package(list(modules))).collect()))


def _find_sources() -> Iterator[Path]:
    for folder in _FOLDERS:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if path.resolve() == path)


class _Messages:
    """Which parameters of which functions become messages, and what they are given."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._printed: dict[str, set[str]] = defaultdict(set, {"report_once": {"message"}, "note": {"problem"}})

    def collect(self) -> Iterator[Message]:
        """Every message of every module, some more than once."""
        self._follow_parameters()
        for scope, argument, line in self._find_arguments():
            for text in scope.read(argument):
                yield Message(text, scope.module.path, line)

    def _follow_parameters(self) -> None:
        """Until nothing is added: a parameter that goes into a message makes the function one that prints it."""
        before = -1
        while before < (before := sum(map(len, self._printed.values()))):
            for scope, argument, _ in self._find_arguments():
                self._printed[scope.module.own(scope.name)] |= scope.find_parameters(argument)

    def _find_arguments(self) -> Iterator[tuple[Scope, ast.expr, int]]:
        for module in self._package.modules:
            for scope, call in _find_calls(module.tree, Scope(self._package, module, None)):
                yield from ((scope, argument, call.lineno) for argument in self._find_printed(module, call))

    def _find_printed(self, module: Module, call: ast.Call) -> Iterator[ast.expr]:
        name = name_of(call.func)
        if name in _PRINTERS or _EXCEPTION.search(name) or _is_error_output(call):
            yield from (*call.args, *(word.value for word in call.keywords))
        elif names := self._printed.get(module.own(name)):
            yield from (word.value for word in call.keywords if word.arg in names)
            for _, function in self._package.functions.get(module.own(name), ()):
                yield from (value for parameter, value in zip(_positional(function), call.args) if parameter in names)


def _find_calls(node: ast.AST, scope: Scope) -> Iterator[tuple[Scope, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield scope, child
        inner = Scope(scope.package, scope.module, child) if isinstance(child, Function) else scope
        yield from _find_calls(child, inner)


def _is_error_output(call: ast.Call) -> bool:
    words = {word.arg: ast.unparse(word.value) for word in call.keywords}
    is_write = ast.unparse(call.func) == "sys.stderr.write"
    return is_write or words.get("err") == "True" or words.get("file") == "sys.stderr"


def _positional(function: Function) -> list[str]:
    names = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names

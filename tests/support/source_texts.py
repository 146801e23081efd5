"""What texts of a source may be: constants, variables, attributes and results of functions are followed.

Parts that only a run knows are written ``…``. A part of several possible texts is a text of its own where it stands
alone between two marks (``f"{path}: {problem}"``), not where it completes a sentence (``f"expected {kind}"``).
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

SOMETHING = "…"
_LETTER = re.compile("[A-Za-z]")
_PLACEHOLDER = re.compile(r"%[-+#0-9.]*[sdrfg]")
_UNKNOWN = re.compile(rf"(?:{SOMETHING}|{_PLACEHOLDER.pattern})+")
_DEEPEST = 8
_TOLD_ELSEWHERE = {"where", "source"}  # these say where a value is from, which is no message
_OF_CONTAINERS = {*dir(str), *dir(list), *dir(dict)}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Values = dict[str, list[tuple["Module", ast.expr]]]


@dataclass
class Module:
    """One file: its constants and attributes (``self.name``), its functions, and the fields of its classes, by name."""

    path: str
    tree: ast.Module
    values: Values = field(default_factory=lambda: defaultdict(list))
    functions: dict[str, Function] = field(default_factory=dict)
    fields: dict[str, list[str]] = field(default_factory=dict)

    def own(self, name: str) -> str:
        """The name of a function, which is this module's alone if it is private."""
        return f"{self.path}:{name}" if name.startswith("_") else name


def index(path: str, source: str) -> Module:
    module = Module(path, ast.parse(source))
    _index_constants(module, module.tree.body, "")
    for node in ast.walk(module.tree):
        match node:
            case ast.ClassDef(body=body):
                _index_constants(module, body, "self.")
                module.fields[node.name] = list(_fields(body))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                module.functions.setdefault(name, node)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                module.values[f"self.{name}"].append((module, value))
    return module


def _fields(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def _index_constants(module: Module, statements: list[ast.stmt], prefix: str) -> None:
    for statement in statements:
        for name, value in _read_assignment(statement):
            module.values[f"{prefix}{name}"].append((module, value))


def _read_assignment(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpack(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield from _unpack(target, value)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])):
            yield name, value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield from _unpack(target, value)


def _unpack(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts):
            yield from _unpack(each, part)


class Package:
    """All modules together.

    Attributes:
        modules: its files.
        values: what each constant, attribute and field may be, of all modules.
        functions: those of each name, private ones under the name of their module.
    """

    def __init__(self, modules: list[Module]) -> None:
        self.modules = modules
        self.values: Values = defaultdict(list)
        self.functions: dict[str, list[tuple[Module, Function]]] = defaultdict(list)
        self._fields = {name: fields for module in modules for name, fields in module.fields.items()}
        for module in modules:
            self._index_fields(module)
            for name, values in module.values.items():
                self.values[name].extend(values)
            for name, function in module.functions.items():
                self.functions[module.own(name)].append((module, function))

    def _index_fields(self, module: Module) -> None:
        """What the fields of objects are given by position where they are made."""
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                for name, value in zip(self._fields.get(name_of(node.func), ()), node.args):
                    self.values[f"self.{name}"].append((module, value))


def name_of(function: ast.expr) -> str:
    """The last name of what is called."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


class _Option(NamedTuple):
    """One thing that an expression may be, and where its names have a meaning."""

    scope: Scope
    value: ast.expr


class Scope:
    """What names mean in one function of one module."""

    def __init__(self, package: Package, module: Module, function: Function | None) -> None:
        self.package, self.module, self._function = package, module, function
        self.name = function.name if function else ""
        self._locals: dict[str, list[ast.expr]] = defaultdict(list)
        self._parameters = set(_parameters(function)) if function else set()
        for node in ast.walk(function) if function else ():
            for name, value in _read_assignment(node):
                self._locals[name].append(value)

    def read(self, expression: ast.expr) -> set[str]:
        """Every text of an expression and of its parts, a name alone excepted."""
        texts = _Reader().read(_Option(self, expression))
        return {_UNKNOWN.sub(SOMETHING, text.strip()) for text in texts if _LETTER.search(text) and " " in text.strip()}

    def find_parameters(self, expression: ast.expr) -> set[str]:
        """The parameters of this function that are in the text as a part of their own."""
        match expression:
            case ast.Name(id=name):
                local = set().union(*map(self.find_parameters, self._locals.get(name, ())))
                return local or {name} & self._parameters - _TOLD_ELSEWHERE
            case ast.JoinedStr(values=values):
                return set().union(*map(self.find_parameters, _stand_alone(values)))
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
                return self.find_parameters(one) | self.find_parameters(other)
        return set()

    def options(self, expression: ast.expr) -> Iterator[_Option]:
        """What an expression may be."""
        match expression:
            case ast.IfExp(body=one, orelse=other):
                yield from (_Option(self, one), _Option(self, other))
            case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values) | ast.Dict(values=values):
                yield from (_Option(self, value) for value in values)
            case ast.Subscript(value=ast.Name() | ast.Attribute() as table):
                yield _Option(self, table)
            case ast.Name(id=name) if name in self._locals:
                yield from (_Option(self, value) for value in self._locals[name])
            case ast.Name(id=name) if name not in self._parameters:
                yield from self._named(name)
            case ast.Attribute(value=ast.Name(), attr=name):
                yield from self._named(f"self.{name}")
            case ast.Call():
                yield from self._results(expression)

    def _named(self, name: str) -> Iterator[_Option]:
        for module, value in self.module.values.get(name) or self.package.values.get(name, ()):
            yield _Option(Scope(self.package, module, None), value)

    def _results(self, call: ast.Call) -> Iterator[_Option]:
        """What a call may return or yield; of a method of another object only if its name is the only one."""
        name = name_of(call.func)
        functions = self.package.functions.get(self.module.own(name), [])
        if name in ("next", "join"):
            yield from (_Option(self, argument) for argument in call.args[:1])
        elif isinstance(call.func, ast.Name) or (len(functions) == 1 and name not in _OF_CONTAINERS):
            for module, function in functions:
                scope = Scope(self.package, module, function)
                found = (node.value for node in ast.walk(function) if isinstance(node, ast.Return | ast.Yield))
                yield from (_Option(scope, value) for value in found if value is not None)


class _Reader:
    """Reads the texts of one expression, and apart from them those of its parts."""

    def __init__(self) -> None:
        self._parts: set[str] = set()

    def read(self, option: _Option) -> set[str]:
        """All of them."""
        return self._texts(option, 0) | self._parts

    def _texts(self, option: _Option, depth: int) -> set[str]:
        scope, expression = option
        inner = depth + 1
        match expression:
            case _ if depth > _DEEPEST:
                return {SOMETHING}
            case ast.Constant(value=str(text)):
                return {text}
            case ast.JoinedStr(values=values):
                return self._join(scope, values, inner)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _combine([self._texts(_Option(scope, left), inner), self._texts(_Option(scope, right), inner)])
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return self._fill(_Option(scope, left), _Option(scope, right), inner)
        return set().union(*(self._texts(each, inner) for each in scope.options(expression))) or {SOMETHING}

    def _fill(self, text: _Option, given: _Option, depth: int) -> set[str]:
        found = self._texts(given, depth)
        self._parts |= found if len(found) > 1 else set()
        filling = found.pop() if len(found) == 1 else SOMETHING
        return {_PLACEHOLDER.sub(lambda _: filling, each) for each in self._texts(text, depth)}

    def _join(self, scope: Scope, values: list[ast.expr], depth: int) -> set[str]:
        alone = list(_stand_alone(values))
        columns: list[set[str]] = []
        for value in values:
            is_plain = isinstance(value, ast.FormattedValue) and value.conversion == -1
            part = value.value if isinstance(value, ast.FormattedValue) else value
            texts = self._texts(_Option(scope, part), depth) if is_plain or part is value else {SOMETHING}
            self._parts |= texts if part in alone and len(texts) > 1 else set()
            columns.append(texts if len(texts) == 1 else {SOMETHING})
        return _combine(columns)


def _combine(columns: list[set[str]]) -> set[str]:
    return {"".join(row) for row in itertools.product(*columns)}


def _parameters(function: Function) -> Iterator[str]:
    arguments = function.args
    yield from (each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])


def _stand_alone(values: list[ast.expr]) -> Iterator[ast.expr]:
    """The variable parts of an f-string that begin and end at a mark or at an end of the text."""
    edges = [str(value.value) if isinstance(value, ast.Constant) else "" for value in values]
    for before, value, after in zip(["; ", *edges], values, [*edges[1:], ";"]):
        is_alone = before.endswith((": ", "; ")) and after.startswith((":", ";", ",", " ("))
        if is_alone and isinstance(value, ast.FormattedValue) and value.conversion == -1:
            yield value.value

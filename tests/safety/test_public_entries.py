"""Whatever a host or a user calls, and whatever is hung on the host, goes through the door."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults import is_guarded

import areal_callbacks

PACKAGE = Path(areal_callbacks.__file__).parent
MODULES = [
    "session.session",
    *(
        f"integrations.{path.stem}"
        for path in sorted((PACKAGE / "integrations").glob("[!_]*.py"))
        if path.stem not in ("axolotl", "swift")  # need their stack, and hand the Trainer its callback
    ),
]
MADE_OF_ENTRIES = {
    "MetricsSession.attach": "returns the session",
    "MetricsSession.export": "returns an export in any case",
    "StepEvents.included": "makes a block, whose ends are guarded events of a monitor",
    "MetricsSession.late_records": "makes a block, whose end is an entry",
    "MetricsSession.report": "a person asks for it, in a notebook, and reads the error",
    "AReaLMetricsCallback.state": "returns a mapping in any case",
    "MegatronSession.unmeasured": "returns an iterator in any case",
}
INDEPENDENT = "verify"
"""The recount judges the package, so that it shares nothing with it; it runs only where a user asks for a check."""


def classes() -> Iterator[type]:
    """Those that a public module of a host, or the session, offers."""
    for name in MODULES:
        module = importlib.import_module(f"areal_callbacks.{name}")
        offered = getattr(module, "__all__", [])
        for found in vars(module).values():
            ours = getattr(found, "__module__", "").startswith("areal_callbacks")
            if isinstance(found, type) and ours and (found.__module__ == module.__name__ or found.__name__ in offered):
                yield found


def methods(cls: type) -> Iterator[tuple[str, object]]:
    for base in cls.__mro__:
        if base.__module__.startswith(("areal_callbacks.integrations", "areal_callbacks.session")):
            public = {name for name in vars(base) if not name.startswith("_") or name == "__exit__"}
            public -= {"detach"}  # an observer's, which the door calls itself
            yield from ((f"{base.__name__}.{name}", vars(base)[name]) for name in public)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Megatron's
def test_every_public_method_stands_behind_the_door() -> None:
    found = {name: method for cls in classes() for name, method in methods(cls) if callable(method)}
    assert {"MetricsSession.reduce", "AReaLFabricCallback.close", "AcceleratorMetrics.close"} <= found.keys()
    open_ones = {name for name, method in found.items() if not is_guarded(method)}
    assert open_ones == MADE_OF_ENTRIES.keys()


def sources() -> list[Path]:
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE / "integrations").glob("*.py")]
    return [path for path in files if path.parent.name not in ("safety", INDEPENDENT)]


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def name_of(node: ast.expr) -> str:
    return ast.unparse(node)


def test_every_hook_is_a_guarded_one() -> None:
    """``register_…_hook`` is given to :class:`Attachments`, or is itself given a :class:`Hook`."""
    registered = [call for path in sources() for call in calls(path) if "register_" in name_of(call.func)]
    registered = [call for call in registered if name_of(call.func).endswith("_hook")]
    functions = [name_of(call.args[0].func) for call in registered if isinstance(call.args[0], ast.Call)]
    assert len(registered) == len(functions) > 0
    assert set(functions) == {"Hook"}


def test_methods_are_replaced_by_the_door_alone() -> None:
    """``setattr`` is used on nothing but the accelerator, which keeps what measures it."""
    found = {name_of(call) for path in sources() for call in calls(path) if name_of(call.func) == "setattr"}
    assert found == {"setattr(accelerator, _ATTRIBUTE, running)"}

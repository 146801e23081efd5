"""Trainers and accelerators that are made while frameworks are observed get their metrics, once."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from accelerate import Accelerator
from support.readback import messages
from support.tiny_trainer import Sequences, arguments, fresh_accelerator, moe_model
from transformers import Trainer

from areal_callbacks.integrations.accelerate import enable
from areal_callbacks.integrations.transformers import AReaLMetricsCallback
from areal_callbacks.run import autoload
from areal_callbacks.run.autoload import observe_frameworks, stop_observing


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("AREAL_CALLBACKS", '{"every": 7, "report": false}')
    fresh_accelerator()
    observe_frameworks()
    yield monkeypatch
    stop_observing()


def trainer(folder: Path, **options: object) -> Trainer:
    return Trainer(moe_model(), arguments(folder), train_dataset=Sequences(4), **options)


def ours(host: Trainer) -> list[AReaLMetricsCallback]:
    return [known for known in host.callback_handler.callbacks if isinstance(known, AReaLMetricsCallback)]


def is_enabled(accelerator: Accelerator) -> bool:
    return "_areal_callbacks" in vars(accelerator)


@pytest.mark.usefixtures("observed")
def test_an_accelerator_is_enabled_with_the_environments_configuration():
    accelerator = Accelerator(cpu=True)
    assert is_enabled(accelerator)
    assert enable(accelerator).config.every == 7
    assert enable(accelerator, every=2).config.every == 2  # the script's own word counts


@pytest.mark.usefixtures("observed")
def test_a_trainer_gets_its_callback_and_keeps_its_accelerator_to_itself(tmp_path):
    host = trainer(tmp_path)
    (callback,) = ours(host)
    assert callback.config.every == 7
    assert not is_enabled(host.accelerator)
    assert is_enabled(Accelerator(cpu=True))  # the script's own beside it


@pytest.mark.usefixtures("observed")
@pytest.mark.parametrize("how", ["constructor", "instance", "class", "keyword"])
def test_a_callback_of_the_scripts_own_stays_the_only_one(how, tmp_path):
    own = AReaLMetricsCallback(every=2)
    if how == "constructor":
        host = trainer(tmp_path, callbacks=[own])
    else:
        host = trainer(tmp_path)
        if how == "keyword":
            host.add_callback(callback=own)
        else:
            host.add_callback(own if how == "instance" else AReaLMetricsCallback)
    (callback,) = ours(host)
    assert callback.config.every == (7 if how == "class" else 2)


@pytest.mark.usefixtures("observed")
def test_a_class_derived_from_trainer(tmp_path):
    class Derived(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.made = Accelerator(cpu=True)

    host = Derived(moe_model(), arguments(tmp_path), train_dataset=Sequences(4))
    assert len(ours(host)) == 1
    assert not is_enabled(host.made)


@pytest.mark.usefixtures("observed")
def test_a_lightning_trainer_gets_its_callback_first_and_once(tmp_path):
    from lightning.pytorch import Trainer as LightningTrainer

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback as LightningCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    options = {"accelerator": "cpu", "logger": False, "default_root_dir": tmp_path}
    host = LightningTrainer(**options)
    assert isinstance(host.callbacks[0], LightningCallback)
    own = LightningCallback(every=2)
    again = LightningTrainer(callbacks=own, **options)
    assert [known for known in again.callbacks if isinstance(known, LightningCallback)] == [own]


@pytest.mark.usefixtures("observed")
def test_a_fabric_without_callbacks_gets_ours_and_one_of_its_own_stays_the_only_one():
    from lightning.fabric import Fabric

    from areal_callbacks.integrations.lightning import AReaLFabricCallback

    (callback,) = Fabric(accelerator="cpu", devices=1)._callbacks
    assert isinstance(callback, AReaLFabricCallback)
    assert callback.config.every == 7
    own = AReaLFabricCallback(every=2)
    assert Fabric(accelerator="cpu", devices=1, callbacks=own)._callbacks == [own]


@pytest.mark.usefixtures("observed")
def test_observing_twice_is_once(tmp_path):
    observe_frameworks()
    assert len(ours(trainer(tmp_path))) == 1
    stop_observing()
    assert ours(trainer(tmp_path)) == []


@pytest.mark.usefixtures("observed")
def test_nothing_is_observed_afterwards(tmp_path):
    stop_observing()
    assert not is_enabled(Accelerator(cpu=True))
    assert ours(trainer(tmp_path)) == []
    assert not any(isinstance(finder, autoload.AfterImport) for finder in sys.meta_path)


def test_a_bad_configuration_is_an_error_before_anything_is_touched(monkeypatch):
    monkeypatch.setenv("AREAL_CALLBACKS", '{"evry": 7}')
    before = Accelerator.__init__
    with pytest.raises(ValueError, match=r"environment variable AREAL_CALLBACKS: .*evry"):
        observe_frameworks()
    assert Accelerator.__init__ is before


def test_a_script_runs_even_if_it_cannot_be_observed(observed, caplog):
    observed.setenv("AREAL_CALLBACKS", '{"every": 0}')  # turned bad meanwhile
    assert not is_enabled(Accelerator(cpu=True))
    (message,) = messages(caplog)
    assert message.startswith("accelerate cannot be observed: ValueError(")


class LoaderOfSlots:
    __slots__ = ()

    def create_module(self, spec: ModuleSpec) -> None:
        """As by default."""

    def exec_module(self, module: ModuleType) -> None:
        module.Maker = int


class LoaderOfOldForm:
    def load_module(self, name: str) -> ModuleType:
        sys.modules[name] = module = ModuleType(name)
        module.Maker = int
        return module


class TestAfterImport:
    """A framework that comes later, stood for by a module of the test's own."""

    @pytest.fixture
    def framework(self, tmp_path, monkeypatch):
        (tmp_path / "framework_of_the_test").mkdir()
        (tmp_path / "framework_of_the_test" / "__init__.py").write_text("")
        (tmp_path / "framework_of_the_test" / "core.py").write_text("class Maker:\n    pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(autoload, "_FRAMEWORKS", {"framework_of_the_test.core": self.observe})
        self.seen = []
        yield "framework_of_the_test.core"
        stop_observing()
        for name in [name for name in sys.modules if name.startswith("framework_of_the_test")]:
            del sys.modules[name]

    def observe(self, module):
        self.seen.append(module)
        if len(self.seen) > 1:
            raise RuntimeError("observed twice")

    def test_it_is_observed_once_right_after_its_import(self, framework):
        observe_frameworks()
        assert self.seen == []
        assert importlib.util.find_spec(framework) is not None  # only asking does not use it up
        module = importlib.import_module(framework)
        assert self.seen == [module]
        assert "exec_module" not in vars(module.__loader__)
        importlib.reload(module)
        assert self.seen == [module]

    def test_an_observer_that_fails_does_not_fail_the_import(self, framework, monkeypatch, caplog):
        def fail(_):
            raise AttributeError("Maker moved")

        monkeypatch.setattr(autoload, "_FRAMEWORKS", {framework: fail})
        observe_frameworks()
        assert importlib.import_module(framework).Maker
        assert messages(caplog) == [f"{framework} cannot be observed: AttributeError('Maker moved')"]

    @pytest.mark.filterwarnings("ignore::ImportWarning")  # of the old form
    @pytest.mark.parametrize("loader", [LoaderOfSlots, LoaderOfOldForm])
    def test_a_loader_that_cannot_be_followed_loads_as_without_us(self, loader, framework, monkeypatch):
        """Found by a finder of the program's own."""
        found = SimpleNamespace(find_spec=lambda name, *_: ModuleSpec(name, loader()) if name == framework else None)
        monkeypatch.setattr(sys, "meta_path", [found, *sys.meta_path])
        observe_frameworks()
        assert importlib.import_module(framework).Maker is int
        assert self.seen == []

    def test_a_framework_that_is_not_there_stays_an_import_error(self, monkeypatch):
        monkeypatch.setattr(autoload, "_FRAMEWORKS", {"framework_of_nobody": self.observe})
        observe_frameworks()
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("framework_of_nobody")
        stop_observing()

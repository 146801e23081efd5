"""``python -m areal_callbacks.run``: a script behaves as it does without, and is measured."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.subprocesses import search_path
from support.tiny_trainer import metric_records


def run(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None, program: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(program or ("-m", "areal_callbacks.run")), *arguments]
    variables = {**os.environ, "PYTHONPATH": search_path(), "HF_HUB_OFFLINE": "1", **(environment or {})}
    return subprocess.run(
        command,
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


TELL = """
import json, pickle, sys
import __main__
from neighbour import VALUE

class Kept:
    pass

if __name__ == "__main__":
    pickle.loads(pickle.dumps(Kept()))
    print(json.dumps({
        "argv": sys.argv, "file": __file__, "is_main": __main__.__dict__ is globals(), "neighbour": VALUE,
        "folders": sys.path[:1], "heavy": sorted({"torch", "accelerate", "transformers"} & set(sys.modules)),
    }))
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A script that tells how it was run, in a folder of its own that is also a package."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "tell.py").write_text(TELL)
    (folder / "neighbour.py").write_text("VALUE = 3\n")
    (tmp_path / "neighbour.py").write_text("VALUE = 4\n")
    return tmp_path


@pytest.mark.parametrize("path", ["scripts/tell.py", "absolute"])
def test_a_script_sees_what_it_sees_without_us(path, scripts):
    if path == "absolute":
        path = str(scripts / "scripts" / "tell.py")
    flags = ("--config_file", "x", "-m", "--", "a b")
    plain = run(*flags, cwd=scripts, program=(path,))
    with_us = run(path, *flags, cwd=scripts)
    assert plain.returncode == with_us.returncode == 0, with_us.stderr
    assert json.loads(with_us.stdout) == json.loads(plain.stdout)
    assert json.loads(with_us.stdout)["heavy"] == []


def test_a_module_sees_what_it_sees_without_us(scripts):
    flags = ("--its-own", "1")
    plain = run(*flags, cwd=scripts, program=("-m", "scripts.tell"))
    with_us = run("-m", "scripts.tell", *flags, cwd=scripts)
    assert plain.returncode == with_us.returncode == 0, with_us.stderr
    assert json.loads(with_us.stdout) == json.loads(plain.stdout)
    assert json.loads(with_us.stdout)["neighbour"] == 4


@pytest.mark.parametrize(
    ("line", "code"),
    [("raise RuntimeError('no more')", 1), ("raise SystemExit(3)", 3), ("import sys; sys.exit('bye')", 1), ("pass", 0)],
)
def test_exit_codes_are_the_scripts(line, code, tmp_path):
    (tmp_path / "train.py").write_text(line)
    assert run("train.py", cwd=tmp_path).returncode == code


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-m",)])
def test_without_a_script_it_says_how_to_use_it(arguments, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m areal_callbacks.run")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nope.py",), 2, "can't open file: [Errno 2] No such file or directory: '{place}/nope.py'"),
        (("folder",), 2, "can't open file: [Errno 21] Is a directory: '{place}/folder'"),
        (("-m", "nope"), 1, "No module named nope"),
        (("-m", "folder.nope"), 1, "No module named folder.nope"),
        (("-m", "nope.train"), 1, "No module named nope.train"),
    ],
)
def test_a_script_that_is_not_there_is_one_line_and_pythons_exit_code(arguments, code, message, tmp_path):
    (tmp_path / "folder").mkdir()
    plain = run(cwd=tmp_path, program=arguments)
    with_us = run(*arguments, cwd=tmp_path)
    assert with_us.returncode == code
    assert with_us.stderr == f"areal_callbacks.run: {message.format(place=tmp_path)}\n"
    assert plain.returncode == (code if "folder" not in arguments else 1)  # which is none of ours to run


def test_a_module_that_misses_another_shows_where(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import not_installed")
    (tmp_path / "package" / "train.py").write_text("")
    done = run("-m", "package.train", cwd=tmp_path)
    assert done.returncode == 1
    assert "No module named 'not_installed'" in done.stderr.splitlines()[-1]
    assert "package/__init__.py" in done.stderr


def test_a_bad_environment_is_one_line_before_the_script_begins(tmp_path):
    (tmp_path / "train.py").write_text("print('begun')")
    done = run("train.py", cwd=tmp_path, environment={"AREAL_CALLBACKS": '{"evry": 3}'})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("areal_callbacks: environment variable AREAL_CALLBACKS: ")
    assert "evry" in done.stderr
    assert len(done.stderr.splitlines()) == 1


NOTEBOOK = """
import sys
from pathlib import Path
from accelerate import notebook_launcher

def train(folder):
    from support.tiny_accelerate import Loop
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, project_dir=folder)
    loop = Loop(accelerator)
    loop.run()
    Path(f"tokens_{accelerator.process_index}").write_text(str(loop.tokens))

notebook_launcher(train, (sys.argv[1],), num_processes=2, use_port=sys.argv[2])
"""


@pytest.mark.slow
def test_two_processes_of_notebook_launcher(tmp_path):
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = run("notebook.py", "out", str(port), cwd=tmp_path, environment={"ACCELERATE_USE_CPU": "true"})
    assert done.returncode == 0, done.stderr
    tokens = [int((tmp_path / f"tokens_{rank}").read_text()) for rank in range(2)]
    rows = [record.metrics for record in metric_records(tmp_path / "out")]
    assert sum(row["train_perf/tokens"] for row in rows) == sum(tokens)
    assert len(rows) == 4

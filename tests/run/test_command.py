"""``areal-callbacks run``: the command behaves as it does without, and says so if nothing was trained."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.launches import BIN, environment
from support.subprocesses import search_path

Done = subprocess.CompletedProcess[str]
COMMAND = str(BIN / "areal-callbacks")


def run(place: Path, *words: str, options: tuple[str, ...] = (), **more: str) -> Done:
    line = [COMMAND, "run", *options, "--", *words]
    return subprocess.run(
        line,
        cwd=place,
        env=environment(place, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        input="in",
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    return tmp_path


def test_streams_arguments_and_exit_code_are_the_commands(place: Path) -> None:
    text = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.stderr.write('told\\n'); sys.exit(7)"
    done = run(place, sys.executable, "-c", text, "--every", "3", "--", "a b")
    assert (done.returncode, done.stdout) == (7, "['--every', '3', '--', 'a b'] in\n")
    assert done.stderr.splitlines()[0] == "told"


@pytest.mark.parametrize(("word", "code"), [("nope-nope", 127), ("./plain.txt", 126)])
def test_a_command_that_cannot_start_has_a_shells_exit_code(word: str, code: int, place: Path) -> None:
    (place / "plain.txt").write_text("no program")
    done = run(place, word)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(f"areal-callbacks run: {word}: ")
    assert "Traceback" not in done.stderr


WAITS = """
import signal, sys
def told(number, frame):
    print("got", number, flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, told)
signal.signal(signal.SIGUSR1, told)
print("ready", flush=True)
signal.pause()
"""


def start(place: Path, text: str) -> subprocess.Popen[str]:
    line = [COMMAND, "run", "--", sys.executable, "-c", text]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(line, cwd=place, env=environment(place), start_new_session=True, **streams)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_command_once_and_its_exit_code_comes_back(number: int, place: Path) -> None:
    process = start(place, WAITS)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, f"got {number}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN])
def test_a_command_that_a_signal_ends_ends_us_by_it(number: int, place: Path) -> None:
    done = run(place, sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})")
    assert done.returncode == -number
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_command_does_not_outlive_us(place: Path) -> None:
    process = start(
        place, "import os, time; print('ready', flush=True); print(os.getpid(), flush=True); time.sleep(60)"
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=60)
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "\nState:\tZ" in Path(f"/proc/{child}/status").read_text():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the command goes on")


def before(folder: Path) -> str:
    return os.pathsep.join([str(folder), search_path()])


def last_line(done: Done) -> str:
    return done.stderr.splitlines()[-1]


def test_one_line_says_that_nothing_was_trained_in_any_process(place: Path) -> None:
    done = run(place, sys.executable, "-c", f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'pass'])")
    assert done.returncode == 0
    assert last_line(done).startswith(
        "areal-callbacks run: nothing was measured: no trainer that is observed has trained"
    )
    assert "in any of the 2 Python processes" in last_line(done)
    assert len(done.stderr.splitlines()) == 1
    assert not list((place / "temporary").iterdir())


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_program_that_passes_the_hook_by_is_one_line(flag: str, place: Path) -> None:
    done = run(place, sys.executable, flag, "-c", "pass")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert "no Python process of this command read the start-up hook" in last_line(done)


def test_another_environment_without_this_package_is_one_line(place: Path) -> None:
    """A framework is imported there, in two processes."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "other")], check=True)
    (place / "accelerate").mkdir()
    (place / "accelerate" / "__init__.py").write_text("")
    (place / "accelerate" / "accelerator.py").write_text("print('imported')")
    other = str(place / "other" / "bin" / "python")
    line = "import accelerate.accelerator"
    text = f"import subprocess; subprocess.run([{other!r}, '-c', {line!r}])\n{line}"
    without_us = 'PYTHONPATH=${PYTHONPATH%%:*} exec "$@"'  # the hook alone, which stands first
    done = run(place, "sh", "-c", without_us, "sh", other, "-c", text)
    assert (done.returncode, done.stdout) == (0, "imported\nimported\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"areal-callbacks run: {other} imports accelerate, but cannot be measured: No module named")


def test_a_site_customisation_of_the_users_own_runs_as_before(place: Path) -> None:
    (place / "own").mkdir()
    (place / "own" / "sitecustomize.py").write_text(
        "import sys; print('own runs', sys.modules['sitecustomize'].__file__)"
    )
    tell = "import sys, sitecustomize; print(sitecustomize.__file__, [p for p in sys.path if 'start_up' in p])"
    done = run(place, sys.executable, "-c", tell, PYTHONPATH=before(place / "own"))
    path = place / "own" / "sitecustomize.py"
    assert sorted(done.stdout.splitlines()) == sorted([*[f"own runs {path}"] * 2, f"{path} []"])  # we are Python


def test_one_that_raises_is_reported_by_python_as_before(place: Path) -> None:
    (place / "own").mkdir()
    (place / "own" / "sitecustomize.py").write_text("raise RuntimeError('mine')")
    words = (sys.executable, "-c", "pass")
    with_us = run(place, *words, PYTHONPATH=before(place / "own"))
    plain = subprocess.run(
        words, env=environment(place, PYTHONPATH=before(place / "own")), capture_output=True, text=True
    )
    assert plain.stderr
    assert with_us.stderr.startswith(plain.stderr)


def test_a_child_that_trains_nothing_loads_nothing_and_is_not_held_up(place: Path) -> None:
    tell = "import sys; print(sorted({'torch', 'areal_callbacks', 'yaml', 'importlib.util'} & set(sys.modules)))"
    plain = subprocess.run([sys.executable, "-S", "-c", tell], env=environment(place), capture_output=True, text=True)
    done = run(place, sys.executable, "-c", tell)
    assert plain.stdout == "[]\n"
    assert "torch" not in done.stdout
    assert "areal_callbacks" not in done.stdout
    hook = Path(sys.modules["areal_callbacks"].__file__).parent / "run" / "start_up"
    timed = (
        f"import sys, time; sys.path.insert(0, {str(hook)!r}); sys.modules.pop('sitecustomize', None)\n"
        "start = time.process_time(); import sitecustomize; print(time.process_time() - start)"
    )
    took = (float(subprocess.check_output([sys.executable, "-c", timed], text=True)) for _ in range(20))
    assert any(seconds < 0.005 for seconds in took)  # a busy machine may slow down some


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--every", "3", "--no-flops", "--no-report"), {"every": 3, "flops.enabled": False, "report.enabled": False}),
        (("--config", "ours.yaml", "--every", "5"), {"every": 5, "moe_balance.extended": True}),
    ],
)
def test_options_reach_every_process(options: tuple[str, ...], expected: dict[str, object], place: Path) -> None:
    (place / "ours.yaml").write_text("every: 2\nmoe_balance: {extended: true}\n")
    tell = (
        "from operator import attrgetter; from areal_callbacks.config import MetricsConfig\n"
        "config = MetricsConfig.from_environment()\n"
        f"print({{name: attrgetter(name)(config) for name in {list(expected)!r}}})"
    )
    done = run(place, sys.executable, "-c", tell, options=options)
    assert done.stdout == f"{expected}\n"


@pytest.mark.parametrize("options", [("--every", "0"), ("--config", "nope.yaml")])
def test_a_bad_option_is_one_line_before_the_command_begins(options: tuple[str, ...], place: Path) -> None:
    done = run(place, sys.executable, "-c", "print('begun')", options=options)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_nested_runs_are_one(place: Path) -> None:
    done = run(place, COMMAND, "run", "--", sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])")
    assert done.stdout.count("start_up") == 1
    assert len(done.stderr.splitlines()) == 1


def test_the_command_is_found_on_the_path(place: Path) -> None:
    assert run(place, "true").returncode == 0
    assert shutil.which("true")

"""What is done when the interpreter exits: in one order, before thread pools and trackers are shut down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PRELUDE = """
import atexit, gc, os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from areal_callbacks.safety.at_exit import Order, at_exit, cancel

class Owner:
    def __init__(self, name): self.name = name
    def write(self): print(self.name, file=Path(sys.argv[1]).open("a"))

def late(owner):
    ThreadPoolExecutor().submit(owner.write).result()
"""


def run_script(folder: Path, code: str) -> tuple[list[str], str]:
    """What the tasks wrote, in order, and what was reported."""
    log = folder / "log"
    log.touch()
    command = [sys.executable, "-W", "ignore", "-c", PRELUDE + code, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return log.read_text().split(), done.stderr


def test_what_is_flushed_comes_first_and_threads_can_still_be_used(tmp_path: Path) -> None:
    code = """
first, second, third = Owner("close-1"), Owner("flush"), Owner("close-2")
atexit.register(Owner("atexit").write)
at_exit(first, late, Order.CLOSE)
at_exit(second, Owner.write, Order.FLUSH)
at_exit(third, late, Order.CLOSE)
"""
    assert run_script(tmp_path, code) == (["flush", "close-1", "close-2", "atexit"], "")


def test_what_a_flush_has_opened_is_closed(tmp_path: Path) -> None:
    code = """
opened = Owner("close")
flushing = Owner("flush")
def flush(owner):
    owner.write()
    at_exit(opened, Owner.write, Order.CLOSE)
at_exit(flushing, flush, Order.FLUSH)
"""
    assert run_script(tmp_path, code) == (["flush", "close"], "")


def test_an_owner_that_is_gone_or_cancelled_has_nothing_to_do(tmp_path: Path) -> None:
    code = """
gone, done, kept = Owner("gone"), Owner("done"), Owner("kept")
for owner in (gone, done, kept):
    at_exit(owner, Owner.write, Order.CLOSE)
cancel(done)
cancel(done)
del gone, owner
"""
    assert run_script(tmp_path, code) == (["kept"], "")


def test_one_that_raises_is_reported_and_the_others_are_done(tmp_path: Path) -> None:
    code = """
def fail(owner): raise OSError("no space left")
bad, good = Owner("bad"), Owner("good")
at_exit(bad, fail, Order.FLUSH)
at_exit(good, Owner.write, Order.CLOSE)
"""
    written, reported = run_script(tmp_path, code)
    assert written == ["good"]
    assert reported.count("Owner could not finish at exit: OSError('no space left')") == 1


def test_a_forked_child_does_only_its_own(tmp_path: Path) -> None:
    code = """
parent = Owner("parent")
at_exit(parent, Owner.write, Order.CLOSE)
if os.fork() == 0:
    child = Owner("child")
    at_exit(child, Owner.write, Order.CLOSE)
    sys.exit()
os.wait()
"""
    assert run_script(tmp_path, code) == (["child", "parent"], "")

"""`make peers`: the hosts' own test suites, plain and with our callback in every trainer; prints what differs.

    python tests/peers/run.py --accelerate FOLDER [--peers FOLDER] [--only HOST] [--keyword EXPRESSION] [--seconds N]

A test whose outcome differs is run again, alone and both ways, and counts if it differs again. Differences that are
no fault of ours are listed with a reason in artefacts.txt: ``host  test (with * for anything)  reason``.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from suites import HERE, SUITES, Outcomes, Suite, compare, prepare, run_suite

ARTEFACTS = HERE / "artefacts.txt"


def main() -> int:
    """The exit code: 1 if a difference is real or a host was not compared, 2 if there is nothing to run."""
    arguments = parse_arguments()
    checkouts = dict(find_checkouts(arguments.accelerate, arguments.peers))
    if not checkouts:
        print("no checkout: --accelerate FOLDER, or --peers with pytorch-lightning, trl or Megatron-LM in it")
        return 2
    hosts = [host for host in checkouts if arguments.only in (None, host)]
    lines = [line for host in hosts for line in judge(host, checkouts[host], arguments.seconds, arguments.keyword)]
    text = "\n".join([f"{time.strftime('%Y-%m-%d')}  python {' '.join(sys.argv)}", *lines, ""])
    print(text)
    if arguments.result is not None:
        with arguments.result.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    return int(any("DIFFERS" in line or line.endswith("; 0 in both") for line in lines))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerate", type=Path, help="accelerate's source package, unpacked")
    parser.add_argument("--peers", type=Path, help="a folder of checkouts")
    parser.add_argument("--only", choices=SUITES, help="the tests of this host alone")
    parser.add_argument("--keyword", help="of these tests those that pytest's -k chooses by this expression")
    parser.add_argument("--seconds", type=float, default=3600.0, help="limit of one run of a suite")
    parser.add_argument("--result", type=Path, help="a file that the result is added to")
    return parser.parse_args()


def find_checkouts(accelerate: Path | None, peers: Path | None) -> Iterator[tuple[str, Path]]:
    """Host → its checkout, for those that are there."""
    if accelerate is not None:
        yield "accelerate", accelerate
    for host, suite in SUITES.items():
        for name in suite.names:
            if peers is not None and (peers / name).is_dir():
                yield host, peers / name


def judge(host: str, checkout: Path, seconds: float, keyword: str | None = None) -> Iterator[str]:
    """What there is to say about one host: counts of both runs, then the differences."""
    suite = SUITES[host] if keyword is None else narrow(SUITES[host], keyword)
    prepare(suite, checkout)
    tests = [test for test in suite.tests if (checkout / test).exists()]
    plain = run_suite(suite, checkout, tests, attached=False, seconds=seconds)
    attached = run_suite(suite, checkout, tests, attached=True, seconds=seconds)
    yield f"{host}: plain {count(plain)}; attached {count(attached)}; {len(plain.keys() & attached.keys())} in both"
    reasons = read_artefacts(host)
    for name, (before, after) in repeat(suite, checkout, compare(plain, attached), seconds).items():
        reason = next((why for pattern, why in reasons.items() if fnmatch.fnmatchcase(name, pattern)), None)
        yield f"  {'artefact' if reason else 'DIFFERS'}  {name}: {before}, attached {after}  {reason or ''}".rstrip()


def narrow(suite: Suite, keyword: str) -> Suite:
    """The tests of the suite that the expression names; pytest takes the last -k alone."""
    options = list(suite.options)
    if "-k" in options:
        keyword = f"({options[options.index('-k') + 1]}) and ({keyword})"
    return replace(suite, options=(*options, "-k", keyword))


def repeat(
    suite: Suite, checkout: Path, differences: dict[str, tuple[str, str]], seconds: float
) -> dict[str, tuple[str, str]]:
    """Those that differ again when they run without the others."""
    if not differences:
        return {}
    tests = sorted({name.split("[")[0] for name in differences})
    plain = run_suite(suite, checkout, tests, attached=False, seconds=seconds)
    attached = run_suite(suite, checkout, tests, attached=True, seconds=seconds)
    return {name: outcomes for name, outcomes in compare(plain, attached).items() if name in differences}


def count(outcomes: Outcomes) -> str:
    """``120 passed, 3 failed``."""
    return ", ".join(f"{number} {outcome}" for outcome, number in Counter(outcomes.values()).most_common()) or "none"


def read_artefacts(host: str) -> dict[str, str]:
    """Pattern of a test's name → why its difference is no fault."""
    lines = [line.split(None, 2) for line in ARTEFACTS.read_text(encoding="utf-8").splitlines()]
    return {parts[1]: parts[2] for parts in lines if len(parts) == 3 and parts[0] == host}


if __name__ == "__main__":
    sys.exit(main())

"""Files of tests that `make check` leaves out, as measured.

    pytest --junitxml=JUNIT.xml ... ; python -m tests.slow_files JUNIT.xml

writes slow_files.txt: files whose tests take over MEAN_S each and SUM_S together, next to those
that mark themselves. tests/conftest.py reads it.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
LIST = HERE / "slow_files.txt"
MEAN_S, SUM_S = 0.05, 1.5
MARKED = re.compile(r"^pytestmark = .*mark\.(slow|alone|campaign)", re.MULTILINE)


def slow_files() -> frozenset[Path]:
    """Paths of the recorded files."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(HERE / line for line in lines)


def is_marked(path: Path) -> bool:
    """Whether every test of the file is marked slow by the file."""
    return MARKED.search(path.read_text(encoding="utf-8")) is not None


def over_limits(seconds: dict[str, list[float]]) -> list[str]:
    """Paths below tests/, from the seconds of each test by file."""
    return sorted(
        path
        for path, each in seconds.items()
        if sum(each) > SUM_S and sum(each) / len(each) > MEAN_S
    )


def seconds_of(report: Path) -> dict[str, list[float]]:
    """Seconds of each test by file, from JUnit's XML; files that mark themselves are left out."""
    seconds = defaultdict(list)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        path = Path(*case.attrib["classname"].split(".")).with_suffix(".py")
        if path.parts[0] == "tests" and path.exists() and not is_marked(path):
            seconds[path.relative_to("tests").as_posix()].append(float(case.attrib["time"]))
    return dict(seconds)


if __name__ == "__main__":
    paths = over_limits(seconds_of(Path(sys.argv[1])))
    LIST.write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")

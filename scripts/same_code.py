"""Check that the Python files changed since a git revision differ in prose only.

    python scripts/same_code.py BASE

Compares each file's syntax tree at BASE with that of the working tree, docstrings and comments
left out, and follows renames. Exits 1 with a list of the files whose code differs.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("base", help="git revision to compare with")
    base = parser.parse_args().base
    root = Path(git("rev-parse", "--show-toplevel").strip())
    compared, different = 0, []
    for old, new in changed_files(base):
        compared += 1
        before = code(git("show", f"{base}:{old}")) if old else None
        after = code((root / new).read_text(encoding="utf-8")) if new else None
        if before != after:
            how = "added" if not old else "deleted" if not new else "code differs"
            different.append(f"{new or old}: {how}")
    print(*sorted(different), f"{compared} changed, {len(different)} in code", sep="\n")
    return 1 if different else 0


def changed_files(base: str) -> Iterator[tuple[str, str]]:
    """Old and new path of each changed Python file; empty where there is none."""
    fields = iter(git("diff", "-M", "--name-status", "-z", base, "--", ":/*.py").split("\0"))
    for status in fields:
        if status.startswith(("R", "C")):
            yield next(fields), next(fields)
        elif status:
            path = next(fields)
            yield ("" if status == "A" else path), ("" if status == "D" else path)
    added = git("ls-files", "--others", "--exclude-standard", "-z", "--full-name", ":/*.py")
    yield from (("", path) for path in added.split("\0") if path)


def code(text: str) -> str:
    """Dump of the syntax tree without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

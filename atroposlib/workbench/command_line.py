"""atropos ui, and atropos run diff: runs side by side.

atropos ui runs                              the page of all runs below a folder
atropos run diff runs/a runs/b               what differs, and which run is better on which task
atropos run diff runs/a runs/b --html d.html the same as one file, with curves
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from atroposlib.text.lines import strict
from atroposlib.utils.command.parser import API_TOKEN, PORT, CommandParser
from atroposlib.utils.http.serve import serve_page
from atroposlib.workbench.diff_page import diff_file, terminal_parts
from atroposlib.workbench.run_diff import diff_of_runs
from atroposlib.workbench.run_folders import find_runs, run_at
from atroposlib.workbench.task_results import ROLLOUT_METRIC


def ui(argv: Sequence[str] | None = None) -> int:
    """Serve the page of all runs below a folder, live and ended, on this machine until Ctrl-C."""
    parser = CommandParser(prog="atropos ui", description=ui.__doc__, variables=(API_TOKEN,))
    parser.add_argument("root", type=Path, help="folder that holds the runs, at any depth")
    parser.add_argument("--port", type=PORT, default=8020, help="0: any (%(default)s)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    options = parser.parse_args(argv)
    runs = find_runs(options.root)
    from atroposlib.workbench.app import create_workbench

    workbench = create_workbench(options.root)
    serve_page(workbench, options.port, options.open, "/ui/", f"{len(runs)} runs")
    return 0


def run_diff(argv: Sequence[str] | None = None) -> int:
    """Compare two runs: settings, code, curves at equal steps and tokens, and paired tasks.

    Tasks are those of the last held-out check where both runs have one, else the rollouts that
    were trained on. The interval is a paired bootstrap over the tasks.
    """
    parser = CommandParser(prog="atropos run diff", description=run_diff.__doc__)
    parser.add_argument("a", metavar="A", help="folder of a run")
    parser.add_argument("b", metavar="B", help="folder of another run")
    about = "a named reward of the held-out answers (%(default)s)"
    parser.add_argument("--metric", default=ROLLOUT_METRIC, help=about)
    about = "least score of a solved task (%(default)s)"
    parser.add_argument("--solved", type=float, default=1.0, help=about)
    about = "compare the rollouts of these steps in place of held-out checks"
    parser.add_argument("--step", metavar="FROM..TO", help=about)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one file, with curves"
    )
    options = parser.parse_args(argv)
    a, b = run_at(options.a), run_at(options.b)
    diff = diff_of_runs(a, b, options.metric, options.solved, options.step)
    if options.html is not None:
        options.html.write_bytes(diff_file(diff))
    if options.json:
        print(json.dumps(strict(diff)))
        return 0
    console = Console(highlight=False)
    for part in terminal_parts(diff):
        console.print(part)
    if options.html is not None:
        print(f"with curves in {options.html}")
    return 0

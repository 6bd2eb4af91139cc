"""atropos api steer: weights, pauses and limits of the environments of a live run.

atropos api steer                            what is set
atropos api steer math --weight 3            its share, from the next batch on
atropos api steer math pause                 no new rollouts; its queued groups wait
atropos api steer math drain                 no new rollouts; its queued groups are trained
atropos api steer math resume
atropos api steer math --rollouts 4          at once, of each process
atropos api steer math --weight own --rollouts own
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from atroposlib.client import RolloutClient
from atroposlib.run_status.why import parser_of
from atroposlib.utils.command.parser import whole
from atroposlib.wire import RunStatus

OWN = "own"  # word for the value of the environment's registration
STATES = {"pause": "paused", "drain": "draining", "resume": "running"}


def main(argv: Sequence[str] | None = None) -> int:
    """Steer an environment of a live run; without a name print what is set."""
    parser = parser_of("atropos api steer", main.__doc__)
    parser.add_argument("env", nargs="?", help="name of the environment, as in atropos top")
    parser.add_argument("verb", nargs="?", choices=tuple(STATES))
    about = "share among the environments, or own: that of its settings"
    parser.add_argument("--weight", type=_own_or(_weight), metavar="W", help=about)
    about = "rollouts at once of each of its processes, or own"
    parser.add_argument("--rollouts", type=_own_or(whole(1)), metavar="N", help=about)
    options = parser.parse_args(argv)
    asked: dict[str, Any] = {"env": options.env}
    if options.verb is not None:
        asked["state"] = STATES[options.verb]
    for name, value in (("weight", options.weight), ("max_rollouts", options.rollouts)):
        if value is not None:
            asked[name] = None if value == OWN else value
    changes = len(asked) > 1
    if changes and options.env is None:
        parser.error("name the environment: atropos api steer NAME ...")
    with closing(RolloutClient(options.api_url, timeout_s=5, give_up_after_s=0)) as client:
        if options.env is not None:
            # Without a change the API checks the name alone.
            client.steer(**asked)
        print("\n".join(_lines(client.status()) or ["no environment has joined the run"]))
    return 0


def _own_or(number: Callable[[str], Any]) -> Callable[[str], Any]:
    def value_of(text: str) -> Any:
        return OWN if text == OWN else number(text)

    return value_of


def _weight(text: str) -> float:
    problem = argparse.ArgumentTypeError(
        f"a number above 0 and at most 1e6, or {OWN}, not {text!r}"
    )
    try:
        value = float(text)
    except ValueError:
        raise problem from None
    if not 0 < value <= 1e6:
        raise problem
    return value


def _lines(status: RunStatus) -> list[str]:
    lines = []
    for share in status.shares:
        if share.env_id is None or not share.connected:
            continue
        text = f"{share.name}: {share.state}, weight {share.weight:g}"
        if share.own_weight is not None:
            text += f" (own {share.own_weight:g})"
        if share.max_rollouts is not None:
            text += f", at most {share.max_rollouts} rollouts"
        lines.append(f"{text}, {share.realised:.0%} of the trained tokens")
    return lines

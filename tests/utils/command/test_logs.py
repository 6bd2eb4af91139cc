"""Log format of all processes: one event per line, without secrets."""

from __future__ import annotations

import errno
import json
import logging
import warnings

import pytest

from atroposlib.utils.command import logs
from tests.logged import logged

__all__ = ["logged"]
MARKER = "marker-7c1f"


@pytest.mark.parametrize("style", logs.FORMATS)
def test_secrets_in_texts_and_exceptions_are_redacted(logged, style):
    text = logged(style)
    token = "atr_" + "x" * 43
    log = logging.getLogger("atroposlib.api.test")
    log.warning("got %s", token)
    log.warning("header Authorization: Bearer abcdefghijkl, basic QWxhZGRpbjpvcGVu")
    try:
        raise ValueError(f"postgresql://me:{MARKER}@db/x refused {token}")
    except ValueError:
        log.exception("could not")
    assert token not in text() and "abcdefghijkl" not in text() and "QWxh" not in text()
    assert MARKER not in text() and "postgresql://[redacted]@db/x" in text()
    assert text().count(logs.REDACTED) >= 4


def test_control_characters_in_an_event_do_not_break_its_line(logged):
    text = logged("text")
    logging.getLogger("atroposlib.x").info(
        "a\nlevel=error\r\x1b[31m", extra={"fields": {"k": "v w"}}
    )
    [line] = text().split("\n")[:-1]
    assert r"a\nlevel=error\r\x1b[31m" in line and 'k="v w"' in line


def test_text_of_a_model_cannot_steer_a_terminal(logged, capsys):
    text, said = logged("text"), "a\x1b[2J\n\tb\u202e\x9b c\u202fd"
    assert logs.printable(said) == r"a\x1b[2J\n\tb\u202e\x9b c" + "\u202fd"
    assert logs.printable(said, logs.LINES) == "a\\x1b[2J\n\tb\\u202e\\x9b c\u202fd"
    try:
        raise ValueError(said)
    except ValueError:
        logging.getLogger("atroposlib.x").exception("could not")
    logs.report("run-api", said)
    assert text().endswith("ValueError: a\\x1b[2J\n\tb\\u202e\\x9b c\u202fd\n")
    assert "\x1b" not in capsys.readouterr().err


def test_a_line_has_time_level_process_and_message_and_json_the_same_fields(logged):
    text = logged("text")
    logging.getLogger("example_trainer.x").info("step %d", 3)
    [line] = text().splitlines()
    assert line.endswith("Z info    run-api  step 3") and line[10] == "T"
    text = logged("json")
    logging.getLogger("example_trainer.x").info("step %d", 4)
    event = json.loads(text().splitlines()[-1])
    named = {name: event[name] for name in ("level", "process", "logger", "message")}
    assert named == {
        "level": "info",
        "process": "run-api",
        "logger": "example_trainer.x",
        "message": "step 4",
    }


def test_warnings_and_the_last_line_of_a_command_are_json_where_logs_are(logged, capsys):
    text = logged("json")
    warnings.showwarning(FutureWarning("old name"), FutureWarning, "x.py", 1)
    logs.report("run-api", "port 1 is taken")
    first, last = map(json.loads, text().splitlines())
    assert "old name" in first["message"] and last["message"] == "port 1 is taken"
    assert (first["level"], last["level"]) == ("warning", "error")
    logged("text")
    logs.report("run-api", "port 1 is taken")
    assert capsys.readouterr().err == "run-api: port 1 is taken\n"


def test_a_file_that_cannot_be_used_is_named_before_the_reason(logged, capsys):
    logged("text")
    logs.report("run-api", OSError(errno.EROFS, "Read-only file system", "/data/q"))
    logs.report("run-api", OSError("the connection ended"))
    assert capsys.readouterr().err == (
        "run-api: /data/q: read-only file system\nrun-api: the connection ended\n"
    )


def test_a_library_that_adds_a_handler_of_its_own_still_logs_in_our_format(logged):
    text = logged("json")
    library = logging.getLogger("transformers")
    library.addHandler(logging.StreamHandler())
    library.propagate = False
    library.warning("slow tokenizer")
    assert json.loads(text())["message"] == "slow tokenizer"


def test_log_records_of_libraries_are_written_from_level_warning(logged):
    text = logged("text")
    logging.getLogger("httpx").info("quiet")
    logging.getLogger("uvicorn.error").info("quiet")
    logging.getLogger("uvicorn.error").warning("loud")
    assert "quiet" not in text() and "loud" in text()

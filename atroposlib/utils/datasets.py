"""Rows of a data set, from a local file or from the Hugging Face hub.

    load_rows("openai/gsm8k", "train", path="data/gsm8k", subset="main")

Unavailable rows are an error whose message contains the option that points to a file. There is
no fallback to toy data, because a run on toy data looks like a working run.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.errors import DatasetUnavailable

if TYPE_CHECKING:
    from pydantic import BaseModel

Row = dict[str, Any]
PATH_OPTION = "--env.dataset_path"
# Mark of a setting that names local rows: ``dataset_path: Annotated[str | None, LOCAL_ROWS]``.
LOCAL_ROWS = "local rows"


def load_rows(
    source: str,
    split: str,
    *,
    path: str | Path | None = None,
    subset: str | None = None,
    option: str = PATH_OPTION,
    limit: int | None = None,
    columns: Collection[str] | None = None,
) -> list[Row]:
    """Rows of ``split``, from ``path`` if given, else from ``source`` on the hub.

    ``path`` is a .jsonl, .json or .parquet file, which serves as every split, or a folder with
    files named after their split (``train.jsonl``, ``gsm8k_test.jsonl``,
    ``data/train-00000-of-00002.parquet``).

    Args:
        source: the name on the hub, also used to name the data in errors.
        subset: the configuration of the data set on the hub, where it has several.
        option: the flag that sets ``path``, for the errors.
        limit: number of first rows to read; nothing more is fetched from the hub.
        columns: columns to keep; None keeps all. Unused solutions can be gigabytes of a set.

    Raises DatasetUnavailable: names the data, what is missing and the option to set.
    """
    if path is None:
        all_rows = _hub_rows(source, split, subset, option, streaming=limit is not None)
    else:
        all_rows = _file_rows(Path(path), split, source, option)
    rows = [
        {k: v for k, v in row.items() if columns is None or k in columns}
        for row in itertools.islice(all_rows, limit)
    ]
    if not rows:
        where = "on the hub" if path is None else f"in {path}"
        raise DatasetUnavailable(f"{source}: no rows of split {split!r} {where}; see {option}")
    return rows


# --- files ------------------------------------------------------------------------------


def data_paths(config: BaseModel) -> list[str]:
    """The values of the settings that are marked as paths of local rows."""
    fields = type(config).model_fields
    named = [name for name, field in fields.items() if LOCAL_ROWS in field.metadata]
    return [str(path) for name in named if (path := getattr(config, name))]


def require_path(path: str | Path, option: str = PATH_OPTION) -> None:
    """Raise DatasetUnavailable if there is nothing at ``path``, which ``option`` names."""
    if not Path(path).exists():
        raise DatasetUnavailable(
            f"{path} does not exist; {option} takes a .jsonl, .json or .parquet file, or a "
            "folder of them named by split"
        )


def _file_rows(path: Path, split: str, source: str, option: str) -> Iterator[Row]:
    require_path(path, option)
    files = split_files(path, split) if path.is_dir() else [path]
    if not files:
        raise DatasetUnavailable(
            f"{source}: {path} has no file of split {split!r}: name it {split}.jsonl (or .json, "
            f".parquet), or let {option} name one file"
        )
    try:
        for file in files:
            yield from _rows_of(file)
    except OSError as error:
        raise DatasetUnavailable(
            f"{error.filename or path}: {error.strerror or error}; see {option}"
        ) from error


def split_files(folder: Path, split: str) -> list[Path]:
    """The files of ``split`` in ``folder`` or its ``data`` folder, in order of their names."""
    of_split = re.compile(rf"(?:.*[-_.])?{re.escape(split)}(?:-\d+-of-\d+)?")
    return sorted(
        file
        for place in (folder, folder / "data")
        if place.is_dir()
        for file in place.iterdir()
        if file.suffix in READERS and of_split.fullmatch(file.stem)
    )


def _rows_of(file: Path) -> Iterator[Row]:
    if file.suffix not in READERS:
        raise DatasetUnavailable(f"{file}: one of {', '.join(READERS)} is read")
    for i, row in enumerate(READERS[file.suffix](file)):
        if not isinstance(row, dict):
            raise DatasetUnavailable(f"{file}: row {i} is not an object but {row!r:.80}")
        yield row


def _jsonl_rows(file: Path) -> Iterator[Any]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse(line, f"{file}, line {number}")


def _json_rows(file: Path) -> Iterator[Any]:
    rows = _parse(file.read_text(encoding="utf-8"), str(file))
    if not isinstance(rows, list):
        raise DatasetUnavailable(f"{file}: a .json file holds one list of objects")
    yield from rows


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DatasetUnavailable(f"{where} is not JSON: {error}") from error


def _parquet_rows(file: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DatasetUnavailable(
            f"{file}: .parquet needs pyarrow: pip install 'atropos-rl[hub]'"
        ) from error
    with file.open("rb") as handle:
        try:
            for batch in parquet.ParquetFile(handle).iter_batches():
                yield from batch.to_pylist()
        except ValueError as error:  # base class of ArrowInvalid
            raise DatasetUnavailable(f"{file} is not a parquet file: {error}") from error


READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": _jsonl_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}


# --- the hub ------------------------------------------------------------------------------


def _hub_rows(
    source: str, split: str, subset: str | None, option: str, *, streaming: bool
) -> Iterator[Row]:
    """Rows from the hub. ``streaming`` reads the first rows of a large set without a download."""
    advice = f"set {option} to a .jsonl, .json or .parquet file of it, or a folder of them"
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise DatasetUnavailable(
            f"{source}: the package datasets is missing (pip install 'atropos-rl[hub]'), or "
            f"{advice}"
        ) from error
    import httpx

    try:
        for row in load_dataset(source, subset, split=split, streaming=streaming):
            yield dict(row)
    except (OSError, ValueError, RuntimeError, DatasetsError, httpx.HTTPError) as error:
        raise DatasetUnavailable(
            f"{source}, split {split!r}, cannot be had from the hub ({error}): {advice}"
        ) from error

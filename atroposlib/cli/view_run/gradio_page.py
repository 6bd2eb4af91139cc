"""The page in Gradio. Model text stands in Textbox, HighlightedText and Number only.

Markdown, Chatbot, HTML and Dataframe would fetch images that the text names.
"""

from __future__ import annotations

import io
import math
import os
from typing import Any

from atroposlib.cli.view_run.shown_groups import PROBABILITIES, ShownGroup, Source

POLL_S = 1.0
COLOURS = dict(zip(PROBABILITIES, ("#9ad29a", "#cfe3a0", "#f2df8d", "#f0b27a", "#e57373")))
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


def mount(app: Any, source: Source, name: str, samples: int, *, images: bool) -> None:
    """Serve the page at ``/`` of a FastAPI app, without resources of remote machines."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    import gradio as gr

    with gr.Blocks(title=name, analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        at = gr.State(0)  # number of the shown group, of each open page
        status = gr.Textbox(source.status, label="Status", max_lines=1)
        with gr.Row():
            older, newer = gr.Button("Older"), gr.Button("Newer")
            grab = gr.Button("Grab Next Batch", variant="primary")
            follow = gr.Checkbox(not source.take, label="Follow the newest", min_width=120)
        shown: list[Any] = [gr.Textbox(label="Group", max_lines=1)]
        if images:
            tiles: dict[str, Any] = {
                "columns": 4,
                "fit_columns": False,
                "object_fit": "contain",
            }
            shown.append(gr.Gallery(label="Images", height=260, **tiles))
        shown.append(gr.Textbox(label="Prompt", lines=2, max_lines=20))
        coloured: dict[str, Any] = {"color_map": COLOURS, "combine_adjacent": True}
        coloured |= {"show_inline_category": False}
        for i in range(1, samples + 1):
            with gr.Row():
                shown.append(gr.Number(label=f"Score {i}", scale=1, min_width=90))
                shown.append(gr.Textbox(label=f"Output {i}", lines=2, max_lines=30, scale=8))
            legend = {"show_legend": i == 1, **coloured}
            shown.append(gr.HighlightedText(label=f"Tokens {i} by probability", **legend))

        def move(group: ShownGroup | None, following: Any) -> list[Any]:
            unchanged = [gr.skip()] * (len(shown) + 1)
            values = [*fields(group, samples, images), group.number] if group else unchanged
            return [source.status, *values, following]

        def grab_number(number: int) -> list[Any]:
            if source.after(number) is None:
                source.fetch()
            return move(source.after(number), False)

        def tick(number: int, following: bool) -> list[Any]:
            if not source.take:
                source.fetch()
            newest = source.before(math.inf) if following else None
            return move(newest if newest and newest.number > number else None, gr.skip())

        outputs = [status, *shown, at, follow]
        hidden: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        grab.click(grab_number, at, outputs, api_name="get_batch")
        newer.click(lambda number: move(source.after(number), False), at, outputs, **hidden)
        older.click(lambda number: move(source.before(number), False), at, outputs, **hidden)
        gr.Timer(POLL_S).tick(tick, [at, follow], outputs, **hidden)
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    gr.mount_gradio_app(app, page, "", footer_links=[], theme=theme, ssr_mode=False)


def fields(group: ShownGroup, samples: int, images: bool) -> list[Any]:
    """Values of the fields, from the title on; fields of a missing sample are empty."""
    values: list[Any] = [f"{group.number}: {group.title}"]
    if images:
        values.append(
            [picture for picture in map(_picture, group.images) if picture is not None]
        )
    # Text after the mark of an image, which is shown separately.
    values.append(group.prompt.rpartition("[Image]")[2] if images else group.prompt)
    for sample in group.samples:
        values += sample
    return values + [None, "", []] * (samples - len(group.samples))


def _picture(data: bytes) -> Any:
    """The decoded image, or None: the bytes come from a model or a data set."""
    from PIL import Image

    try:
        picture = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
        picture.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return picture

"""Rewind of the rollout API to the batch that the loaded weights were trained on."""

from __future__ import annotations

import logging

from atroposlib.client import RolloutClient
from atroposlib.errors import RunStateError, StaleGeneration
from example_trainer.model.model_dir import TrainerState

logger = logging.getLogger(__name__)
BEGIN = (
    "To begin a new run POST /reset_data; to train on what is queued with these weights all"
    " the same, set recover_mode disabled."
)


def rewind(client: RolloutClient, state: TrainerState) -> None:
    """Rewind the API, so that batches acked after these weights are delivered again.

    The registration found out that it can be done, except by an API that is older.
    """
    held = state.batch_no or 0
    try:
        rewound = client.rewind(held)
    except StaleGeneration as error:
        raise RunStateError(
            f"these weights were trained on batch {held}, which the rollout API does not know"
            f" ({error}): its data is older than the checkpoint. {BEGIN}"
        ) from error
    if rewound.gone:
        raise RunStateError(
            f"{rewound.gone} batches after batch {held} were trained into other weights and"
            " freed: they cannot be trained into these. Start from the checkpoint that holds"
            f" them (save_path of the trainer that ran before). {BEGIN}"
        )
    if rewound.replayed:
        logger.info(f"{rewound.replayed} batches after batch {held} come again")

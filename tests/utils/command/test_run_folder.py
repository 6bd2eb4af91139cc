"""Names in the folder of a run, the same for all launchers."""

from __future__ import annotations

from atroposlib.utils.command.run_folder import DATA_FOLDER, DATA_FOLDERS
from example_trainer.launch.plan import ApiSection


def test_a_launcher_writes_into_the_folder_that_readers_try_first():
    assert ApiSection.model_validate({}).data == DATA_FOLDER == DATA_FOLDERS[0]

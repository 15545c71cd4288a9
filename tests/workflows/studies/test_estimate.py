"""How long studies would take, and `pare study --dry-run`, which says so."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.workflows.studies import load_study, study_names
from paretorch.workflows.studies.estimate import minutes_of, seconds_per_epoch, ticket_epochs, ticket_minutes


def test_wider_and_deeper_networks_take_longer() -> None:
    assert seconds_per_epoch("wrn-28-10") == pytest.approx(4.3)
    assert seconds_per_epoch("wrn-28-4") < seconds_per_epoch("wrn-28-10") < seconds_per_epoch("swrn-28-14-2")
    assert seconds_per_epoch("swrn-28-18-6") == seconds_per_epoch("wrn-28-18")
    assert seconds_per_epoch("vgg16", 64) == 2 * seconds_per_epoch("vgg16", 128)
    assert seconds_per_epoch("wrn-50-2") > 100 * seconds_per_epoch("wrn-28-10"), "on ImageNet"


def test_a_run_takes_all_its_epochs() -> None:
    study = load_study("sparsity-resnet20")
    assert minutes_of(study.settings["dense"]) == minutes_of(study.settings["cs-0.944"])
    assert minutes_of(study.settings["dense"]) == pytest.approx(200 * 0.65 / 60)


def test_searches_count_their_retraining() -> None:
    study = load_study("sparsity-tickets-vgg16-layers")
    assert ticket_epochs(study, ["cs"]) == 2 * 85
    assert ticket_epochs(study, ["imp"]) == 2 * 85
    assert ticket_epochs(study) == 4 * 85
    assert ticket_minutes(study) == pytest.approx(5 * 85 * seconds_per_epoch("vgg16", 64) / 60)


@pytest.mark.parametrize("name", study_names())
def test_every_study_can_be_listed(name: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["study", name, "--dry-run", "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "minutes on one H200" in shown.output
    assert not list(tmp_path.iterdir())


def test_what_is_done_takes_no_time() -> None:
    words = ["study", "optim-lstm300", "--only", "adam", "--dry-run"]
    shown = CliRunner().invoke(app, [*words, "--out", str(Path(__file__).parents[3] / "results")])
    assert shown.output.count(", done") == 3
    assert "About 0 minutes" in shown.output

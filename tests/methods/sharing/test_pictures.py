"""`pare fold`, its page, and the two pictures."""

import itertools
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from paretorch import SMOLActivations, SoftSharing, compress, fold
from paretorch.cli.app import app
from paretorch.cli.fold import shared_network
from paretorch.core.method import Method
from paretorch.deploy import load, save
from paretorch.methods.sparsity.rivals import GradualMagnitude
from paretorch.report.sharing import folded_diagram, heat_map
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.recipe_values import recipe_from
from paretorch.training.tasks.language import CARRIED
from paretorch.zoo import build


def pare(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that shares: what its last checkpoint holds."""
    torch.manual_seed(0)
    network = build("swrn-22-1-2", classes=4)
    plan = compress(network, SoftSharing(**network.sharing), steps=9, seed=3)
    mixes = [m for m in network.modules() if type(m).__name__ == "Mix"]
    with torch.no_grad():
        for i, mix in enumerate(mixes[:4]):  # the first stage: two layers, twice
            mix.s.copy_((1.0 + i) * torch.eye(2)[i % 2])
    recipe = {"network": "swrn-22-1-2", "network_options": {"classes": 4}, "data": "cifar10"}
    random = {"cpu": torch.get_rng_state()}
    folder = tmp_path / "run"
    folder.mkdir()
    state = Checkpoint(recipe, network.state_dict(), {}, plan.state_dict(), 1, 0, 0, torch.zeros(0), random)
    state.save(folder / "checkpoint.pt")
    torch.save(network.eval()(torch.ones(1, 3, 8, 8)), tmp_path / "output.pt")
    return folder


@pytest.fixture
def text_run(tmp_path: Path) -> Path:
    """An unfinished run of a language model, whose checkpoint holds the state that is carried from step to step."""
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"ptb.char.{part}.txt").write_text("a b c d e f g " * 90)
    options = {"layers": 3, "embedding": 8}
    recipe = recipe_from(
        {
            "network": "lstm-8",
            "network_options": options,
            "data.name": "ptb-char",
            "data.batch": 2,
            "epochs": 1,
            "compression.sharing_options": {"templates": 1},
        }
    ).as_dict()
    network = build("lstm-8", vocabulary=8, **options)
    plan = compress(network, SoftSharing(templates=1, exclude=network.leave_out["sharing"]), steps=9)
    state = network.state_dict() | {CARRIED: torch.zeros(3, 2, 1, 2, 8)}
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"recipe": recipe}))
    random = {"cpu": torch.get_rng_state()}
    Checkpoint(recipe, state, {}, plan.state_dict(), 1, 0, 0, torch.zeros(0), random).save(folder / "checkpoint.pt")
    return folder


def test_pare_fold_of_a_language_model(text_run: Path) -> None:
    assert "2 layers are 1; layer 1 runs twice; exact" in pare("fold", str(text_run), "--root", str(text_run.parent))
    assert load(text_run / "folded.pare").embedding.weight.shape[0] == 8
    assert "ptb.char" in pare("fold", str(text_run), "--root", str(text_run), code=1), "its vocabulary is in the data"


@pytest.mark.parametrize("beside", [GradualMagnitude(target=0.5), SMOLActivations(target_bits=4.0)])
def test_pare_fold_of_runs_with_other_methods(beside: Method, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, x = build("swrn-16-1-1"), torch.randn(2, 3, 32, 32)
    plan = compress(
        network, SoftSharing(**network.sharing), beside, steps=9, example=x if beside.on_activations else None
    )
    recipe = {"network": "swrn-16-1-1", "data": "cifar10"}
    random = {"cpu": torch.get_rng_state()}
    state = Checkpoint(recipe, network.state_dict(), {}, plan.state_dict(), 1, 0, 0, torch.zeros(0), random)
    state.save(tmp_path / "checkpoint.pt")
    pare("fold", str(tmp_path), "--recalibrate", "0")
    torch.testing.assert_close(load(tmp_path / "folded.pare").eval()(x), fold(network).eval()(x))


def sizes(told: str) -> tuple[int, int]:
    """Bytes before and after, as they are printed."""
    before, after = (int(word.replace(",", "")) for word in re.findall(r"([\d,]+) (?:bytes|folded)", told))
    return before, after


def test_pare_fold_leaves_a_file_and_a_page(run: Path) -> None:
    told = pare("fold", str(run), "--threshold", "0.999", "--only", "stages.0.*")
    assert "4 layers are 2; layers 1-2 run twice; exact" in told
    assert {path.name for path in run.iterdir()} == {"checkpoint.pt", "folded.pare", "folding.html"}
    network = load(run / "folded.pare")
    expected = torch.load(run.parent / "output.pt")
    torch.testing.assert_close(network(torch.ones(1, 3, 8, 8)), expected, rtol=1e-4, atol=1e-5)
    page = (run / "folding.html").read_text()
    assert "layers 1-2 run twice" in page
    assert page.count("<svg") == 6
    before, after = sizes(told)
    assert after == (run / "folded.pare").stat().st_size
    assert after == pytest.approx(before, rel=1e-3), "two templates are stored either way"


def test_pare_fold_of_a_run_without_a_checkpoint(run: Path) -> None:
    words = ("fold", str(run), "--threshold", "0.999", "--only", "stages.0.*")
    told = pare(*words)
    save(fold(shared_network(run)), run / "model.pare")
    (run / "checkpoint.pt").unlink()
    assert pare(*words).splitlines()[:3] == told.splitlines()[:3]
    network = load(run / "folded.pare")
    expected = torch.load(run.parent / "output.pt")
    torch.testing.assert_close(network(torch.ones(1, 3, 8, 8)), expected, rtol=1e-4, atol=1e-5)
    own = build("swrn-22-1", classes=4)  # as many templates as layers
    compress(own, SoftSharing(**own.sharing), steps=9)
    save(fold(own), run / "model.pare")
    for more in (words, ("fold", str(run), "--curve")):
        assert "model.pare stores every layer itself" in pare(*more, code=2)
    save(build("resnet20"), run / "model.pare")
    assert "shares no templates: train it with SoftSharing" in pare(*words, code=2)


def test_pare_fold_by_number_of_layers(run: Path) -> None:
    told = pare("fold", str(run), "--layers", "3", "--recalibrate", "0")
    assert told.count("4 layers are 1; layer 1 runs 4 times; error up to") == 3
    before, after = sizes(told)
    assert after < 0.9 * before, "one weight a stage in place of two templates"


def test_pare_fold_tells_where_nothing_is_saved_yet(run: Path) -> None:
    words = ("fold", str(run), "--only", "stages.1.*", "--recalibrate", "0", "--layers")
    told = pare(*words, "3")
    before, after = sizes(told)
    assert after == pytest.approx(before, rel=1e-3)
    assert "folding further saves" in told
    assert "folding further saves" not in pare(*words, "1")


def keep_similarities(run: Path, sizes: tuple[int, ...] = (4, 4, 4)) -> None:
    """What `pare train` writes at some epochs."""
    rows = [{"epoch": epoch, "similarities": [torch.eye(n).tolist() for n in sizes]} for epoch in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def headings(page: Path) -> list[str]:
    return re.findall(r"<h[23]>([^<]*)</h[23]>", page.read_text())


def test_similarities_by_epoch_and_by_run(run: Path, tmp_path: Path) -> None:
    keep_similarities(run)
    pare("fold", str(run))
    stage = "Group 1: stages.0.1.conv1 … stages.0.2.conv2"
    assert headings(run / "similarities.html")[:4] == [
        stage,
        "epoch 1",
        "epoch 2",
        stage.replace("0", "1").replace("1:", "2:", 1),
    ]
    other = shutil.copytree(run, tmp_path / "deeper" / "run")
    third = shutil.copytree(run, tmp_path / "third")
    pare("fold", str(run), "--beside", str(third))
    assert headings(run / "similarities.html")[:3] == [stage, "run", "third"]
    pare("fold", str(run), "--beside", str(other), "--beside", str(third))
    assert headings(run / "similarities.html")[:4] == [stage, str(run), str(other), str(third)], "two are called run"


def test_a_wrong_neighbour_is_told_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    keep_similarities(run)
    files = set(run.iterdir())
    assert "nowhere kept no similarities" in pare("fold", str(run), "--beside", str(tmp_path / "nowhere"), code=2)
    other = shutil.copytree(run, tmp_path / "other")
    keep_similarities(other, (4, 4))
    assert "other groups of layers" in pare("fold", str(run), "--beside", str(other), code=2)
    assert set(run.iterdir()) == files


def test_a_report_shows_loops_and_similarities(run: Path, tmp_path: Path) -> None:
    keep_similarities(run)
    pare("fold", str(run), "--only", "stages.0.*", "--layers", "1", "--recalibrate", "0")
    pare("report", str(run / "folded.pare"), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "layer 1 runs 4 times" in page
    assert page.count("how alike the layers are</h3><svg") == 3
    assert "stages.0.1.conv1, stages.0.2.conv2: 0.000" in page


def test_the_report_of_the_run_has_the_last_fold(run: Path) -> None:
    report = run / "report.html"
    report.write_text("<body><main><section>as it was</section></main><footer>foot</footer></body>")
    pare("fold", str(run), "--only", "stages.0.*", "--layers", "2", "--recalibrate", "0")
    assert "4 layers are 2; layers 1-2 run twice." in report.read_text()
    pare("fold", str(run), "--only", "stages.0.*", "--layers", "1", "--recalibrate", "0")
    page = report.read_text()
    assert page.count('<section id="folded">') == 1
    assert page.count("<svg") == 3
    assert "4 layers are 1; layer 1 runs 4 times." in page
    assert "layers 1-2 run twice" not in page
    assert page.startswith("<body><main><section>as it was</section>")
    assert page.endswith("</main><footer>foot</footer></body>")


def test_mistakes_are_one_line(run: Path, tmp_path: Path) -> None:
    for words in ([], ["--curve"]):
        assert "holds no checkpoint.pt and no model.pare" in pare("fold", str(tmp_path / "nowhere"), *words, code=2)
    assert "from 0 to 1" in pare("fold", str(run), "--threshold", "7", code=2)
    for words in (["--threshold", "0.5"], ["--layers", "3"], ["--beside", str(run)]):
        assert "leave out --threshold" in pare("fold", str(run), "--curve", *words, code=2)
    plain = build("resnet20")
    random = {"cpu": torch.get_rng_state()}
    state = Checkpoint({"network": "resnet20"}, plain.state_dict(), {}, None, 1, 0, 0, torch.zeros(0), random)
    state.save(tmp_path / "checkpoint.pt")
    assert "shares no templates" in pare("fold", str(tmp_path), code=2)
    for junk in (b"nothing", b"junk\n"):
        (tmp_path / "checkpoint.pt").write_bytes(junk)
        assert "not a readable checkpoint" in pare("fold", str(tmp_path), code=1)


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def test_a_heat_map_has_a_square_for_each_pair() -> None:
    svg = parsed(heat_map("m", "Similarity", ["a<b", "c"], [[1.0, 0.25], [0.25, 1.0]]))
    squares = svg.findall("rect")
    assert [square.get("fill-opacity") for square in squares] == ["1.00", "0.25", "0.25", "1.00"]
    assert squares[1].findtext("title") == "a<b, c: 0.250"
    assert svg.findtext("desc") == "2 layers; most alike are layers 1 and 2, 0.25."


def test_names_without_what_all_have_in_common() -> None:
    svg = parsed(heat_map("m", "Similarity", ["stages.1.2.conv1", "stages.1.10.conv1"], torch.eye(2).tolist()))
    assert [text.text for text in svg.findall("text")] == ["2.conv1  1", "10.conv1  2", "1", "2"]
    assert svg.findall("rect")[1].findtext("title") == "stages.1.2.conv1, stages.1.10.conv1: 0.000"


def test_a_hundred_layers_are_still_one_picture() -> None:
    names = [f"layers.{i}" for i in range(100)]
    matrix = torch.full((100, 100), 0.52)
    matrix[:50, :50], matrix[50:, 50:] = 1.0, 0.01
    svg = heat_map("m", "Similarity", names, matrix.tolist())
    squares = {path.get("fill-opacity"): path.get("d", "").count("M") for path in parsed(svg).findall("path")}
    assert squares == {"0.50": 5_000, "1.00": 2_500}, "what is empty is not drawn"
    assert len(svg) < 400_000


@pytest.mark.parametrize(
    ("runs", "tips"),
    [
        ([1, 2, 3, 4, 3, 4, 1, 2], ["step 1: from layer 4 to layer 3", "step 2: from layer 4 to layer 1"]),
        ([1, 1, 2, 1, 3], ["step 1: from layer 1 to layer 1", "step 2: from layer 2 to layer 1", "step 3: from layer 1 to layer 3"]),
        ([1, 2, 1, 2, 1, 2], ["step 1, 2: from layer 2 to layer 1"]),
        ([1, 1, 1, 1, 1], ["step 1-4: from layer 1 to layer 1"]),
        ([1, 1, 1, 1, 2, 1, 1], ["step 1-3, 5: from layer 1 to layer 1", "step 4: from layer 2 to layer 1"]),
        ([1, 2, 3], []),
    ],
)  # fmt: skip
def test_the_diagram_has_every_jump_in_order(runs: list[int], tips: list[str]) -> None:
    svg = parsed(folded_diagram("f", "Folded", runs, "in words"))
    assert [title.text for path in svg.findall("path") for title in path.findall("title")] == tips
    assert len(svg.findall("rect")) == max(runs)
    assert svg.findtext("desc") == "in words."
    assert len(svg.findall("text")) == max(runs) + 1 + len(tips), "every layer is numbered, every jump, and the end"
    width = float(svg.get("viewBox", "").split()[2])
    for one in svg.findall("rect"):
        assert 0 <= float(one.get("x", "")) <= width


def segments(svg: ElementTree.Element) -> list[tuple[float, list[tuple[float, float]]]]:
    """Of each arc its height, and its ends as (x, y)."""
    found = []
    for path in svg.findall("path[title]"):
        x, y, turn, end, _ = (float(value) for value in re.findall(r"[\d.]+", path.get("d", "")))
        found.append((turn, [(x, y), (end, y)]))
    return found


def test_arcs_do_not_lie_on_each_other() -> None:
    """The ways of a network that jumps about: no two ends in one place, no two arcs along one line."""
    runs = [1, 2, 2, 1, 1, 3, 3, 1, 4, 3, 3, 5, 5, 5, 5, 5, 3, 5, 5, 3]
    svg = parsed(folded_diagram("f", "Folded", runs, "in words"))
    arcs = segments(svg)
    ends = [end for _, both in arcs for end in both]
    assert min(abs(a[0] - b[0]) for a, b in itertools.combinations(ends, 2) if a[1] == b[1]) > 3
    for (turn, (a, b)), (other, (c, d)) in itertools.combinations(arcs, 2):
        (left, right), (begin, end) = sorted((a[0], b[0])), sorted((c[0], d[0]))
        assert turn != other or right < begin or end < left
    assert list(svg)[-1].tag == "text", "numbers are drawn last, over the arcs"


@pytest.mark.parametrize("count", [20, 25, 100])
def test_numbers_of_a_heat_map_do_not_run_into_each_other(count: int) -> None:
    svg = parsed(heat_map("m", "Similarity", [f"layers.{i}" for i in range(count)], torch.eye(count).tolist()))
    places = [float(one.get("x", "")) for one in svg.findall("text") if (one.text or "").isdigit()]
    assert len(places) > 9
    assert min(b - a for a, b in itertools.pairwise(places)) >= 18


def test_numbers_of_many_layers_do_not_run_into_each_other() -> None:
    svg = parsed(folded_diagram("f", "Folded", list(range(1, 41)), "in words"))
    places = [float(one.get("x", "")) for one in svg.findall("text") if (one.text or "").isdigit()]
    assert len(places) > 10
    assert min(b - a for a, b in itertools.pairwise(places)) >= 15
    assert len(svg.findall("rect")) == 40

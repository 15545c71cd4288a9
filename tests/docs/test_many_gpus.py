"""docs/many-gpus.md: its numbers are those of the benchmark's file."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_images_on_the_disk_is_the_file() -> None:
    page = (ROOT / "docs/many-gpus.md").read_text()
    content = json.loads((ROOT / "results/image-folder/cpu.json").read_text())
    for name, form in (("images per second", "{:.1f}"), ("processor seconds per 1,000 images", "{:.2f}")):
        for way in content["ways"].values():
            assert ", ".join(form.format(value) for value in way[name]) in page, (name, way)
    for ratio in content["ratios_of_processor_time"].values():
        assert f"{ratio:.2f} ×" in page
    assert f"load of {content['load']:.0f}" in page

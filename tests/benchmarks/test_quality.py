"""The picture of quality against speed has the means of the result files."""

import json
from pathlib import Path
from statistics import fmean

from benchmarks.quality import PUBLISHED, RESULTS, draw, read_panel

from lightconv.paper.results import ResultsFolder


def test_a_point_is_the_mean_of_its_files(tmp_path: Path) -> None:
    folder = RESULTS / "mt2" / "multi30k-en-de"
    files = [json.loads(p.read_text()) for p in folder.glob("*-dynamicconv-small.seed*.json")]
    assert len(files) == 3
    measured = [each["measured"] for each in files]
    bleu = fmean(each["scores"]["test"][0]["value"] for each in measured)
    speed = fmean(each["speed"]["lines"] / each["speed"]["seconds"] for each in measured)
    panel = read_panel(ResultsFolder.open(folder))
    (point,) = (point for point in panel.points if point.name == "dynamicconv")
    assert abs(point.bleu - bleu) < 1e-9 and abs(point.speed - speed) < 1e-9
    draw([panel, PUBLISHED], tmp_path / "quality.png")
    assert (tmp_path / "quality.png").stat().st_size > 10_000

"""The printed full-size scripts of all tables, run from the first to the last line.

PATH, the place of the owners' archives in the scripts, is a folder of stand-ins; models are narrow
and trained for one update. The lines are run as `lightconv table` prints them.
"""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightconv.paper.jobs import TableOptions, write_script
from lightconv.paper.tables import TABLES
from tests.corpora import test_campaigns as campaigns
from tests.corpora import test_news as news
from tests.corpora.packing import lines, pack, write_folder
from tests.harness.server import environment

SETTINGS = ["train.max_steps=1", "train.save_every=1", "decode.max_len_plus=60"]


def write_wmt(folder: Path) -> None:
    """Archives of WMT'16 En-De, in which those of WMT'14 En-Fr are too."""
    parallel, held_out = campaigns.parallel, campaigns.held_out
    giga = parallel(".", "giga-fren.release2.fixed", "fr-en", 3)
    archives: dict[str, dict[str, str | bytes]] = {
        "training-parallel-nc-v11.tgz": {**parallel("n", "news-commentary-v11.de-en", "de-en", 30)},
        "training-parallel-nc-v9.tgz": {**parallel("n", "news-commentary-v9.fr-en", "fr-en", 30)},
        "training-parallel-un.tgz": {**parallel("un", "undoc.2000.fr-en", "fr-en", 2)},
        "training-giga-fren.tar": {f"{n}.gz": gzip.compress(t.encode()) for n, t in giga.items()},
        "dev.tgz": {
            **held_out("dev", "newstest2012", "en-fr", 2),
            **held_out("dev", "newstest2013", "en-de", 2),
            **held_out("dev", "newstest2013", "en-fr", 2),
        },
        "test-full.tgz": {
            **held_out("test", "newstest2014-deen", "en-de", 3),
            **held_out("test", "newstest2014-fren", "en-fr", 3),
        },
    }
    for stem in ("europarl-v7", "commoncrawl"):
        both = [parallel("t", f"{stem}.{pair}", pair, 9) for pair in ("de-en", "fr-en")]
        archives[f"training-parallel-{stem}.tgz"] = {**both[0], **both[1]}
    for name, files in archives.items():
        pack(folder / name, files)


def write_talks_and_chinese(folder: Path) -> None:
    """IWSLT'14 unpacked, and the archives of WMT'17 Zh-En."""
    write_folder(folder, campaigns.files())
    names = [("casia2015", "casia2015", "ch"), ("casict2011", "casict-A", "ch")]
    names += [("casict2011", "casict-B", "ch"), ("casict2015", "casict2015", "ch")]
    names += [("datum2015", "datum", "ch"), ("neu2017", "NEU", "cn")]
    names += [("datum2017", f"Book{n}", "cn") for n in range(1, 21)]
    archives: dict[str, dict[str, str]] = {}
    for home, stem, end in names:
        files = archives.setdefault(f"{home}.zip", {})
        files[f"{home}/{stem}_{end}.txt"] = lines(*(f"{stem} 中文 {n} 句子 。" for n in range(3)))
        files[f"{home}/{stem}_en.txt"] = lines(*(f"{stem} English {n} text ." for n in range(3)))
    archives["training-parallel-nc-v12.tgz"] = {
        "training/news-commentary-v12.zh-en.zh": "一 二 三 四\n五 六 七 八\n",
        "training/news-commentary-v12.zh-en.en": "one two three four\nfive six seven eight\n",
    }
    archives["dev.tgz"] = campaigns.held_out("dev", "newsdev2017-zhen", "zh-en", 2)
    archives["test.tgz"] = campaigns.held_out("test", "newstest2017-zhen", "zh-en", 2)
    archives["UNv1.0.en-zh.tar.gz"] = {
        "en-zh/UNv1.0.en-zh.zh": lines(*(f"联合国 中文 {n} 句子" for n in range(5))),
        "en-zh/UNv1.0.en-zh.en": lines(*(f"United Nations {n} text" for n in range(5))),
    }
    for name, content in archives.items():
        pack(folder / name, content)


def write_billion_words(folder: Path) -> None:
    pack(folder / f"{news.ROOT}.tar.gz", news.FILES)


def write_stories(folder: Path) -> None:
    news.stories(archives=True, folder=folder)


WRITERS = {"mt2": write_talks_and_chinese, "lm": write_billion_words}
WRITERS["summarization"] = write_stories


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_script_runs_from_first_to_last_line(name: str, tmp_path: Path) -> None:
    WRITERS.get(name, write_wmt)(tmp_path / "PATH")
    # Every process takes seconds to start, so only tables of few rows have `torchrun`.
    processes = 2 if name in ("lm", "decoders") else 1
    options = TableOptions(
        scale="paper", seeds=1, width=128, limit=2, set=SETTINGS, processes=processes
    )
    script = write_script(TABLES[name], options)
    assert ("torchrun --nproc-per-node 2 " in script) == (processes == 2)
    path = tmp_path / "script.sh"
    path.write_text(script)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-ex", str(path)],
        cwd=tmp_path,
        env={**environment(), "PATH": tools, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=3000,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    for row in TABLES[name].rows:
        assert (tmp_path / f"runs/{name}/paper/{row.recipe}.seed1/model/config.json").exists()
    assert ran.stdout.count("+ lightconv evaluate ") == script.count("lightconv evaluate ")
    assert ran.stdout.count("+ lightconv speed ") == script.count("lightconv speed ")

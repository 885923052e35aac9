"""The demo's results as one HTML file: pictures are inside it, and there is no script."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from lightconv import __version__
from lightconv.demo.plots import Picture
from lightconv.demo.results import Results

PAPER = "https://arxiv.org/abs/1901.10430"
# Of a long source, a page shows so many words.
MOST_WORDS = 60

_STYLE = """
:root { color-scheme: light dark; --ink: #1f262d; --soft: #5c6670; --line: #dfe3e8; --page: #fbfbfa;
  --card: #ffffff; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde2e7; --soft: #98a2ad; --line: #333b44;
  --page: #15191d; --card: #1c2127; --accent: #58aee8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; }
main { max-width: 58rem; margin: 0 auto; padding: 3rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 3rem 0 .3rem; }
p { margin: .4rem 0 1rem; max-width: 46rem; }
a { color: var(--accent); }
.soft, figcaption, td small { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem;
  margin: 1.6rem 0 0; }
.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.card { padding: .8rem 1rem; }
.card b { display: block; font-size: 1.6rem; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .86rem; line-height: 1.35; display: block; }
.card.first b { color: var(--accent); }
figure { margin: 1rem 0; padding: 1rem 1rem .8rem; overflow-x: auto; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption { font-size: .9rem; margin-top: .6rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem .45rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
.right { text-align: right; padding: .45rem 0 .45rem .8rem; }
dl { display: grid; grid-template-columns: 6.5rem 1fr; gap: .15rem .8rem; margin: 0;
  padding: .8rem 0; border-bottom: 1px solid var(--line); font-size: .95rem; }
dt { color: var(--soft); } dd { margin: 0; } dd.said { font-weight: 600; }
code, pre { font: .84rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; }
footer { margin-top: 3rem; color: var(--soft); font-size: .88rem; }
"""


class Words(NamedTuple):
    """What is said of a task.

    title     of the page
    metric    the score that stands first: its name, for people
    floors    what systems without a model are called
    examples  about the texts below them
    parts     what source, output and reference are called
    """

    title: str
    metric: str
    floors: Mapping[str, str]
    examples: str
    parts: tuple[str, str, str]


WORDS = {
    "translation": Words(
        "A DynamicConv translator, trained on this machine",
        "BLEU",
        {
            "copy": "copying the source",
            "nearest": "the translation of the nearest training sentence",
        },
        "Sentences of the test set, which the model has never seen, taken at even distances from "
        "all of moderate length.",
        ("source", "model", "reference"),
    ),
    "lm": Words(
        "A DynamicConv language model, trained on this machine",
        "perplexity per subword",
        {"unigram": "counting words"},
        "The first words of sentences that the model has never seen, how it goes on (drawn at "
        "random from its most likely words), and how the text really went on.",
        ("begin", "model", "reference"),
    ),
    "summary": Words(
        "A DynamicConv summariser, trained on this machine",
        "ROUGE-L",
        {"lead": "the first words", "nearest": "the summary of the nearest training text"},
        "Descriptions of the test set, which the model has never seen, taken at even distances "
        "from all of moderate length.",
        ("text", "model", "reference"),
    ),
}


def make_page(
    task: str, results: Results, pictures: Mapping[str, Sequence[tuple[Picture, str]]]
) -> str:
    """The page; `pictures` has for each section pictures with what is said below them."""
    words = WORDS[task]
    parts = [
        f"<h1>{escape(words.title)}</h1>",
        _lead(results),
        _cards(words, results),
        "<h2>Learning</h2>",
        *_figures(pictures["learning"]),
        "<h2>Scores on held-out text</h2>",
        _scores(words, results),
        "<h2>Text it has never seen</h2>",
        f"<p class=soft>{escape(words.examples)}</p>",
        _examples(words, results.examples or []),
        "<h2>Time and memory as sequences grow</h2>",
        *_figures(pictures["growth"]),
        "<h2>Kernels that LightConv layers have learned</h2>",
        *_figures(pictures["learned"]),
        "<h2>Kernels that DynamicConv layers make for one text</h2>",
        *_figures(pictures["dynamic"]),
        "<h2>How this was made</h2>",
        _facts(task, results),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(words.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n<footer>lightconv {escape(__version__)}, after "
        f'<a href="{PAPER}">Pay Less Attention with Lightweight and Dynamic Convolutions</a> '
        "(Wu et al., 2019). This page needs no network.</footer>\n</main>\n</body>\n</html>\n"
    )


def headline(task: str, results: Results) -> list[tuple[str, float]]:
    """Who scores what, the model first: the one measure that stands first."""
    assert results.scores is not None
    names = {"model": "the model", **WORDS[task].floors}
    return [(names[system], first_value(each[0])) for system, each in results.scores.items()]


def first_value(score: Mapping[str, Any]) -> float:
    """What stands first of a score; of words so short a training knows too few to count by them."""
    return float(score["parts"].get("per_subword", score["value"]))


def _lead(results: Results) -> str:
    data, training = results.data or {}, results.training or {}
    lead = data.get("lead")
    read = "" if lead is None else f" Of a text, its first {lead} words are read."
    read += " The text is invented." * data["invented"]
    return (
        f"<p>{training['parameters']:,} parameters, {escape(training['layers'])}, trained for "
        f"{training['steps']:,} updates on {training['tokens']:,} tokens of the corpus "
        f"<code>{escape(data['corpus'])}</code> ({data['examples']['train']:,} training examples) "
        f"in {_duration(training['seconds'])}.{escape(read)}</p>"
    )


def _cards(words: Words, results: Results) -> str:
    assert results.scores is not None
    cards = []
    for system, scores in results.scores.items():
        who = "this model" if system == "model" else words.floors[system]
        first = " first" if system == "model" else ""
        cards.append(_card(f"{first_value(scores[0]):,.1f}", f"{words.metric}: {who}", first))
    rows = results.growth or []
    last = rows[-1]["microseconds"]
    ours, theirs = last["DynamicConv"], last["attention, fused"]
    cards.append(
        _card(
            f"{theirs / ours:,.0f}x",
            f"faster than fused attention at {rows[-1]['length']:,} tokens",
        )
    )
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(value: str, text: str, kind: str = "") -> str:
    return f'<div class="card{kind}"><b>{escape(value)}</b><span>{escape(text)}</span></div>'


def _figures(pictures: Sequence[tuple[Picture, str]]) -> Iterable[str]:
    for picture, caption in pictures:
        alt = escape(caption, quote=True)
        yield (
            "<figure><picture>"
            f'<source media="(prefers-color-scheme: dark)" srcset="{_uri(picture.dark)}">'
            f'<img src="{_uri(picture.light)}" alt="{alt}"></picture>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )


def _uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _scores(words: Words, results: Results) -> str:
    assert results.scores is not None
    systems = list(results.scores)
    names = ["this model" if name == "model" else words.floors[name] for name in systems]
    rows = []
    for scores in zip(*results.scores.values(), strict=True):
        better = (
            "per word, lower is better"
            if scores[0]["metric"] == "perplexity"
            else "higher is better"
        )
        rows.append(
            [f"{scores[0]['metric']} ({better})", *(f"{score['value']:.2f}" for score in scores)]
        )
    signatures = "\n".join(str(score["signature"]) for score in results.scores["model"])
    lines = results.data or {}
    return (
        f"<p class=soft>{lines['scored']:,} lines of the test set. Whoever is not above a system "
        "without a model has learned nothing worth having.</p>"
        + _table(["", *names], rows)
        + f"<pre>{escape(signatures)}</pre>"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, all others are numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ["", *[' class="right"'] * (len(cells) - 1)]
        found = zip(cells, sides, strict=True)
        return "".join(f"<{tag}{side}>{escape(cell)}</{tag}>" for cell, side in found)

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{line(header, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _examples(words: Words, examples: Sequence[Mapping[str, Any]]) -> str:
    found = []
    for example in examples:
        rows = zip(words.parts, ("source", "output", "reference"), strict=True)
        found.append(
            "<dl>"
            + "".join(
                f"<dt>{escape(name)}</dt><dd{' class=said' if part == 'output' else ''}>"
                f"{escape(_shorten(example[part]))}</dd>"
                for name, part in rows
            )
            + "</dl>"
        )
    return "\n".join(found)


def _facts(task: str, results: Results) -> str:
    facts = {
        "command": f"lightconv demo --task {task}",
        "machine": ", ".join(f"{name} {value}" for name, value in results.machine.items()),
        "corpus": _corpus(results),
    }
    lines = "\n".join(f"{name:<9} {value}" for name, value in facts.items())
    return f"<pre>{escape(lines)}</pre>"


def _corpus(results: Results) -> str:
    data = results.data or {}
    splits = ", ".join(f"{name} {count:,}" for name, count in data["examples"].items())
    return f"{data['corpus']}: {splits}"


def _shorten(text: str) -> str:
    found = text.split()
    return text if len(found) <= MOST_WORDS else " ".join(found[:MOST_WORDS]) + " …"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

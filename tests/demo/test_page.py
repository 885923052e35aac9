"""Kernels against kernels computed by hand, operator and attention, pictures, and the page."""

import math
import re
from typing import Any

import pytest
import torch

from lightconv.demo import page
from lightconv.mixers.kernels import dynamic_kernels, learned_kernels
from lightconv.models import (
    DynamicConvConfig,
    LanguageModel,
    LanguageModelConfig,
    LightConvConfig,
    Seq2Seq,
    Seq2SeqConfig,
)

LIGHT = LightConvConfig(kernel=3, heads=2, glu=True)
DYNAMIC = DynamicConvConfig(kernel=5, heads=4, glu=True, dropconnect=0.5)


CONFIG = Seq2SeqConfig(
    **{"dim": 16, "ffn_dim": 8, "source_heads": 2, "source_vocab": 20, "target_vocab": 20},
    encoder=(LIGHT, DYNAMIC),
    decoder=(DYNAMIC, LIGHT),
    pre_norm=True,
)


def test_learned_kernels_are_the_softmax_of_the_weights() -> None:
    torch.manual_seed(0)
    built = Seq2Seq(CONFIG).eval()
    found = learned_kernels(built)
    assert [each["layer"] for each in found] == ["encoder 1", "decoder 2"]
    assert [each["left"] for each in found] == [1, 2]  # centred, and causal
    for each, mixer in zip(found, (built.encoder[0].mixer, built.decoder[1].mixer), strict=True):
        powers = torch.tensor([[math.exp(value) for value in row] for row in mixer.weight.tolist()])
        want = powers / powers.sum(-1, keepdim=True)
        torch.testing.assert_close(torch.tensor(each["weights"]), want, atol=1e-5, rtol=0)


def test_dynamic_kernels_are_those_of_the_layer() -> None:
    """The layer computed step by step: its kernels, applied to its input, give its output."""
    torch.manual_seed(0)
    built = Seq2Seq(CONFIG).eval()
    ids = [4, 9, 7, 5, 11, 2]
    (found,) = dynamic_kernels(built, lambda: built.encode(torch.tensor([ids])))
    assert (found["layer"], found["left"]) == ("encoder 2", 2)
    weights = torch.tensor(found["weights"])  # [H, T, K]
    assert weights.shape == (4, 6, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 6), atol=1e-4, rtol=0)

    mixer = built.encoder[1].mixer
    calls = []
    handle = mixer.register_forward_hook(lambda module, args, out: calls.append((args[0], out)))
    with torch.no_grad():
        built.encode(torch.tensor([ids]))
        handle.remove()
        ((given, output),) = calls
        x, gate = mixer.in_proj(given[0]).chunk(2, dim=-1)
        x = x * torch.sigmoid(gate)  # [T, D]
        mixed = torch.zeros_like(x)
        for t in range(6):
            for d in range(16):
                for k in range(5):
                    if 0 <= t + k - 2 < 6:
                        mixed[t, d] += weights[d // 4, t, k] * x[t + k - 2, d]
        want = mixer.out_proj(mixed)
    torch.testing.assert_close(output[0], want, atol=1e-4, rtol=1e-4)
    assert not any(module._forward_hooks for module in built.modules())


def test_a_language_model_has_kernels_too() -> None:
    config = LanguageModelConfig(dim=16, ffn_dim=8, layers=(LIGHT, DYNAMIC), vocab=20)
    built = LanguageModel(config).eval()
    (learned,) = learned_kernels(built)
    (dynamic,) = dynamic_kernels(built, lambda: built.features(torch.tensor([[2, 4, 5]])))
    found = (learned["layer"], dynamic["layer"], dynamic["left"])
    assert found == ("layer 1", "layer 2", 4)


# --- The operator against attention


def test_both_attentions_are_the_same() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 9, page.D) for _ in range(3))
    fused, plain = (page.attention(q, k, v, fused=fused) for fused in (True, False))
    torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-4)
    # The first position sees itself alone.
    torch.testing.assert_close(plain[:, 0], v[:, 0])


@pytest.mark.parametrize("length, tokens", [(16, 32), (64, 64)])
def test_a_length(length: int, tokens: int) -> None:
    row = page.measure_growth(length, tokens=32)
    assert (row["length"], row["tokens"]) == (length, tokens)
    assert set(row["microseconds"]) == {page.CONV, page.FUSED, page.PLAIN}
    assert all(value > 0 for value in row["microseconds"].values())


def test_times_are_medians_per_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of DynamicConv, then of two attentions, take 90 s to warm up, then 1, 2 and 6 s."""
    spent = [seconds for each in (90, 1, 2, 6) for seconds in (each, 2 * each, 4 * each)]
    clock = iter([time for seconds in spent for time in (1000.0, 1000.0 + seconds)])
    monkeypatch.setattr(page.time, "perf_counter", lambda: next(clock))
    row = page.measure_growth(16, tokens=32)
    assert row["microseconds"] == {page.CONV: 62500.0, page.FUSED: 125000.0, page.PLAIN: 250000.0}


def test_a_matrix_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_BYTES", 1e5)
    assert set(page.measure_growth(64, tokens=64)["microseconds"]) == {page.CONV, page.FUSED}


def test_memory_of_a_call() -> None:
    found = page.peak_bytes(lambda: torch.ones(4_000_000))
    if found is None:
        pytest.skip("this system does not report it")
    assert 15e6 < found < 40e6


# --- The page

NASTY = "<script>alert('x')</script> & \"quotes\" </dd></main>"


def results(**changes: Any) -> dict[str, Any]:
    score = {"metric": "sacrebleu", "value": 12.3456, "parts": {}, "signature": f"a|{NASTY}"}
    times = {"DynamicConv": 1.0, "attention, fused": 4.0}
    # A causal DynamicConv of width 2 over two tokens, and a LightConv of width 3.
    dynamic = {"layer": NASTY, "left": 1, "weights": [[[0.25, 0.75], [0.5, 0.5]]]}
    learned = {"layer": "encoder 1", "left": 1, "weights": [[0.2, 0.7, 0.1]]}
    return {
        "data": {
            **{"corpus": f"synthetic-{NASTY}", "lead": 24},
            **{"examples": {"train": 3}, "scored": 2},
        },
        "training": {
            **{"layers": "2 + 2", "dim": 8, "parameters": 10},
            **{"steps": 5, "tokens": 7, "seconds": 61.0, "log": []},
        },
        **{"task": "translation", "metric": "BLEU"},
        "headline": [("this model", 12.3456), ("copying the source", 1.0)],
        "scores": {"model": [score], "copy": [{**score, "value": 1.0}]},
        "examples": [{"source": NASTY, "output": NASTY, "reference": "word " * 100}],
        "growth": [{"length": 64, "tokens": 64, "microseconds": times, "bytes": None}],
        "kernels": {"text": ["a", NASTY], "learned": [learned], "dynamic": [dynamic]},
        "machine": NASTY,
        **changes,
    }


def show(**changes: Any) -> str:
    return page.make_page(results(**changes))


def test_texts_are_escaped() -> None:
    text = show()
    assert "<script" not in text and "</dd></main>" not in text
    assert 'title="&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quotes' in text
    assert text.count("&lt;script&gt;") >= 8


def test_figures_of_the_page() -> None:
    text = show()
    assert "<b>12.3</b><span>BLEU: this model<" in text and "<b>4x</b>" in text
    assert "<b>1.0</b><span>BLEU: copying the source<" in text
    assert "1 min 1 s" in text and "the first 24 words are read. The text is invented." in text
    assert "word …" in text and text.count("word ") < 70  # a long text is cut
    plain = results()["data"] | {"lead": None, "corpus": "debian-en-de"}
    text = show(data=plain)
    assert "words are read" not in text and "invented" not in text


# --- Pictures


def test_kernels_as_maps() -> None:
    text = show()
    assert "<th>-1</th><th>0</th><th>+1</th>" in text
    assert '<td style="--w:0.2">0.20</td><td style="--w:0.7">0.70</td>' in text
    # What reaches before the text is left out; shades are relative to the largest weight.
    first, second = re.findall(r"<tr><th>(?:a|&lt;.*?)</th>(<td.*?)</tr>", text)
    assert re.findall(r"<td(?: style=\"--w:(\S+)\")?", first) == ["1.000", ""]
    assert re.findall(r"<td(?: style=\"--w:(\S+)\")?", second) == ["0.667", "0.667"]
    without = {"text": [], "learned": [], "dynamic": []}
    assert 'class="map' not in show(kernels=without)


def test_pictures_of_what_may_be_missing() -> None:
    assert page.draw_learning([])
    assert page.draw_learning([{"kind": "valid", "step": 3, "nll": None}])
    row = {"length": 8, "microseconds": {"a": 1.0, "b": 2.0}, "bytes": None}
    assert page.draw_growth([row])
    later = {"length": 16, "microseconds": {"a": 1.0}, "bytes": {"a": 0.0}}
    assert page.draw_growth([{**row, "bytes": {"a": 1.0, "b": 3.0}}, later])


def test_the_same_results_are_the_same_picture() -> None:
    log = [{"kind": "train", "step": 1, "nll": 2.0}, {"kind": "train", "step": 2, "nll": 1.0}]
    assert page.draw_learning(log) == page.draw_learning(log) != page.draw_learning(log[:1])

"""Two recipes by hand, and any recipe as a hypothesis strategy."""

from pathlib import Path

from hypothesis import strategies as st

from lightconv.data.config import TaskConfig
from lightconv.decode import DecodeConfig
from lightconv.models.config import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    Seq2SeqConfig,
)
from lightconv.recipe import Recipe
from lightconv.train.config import (
    AdamConfig,
    CosineConfig,
    InverseSqrtConfig,
    NesterovConfig,
    TrainConfig,
)

TRANSLATION = Recipe(
    about="Two layers",
    task=TaskConfig(
        kind="translation", corpus="toy", source_lang="de", target_lang="en", metric="bleu"
    ),
    model=Seq2SeqConfig(
        dim=512,
        ffn_dim=1024,
        source_heads=4,
        encoder=(
            DynamicConvConfig(kernel=3, heads=4, glu=True, dropconnect=0.1),
            AttentionConfig(heads=4),
        ),
        decoder=(LightConvConfig(kernel=7, heads=4, normalize="none"),),
        source_vocab=8848,
        target_vocab=6632,
        dropout=0.3,
    ),
    train=TrainConfig(
        max_steps=50_000,
        tokens_per_update=4000,
        optimizer=AdamConfig(weight_decay=1e-4),
        schedule=InverseSqrtConfig(peak=5e-4, warmup=4000),
        label_smoothing=0.1,
    ),
    decode=DecodeConfig(beam=4),
    sources={"train.optimizer.eps": "its README", "model": "the table"},
)

# TRANSLATION by hand.
TOML = Path(__file__).with_name("translation.toml").read_text()

LANGUAGE_MODEL = Recipe(
    about="",
    task=TaskConfig(kind="language_model", corpus="words", metric="perplexity"),
    model=LanguageModelConfig(
        dim=64,
        ffn_dim=128,
        layers=(AverageConfig(ffn_dim=32), ConvConfig(kernel=3)),
        vocab=1000,
        adaptive=AdaptiveConfig(cutoffs=(100, 500)),
    ),
    train=TrainConfig(
        max_steps=100,
        tokens_per_update=65_000,
        optimizer=NesterovConfig(),
        schedule=CosineConfig(peak=1.0, warmup=10, period=90),
        clip_norm=0.1,
    ),
)

counts = st.integers(1, 1000)
shares = st.floats(0, 1, exclude_max=True)
sizes = st.floats(0, 100)
# Below this the smallest start, 0, is not surely below the peak.
peaks = st.floats(1e-3, 1e12)
texts = st.text(st.characters(codec="utf-8"))
words = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1)
normalizations = st.sampled_from(["none", "softmax", "abs_l1"])
# Any of these divides the widths below.
heads = st.sampled_from([1, 2, 4, 8])
widths = st.integers(1, 1000).map(lambda n: 8 * n)

convolution = {
    "kernel": counts,
    "heads": heads,
    "glu": st.booleans(),
    "normalize": normalizations,
    "dropconnect": shares,
}
mixers = st.one_of(
    st.builds(AttentionConfig, heads=heads, window=st.none() | counts, dropout=shares),
    st.builds(ConvConfig, kernel=counts),
    st.builds(LightConvConfig, **convolution),
    st.builds(DynamicConvConfig, **convolution),
    st.builds(AverageConfig, ffn_dim=counts, dropout=shares),
)
layers = st.lists(mixers, min_size=1, max_size=3).map(tuple)
adaptive = st.none() | st.builds(
    AdaptiveConfig,
    cutoffs=st.sampled_from([(5,), (1, 7)]),
    factor=st.sampled_from([1, 2]),
    tie_words=st.just(True),
    tie_projections=st.booleans(),
    dropout=shares,
)
vocabularies = st.integers(10, 10**6)
sizes_and_shares = {
    **{"dim": widths, "ffn_dim": counts, "adaptive": adaptive, "pre_norm": st.booleans()},
    **{"dropout": shares, "activation_dropout": shares, "pad": st.integers(0, 9)},
}
models = st.one_of(
    st.builds(
        Seq2SeqConfig,
        source_heads=heads,
        encoder=layers,
        decoder=layers,
        source_vocab=vocabularies,
        target_vocab=vocabularies,
        share_embeddings=st.sampled_from(["none", "decoder"]),
        **sizes_and_shares,
    ),
    st.builds(
        LanguageModelConfig,
        layers=layers,
        vocab=vocabularies,
        tie_output=st.booleans(),
        **sizes_and_shares,
    ),
)
trainings = st.builds(
    TrainConfig,
    max_steps=counts,
    tokens_per_update=counts,
    optimizer=st.one_of(
        st.builds(AdamConfig, betas=st.tuples(shares, shares), weight_decay=sizes),
        st.builds(NesterovConfig, weight_decay=sizes),
    ),
    schedule=st.one_of(
        st.builds(InverseSqrtConfig, peak=peaks, warmup=counts, start=st.just(0.0)),
        st.builds(CosineConfig, peak=peaks, warmup=counts, period=counts),
    ),
    clip_norm=sizes,
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    seed=st.integers(0, 2**63 - 1),
)
recipes = st.builds(
    Recipe,
    about=texts,
    task=st.builds(
        TaskConfig,
        kind=st.sampled_from(["translation", "language_model", "summarization"]),
        corpus=words,
        source_lang=st.none() | words,
        metric=words,
    ),
    model=models,
    train=trainings,
    decode=st.builds(DecodeConfig, beam=counts, alpha=st.floats(0, 10)),
    sources=st.dictionaries(texts, texts, max_size=3),
)

"""Model folders in transformers: importing this module registers them with its Auto classes.

    import lightconv.auto
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    model = AutoModelForSeq2SeqLM.from_pretrained("my-model")
    tokenizer = AutoTokenizer.from_pretrained("my-model")
    ids = model.generate(**tokenizer(["a text"], return_tensors="pt"))
    tokenizer.batch_decode(ids)

`generate` runs the search of this package with the settings of the folder, so the texts are those
of `lightconv.load(...).translate`. Folders have no code of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from lightconv.data.vocabulary import EOS, PAD
from lightconv.decode.text import TextModel, load, load_pipeline
from lightconv.interop.hub import find_folder
from lightconv.models.folder import MODEL_TYPE, ModelFolder

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
        BatchEncoding,
        PreTrainedConfig,
        PreTrainedModel,
    )
    from transformers.modeling_outputs import CausalLMOutput, Seq2SeqLMOutput
except ImportError:
    raise ImportError(
        "lightconv.auto needs the package transformers. Install it with pip install "
        "'lightconv[transformers]'"
    ) from None

# Names of options of `generate`, and ours.
OPTIONS = {
    "num_beams": "beam",
    "length_penalty": "alpha",
    "max_new_tokens": "max_len_plus",
    "min_new_tokens": "min_len",
    "num_return_sequences": "n_best",
    "no_repeat_ngram_size": "block_ngrams",
    **{name: name for name in ("temperature", "top_k", "top_p", "seed")},
}


class FolderConfig(PreTrainedConfig):
    """config.json of a model folder."""

    model_type = MODEL_TYPE

    def __init__(self, model: Mapping[str, Any] | None = None, **tables: Any) -> None:
        shape = dict(model or {})
        pairs = "encoder" in shape
        super().__init__(
            **tables,
            is_encoder_decoder=pairs,
            vocab_size=shape.get("target_vocab" if pairs else "vocab", 0),
            hidden_size=shape.get("dim", 0),
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=EOS,
            decoder_start_token_id=EOS,
        )
        self.model = shape


class FolderModel(PreTrainedModel):
    """A model folder; `folder` is what `lightconv.load` returns."""

    config_class = FolderConfig
    main_input_name = "input_ids"
    pairs: ClassVar[bool]

    def __init__(self, config: FolderConfig, folder: TextModel) -> None:
        super().__init__(config)
        if folder.pairs != self.pairs:
            known = "AutoModelForSeq2SeqLM" if folder.pairs else "AutoModelForCausalLM"
            raise ValueError(f"{folder.folder} is another kind of model, expected {known}")
        self.folder = folder
        self.network: nn.Module = folder.model

    @classmethod
    def from_pretrained(cls, name: Any, *_: Any, config: Any = None, **more: Any) -> Self:
        """The model of a folder, a run or `user/name` of a hub; `dtype` converts it."""
        dtype = more.get("dtype") or more.get("torch_dtype")
        folder = load(name, dtype=None if dtype == "auto" else dtype)
        if config is None:
            config = FolderConfig.from_pretrained(folder.folder)
        return cls(config, folder)

    def save_pretrained(self, path: Any, **_: Any) -> None:
        """Writes the model folder, with the parameters of now."""
        source = ModelFolder(self.folder.folder)
        known = ("config.json", "model.safetensors", "manifest.json", "README.md")
        others = {p.name: p for p in source.path.iterdir() if p.is_file() and p.name not in known}
        ModelFolder.write(path, self.folder.model, files=others, tables=source.tables)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Scores [B, T, V] of the next tokens, and the mean loss of `labels` [B, T].

        Padding is recognised by its id. Labels below 0 do not count; those of a language model are
        its inputs, shifted here, as transformers has it.
        """
        if self.pairs:
            if decoder_input_ids is None:
                if labels is None:
                    raise ValueError("decoder_input_ids or labels, expected one of them")
                given = labels.masked_fill(labels < 0, PAD)
                first = torch.full_like(given[:, :1], EOS)
                decoder_input_ids = torch.cat([first, given[:, :-1]], 1)
            scores = self.network(input_ids, decoder_input_ids)
            return Seq2SeqLMOutput(loss=_loss(scores, labels), logits=scores)
        # The first token of a text follows EOS here; transformers begins with that token.
        scores = self.network(input_ids)
        loss = None if labels is None else _loss(scores[:, :-1], labels[:, 1:])
        return CausalLMOutput(loss=loss, logits=scores)

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        do_sample: bool = False,
        **options: Any,
    ) -> Tensor:
        """Ids [B x num_return_sequences, T] of the folder's own search, padded on the right.

        Options are those of transformers that the search has, others are refused.
        """
        from lightconv.decode.search import ModelSearch, search_batches

        ids = inputs if inputs is not None else input_ids
        if ids is None:
            raise ValueError("generate needs input_ids [B, T]")
        if unknown := options.keys() - OPTIONS.keys():
            known = ", ".join(["do_sample", *OPTIONS])
            raise ValueError(f"generate has no option {min(unknown)!r}, expected one of {known}")
        values = {OPTIONS[name]: value for name, value in options.items()}
        if "max_len_plus" in values:
            values["max_len_ratio"] = 0.0
        chosen = self.folder.options(values, sample=do_sample)
        search = ModelSearch(self.folder._find_backend([self.folder.model], chosen, _quiet), chosen)
        rows = [[n for n in row if n not in (PAD, EOS)] for row in ids.tolist()]
        found: list[list[list[int]]] = [[] for _ in rows]
        for each in search_batches(search, rows, chosen.text):
            begin = [] if self.pairs else rows[each.row]
            best = each.hypotheses[: chosen.text.n_best]
            found[each.row] = [[*begin, *hypothesis.tokens] for hypothesis in best]
        outputs = [torch.tensor([EOS, *tokens, EOS]) for each in found for tokens in each]
        return nn.utils.rnn.pad_sequence(outputs, batch_first=True, padding_value=PAD)


class FolderForSeq2SeqLM(FolderModel):
    pairs = True


class FolderForCausalLM(FolderModel):
    pairs = False


def _quiet(text: str) -> None:
    pass


def _loss(scores: Tensor, labels: Tensor | None) -> Tensor | None:
    if labels is None:
        return None
    wanted = labels.masked_fill(labels == PAD, -100).flatten()
    return nn.functional.cross_entropy(scores.flatten(0, 1), wanted, ignore_index=-100)


class FolderTokenizer:
    """The text pipeline of a folder, with the calls of transformers' tokenizers that people use."""

    def __init__(self, folder: Path) -> None:
        self.folder = ModelFolder(folder)
        self.pipeline = load_pipeline(self.folder.path, self.folder.config)
        self.pad_token_id, self.eos_token_id, self.bos_token_id = PAD, EOS, EOS

    @classmethod
    def from_pretrained(cls, name: Any, *_: Any, **__: Any) -> Self:
        return cls(find_folder(name))

    def __call__(
        self,
        texts: str | Sequence[str],
        text_target: str | Sequence[str] | None = None,
        *,
        return_tensors: str | None = None,
        **_: Any,
    ) -> BatchEncoding:
        """input_ids and attention_mask, of `text_target` as labels; tensors are padded."""
        found = {"input_ids": self._encode(0, texts)}
        if text_target is not None:
            found["labels"] = self._encode(len(self.pipeline.config.sides) - 1, text_target)
        found["attention_mask"] = [[1] * len(row) for row in found["input_ids"]]
        if return_tensors is not None:
            fill = {"input_ids": PAD, "labels": -100, "attention_mask": 0}
            found = {name: _pad(rows, fill[name]) for name, rows in found.items()}
        elif isinstance(texts, str):
            found = {name: rows[0] for name, rows in found.items()}
        return BatchEncoding(found)

    def _encode(self, side: int, texts: str | Sequence[str]) -> Any:
        rows = self.pipeline.encode(side, [texts] if isinstance(texts, str) else list(texts))
        return [[*row, EOS] for row in rows] if self.folder.pairs else [[EOS, *row] for row in rows]

    def decode(self, ids: Any, **_: Any) -> str:
        side = len(self.pipeline.config.sides) - 1
        return self.pipeline.decode(side, list(_plain(ids)))

    def batch_decode(self, rows: Any, **_: Any) -> list[str]:
        return [self.decode(row) for row in rows]


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def _plain(ids: Any) -> Iterator[int]:
    """Ids without those around and behind a text."""
    return (int(n) for n in ids if int(n) not in (PAD, EOS) and int(n) >= 0)


AutoConfig.register(MODEL_TYPE, FolderConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(FolderConfig, FolderForSeq2SeqLM, exist_ok=True)
AutoModelForCausalLM.register(FolderConfig, FolderForCausalLM, exist_ok=True)
AutoTokenizer.register(FolderConfig, tokenizer_class=FolderTokenizer, exist_ok=True)

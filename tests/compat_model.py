"""A model of transformers with random weights, without and with lightconv.compat: python FILE NAME.

Without it packed sequences are an error; with it they equal each sequence alone, and generate() and
the loss are those of the model's own slow path.
"""

import importlib
import sys
from typing import Any

import torch
from torch import Tensor

SIZES = {
    "lfm2": {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 5,  # wider than the original package serves
    },
    "mamba": {"state_size": 4, "conv_kernel": 4},
}


def build(name: str) -> Any:
    title = name.capitalize()
    config = importlib.import_module(f"transformers.models.{name}.configuration_{name}")
    code = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    values = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "pad_token_id": 0}
    torch.manual_seed(1)
    model = getattr(code, f"{title}ForCausalLM")(
        getattr(config, f"{title}Config")(**values, **SIZES[name], bos_token_id=1, eos_token_id=2)
    ).eval()
    for part in model.modules():
        if hasattr(part, "A_log"):
            # transformers does not pass seq_idx to Mamba's scan, whose state would run on into the
            # next sequence; one that decays at once leaves the convolution alone to mix positions.
            part.A_log.data.fill_(8.0)
    return model


def run(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    loss = model(ids, labels=ids).loss
    words = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
    return loss, words


def pack(model: Any, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Outputs of sequences laid end to end, and of each alone."""
    which = torch.cat([torch.full_like(part, i) for i, part in enumerate(parts)])[None].int()
    if model.config.model_type == "mamba":
        # transformers' Mamba drops seq_idx before its layers: one layer, which takes it.
        layer = model.backbone.layers[0].mixer
        inputs = [model.backbone.embeddings(part[None]) for part in parts]
        packed = layer(torch.cat(inputs, dim=1), seq_idx=which)
        return packed, torch.cat([layer(each) for each in inputs], dim=1)
    places = torch.cat([torch.arange(len(part)) for part in parts])[None]
    ids = torch.cat(parts)[None]
    packed = model(ids, seq_idx=which, use_cache=False, position_ids=places).logits
    return packed, torch.cat([model(each[None], use_cache=False).logits for each in parts], dim=1)


def main(name: str) -> None:
    ids = torch.randint(3, 97, (2, 19), generator=torch.Generator().manual_seed(2))
    parts = [ids[0, :7], ids[0, 7:9], ids[0, 9:10], ids[1]]
    slow = build(name)
    expected = run(slow, ids)
    try:
        pack(slow, parts)
    except ValueError as error:
        assert "packed" in str(error)
    else:
        raise AssertionError("packed sequences run without lightconv.compat")
    from lightconv import compat

    try:
        compat.install()
    except RuntimeError as error:
        assert "call install() before" in str(error)
    else:
        raise AssertionError("install() after the import of a model must be an error")
    for each in [each for each in sys.modules if each.startswith("transformers.models")]:
        del sys.modules[each]
    compat.install()
    compat.install()  # again is no error
    model = build(name)
    loss, words = run(model, ids)
    assert torch.allclose(loss, expected[0], atol=1e-5)
    assert torch.equal(words, expected[1])
    packed, alone = pack(model, parts)
    worst = ((packed - alone).abs().max() / alone.abs().max()).item()
    assert worst < 1e-5, worst
    print(f"{name}: loss {loss:.6f}, packed against alone {worst:.1e}")


main(sys.argv[1])

"""The estimate of memory against what a forward pass keeps."""

import torch

from lightconv.models import LanguageModel, Seq2Seq
from lightconv.train import NesterovConfig
from lightconv.train.memory import LENGTH, estimate
from tests.harness.examples import lm_config, model_config, train_config


def kept(model: Seq2Seq | LanguageModel, *inputs: torch.Tensor) -> int:
    """Bytes of all tensors that the graph of a forward pass holds on to, parameters left out."""
    storages = {}
    own = {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.features(*inputs)
    assert output.requires_grad
    return sum(storages.values())


def test_activations_are_what_a_forward_pass_keeps() -> None:
    tokens = torch.randint(4, 12, (4, LENGTH))
    config = train_config(max_tokens=4 * LENGTH)
    for model_of, inputs in ((model_config(), (tokens, tokens)), (lm_config(), (tokens,))):
        model = (Seq2Seq if len(inputs) == 2 else LanguageModel)(model_of)  # type: ignore[arg-type]
        found = estimate(model_of, config)
        # Beside them: a chunk of logits, its gradient, those of vocabulary and features.
        loss = (2 * 128 * 12 + 12 * 16 + 128 * 16) * 4
        real = kept(model, *inputs)
        assert abs(found.activations - loss - real) <= 0.02 * real
        count = sum(p.numel() for p in model.parameters())
        assert found.parameters == found.gradients == 4 * count
        assert found.optimizer == 8 * count
        assert found.total == sum(found)


def test_what_changes_it() -> None:
    plain = estimate(model_config(), train_config())
    assert estimate(model_config(), train_config(ema=0.9)).optimizer == 1.5 * plain.optimizer
    nesterov = train_config(optimizer=NesterovConfig())
    assert estimate(model_config(), nesterov).optimizer == plain.optimizer / 2
    assert estimate(model_config(), train_config(precision="bf16")).activations < plain.activations
    larger = estimate(model_config(), train_config(max_tokens=2048)).activations
    assert larger > 20 * plain.activations
    assert estimate(model_config(), train_config(max_tokens=3)).activations > 0

"""The paper prints numbers of parameters; here they are exact."""

import pytest

from lightconv.paper.recipes import RECIPES
from lightconv.recipe import count_parameters

# By the paper's formulas, typed; recipes that share a number differ in options without parameters.
SIZES = {
    42_864_640: "iwslt-de-en-selfattention",
    38_139_436: "iwslt-de-en-lightconv",
    38_685_184: "iwslt-de-en-dynamicconv",
    209_911_808: "wmt-en-de-selfattention wmt-en-de-ablation-windowed",
    202_569_904: "wmt-en-de-lightconv",
    213_237_760: "wmt-en-de-dynamicconv",
    217_317_376: "wmt-en-fr-selfattention",
    209_975_472: "wmt-en-fr-lightconv",
    220_643_328: "wmt-en-fr-dynamicconv",
    292_786_176: "wmt-zh-en-selfattention",
    285_444_272: "wmt-zh-en-lightconv",
    296_112_128: "wmt-zh-en-dynamicconv",
    330_827_712: "billion-word-selfattention",
    325_594_288: "billion-word-lightconv",
    339_457_984: "billion-word-dynamicconv",
    90_218_496: "cnn-dailymail-selfattention",
    86_543_960: "cnn-dailymail-lightconv",
    87_635_456: "cnn-dailymail-dynamicconv",
    208_823_296: "wmt-en-de-ablation-cnn",
    195_258_368: "wmt-en-de-ablation-depthwise",
    195_491_840: "wmt-en-de-ablation-increasing-kernel wmt-en-de-ablation-dropconnect",
    195_222_704: "wmt-en-de-ablation-sharing wmt-en-de-ablation-softmax",
    199_592_960: "wmt-en-de-ablation-dynamicconv wmt-en-de-ablation-dynamicconv-nosoftmax "
    "wmt-en-de-decoder-6 " + " ".join(name for name in RECIPES if "normalize" in name),
    260_261_888: "wmt-en-de-ablation-aan-decoder",
    310_611_968: "wmt-en-de-ablation-aan-both",
    73_507_840: "wmt-en-de-aan-base",
    124_680_192: "wmt-en-de-decoder-1",
    153_976_832: "wmt-en-de-decoder-3",
}
COUNTS = {name: count for count, names in SIZES.items() for name in names.split()}


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.endswith("-small")])
def test_parameter_counts_are_exact(name: str) -> None:
    assert count_parameters(RECIPES[name].model) == COUNTS[name]

"""Work of others that the paper's tables cite; it is printed, never run.

Each row as printed: text | number of parameters | a figure for each column of the table.
"""

CITED: dict[str, tuple[str, ...]] = {
    # Parameters are printed for En-De; Ott et al. (2018) is in rows.MT1.
    "mt1": (
        "Gehring et al. (2017), En-De | 216M | 25.2",
        "Gehring et al. (2017), En-Fr | - | 40.5",
        "Vaswani et al. (2017), En-De | 213M | 28.4",
        "Vaswani et al. (2017), En-Fr | - | 41.0",
        "Ahmed et al. (2017), En-De | 213M | 28.9",
        "Ahmed et al. (2017), En-Fr | - | 41.4",
        "Chen et al. (2018), En-De | 379M | 28.5",
        "Chen et al. (2018), En-Fr | - | 41.0",
        "Shaw et al. (2018), En-De | - | 29.2",
        "Shaw et al. (2018), En-Fr | - | 41.5",
    ),
    "mt2": (
        "Deng et al. (2018), IWSLT | - | 33.1",
        "Hassan et al. (2018), Zh-En | - | 24.2",
    ),
    "ablation": ("Vaswani et al. (2017) | 213M | 26.4 | -",),
    "lm": (
        "2-layer LSTM-8192-1024, Jozefowicz et al. (2016) | - | - | 30.6",
        "Gated Convolutional Model, Dauphin et al. (2017) | 428M | - | 31.9",
        "Mixture of Experts, Shazeer et al. (2017); without embedding and softmax | 4371M | - | "
        "28.0",
    ),
    "summarization": (
        "LSTM, Paulus et al. (2017) | - | 38.30 | 14.81 | 35.49",
        "CNN, Fan et al. (2017) | - | 39.06 | 15.38 | 35.77",
        "RL, Celikyilmaz et al. (2018) | - | 41.69 | 19.47 | 37.92",
    ),
    "decoders": (
        "NAT (+ FT), Gu et al. (2018) | - | 17.7 | 25.6 | -",
        "NAT (+ FT + NPD=10), Gu et al. (2018) | - | 18.7 | 12.7 | -",
        "NAT (+ FT + NPD=100), Gu et al. (2018) | - | 19.2 | 3.9 | -",
        "LT, Improved Semhash, Kaiser et al. (2018) | - | 19.8 | 9.5 | -",
        "IR i_dec=1, Lee et al. (2018) | - | 13.9 | - | 511.4",
        "IR i_dec=2, Lee et al. (2018) | - | 17.0 | - | 393.6",
        "IR i_dec=5, Lee et al. (2018) | - | 20.3 | - | 139.7",
        "IR i_dec=10, Lee et al. (2018) | - | 21.6 | - | 90.4",
        "IR Adaptive, Lee et al. (2018) | - | 21.5 | - | 107.2",
        "NART w/ hints, Li et al. (2019) | - | 21.1 | 38.5 | -",
        "NART w/ hints (B=4, 9 candidates), Li et al. (2019) | - | 25.2 | 22.7 | -",
        "ENAT Embedding Mapping, Guo et al. (2018) | - | 20.7 | 41.7 | -",
        "ENAT Embedding Mapping (rescoring 9 candidates), Guo et al. (2018) | - | 24.3 | 20.4 | -",
        "Autoregressive, Gu et al. (2018) | - | 22.7 | 2.5 | -",
        "Autoregressive, Lee et al. (2018) | - | 23.8 | - | 54.0",
        "Transformer, Li et al. (2019) | - | 27.3 | 1.3 | -",
        "Transformer, Guo et al. (2018) | - | 27.4 | 1.6 | -",
    ),
}

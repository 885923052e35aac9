"""What can be scored: as many hypotheses as references, and at least one."""

from collections.abc import Sequence

Texts = Sequence[str]


def check_texts(hypotheses: Texts, references: Sequence[Texts]) -> None:
    """Raises ValueError unless each hypothesis has one text in each of the references."""
    if not references:
        raise ValueError("no references, expected one text or more for each hypothesis")
    _check_list("hypotheses", hypotheses)
    for number, texts in enumerate(references, 1):
        name = "references" if len(references) == 1 else f"references {number}"
        _check_list(name, texts)
        if len(texts) != len(hypotheses):
            raise ValueError(
                f"{len(hypotheses)} hypotheses and {len(texts)} {name}, expected as many. "
                "An empty hypothesis is an empty text, not a missing one"
            )
    if not hypotheses:
        raise ValueError("0 hypotheses and 0 references, expected at least one of each")


def _check_list(name: str, texts: Texts) -> None:
    if isinstance(texts, str | bytes):
        raise ValueError(f"{name} is one text, expected a list of texts")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{number}] is {type(text).__name__}, expected a text")

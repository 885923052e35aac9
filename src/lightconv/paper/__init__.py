"""The paper's models as named recipes, and its tables. Nothing here needs torch until it counts."""

from lightconv.paper.recipes import RECIPES

__all__ = ["RECIPES"]

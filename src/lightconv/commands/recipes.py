"""`lightconv list` and `lightconv show`: the recipes, and everything in one."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lightconv.commands.parser import Parser
from lightconv.config import to_json, to_toml
from lightconv.console import Rows, markdown, print_groups, tell_waiting
from lightconv.fitting.plan import OWN
from lightconv.paper.recipes import RECIPES, TITLES, task_of
from lightconv.paper.tables import NONE, TABLES, agrees
from lightconv.recipe import Recipe, count_parameters, count_parts, find_recipe, suggest_recipe

BEGIN = "<!-- lightconv list --params: begin -->"
END = "<!-- lightconv list --params: end -->"


def list_recipes(argv: Sequence[str]) -> int:
    parser = Parser(
        "list",
        "Lists the recipes: every model of the paper, and small twins that two processor cores "
        "train. With --params, the parameters that the paper prints beside the exact number here.",
        "lightconv list",
        "lightconv list iwslt              # names that contain iwslt",
        "lightconv list 'wmt-*-lightconv'  # a pattern",
        "lightconv list ablation --params  # a table of the paper, with parameters",
    )
    parser.add("[PATTERN]", f"part of a name, a pattern with *, or a table: {', '.join(TABLES)}")
    parser.add("--params", "parameters: the paper's and ours")
    parser.add("--markdown", "tables for a Markdown page")
    parser.add("--write PAGE", "put the tables between the markers of a page, as in docs/paper.md")
    parser.add_format()
    options = parser.parse(argv)
    known = RECIPES if options.params or options.write else {**RECIPES, **OWN}
    names = _matching(options.pattern, known)
    if options.params or options.write:
        tell_waiting("counting parameters")
        header, right = ["row", "recipe", "paper", "ours", "agree"], ["paper", "ours"]
        groups = _by_table(names)
    else:
        # Names and words need no header, except in Markdown.
        header, right = ["recipe", "about"] if options.markdown else ["", ""], []
        groups = _by_task(names)
    if options.write:
        _write_between(options.write, markdown(groups, header, right))
    elif options.markdown:
        print(markdown(groups, header, right))
    else:
        print_groups(groups, header, right)
    return 0


def show_recipe(argv: Sequence[str]) -> int:
    parser = Parser(
        "show",
        "Prints a recipe as TOML, with the source of each value that the paper does not print. "
        "What it prints can be changed and read again.",
        "lightconv show iwslt-de-en-dynamicconv > my.toml",
        "lightconv show my.toml",
        "lightconv show wmt-en-de-lightconv --set train.max_steps=100 --set model.dropout=0.2",
        "lightconv show wmt-en-de-lightconv --set 'model.encoder.*.glu=false' --params",
    )
    parser.add("NAME_OR_FILE", "a recipe, or a .toml or .json file")
    parser.add("--set PATH=VALUE ...", "change a value, as often as you like; * is every layer")
    parser.add("--json", "print JSON instead")
    parser.add_format()
    parser.add("--params", "count parameters, part by part")
    options = parser.parse(argv)
    recipe = find_recipe(options.name_or_file, options.set, {**RECIPES, **OWN})
    if not options.params:
        print((to_json if options.json else to_toml)(recipe).rstrip("\n"))
        return 0
    parts = count_parts(recipe.model)
    all_parts = {**parts, "total": sum(parts.values())}
    if options.json:
        print(json.dumps(all_parts, indent=2))
        return 0
    rows = [[part, f"{n:,}", f"{n / all_parts['total']:.1%}"] for part, n in all_parts.items()]
    print_groups({"": rows}, ("part", "parameters", "share"), ("parameters", "share"))
    return 0


def _matching(pattern: str | None, known: Mapping[str, Recipe]) -> list[str]:
    """Names that match a pattern, in order; without one, all."""
    if pattern is None:
        return list(known)
    if pattern in TABLES:
        members = {row.recipe for row in TABLES[pattern].rows if not row.cited}
    else:
        wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
        members = {name for name in known if fnmatchcase(name, wild.lower())}
    if not members:
        raise ValueError(f"no recipe matches '{pattern[:60]}': {suggest_recipe(pattern, known)}")
    return [name for name in known if name in members]


def _by_task(names: Sequence[str]) -> dict[str, Rows]:
    """Names and their descriptions, under the titles of their tasks."""
    groups: dict[str, list[list[str]]] = {title: [] for title in TITLES.values()}
    for name in names:
        if name in RECIPES:
            groups[TITLES[task_of(name)]].append([name, RECIPES[name].about])
    groups["Your own text"] = [[name, OWN[name].about] for name in names if name in OWN]
    return {title: rows for title, rows in groups.items() if rows}


def _by_table(names: Sequence[str]) -> dict[str, Rows]:
    """Rows of the paper with its counts and ours, table by table; then recipes of no table."""
    groups: dict[str, list[list[str]]] = {}
    rest = dict.fromkeys(names)
    for table in TABLES.values():
        rows = groups.setdefault(table.title, [])
        for row in table.rows:
            if row.recipe in names and not row.cited:
                ours = count_parameters(RECIPES[row.recipe].model)
                agree = NONE if row.params == NONE else "yes" if agrees(row.params, ours) else "NO"
                rows.append([row.text, row.recipe, row.params, f"{ours:,}", agree])
                rest.pop(row.recipe, None)
    groups["In no table of the paper"] = [
        [RECIPES[name].about, name, NONE, f"{count_parameters(RECIPES[name].model):,}", NONE]
        for name in rest
    ]
    return {title: rows for title, rows in groups.items() if rows}


def _write_between(page: Path, text: str) -> None:
    old = page.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise ValueError(f"{page} has no tables to replace: put {BEGIN} and {END} into it")
    head, rest = old.split(BEGIN, 1)
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")

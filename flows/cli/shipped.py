"""Commands that print the shipped recipes, and the columns of the results."""

from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from flows.cli.completing import shipped
from flows.cli.store import JsonOption
from memlib.audits import AUDITS, audit_of, published_tables
from memlib.console import console, show_json, show_text
from memlib.errors import UserError
from memlib.recipes.files import load_recipe, printed_recipe, shipped_recipes


def recipes(name: Annotated[str | None, Parameter(completer=shipped)] = None, /, *, json_: JsonOption = False) -> None:
    """List the shipped recipes, or print one.

    Parameters
    ----------
    name
        A recipe to print in full, including the values that it inherits.
    json_
        Print JSON instead of YAML or a table.
    """
    if json_:
        contents = {key: load_recipe(key)[0] for key in ([name] if name is not None else shipped_recipes())}
        show_json(contents)
        return
    if name is not None:
        show_text(printed_recipe(name), end="")
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    current = ""
    for key in shipped_recipes():
        content, _ = load_recipe(key)
        if content["audit"] != current:
            current = content["audit"]
            if table.row_count:
                table.add_row()
            table.add_row(audit_of(current), AUDITS[audit_of(current)].question, style="bold")
        table.add_row(f"  {key}", content.get("title", ""))
    console.print(table)


def schema(what: str | None = None, /, *, json_: JsonOption = False) -> None:
    """Print the meaning of every column of the results, or the JSON schema of a recipe.

    Parameters
    ----------
    what
        summary, units or curves (by default all of them), or the name of an audit for the schema of its recipe.
    json_
        Print the columns as JSON; the schema of a recipe is always JSON.
    """
    if what is not None and what in AUDITS:
        show_json(AUDITS[what].recipe.model_json_schema())
        return
    published = published_tables()
    if what is not None and what not in published:
        raise UserError(f"no table or audit {what!r}; choose from {', '.join([*published, *AUDITS])}")
    if json_:
        tables = {name: list(published[name].items()) for name in ([what] if what else published)}
        show_json({name: [_described(audit, t) for audit, t in of] for name, of in tables.items()})
        return
    for name in [what] if what else published:
        for audit, table in published[name].items():
            of = f", audit {audit}" if audit else ""
            console.print(f"{name} (version {table.version}{of}): {table.meaning}", style="bold")
            console.print(f"results/table={name}/audit={audit or '*'}/run=*/part-*.parquet", style="dim")
            grid = Table(box=None, pad_edge=False)
            for heading in ("column", "type", "unit", "meaning"):
                grid.add_column(heading)
            for column in table.columns:
                grid.add_row(column.name, str(column.type), column.unit, column.meaning)
            console.print(grid)
            console.print()


def _described(audit: str, table: Any) -> dict[str, Any]:
    columns = [{"name": c.name, "type": str(c.type), "unit": c.unit, "meaning": c.meaning} for c in table.columns]
    return {"audit": audit, "version": table.version, "meaning": table.meaning, "keys": list(table.keys), "columns": columns}

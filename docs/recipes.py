"""The table of recipes in docs/train.md, a line for each row of RECIPES.

python docs/recipes.py    # writes it anew
"""

import re
from pathlib import Path

from modeling_vanilla import preset_config
from modeling_vanilla.training.recipe import RECIPES, Recipe

PAGE = Path(__file__).with_name("train.md")
COLUMNS = "characters | device | model | dropout | smoothing | optimizer | tokens an update | updates | warm-up | peak"
TABLE = re.compile(rf"\| {re.escape(COLUMNS)} \|\n(\|.*\n)+")


def line(recipe: Recipe) -> str:
    """A row as a line of the table."""
    config = preset_config(str(recipe.preset))
    d_model = recipe.d_model or config.d_model
    warmup = int(min(recipe.warmup_steps, recipe.warmup_share * recipe.max_steps))
    peak = recipe.learning_rate or (recipe.learning_rate_scale or 1) * (d_model * warmup) ** -0.5
    device = {None: "any", True: "GPU", False: "CPU"}[recipe.has_gpu]
    limit = "more" if recipe.characters == float("inf") else f"up to {recipe.characters / 1e6:.0f} million"
    batches = f" in {recipe.batches} batches" if recipe.batches > 1 else ""
    width = f", d_model {d_model}" if recipe.d_model else ""
    cells = [limit, device, f"`{recipe.preset}`{width}", recipe.dropout or config.dropout]
    cells += [recipe.label_smoothing or config.label_smoothing, f"{recipe.optim}, {recipe.lr_scheduler_type}"]
    cells += [f"{recipe.tokens_per_update}{batches}", f"{recipe.max_steps:.0f}", warmup, f"{peak:.2g}"]
    return f"| {' | '.join(map(str, cells))} |\n"


def table() -> str:
    return f"| {COLUMNS} |\n|{'---|' * (COLUMNS.count('|') + 1)}\n" + "".join(map(line, RECIPES))


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda match: table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")

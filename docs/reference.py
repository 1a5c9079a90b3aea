"""The pages of the reference: every option of every command, and every public name of the package."""

import importlib
import inspect
from argparse import SUPPRESS, Action
from contextlib import suppress
from dataclasses import fields, is_dataclass
from unittest.mock import patch

from modeling_vanilla.cli.parser import CommandParser
from vanilla_command import COMMANDS

# Of each page its title and its modules, whose names follow one another.
PAGES = {
    "model": (
        "Model",
        [
            "",
            *(f"{name}_vanilla" for name in ("attention", "layers", "loss", "generation", "splitting")),
        ],
    ),
    "inference": (
        "Inference",
        ["inference", *(f"inference.{name}" for name in ("engines", "constraints", "terms", "averaging")), "metrics"],
    ),
    "training": (
        "Training",
        [
            "training",
            *(f"training.{name}" for name in ("train", "checkpoints", "validation")),
        ],
    ),
    "corpus": (
        "A corpus",
        [f"corpus.{name}" for name in ("options", "data", "checks", "tokenizer", "tokenized", "batches")],
    ),
    "interop": (
        "Other libraries",
        [
            "interop",
            *(f"interop.{name}" for name in ("to_marian", "to_onnx", "to_transformers_js", "folders")),
            "interop.to_ctranslate2",
        ],
    ),
    "visualization": ("Pictures", ["visualization"]),
    "demo": ("A page to try", ["demo"]),
    "hub": ("The Hub", ["hub.publishing", "hub.model_card"]),
}


def pages() -> dict[str, str]:
    """The Markdown of each page by its path."""
    names = {f"reference/{name}.md": _names_page(*page) for name, page in PAGES.items()}
    return {"reference/commands.md": _commands_page(), **names}


def public_names(module: str) -> list[str]:
    """The full names of what a module offers: its __all__ or, where it has none, what it defines without underscore."""
    full = f"modeling_vanilla.{module}".rstrip(".")
    imported = importlib.import_module(full)

    def defined_here(name: str) -> bool:
        value = getattr(imported, name)
        kind = inspect.isclass(value) or inspect.isfunction(value)
        return kind and value.__module__ == full and not name.startswith("_")

    names = getattr(imported, "__all__", None) or [name for name in vars(imported) if defined_here(name)]
    return [f"{full}.{name}" for name in names]


def _names_page(title: str, modules: list[str]) -> str:
    parts = [f"# {title}"]
    for module in modules:
        full = f"modeling_vanilla.{module}".rstrip(".")
        parts += [f"`from {full} import ...`", (importlib.import_module(full).__doc__ or "").strip()]
        parts += [_name(name) for name in public_names(module)]
    return "\n\n".join(parts) + "\n"


def _name(name: str) -> str:
    """mkdocstrings' directive for a name. The fields of options have their text in the code, where it finds none."""
    module, _, own = name.rpartition(".")
    value = getattr(importlib.import_module(module), own)
    if not (is_dataclass(value) and any("help" in field.metadata for field in fields(value))):
        return f"::: {name}"
    hidden = ("members", "show_signature", "show_attribute_values")
    directive = f"::: {name}\n    options:\n" + "\n".join(f"      {option}: false" for option in hidden)
    options = (f"`{field.name}`, by default {field.default!r}\n:   {field.metadata['help']}" for field in fields(value))
    return "\n\n".join([directive, *map(_plain, options)])


def _commands_page() -> str:
    parts = ["# Commands", "`vanilla COMMAND --help` shows the same.", "## Overview"]
    parts += [f"[`vanilla {name}`](#vanilla-{name})\n:   {what}" for name, what in COMMANDS.items()]
    for name in COMMANDS:
        parser = _parser(name)
        parts += [f"## vanilla {name} {{#vanilla-{name}}}", _description(parser.description)]
        parts += [_option(action) for action in parser._actions if action.dest != "help"]
    return "\n\n".join(parts) + "\n"


def _parser(command: str) -> CommandParser:
    """The parser that the command makes, caught as it is about to print its help."""
    parsers: list[CommandParser] = []
    with patch.object(CommandParser, "print_help", lambda self, *_: parsers.append(self)), suppress(SystemExit):
        importlib.import_module(f"modeling_vanilla.cli.{command}").main(["--help"])
    return parsers[0]


def _description(text: str) -> str:
    """The docstring of a command: what is indented in it is a block of its own, all else flows."""
    blocks = []
    for block in text.strip().split("\n\n"):
        if block.startswith("    "):
            blocks.append("```text\n" + inspect.cleandoc("\n" + block) + "\n```")
        else:
            blocks.append(_plain(block))
    return "\n\n".join(blocks)


def _option(action: Action) -> str:
    """One option: its name (transformers adds a spelling with hyphens, which is left out), its value, its help."""
    name = action.option_strings[0] if action.option_strings else action.metavar or action.dest
    value = action.metavar if action.option_strings and action.nargs != 0 else None
    if action.choices:
        value = " or ".join(map(str, action.choices))
    text = (action.help or "").replace("%(default)s", str(action.default))
    if action.default not in (None, False, SUPPRESS) and text == action.help:
        text += f" (default: {action.default})"
    return f"`{name}`" + (f" `{value}`" if value else "") + f"\n:   {_plain(text)}"


def _plain(text: str) -> str:
    """Text of the code as Markdown that looks like it: no tags, no emphasis; argparse writes % twice."""
    return text.replace("%%", "%").replace("<", "&lt;").replace("*", "\\*")

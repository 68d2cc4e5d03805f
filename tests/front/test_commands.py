"""A command of the terminal and its magic are one description."""

import click

from fsdl_dev.cli.main import main
from fsdl_dev.cli.options import OfMagic, OfTerminal
from fsdl_dev.notebook.magics import LINES

APART = {"fsdl_targets"}  # a group of commands in a terminal, and one line in a notebook


def spelled(option: click.Parameter) -> tuple:
    return (option.name, *option.opts, getattr(option, "help", None), option.default, option.nargs)


def test_an_option_is_the_same_at_both_doors():
    context = click.Context(main, info_name="fsdl")
    for name, line in LINES.items():
        command = main.get_command(context, name.removeprefix("fsdl_"))
        if command is None or name in APART:
            continue
        assert command.help == line.help, name
        here = {option.name: spelled(option) for option in line.params if not isinstance(option, OfMagic)}
        there = {option.name: spelled(option) for option in command.params}
        assert here.items() <= there.items(), name
        assert not any(isinstance(option, OfMagic) for option in command.params), name
        own = [option.name for option in line.params if isinstance(option, OfTerminal)]
        assert own == (["as_json"] if name == "fsdl_runs" else []), name

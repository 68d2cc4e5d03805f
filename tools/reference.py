"""The user's reference, written from the code: Python names, magics, commands, settings, environment variables."""

import html
import inspect
import json
import re
import sys
from dataclasses import MISSING, fields
from functools import cached_property
from pathlib import Path

import click
from fastcore.docments import docments

SETTINGS = {
    "target": "The target of a launch without `--on`. Default: `local`.",
    "targets": "The project's targets: a table for each, as below. `fsdl targets add` writes them.",
    "store": "The folder of runs, snapshots and caches. Default: `.fsdl` in the project.",
    "group": "A Unix group that shares the store: its members can read and write it. Default: the owner alone.",
    "required_tags": "Names of tags that every launch must have, as a list.",
    "fields": "A table for each tag: required, values (those allowed), pattern, description.",
    "max_file_mb": "The largest file that a snapshot takes, in megabytes. Default: 100.",
    "grace_seconds": "Seconds between SIGTERM and SIGKILL when a run on this machine is stopped. Default: 30.",
    "checkpoints": "How often to save: `node_fails_every`, `preempted_every`, `at_least`, `at_most`,"
    " and a table for each target that differs.",
    "policy": "The rules of a team, each with a reason and an owner, and exceptions: see *The rules of a team*."
    " `fsdl policy` prints them.",
    "prices": "What an hour costs, by target: money for each GPU, or for each process where there is none; or a table."
    " See *What will it cost?*.",
    "price_list": "A CSV file with prices of your own in place of the list of the package.",
    "budgets": "Money or GPU hours that many launches share: see *The platform owner's guide*."
    " `fsdl budgets` prints them.",
    "limits": "What ends a run early besides money and time: `idle`, how long it may do nothing, such as 30m."
    " See *Capacity and waste*.",
    "ledger": "The file in which budgets are kept. Default: `ledger.db` in the store.",
    "on_limit": "A command that is run once at 50, 80 and 100 % of a limit, on the machine of the run.",
    "on_end": "A command that is run once a run has ended, on the machine of the run, such as one that sends a mail:"
    " see *Long runs*.",
    "feedback": "What is kept of the people who use a model: `data`, `consent`, limits of size and number, the rules of"
    " `fsdl retrain` and `fsdl drift`; a table for each model that differs. See *Close the loop*.",
    "board": "What `fsdl board` shows: `views`, a table of conditions with names; `folder`; `pages`, the number of runs"
    " with a page of their own. See *A page for the team*.",
    "quotas": "What a target is made to enforce, by target: see *Let Slurm enforce it*.",
}
ASKED_OF = {  # the groups of core.protocol.Env
    "set by a person": "Variables that you set",
    "set by the worker for the job": "Variables that a job can read",
}


def cell(text: str) -> str:
    """A text that stays in its column of a table, and is no markup but for `code`."""
    words, parts = re.compile(r"([\\|<>*_$@\[\]-])"), re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(typed(part) if part[:1] == "`" else words.sub(r"\\\1", part) for part in parts)


def typed(quoted: str) -> str:
    """A text in backticks as code, whose bar would end the column: pandoc has no escape for it there."""
    return f"<code>{html.escape(quoted[1:-1]).replace('|', '&#124;')}</code>" if "|" in quoted else quoted


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`"


def first_words(function) -> str:
    return cell((inspect.getdoc(function) or "").split("\n\n")[0])


def command_text(command: click.Command, name: str) -> str:
    """A command or a magic with its arguments and options, and those below it, as `fsdl help --json` has them."""
    from fsdl_dev.agent.describe import describe_command

    return facts_text(describe_command(command, name))


def facts_text(found, level: int = 2) -> str:
    parts = [f"{'#' * level} {found.name}", f"```sh\n{found.usage}\n```"]
    parts.append(
        "\n\n".join(f"```\n{one.text}\n```" if one.is_example else cell(one.text) for one in found.parts)
    )
    rows = [(code(", ".join(one.shown.split(" / "))), cell(one.about)) for one in found.options]
    if rows:
        parts.append(table(("option", "what it does"), rows))
    return "\n\n".join([*parts, *(facts_text(below, level + 1) for below in found.commands)])


def python_text(name: str) -> str:
    """A public name with its arguments, their defaults and what is written beside them."""
    import fsdl_dev

    found = getattr(fsdl_dev, name)
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    arguments = [argument_text(part) for part in signature.parameters.values()]
    call = f"fsdl_dev.{name}({', '.join(arguments)})"
    if len(call) > 90:
        call = f"fsdl_dev.{name}(\n    " + ",\n    ".join(arguments) + ",\n)"
    lines = [f"## {name}", f"```python\n{call}\n```", first_words(found)]
    asked = fields(found.request) if hasattr(found, "request") else ()
    notes = {own.name: own.metadata["settings"]["help"] for own in asked if "flag" in own.metadata}
    notes |= {key: note for key, note in docments(found, returns=False).items() if note}
    rows = [(code(key), cell(notes[key])) for key in signature.parameters if notes.get(key)]
    if rows:
        lines.append(table(("argument", "what it is"), rows))
    if name == "Run":
        rows = [
            (code(f".{word}{'()' if inspect.isfunction(value) else ''}"), first_words(value))
            for word, value in vars(found).items()
            if word[0] != "_" and (inspect.isfunction(value) or isinstance(value, property | cached_property))
        ]
        lines.append(table(("of a run", "what it is"), rows))
    return "\n\n".join(lines)


def argument_text(part: inspect.Parameter) -> str:
    """An argument as a caller writes it, with its default."""
    if part.default is part.empty:
        return {part.VAR_POSITIONAL: "*", part.VAR_KEYWORD: "**"}.get(part.kind, "") + part.name
    default = getattr(part.default, "__name__", None) if callable(part.default) else None
    return f"{part.name}={default or repr(part.default)}"


def python_page() -> str:
    import fsdl_dev

    names = sorted(fsdl_dev._WHERE, key=lambda name: fsdl_dev._WHERE[name] != "api")  # launching first
    return "\n\n".join(python_text(name) for name in names)


def magics_page() -> str:
    from fsdl_dev.launcher.options import launch_line_magic, launch_magic
    from fsdl_dev.notebook.magics import LINES

    found = [launch_magic, launch_line_magic, *LINES.values()]
    return "\n\n".join(command_text(magic, magic.name or "") for magic in found)


def commands_page() -> str:
    from fsdl_dev.cli.main import main

    context = click.Context(main, info_name="fsdl")
    found = [(name, main.get_command(context, name)) for name in main.list_commands(context)]
    return "\n\n".join(command_text(command, f"fsdl {name}") for name, command in found if command)


def settings_page() -> str:
    from fsdl_dev.engines.target import find_kind, kind_fields, kind_names

    parts = [
        "In `pyproject.toml`, under `[tool.fsdl_dev]`. Your own targets are in the file that"
        " `fsdl targets add --user` writes.",
        table(("setting", "what it is"), [(code(name), text) for name, text in SETTINGS.items()]),
    ]
    for kind in sorted(set(kind_names()) - {"test"}, key=lambda kind: (kind != "local", kind)):
        known = find_kind(kind, "kind").Fields
        defaults = {f.name: f.default for f in fields(known)} if known else {}
        rows = [
            (code(note.name), code(shown(defaults.get(note.name))), cell(note.note))
            for note in kind_fields(kind)
        ]
        parts.append(f'## A target of kind "{kind}"')
        parts.append(f'```toml\n[tool.fsdl_dev.targets.NAME]\nkind = "{kind}"\n```')
        parts.append(table(("field", "default", "what it is"), rows) if rows else "It takes no fields.")
    return "\n\n".join(parts)


def shown(default) -> str:
    """A default as TOML writes it."""
    if default is MISSING or default is None or default == ():
        return "-"
    return json.dumps(default) if isinstance(default, bool | int | float | str) else str(default)


def environment_page() -> str:
    """The names of core.protocol.Env with the comments beside or above them, in its groups."""
    from fsdl_dev.core.protocol import Env

    groups: dict[str, list[tuple[str, str]]] = {}
    above: list[str] = []
    group = ""
    for line in inspect.getsource(Env).splitlines()[2:]:
        found = re.fullmatch(r'\s+[A-Z_]+ = "(\w+)"(?:\s+# (.*))?', line)
        if found:
            note = found[2] or " ".join(above)
            groups.setdefault(group, []).append((code(found[1]), cell(note[:1].upper() + note[1:])))
            above = []
        elif line.strip().startswith("# set by"):
            group = line.strip()[2:]
        elif line.strip().startswith("#"):
            above.append(line.strip()[2:])
    parts = []
    for group, title in ASKED_OF.items():
        parts += [f"## {title}", table(("variable", "what it is"), groups[group])]
    return "\n\n".join(parts)


def type_text(schema: dict) -> str:
    """The type of an event's field in words; that a field may be null is said once, above the tables."""
    if "anyOf" in schema:
        return " or ".join(word for one in schema["anyOf"] if (word := type_text(one)) != "null")
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "prefixItems" in schema:
        return f"list of {', '.join(map(type_text, schema['prefixItems']))}"
    if schema.get("type") == "array":
        return f"list of {type_text(schema['items'])}"
    return schema.get("type", "anything")


def schema_page(about: str, schema: dict, left_out: tuple[str, ...] = (), say_null: bool = False) -> str:
    """What a schema describes, each with a table of its fields, and the schema itself."""
    parts = [about]
    for name, known in schema["$defs"].items():
        if name == "number":
            continue
        rows = []
        for key, field in known["properties"].items():
            null = " or null" if say_null and may_be_null(field) else ""
            if key not in left_out:
                rows.append((code(key), type_text(field) + null, cell(field.get("description", ""))))
        parts += [f"## {name}", cell(known["description"]), table(("field", "type", "what it is"), rows)]
    parts += ["## The schema", f"```json\n{json.dumps(schema, indent=1)}\n```"]
    return "\n\n".join(parts)


def events_page() -> str:
    """Each kind of event with its fields, and the schema of all."""
    from fsdl_dev.records.facts import event_schema

    schema = event_schema()
    about = (
        "A run's event log is the files `events/*.jsonl` in its run directory, each written by one process. A line"
        " is one event as JSON: `t` (when it was written, Unix seconds), `kind`, `rank` (of the process that it is"
        " about, or null) and the fields below. A field is left out, or null, where nothing is known. A reader passes"
        " by kinds and fields that it does not know: a newer version may have more."
        " The JSON schema is [a file](events.schema.json), and at the end of this page."
    )
    return schema_page(about, schema, left_out=("t", "kind", "rank"))


def runs_page() -> str:
    """What `--json` prints of a run, field by field, and its schema."""
    from fsdl_dev.records.facts import facts_schema

    schema = facts_schema()
    about = (
        "`fsdl show --json` and `fsdl launch --json` print one `RunFacts`, in Python `run.facts`; each row that"
        " `fsdl runs --json` prints without `--columns` is a `RunRow`, with `words` besides. A later version may add"
        " fields, and neither removes one nor changes its type. A field may be null where that is written."
        " The JSON schema is [a file](runs.schema.json), and at the end of this page."
    )
    return schema_page(about, schema, say_null=True)


def may_be_null(schema: dict) -> bool:
    return {"type": "null"} in schema.get("anyOf", ())


PAGES = {
    "python": ("Python", "The public names of `fsdl_dev`.", python_page),
    "magics": ("Magics", "What `%load_ext fsdl_dev` registers.", magics_page),
    "commands": ("Commands", "The `fsdl` command.", commands_page),
    "settings": ("Settings", "Settings of a project and fields of targets.", settings_page),
    "environment": (
        "Environment variables",
        "What the environment can set and a job can read.",
        environment_page,
    ),
    "events": (
        "Events of a run",
        "The lines of a run's event log, for programs that read them.",
        events_page,
    ),
    "runs": ("Runs as data", "What --json prints of a run, for programs that read it.", runs_page),
}


def write_reference(folder: Path) -> None:
    """Write a page for each part of the reference."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, description, page) in PAGES.items():
        head = f'---\ntitle: "{title}"\ndescription: "{description}"\n---\n\n'
        note = "<!-- Written from the code by tools/reference.py. -->\n\n"
        (folder / f"{name}.qmd").write_text(f"{head}{note}{page()}\n")
    from fsdl_dev.records.facts import event_schema, facts_schema

    for name, schema in (("events", event_schema()), ("runs", facts_schema())):
        (folder / f"{name}.schema.json").write_text(json.dumps(schema, indent=1) + "\n")


PUBLISHED = Path(__file__).resolve().parent.parent / "tests" / "support" / "data" / "runs.schema.json"

if __name__ == "__main__" and sys.argv[1:] == ["--publish"]:
    from fsdl_dev.records.facts import facts_schema

    PUBLISHED.write_text(json.dumps(facts_schema(), indent=1) + "\n")

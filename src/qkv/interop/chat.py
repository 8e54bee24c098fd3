"""A chat model's own format: its chat template, a small Jinja program, read from a folder and filled in.

It runs in Jinja's sandbox, only when a conversation is asked for. Tools and documents are not given to it. Jinja comes
with torch.
"""

import json
import re
from datetime import datetime
from pathlib import Path

from qkv.errors import SourceError, UserError
from qkv.interop.folders import LARGEST_JSON, read_json, within
from qkv.jsontypes import JsonMapping, JsonObject

CHAT_FILE = "chat_template.jinja"
_SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")
_MARKED = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
"""Around what a model has said, for trainers; it writes nothing."""


def read_chat(folder: Path) -> JsonObject:
    """`template` and `tokens` (bos_token and others, as they are spelled) of a folder; empty where it has no template.

    Raises SourceError for files that cannot be read.
    """
    settings: JsonObject = {}
    for name in _SETTINGS:
        settings |= read_json(folder, name) if (folder / name).exists() else {}
    template, path = settings.get("chat_template"), within(folder, CHAT_FILE)
    if path.is_file():
        if path.stat().st_size > LARGEST_JSON:
            raise SourceError(f"{path} has {path.stat().st_size:,} bytes; a {CHAT_FILE} has less than {LARGEST_JSON:,}")
        template = path.read_text(encoding="utf-8", errors="replace")
    if isinstance(template, list):  # several by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        return {}
    found = {name: value for name, value in settings.items() if name.endswith("_token")}
    spelled = {name: value.get("content") if isinstance(value, dict) else value for name, value in found.items()}
    tokens = {name: value for name, value in spelled.items() if isinstance(value, str)}
    return {"template": template, "tokens": tokens}


def render(chat: JsonMapping, said: str) -> str:
    """The prompt for an answer to what a person said, or to a conversation: a JSON list of {"role", "content"}.

    Raises UserError where the template is broken or refuses the conversation.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(why: str) -> None:
        raise jinja2.TemplateError(why)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    template = _MARKED.sub(lambda found: f"{found[1]}{'endif' if found[2] else 'if true'}{found[3]}", chat["template"])
    try:
        return environment.from_string(template).render(
            messages=_conversation(said), add_generation_prompt=True, **chat["tokens"]
        )
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UserError(f"the model's chat template does not take {said[:60]!r}: {error}") from None


def _conversation(said: str) -> list[JsonObject]:
    try:
        found = json.loads(said) if said.lstrip().startswith("[") else None
    except ValueError:
        found = None
    if isinstance(found, list) and found and all(isinstance(one, dict) and "role" in one for one in found):
        return found
    return [{"role": "user", "content": said}]

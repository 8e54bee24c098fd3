"""A model of the Hugging Face hub by name: `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`. Needs the `hub` extra.

`hf:ORG/NAME@step*` names all revisions (branches and tags) of that pattern.

Only files that can be read here are fetched: configuration of model, generation and images, safetensors, tokenizer; no
code and no pickles. They stay in that library's cache.
"""

from fnmatch import fnmatchcase
from pathlib import Path

from qkv.errors import MissingExtra, SourceError, first_line
from qkv.installing import install

PATTERNS = (
    *(f"{name}config.json" for name in ("", "adapter_", "generation_", "preprocessor_", "tokenizer_")),
    *("*.safetensors", "*.safetensors.index.json", "tokenizer.json", "tokenizer.source.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "source.spm", "target.spm"),
    *("vocab.txt", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe"),
)
"""What is fetched of a repository."""


def fetch(name: str) -> Path:
    """The folder of the model called `name` (ORG/NAME, without `hf:`), fetched where it is not there yet.

    Raises MissingExtra without the library, SourceError where the model cannot be had.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra(f"hf:{name} needs another library; type: {install('hub')}") from None
    repository, _, revision = name.partition("@")
    try:
        found = huggingface_hub.snapshot_download(repository, revision=revision or None, allow_patterns=list(PATTERNS))
    except Exception as error:  # the library raises many kinds, for the network as for a wrong name
        raise SourceError(f"hf:{name} cannot be fetched: {first_line(error)}") from None
    return Path(found)


def revisions(repository: str, pattern: str) -> list[str]:
    """The branches and tags of a model whose names match a pattern; where the hub is out of reach, those in the cache.

    Raises MissingExtra without the library.
    """
    try:
        import huggingface_hub
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name
    except ImportError:
        raise MissingExtra(f"hf:{repository} needs another library; type: {install('hub')}") from None
    try:
        refs = huggingface_hub.list_repo_refs(repository)
        found = [ref.name for ref in (*refs.branches, *refs.tags)]
    except Exception:  # the library raises many kinds; `fetch` says why a revision that is not here cannot be had
        cached = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "refs"
        found = [path.relative_to(cached).as_posix() for path in cached.rglob("*") if path.is_file()]
    return sorted({name for name in found if fnmatchcase(name, pattern)})

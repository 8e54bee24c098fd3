"""Why a kind of model is not read: the ingredient that it has and qkv has no part for."""

from collections.abc import Mapping

from qkv.jsontypes import JsonMapping

_EXPERTS = "a mixture of experts (routed MLPs)"
_STATES = "state-space or recurrent layers (Mamba, RWKV)"
_MEDIA = "images, sound or another medium beside text"
_APART = "attention to content and to position separately"
_SPARSE = "sparse, hashed or approximated attention"

BY_KEY: Mapping[str, str] = {
    "kv_lora_rank": "keys and values from a latent vector (multi-head latent attention)",
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "ffn_config"), _EXPERTS),
    **dict.fromkeys(("vision_config", "audio_config", "num_mel_bins", "conv_dim", "image_size"), _MEDIA),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "mamba_expand", "linear_num_key_heads"), _STATES),
    "relative_attention_num_buckets": "score biases learned by buckets of distance",
    "num_buckets": "hashed attention",
    "attention_window": _SPARSE,
}
"""A key of config.json -> the ingredient that it speaks of."""
BY_TYPE: Mapping[str, str] = {
    model_type: ingredient
    for ingredient, types in {
        _STATES: "rwkv xlstm recurrent_gemma lfm2",
        _APART: "deberta deberta-v2 xlnet transfo-xl funnel",
        _SPARSE: "big_bird bigbird_pegasus nystromformer yoso fnet lsg mra",
        "q, k and v in one tensor, in an order of its own": "codegen",
    }.items()
    for model_type in types.split()
}
"""`model_type` -> the same, where no key says it."""


def why_not_read(given: JsonMapping) -> str:
    """One sentence on a config.json that no family reads; it begins with the kind of model."""
    model_type, page = given.get("model_type"), "docs/families.md lists what is read"
    if not model_type:
        return f"config.json names no model_type, so it is no model of transformers; {page}"
    ingredient = BY_TYPE.get(str(model_type)) or next((BY_KEY[key] for key in BY_KEY if given.get(key)), None)
    why = f"it needs {ingredient}, which qkv does not have" if ingredient else "qkv has no table of its tensors' names"
    return f"{str(model_type)[:80]} is not read: {why}; {page}"

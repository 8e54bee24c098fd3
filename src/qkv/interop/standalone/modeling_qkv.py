"""A model that was trained with qkv, for `transformers`: AutoModelForCausalLM or AutoModelForMaskedLM with
trust_remote_code=True. It needs torch and transformers only.

Matrices have the names and shapes of qkv: x W with W [in, out], heads side by side in the columns of W_Q, W_K and W_V
and in the rows of W_O. `config.json` says in `sizes` and `layout` what the model is made of.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput

ACTIVATIONS = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class QkvConfig(PretrainedConfig):
    model_type = "qkv"

    def __init__(self, sizes=None, layout=None, **others):
        self.sizes, self.layout = sizes or {}, layout or {}
        self.hidden_size, self.num_hidden_layers = self.sizes.get("d_model"), self.sizes.get("n_layers")
        super().__init__(**others)


class QkvModel(PreTrainedModel):
    """Every parameter at the place that its address says: `L0.W_Q` is `self.L0.W_Q`."""

    config_class = QkvConfig
    causal = True

    def __init__(self, config):
        super().__init__(config)
        for address, shape in self._shapes().items():
            place = self
            *path, name = address.split(".")
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, nn.Module())
                place = getattr(place, part)
            place.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.post_init()

    def _init_weights(self, module):
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, std=0.02)

    def _shapes(self):
        s, a = self.config.sizes, self.config.layout
        d, h, kv, m = s["d_model"], s["n_heads"] * s["d_head"], s["n_kv_heads"] * s["d_head"], s["d_mlp"]
        shapes = {"W_E": (s["d_vocab"], d)}
        shapes |= {"W_pos": (s["n_ctx"], d)} if a["positions"] == "learned" else {}
        shapes |= {"W_type": (s["n_types"], d)} if s["n_types"] else {}

        def norm(name, place):
            if a["norm"] == "none":
                return {}
            bias = {f"{name}.bias": (d,)} if place and a["norm"] == "layer" and a["bias"] else {}
            return {f"{name}.gain": (d,)} | bias

        biased = a["attention_bias"] if a["attention_bias"] != "same" else ("all" if a["bias"] else "none")
        shapes |= norm("norm_e", True) if a["norm_e"] else {}
        for i in range(s["n_layers"]):
            own = norm("norm1", True) | {"W_Q": (d, h), "W_K": (d, kv), "W_V": (d, kv), "W_O": (h, d)}
            own |= {"b_Q": (h,), "b_K": (kv,), "b_V": (kv,)} if biased in ("qkv", "all") else {}
            own |= {"b_O": (d,)} if biased == "all" else {}
            own |= {"qnorm.gain": (s["d_head"],), "knorm.gain": (s["d_head"],)} if a["qk_norm"] else {}
            if a["mlp"] != "none":
                own |= norm("norm2", True) | {"W_in": (d, m), "W_out": (m, d)}
                own |= {"W_gate": (d, m)} if a["mlp"] == "swiglu" else {}
                own |= {"b_in": (m,), "b_out": (d,)} if a["bias"] else {}
            shapes |= {f"L{i}.{name}": shape for name, shape in own.items()}
        shapes |= norm("norm_f", True) if a["norm_place"] == "pre" else {}
        if a["head_transform"]:
            shapes |= {"W_transform": (d, d)} | norm("norm_u", True) | ({"b_transform": (d,)} if a["bias"] else {})
        shapes |= {} if a["tied"] else {"W_U": (d, s["d_vocab"])}
        return shapes | ({"b_U": (s["d_vocab"],)} if (a.get("head_bias") if self.causal else a["bias"]) else {})

    def get_input_embeddings(self):
        return None

    def _norm(self, place, name, x):
        a, norm = self.config.layout, getattr(place, name, None)
        if norm is None:
            return x
        if a["norm"] == "layer":
            return F.layer_norm(x, norm.gain.shape, norm.gain, getattr(norm, "bias", None), a["norm_eps"])
        return F.rms_norm(x, norm.gain.shape, norm.gain, a["norm_eps"])

    def _turns(self, n, like):
        """cos and sin of rotary positions, [n, d / 2]."""
        s, a = self.config.sizes, self.config.layout
        d, scaling = int(s["d_head"] * a["rope_share"]), a["rope_scaling"]
        base, factor, original = a["rope_base"], scaling["factor"], scaling["original_ctx"]
        pair = torch.arange(d // 2, dtype=torch.float64)
        speed = base ** (-2 * pair / d)
        if scaling["kind"] == "linear":
            speed = speed / factor
        elif scaling["kind"] == "llama3":
            turns = original * speed / (2 * math.pi)
            kept = ((turns - scaling["slow"]) / (scaling["fast"] - scaling["slow"])).clamp(0, 1)
            speed = speed * (kept + (1 - kept) / factor)
        elif scaling["kind"] == "yarn":
            ends = [d * math.log(original / (t * 2 * math.pi)) / (2 * math.log(base)) for t in
                    (scaling["fast"], scaling["slow"])]  # fmt: skip
            low, high = (math.floor(ends[0]), math.ceil(ends[1])) if scaling["whole_pairs"] else ends
            low, high = max(low, 0), min(high, d - 1)
            slowed = ((pair - low) / (high - low + (0.001 if low == high else 0))).clamp(0, 1)
            speed = speed * (1 - slowed + slowed / factor)
        angles = torch.arange(n, dtype=torch.float64)[:, None] * speed
        return ((t * scaling["stretch"]).to(like) for t in (angles.cos(), angles.sin()))

    def _attention(self, block, x, bias, turns):
        s, a = self.config.sizes, self.config.layout
        heads = []
        for letter in "QKV":
            head = x @ getattr(block, f"W_{letter}") + getattr(block, f"b_{letter}", 0)
            head = head.unflatten(-1, (-1, s["d_head"])).transpose(1, 2)
            if letter != "V":
                if a["qk_norm"]:
                    gain = getattr(block, f"{letter.lower()}norm").gain
                    head = F.rms_norm(head, gain.shape, gain, a["norm_eps"])
                if turns is not None:
                    cos, sin = turns
                    one, two, rest = head.tensor_split((cos.shape[-1], 2 * cos.shape[-1]), dim=-1)
                    head = torch.cat((one * cos - two * sin, two * cos + one * sin, rest), dim=-1)
            heads.append(head)
        scale = s["d_head"] ** -0.5 if a["scale"] else 1.0
        z = F.scaled_dot_product_attention(*heads, attn_mask=bias, scale=scale, enable_gqa=True)
        return z.transpose(1, 2).flatten(2) @ block.W_O + getattr(block, "b_O", 0)

    def _mlp(self, block, x):
        hidden = x @ block.W_in + getattr(block, "b_in", 0)
        if self.config.layout["mlp"] == "swiglu":
            hidden = F.silu(x @ block.W_gate) * hidden
        else:
            hidden = ACTIVATIONS[self.config.layout["mlp"]](hidden)
        return hidden @ block.W_out + getattr(block, "b_out", 0)

    def _embed(self, ids, positions):
        s, a = self.config.sizes, self.config.layout
        x = self.W_E[ids] * (s["d_model"] ** 0.5 if a["embed_scale"] else 1.0)
        if a["positions"] == "learned":
            x = x + self.W_pos[positions]
        if a["positions"].startswith("sinusoidal"):
            pair = torch.arange(0, s["d_model"], 2, dtype=torch.float64, device=ids.device) / s["d_model"]
            angles = positions[..., None].double() / 10000.0**pair
            waves, halves = (angles.sin(), angles.cos()), a["positions"] == "sinusoidal_halves"
            x = x + (torch.cat(waves, dim=-1) if halves else torch.stack(waves, dim=-1).flatten(-2)).to(x)
        x = x + self.W_type[0] if s["n_types"] else x
        return self._norm(self, "norm_e", x)

    def _hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        a, n = self.config.layout, ids.shape[1]
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        x = self._embed(ids, (torch.arange(n, device=ids.device) - real.int().argmax(-1, keepdim=True)).clamp_min(0))
        seen = real[:, None, None, :].expand(-1, 1, n, n)
        seen = seen & torch.ones(n, n, dtype=torch.bool, device=ids.device).tril() if self.causal else seen
        seen = seen | torch.eye(n, dtype=torch.bool, device=ids.device)  # padding sees itself and stays finite
        bias = torch.zeros_like(seen, dtype=x.dtype).masked_fill(~seen, -math.inf)
        turns = tuple(self._turns(n, x)) if a["positions"] == "rotary" else None
        pre, skip = a["norm_place"] == "pre", float(a["skip"])
        for i in range(self.config.sizes["n_layers"]):
            block = getattr(self, f"L{i}")
            before = (lambda name, x, b=block: self._norm(b, name, x)) if pre else (lambda name, x: x)
            after = (lambda name, x: x) if pre else (lambda name, x, b=block: self._norm(b, name, x))
            attended = self._attention(block, before("norm1", x), bias, turns)
            if a["parallel"]:
                x = x + attended + self._mlp(block, before("norm2", x))
                continue
            x = after("norm1", skip * x + attended)
            if a["mlp"] != "none":
                x = after("norm2", skip * x + self._mlp(block, before("norm2", x)))
        return self._norm(self, "norm_f", x)

    def _logits(self, h):
        a = self.config.layout
        if a["head_transform"]:
            h = ACTIVATIONS[a["mlp"]](h @ self.W_transform + getattr(self, "b_transform", 0))
            h = self._norm(self, "norm_u", h)
        return h @ (self.W_E.T if a["tied"] else self.W_U) + getattr(self, "b_U", 0)


class QkvForCausalLM(QkvModel, GenerationMixin):
    causal = True

    def forward(self, input_ids, attention_mask=None, labels=None, **others):
        logits, loss = self._logits(self._hidden(input_ids, attention_mask)), None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **others):
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class QkvForMaskedLM(QkvModel):
    causal = False

    def forward(self, input_ids, attention_mask=None, labels=None, **others):
        logits = self._logits(self._hidden(input_ids, attention_mask))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)

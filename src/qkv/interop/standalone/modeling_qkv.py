"""A model that was trained with qkv, for `transformers`: AutoModelForCausalLM, MaskedLM, SequenceClassification,
ImageClassification or Seq2SeqLM with trust_remote_code=True. It needs torch and transformers only.

Matrices have the names and shapes of qkv: x W with W [in, out], heads side by side in the columns of W_Q, W_K and W_V
and in the rows of W_O. `config.json` says in `sizes`, `layout` and, of images, `patches` what the model is made of.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutput,
    ImageClassifierOutput,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)

ACTIVATIONS = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class QkvConfig(PretrainedConfig):
    model_type = "qkv"

    def __init__(self, sizes=None, layout=None, patches=None, causal=None, **others):
        self.sizes, self.layout, self.patches, self.causal = sizes or {}, layout or {}, patches, causal
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
        """Address -> shape of every matrix."""
        return self._stack() | self._way_out()

    def _stack(self, scope="", cross=False):
        """Those of one stack, behind its scope."""
        s, a, patches = self.config.sizes, self.config.layout, self.config.patches
        d, m = s["d_model"], s["d_mlp"]
        shapes = {} if cross and a["tied"] else {"W_E": (s["d_vocab"], d)}
        if patches:
            shapes = {"W_E": (patches["channels"] * patches["patch"] ** 2, d)} | ({"b_E": (d,)} if a["bias"] else {})
            shapes |= {"W_token": (1, d)} if a["pool"] == "class" else {}
        shapes |= {"W_pos": (s["n_ctx"], d)} if a["positions"] == "learned" else {}
        shapes |= {"W_type": (s["n_types"], d)} if s["n_types"] else {}
        shapes |= self._norm_shapes("norm_e") if a["norm_e"] else {}
        for i in range(s["n_layers"]):
            own = self._norm_shapes("norm1") | self._attention_shapes()
            if cross:
                own |= self._norm_shapes("norm_cross")
                own |= {f"cross.{name}": shape for name, shape in self._attention_shapes().items()}
            if a["mlp"] != "none":
                own |= self._norm_shapes("norm2") | {"W_in": (d, m), "W_out": (m, d)}
                own |= {"W_gate": (d, m)} if a["mlp"] == "swiglu" else {}
                own |= {"b_in": (m,), "b_out": (d,)} if a["bias"] else {}
            shapes |= {f"L{i}.{name}": shape for name, shape in own.items()}
        shapes |= self._norm_shapes("norm_f") if a["norm_place"] == "pre" else {}
        return {f"{scope}{name}": shape for name, shape in shapes.items()}

    def _norm_shapes(self, name):
        a, d = self.config.layout, self.config.sizes["d_model"]
        if a["norm"] == "none":
            return {}
        return {f"{name}.gain": (d,)} | ({f"{name}.bias": (d,)} if a["norm"] == "layer" and a["bias"] else {})

    def _attention_shapes(self):
        s, a = self.config.sizes, self.config.layout
        d, h, kv = s["d_model"], s["n_heads"] * s["d_head"], s["n_kv_heads"] * s["d_head"]
        biased = a["attention_bias"] if a["attention_bias"] != "same" else ("all" if a["bias"] else "none")
        shapes = {"W_Q": (d, h), "W_K": (d, kv), "W_V": (d, kv), "W_O": (h, d)}
        shapes |= {"b_Q": (h,), "b_K": (kv,), "b_V": (kv,)} if biased in ("qkv", "all") else {}
        shapes |= {"b_O": (d,)} if biased == "all" else {}
        return shapes | ({"qnorm.gain": (s["d_head"],), "knorm.gain": (s["d_head"],)} if a["qk_norm"] else {})

    def _way_out(self):
        """Shapes of what turns vectors into logits of tokens."""
        s, a, d = self.config.sizes, self.config.layout, self.config.sizes["d_model"]
        shapes = {}
        if a["head_transform"]:
            shapes |= {"W_transform": (d, d)} | self._norm_shapes("norm_u")
            shapes |= {"b_transform": (d,)} if a["bias"] else {}
        shapes |= {} if a["tied"] else {"W_U": (d, s["d_vocab"])}
        return shapes | ({"b_U": (s["d_vocab"],)} if a.get("head_bias") or (a["bias"] and not self.causal) else {})

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
        """cos and sin of rotary positions, [n, d / 2]; of patches half of the pairs turn by row, half by column."""
        s, a = self.config.sizes, self.config.layout
        if self.config.patches:
            angles = self._of_grid(int(s["d_head"] * a["rope_share"]) // 2, a["rope_base"])
            return angles.cos().to(like), angles.sin().to(like)
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
        return tuple((t * scaling["stretch"]).to(like) for t in (angles.cos(), angles.sin()))

    def _grid(self):
        """Rows and columns of patches, and pixels from one patch to the next."""
        cut = self.config.patches
        step = cut["stride"] or cut["patch"]
        return -(-cut["height"] // step), -(-cut["width"] // step), step

    def _of_grid(self, d, base, spread=lambda angles: angles):
        """Angles (or what `spread` makes of them) of each patch's row and column side by side; 0 of a class token."""
        rows, columns, _ = self._grid()
        pair = torch.arange(0, d, 2, dtype=torch.float64) / d
        row, column = (spread(torch.arange(n, dtype=torch.float64)[:, None] / base**pair) for n in (rows, columns))
        both = row[:, None].expand(-1, columns, -1), column[None].expand(rows, -1, -1)
        table = torch.cat(both, dim=-1).flatten(0, 1)
        return torch.cat((torch.zeros(int(self.config.layout["pool"] == "class"), table.shape[1]).to(table), table))

    def _attention(self, block, x, bias, turns, context=None):
        s, a = self.config.sizes, self.config.layout
        heads = []
        for letter in "QKV":
            read = x if letter == "Q" or context is None else context
            head = read @ getattr(block, f"W_{letter}") + getattr(block, f"b_{letter}", 0)
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

    def _embed(self, place, W_E, ids, positions):
        s, a = self.config.sizes, self.config.layout
        x = W_E[ids] * (s["d_model"] ** 0.5 if a["embed_scale"] else 1.0)
        if a["positions"] == "learned":
            x = x + place.W_pos[positions]
        if a["positions"].startswith("sinusoidal"):
            pair = torch.arange(0, s["d_model"], 2, dtype=torch.float64, device=ids.device) / s["d_model"]
            angles = positions[..., None].double() / 10000.0**pair
            waves, halves = (angles.sin(), angles.cos()), a["positions"] == "sinusoidal_halves"
            x = x + (torch.cat(waves, dim=-1) if halves else torch.stack(waves, dim=-1).flatten(-2)).to(x)
        x = x + place.W_type[0] if s["n_types"] else x
        return self._norm(place, "norm_e", x)

    def _hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        return self._read(self, self.W_E, ids, mask, self.causal)

    def _read(self, place, W_E, ids, mask, causal, context=None, context_mask=None) -> Tensor:
        """The vectors of a stack after its last norm, [batch, pos, d_model]; `place` holds its matrices."""
        n = ids.shape[1]
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        positions = (torch.arange(n, device=ids.device) - real.int().argmax(-1, keepdim=True)).clamp_min(0)
        x = self._embed(place, W_E, ids, positions)
        seen = real[:, None, None, :].expand(-1, 1, n, n)
        seen = seen & torch.ones(n, n, dtype=torch.bool, device=ids.device).tril() if causal else seen
        seen = seen | torch.eye(n, dtype=torch.bool, device=ids.device)  # padding sees itself and stays finite
        if context is not None and context_mask is None:
            context_mask = torch.ones(context.shape[:2], dtype=torch.bool, device=ids.device)
        to_context = None if context is None else _bias(context_mask.bool()[:, None, None, :], x)
        return self._blocks(place, x, _bias(seen, x), context, to_context)

    def _blocks(self, place, x, bias, context=None, to_context=None):
        a = self.config.layout
        turns = self._turns(x.shape[1], x) if a["positions"] == "rotary" else None
        pre, skip = a["norm_place"] == "pre", float(a["skip"])
        for i in range(self.config.sizes["n_layers"]):
            block = getattr(place, f"L{i}")
            before = (lambda name, x, b=block: self._norm(b, name, x)) if pre else (lambda name, x: x)
            after = (lambda name, x: x) if pre else (lambda name, x, b=block: self._norm(b, name, x))
            attended = self._attention(block, before("norm1", x), bias, turns)
            if a["parallel"]:
                x = x + attended + self._mlp(block, before("norm2", x))
                continue
            x = after("norm1", skip * x + attended)
            if context is not None:
                attended = self._attention(block.cross, before("norm_cross", x), to_context, None, context)
                x = after("norm_cross", skip * x + attended)
            if a["mlp"] != "none":
                x = after("norm2", skip * x + self._mlp(block, before("norm2", x)))
        return self._norm(place, "norm_f", x)

    def _logits(self, h, W_E=None):
        a = self.config.layout
        if a["head_transform"]:
            h = ACTIVATIONS[a["mlp"]](h @ self.W_transform + getattr(self, "b_transform", 0))
            h = self._norm(self, "norm_u", h)
        table = (self.W_E if W_E is None else W_E).T if a["tied"] else self.W_U
        return h @ table + getattr(self, "b_U", 0)


def _bias(seen: Tensor, like: Tensor) -> Tensor:
    """0 where a position may be seen, minus infinity where not."""
    return torch.zeros_like(seen, dtype=like.dtype).masked_fill(~seen, -math.inf)


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


class _Classifier(QkvModel):
    def _way_out(self):
        return {"W_cls": (self.config.sizes["d_model"], self.config.num_labels), "b_cls": (self.config.num_labels,)}


class QkvForSequenceClassification(_Classifier):
    """The class of a text by the mean of its positions; over the body of a causal model where the config says so."""

    def forward(self, input_ids, attention_mask=None, labels=None, **others):
        self.causal = bool(self.config.causal)
        h = self._hidden(input_ids, attention_mask)
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        real = real[..., None].to(h)
        logits = (h * real).sum(1) / real.sum(1).clamp_min(1) @ self.W_cls + self.b_cls
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class QkvForImageClassification(_Classifier):
    """The class of an image by its class token, or the mean of its patches; pixels are standardised already."""

    main_input_name = "pixel_values"

    def forward(self, pixel_values, labels=None, **others):
        a, cut, (rows, columns, step) = self.config.layout, self.config.patches, self._grid()
        padding = []
        for n, size in ((columns, cut["width"]), (rows, cut["height"])):
            missing = max(0, (n - 1) * step + cut["patch"] - size)
            padding += [missing // 2, missing - missing // 2]
        patches = F.unfold(F.pad(pixel_values, padding), cut["patch"], stride=step).transpose(1, 2)
        x = patches @ self.W_E + getattr(self, "b_E", 0)
        if a["pool"] == "class":
            x = torch.cat((self.W_token.expand(len(x), 1, -1), x), dim=1)
        if a["positions"] == "learned":
            x = x + self.W_pos
        elif a["positions"] == "sinusoidal":
            waves = self._of_grid(
                self.config.sizes["d_model"] // 2, 10000.0, lambda t: torch.stack((t.sin(), t.cos()), -1).flatten(-2)
            )
            x = x + waves.to(x)
        h = self._blocks(self, self._norm(self, "norm_e", x), None)
        logits = (h[:, 0] if a["pool"] == "class" else h.mean(1)) @ self.W_cls + self.b_cls
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


class _Reader(nn.Module):
    """The encoder of a translation model, as `generate` asks for it; it has no parameters of its own."""

    main_input_name = "input_ids"

    def __init__(self, model):
        super().__init__()
        object.__setattr__(self, "model", model)

    def forward(self, input_ids, attention_mask=None, **others):
        model = self.model
        return BaseModelOutput(model._read(model.enc, model.enc.W_E, input_ids, attention_mask, False))


class QkvForSeq2SeqLM(QkvModel, GenerationMixin):
    """The next token of a target from those before and a whole source."""

    main_input_name = "input_ids"

    def _stack(self, scope="", cross=False):
        return super()._stack("enc.") | super()._stack("dec.", cross=True)

    def get_encoder(self, *which, **how):
        return _Reader(self)

    def forward(
        self, input_ids=None, attention_mask=None, decoder_input_ids=None, decoder_attention_mask=None,
        encoder_outputs=None, labels=None, **others,
    ):  # fmt: skip
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        if decoder_input_ids is None and labels is not None:
            start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
            shifted = torch.cat((start, labels[:, :-1]), dim=1)
            decoder_input_ids = shifted.masked_fill(shifted == -100, self.config.pad_token_id)
        W_E = self.enc.W_E if self.config.layout["tied"] else self.dec.W_E
        dec = getattr(self, "dec", None)  # a tied stack of no layers may have no parameter
        h = self._read(dec, W_E, decoder_input_ids, decoder_attention_mask, True, encoder_outputs[0], attention_mask)
        logits = self._logits(h, W_E)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(loss=loss, logits=logits, encoder_last_hidden_state=encoder_outputs[0])

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, encoder_outputs=None, **others):
        return {
            "decoder_input_ids": input_ids,
            "attention_mask": attention_mask,
            "encoder_outputs": encoder_outputs,
        }

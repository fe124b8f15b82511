"""An encoder-decoder Transformer in numpy float64, straight from the formulas, to test the real one against.

It shares no code with the package: one sentence at a time, no batch, no padding, one head after another.

    S_l = Q_l K_l^T / sqrt(d_head);  R_l = S_l + R_{l-1};  P_l = softmax(R_l [/ l] + causal);  out = P_l V_l
    Post-LN: x <- LN(omega * x + f(x));  Pre-LN: x <- x + f(LN(x))
"""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, weight, bias):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias


def positions(length, dim, first):
    """fairseq's sinusoids: sine half then cosine half, the first token at position ``first``."""
    half = dim // 2
    rates = np.exp(np.arange(half) * -(np.log(10000.0) / (half - 1)))
    angles = np.arange(first, first + length)[:, None] * rates[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def attention(query, keys, p, prefix, heads, previous, causal, divisor):
    """One attention module on one sentence.

    Returns: output (T, d); R_l, a list with one (T, S) array a head; P_l likewise
    """

    def project(x, name):
        return x @ p[f"{prefix}.{name}.weight"].T + p[f"{prefix}.{name}.bias"]

    q, k, v = project(query, "q_proj"), project(keys, "k_proj"), project(keys, "v_proj")
    width = q.shape[1] // heads
    outputs, scores, probs = [], [], []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        r = q[:, part] @ k[:, part].T / np.sqrt(width)
        if previous is not None:
            r = r + previous[h]
        logits = r / divisor
        if causal:
            logits = np.where(np.tril(np.ones_like(logits)) > 0, logits, -np.inf)
        prob = softmax(logits)
        outputs.append(prob @ v[:, part])
        scores.append(r)
        probs.append(prob)
    return project(np.concatenate(outputs, axis=1), "out_proj"), scores, probs


class Reference:
    """The whole model over a state dict of float64 arrays.

    Args:
        state: name -> array, the stock transformer's names, plus ``*_omega`` (effective vectors)
        heads, encoder_layers, decoder_layers: sizes
        mode: "sum", "mean" or "none"; sites: collection of "encoder", "decoder", "cross"
        pre_ln: normalise before the sub-layer
        dropped: (stack, layer) pairs that LayerDrop left out
    """

    def __init__(self, state, heads, encoder_layers, decoder_layers, mode, sites, pre_ln=False, dropped=()):
        self.p, self.heads, self.pre_ln = state, heads, pre_ln
        self.layers = {"encoder": encoder_layers, "decoder": decoder_layers}
        self.mode, self.sites, self.dropped = mode, sites, set(dropped)
        self.probs = {}
        self.scores = {}
        self.omega_chain = {"encoder": [], "decoder": []}
        self.branches = {"encoder": [], "decoder": []}  # (x_i, f_i(x_i)) of every sub-layer, for ADMIN's statistics

    def embed(self, tokens, side, pad=1):
        table = self.p[f"{side}.embed_tokens.weight"]
        x = table[np.array(tokens)] * np.sqrt(table.shape[1])
        return x + positions(len(tokens), table.shape[1], pad + 1)

    def sublayer(self, x, f, prefix, norm, omega, stack):
        weight, bias = self.p[f"{prefix}.{norm}.weight"], self.p[f"{prefix}.{norm}.bias"]
        if self.pre_ln:
            return x + f(layer_norm(x, weight, bias))
        branch = f(x)
        self.branches[stack].append((x, branch))
        scale = self.p.get(f"{prefix}.{omega}_omega", 1.0)
        return layer_norm(scale * x + branch, weight, bias)

    def ffn(self, x, prefix):
        hidden = np.maximum(x @ self.p[f"{prefix}.fc1.weight"].T + self.p[f"{prefix}.fc1.bias"], 0)
        return hidden @ self.p[f"{prefix}.fc2.weight"].T + self.p[f"{prefix}.fc2.bias"]

    def attend(self, site, layer, x, keys, prefix, carried, causal):
        residual = site in self.sites and self.mode != "none"
        previous, count = carried if residual else (None, 0)
        divisor = count + 1 if residual and self.mode == "mean" else 1
        out, scores, probs = attention(x, keys, self.p, prefix, self.heads, previous, causal, divisor)
        self.probs[site, layer] = np.stack(probs)
        self.scores[site, layer] = np.stack(scores)
        if residual:
            carried[:] = [scores, count + 1]
        return out

    def encode(self, tokens):
        x = self.embed(tokens, "encoder")
        carried = [None, 0]
        for layer in range(self.layers["encoder"]):
            if ("encoder", layer) in self.dropped:
                continue
            prefix = f"encoder.layers.{layer}"

            def self_attention(y):
                return self.attend("encoder", layer, y, y, f"{prefix}.self_attn", carried, causal=False)

            x = self.sublayer(x, self_attention, prefix, "self_attn_layer_norm", "self_attn", "encoder")
            x = self.sublayer(x, lambda y: self.ffn(y, prefix), prefix, "final_layer_norm", "ffn", "encoder")
        return self.final_norm(x, "encoder")

    def final_norm(self, x, stack):
        if not self.pre_ln:
            return x
        return layer_norm(x, self.p[f"{stack}.layer_norm.weight"], self.p[f"{stack}.layer_norm.bias"])

    def decode(self, tokens, memory):
        x = self.embed(tokens, "decoder")
        own, other = [None, 0], [None, 0]
        for layer in range(self.layers["decoder"]):
            if ("decoder", layer) in self.dropped:
                continue
            prefix = f"decoder.layers.{layer}"

            def self_attention(y):
                return self.attend("decoder", layer, y, y, f"{prefix}.self_attn", own, causal=True)

            def cross_attention(y):
                return self.attend("cross", layer, y, memory, f"{prefix}.encoder_attn", other, causal=False)

            x = self.sublayer(x, self_attention, prefix, "self_attn_layer_norm", "self_attn", "decoder")
            x = self.sublayer(x, cross_attention, prefix, "encoder_attn_layer_norm", "encoder_attn", "decoder")
            x = self.sublayer(x, lambda y: self.ffn(y, prefix), prefix, "final_layer_norm", "ffn", "decoder")
        return self.final_norm(x, "decoder") @ self.p["decoder.output_projection.weight"].T

    def logits(self, source, target_input):
        """Logits (T, vocabulary) of one sentence pair given as token lists."""
        return self.decode(target_input, self.encode(source))


def reference_of(model, mode, sites=("encoder", "decoder", "cross"), dropped=()):
    """A :class:`Reference` with a model's parameters, as float64."""
    state = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("_omega.delta"):
            start = model.state_dict()[name[: -len("delta")] + "init"]
            state[name[: -len(".delta")]] = (tensor.double() + start.double()).numpy()
        elif tensor.dim() > 0:
            state[name] = tensor.double().numpy()
    return Reference(
        state,
        model.args.encoder_attention_heads,
        model.args.encoder_layers,
        model.args.decoder_layers,
        mode,
        sites,
        pre_ln=model.args.encoder_normalize_before,
        dropped=dropped,
    )

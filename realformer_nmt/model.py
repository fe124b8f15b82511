"""The registered model: fairseq's encoder-decoder transformer built from this project's layers."""

import argparse
import ast
import logging
import re

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModel,
)
from fairseq.modules import MultiheadAttention
from fairseq.modules.checkpoint_activations import checkpoint_wrapper

from . import admin, attention, decoding
from .errors import RealFormerError
from .layers import RealFormerDecoderLayer, RealFormerEncoderLayer, keep_dropout_names
from .linear import SETTING, choose, replace_linear_layers
from .stack import DecoderScores, EncoderScores, ResidualStack

logger = logging.getLogger(__name__)


def wrap_layer(layer, cfg):
    """Apply --checkpoint-activations, --offload-activations and fully sharded wrapping, as fairseq's builders do."""
    if not cfg.quant_noise.scalar:  # its quantiser knows torch's own class only
        replace_linear_layers(layer)  # not later: fairscale's wrapper remembers the modules whose weights it flattens
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


class RealFormerEncoder(TransformerEncoderBase):
    """fairseq's encoder over a :class:`ResidualStack`; arguments, inputs and outputs are fairseq's."""

    def __init__(self, cfg, dictionary, embed_tokens, return_fc=False):
        super().__init__(cfg, dictionary, embed_tokens, return_fc)
        keep_dropout_names(self, "TransformerEncoder")
        self.layers = ResidualStack(self.layers, self.encoder_layerdrop, EncoderScores)

    def build_encoder_layer(self, cfg):
        return wrap_layer(RealFormerEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def forward_scriptable(self, *args, **kwargs):
        with self.layers.passing_scores():
            return super().forward_scriptable(*args, **kwargs)

    def reorder_encoder_out(self, encoder_out, new_order):
        return decoding.reorder_encoder_out(super().reorder_encoder_out, encoder_out, new_order)


class RealFormerDecoder(TransformerDecoderBase):
    """fairseq's decoder over a :class:`ResidualStack`; arguments, inputs and outputs are fairseq's.

    Incremental decoding keeps no residual scores: a step computes its query's scores in every layer afresh.
    """

    def __init__(self, cfg, dictionary, embed_tokens, no_encoder_attn=False, output_projection=None):
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn, output_projection)
        self.need_attn = True
        keep_dropout_names(self, "TransformerDecoder")
        self.layers = ResidualStack(self.layers, self.decoder_layerdrop, DecoderScores)

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return wrap_layer(RealFormerDecoderLayer(cfg, no_encoder_attn), cfg)

    def extract_features_scriptable(self, prev_output_tokens, encoder_out=None, incremental_state=None, *args, **kwargs):
        state = self._decoding_state(prev_output_tokens, encoder_out, incremental_state)
        if state is None:
            with self.layers.passing_scores():
                return super().extract_features_scriptable(
                    prev_output_tokens, encoder_out, incremental_state, *args, **kwargs
                )
        x, extra = self._step(state, prev_output_tokens, encoder_out, incremental_state, *args, **kwargs)
        return state.spread(x, 0), state.spread_extra(extra)

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, features_only=False, *args, **kwargs):
        """As fairseq's decoder; a first step with equal beams is projected to the vocabulary once a sentence."""
        state = None
        if not features_only:
            state = self._decoding_state(prev_output_tokens, encoder_out, incremental_state)
        if state is None or args:
            return super().forward(prev_output_tokens, encoder_out, incremental_state, features_only, *args, **kwargs)
        wanted = {name: kwargs.get(name) for name in ("alignment_layer", "alignment_heads")}
        x, extra = self._step(state, prev_output_tokens, encoder_out, incremental_state, **wanted)
        return state.spread(self.output_layer(x), 0), state.spread_extra(extra)

    def _decoding_state(self, prev_output_tokens, encoder_out, incremental_state):
        """This batch's :class:`decoding.DecodingState`, made in its first step; None where fairseq's caches are used."""
        if incremental_state is None:
            return None
        key = self._get_full_incremental_state_key("decoding")
        if key not in incremental_state:
            state = None
            if self._can_share_caches() and encoder_out is not None and encoder_out["encoder_out"]:
                rows, beam = prev_output_tokens.size(0), encoder_out.get("beam_size", [1])[0]
                if rows == encoder_out["encoder_out"][0].size(1) and rows > 0:
                    state = decoding.DecodingState(rows // beam, beam)
            incremental_state[key] = state
        return incremental_state[key]

    def _can_share_caches(self):
        """Not in training mode or with dropout kept (beams would share its masks), nor for options with their own cache."""
        return not (self.training or self.cross_self_attention or getattr(self, "onnx_trace", False)) and all(
            isinstance(module, attention.ResidualMultiheadAttention)
            if isinstance(module, MultiheadAttention)
            else not getattr(module, "apply_during_inference", False)
            for module in self.modules()
        )

    def _step(self, state, prev_output_tokens, encoder_out, incremental_state, full_context_alignment=False,
              alignment_layer=None, alignment_heads=None):  # fmt: skip
        """One step: features of the rows that must be computed, `(S * W, 1, embed_dim)`, and fairseq's extra dict."""
        tokens = state.begin(prev_output_tokens, self.padding_idx, self.embed_tokens.weight.dtype)
        if state.length == 0:
            padding = encoder_out["encoder_padding_mask"]
            padding = padding[0][:: state.beam] if padding and padding[0].any() else None
            state.set_source(padding, 1, self.embed_tokens.weight.dtype)
        if alignment_layer is None and not self.need_attn:
            alignment_layer = -1  # no layer: nobody reads the weights
        incremental_state[decoding.ACTIVE] = state
        try:
            with self.layers.passing_scores():
                x, extra = super().extract_features_scriptable(
                    tokens, encoder_out, incremental_state, full_context_alignment, alignment_layer, alignment_heads
                )
        finally:
            del incremental_state[decoding.ACTIVE]
        state.end()
        return x, extra

    def make_generation_fast_(self, need_attn=False, **kwargs):
        """fairseq-generate calls this; without --print-alignment nobody reads the attention weights."""
        self.need_attn = need_attn

    def reorder_incremental_state_scripting(self, incremental_state, new_order):
        state = incremental_state.get(self._get_full_incremental_state_key("decoding"))
        if state is None:
            super().reorder_incremental_state_scripting(incremental_state, new_order)
        else:
            state.reorder(new_order)


@register_model("realformer")
class RealFormerModel(TransformerModel):
    """Transformer with residual attention (arXiv 2012.11747) and ADMIN initialisation (arXiv 2004.08249).

    Takes every flag of fairseq's ``transformer``, and::

        --residual-attention {sum,mean,none}
        --residual-attention-sites encoder,decoder,cross
        --admin-init {profile,analytic,none}

    Parameter names are the stock transformer's, plus ``*_omega.{init,delta}`` and ``omega_profiled`` with ADMIN.
    """

    @classmethod
    def hub_models(cls):
        return {}

    @classmethod
    def add_args(cls, parser):
        super().add_args(parser)
        # straight to the parser: fairseq passes a group of its own, and groups inside groups are deprecated
        parser.add_argument(
            "--residual-attention", choices=attention.MODES, default=argparse.SUPPRESS,
            help="pass attention scores to the next layer: their sum (the paper), their mean over layers, or none",
        )  # fmt: skip
        parser.add_argument(
            "--residual-attention-sites", metavar="SITES", default=argparse.SUPPRESS,
            help="where: any of encoder,decoder,cross (default: all)",
        )  # fmt: skip
        parser.add_argument(
            "--admin-init", choices=admin.INITS, default=argparse.SUPPRESS,
            help="scale residual branches by omega: profiled on the first training batch, from the analytic formula, "
            "or not at all (default: profile; none for Pre-LN)",
        )  # fmt: skip

    @classmethod
    def build_model(cls, args, task):
        """Build from parsed arguments.

        Raises:
            RealFormerError: flags that contradict each other
        """
        from .architectures import realformer

        realformer(args)
        check_flags(args)
        args.admin_omega = {}
        if args.admin_init == "analytic":
            decoder_sublayers = 2 if args.no_cross_attention else 3
            args.admin_omega = {
                "encoder": admin.analytic_omega(2 * args.encoder_layers) if args.encoder_layers else 1.0,
                "decoder": admin.analytic_omega(decoder_sublayers * args.decoder_layers)
                if args.decoder_layers
                else 1.0,
            }
        try:
            model = super().build_model(args, task)
            if not args.quant_noise_scalar:
                replace_linear_layers(model)
            if getattr(args, SETTING, None):  # not a flag of training: --model-overrides sets it
                choose(model, getattr(args, SETTING))
            return model
        finally:
            del args.admin_omega  # derived, not a setting: keep it out of the checkpoint

    @classmethod
    def build_encoder(cls, args, src_dict, embed_tokens):
        check_evaluated_settings(args)  # before fairseq's encoder and decoder read them
        return RealFormerEncoder(args, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens):
        return RealFormerDecoder(args, tgt_dict, embed_tokens, no_encoder_attn=args.no_cross_attention)

    def __init__(self, args, encoder, decoder):
        super().__init__(args, encoder, decoder)
        self.admin_init = self.cfg.admin_init
        if self.admin_init == "profile":
            # floating, because averaging and EMA treat every entry of a checkpoint as a number to be averaged
            self.register_buffer("omega_profiled", torch.zeros(()))
        self._omega_ready = None

    def omegas(self):
        """Every :class:`admin.Omega`, encoder first, in order of depth."""
        return [module for module in self.modules() if isinstance(module, admin.Omega)]

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """As fairseq's.

        Raises:
            StateDictError: the parameters are not this model's
        """
        try:
            return super().load_state_dict(state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            raise StateDictError(describe_mismatch(error)) from error

    def _load_from_state_dict(self, *args, **kwargs):
        self._omega_ready = None  # ask the loaded buffer again
        return super()._load_from_state_dict(*args, **kwargs)

    def _must_profile(self):
        if self.admin_init != "profile":
            return False
        if self._omega_ready is None:  # the buffer is read once, not once a step: on a GPU that would wait for it
            self._omega_ready = bool(self.omega_profiled.item() > 0)
        return not self._omega_ready

    def forward(self, src_tokens, src_lengths, prev_output_tokens, **kwargs):
        """As fairseq's model. The first call in training mode measures omega on its batch when --admin-init profile.

        Args:
            src_tokens: `(batch, src_len)`
            src_lengths: `(batch,)`
            prev_output_tokens: `(batch, tgt_len)`
        """
        if self.training and self._must_profile():
            self.profile_omega(src_tokens, src_lengths, prev_output_tokens)
        return super().forward(src_tokens, src_lengths, prev_output_tokens, **kwargs)

    @torch.no_grad()
    def profile_omega(self, src_tokens, src_lengths, prev_output_tokens):
        """Measure and set every omega with one forward pass (formula in admin.py); shapes as in :meth:`forward`.

        Under data parallelism every rank must call it; all end with rank 0's values. The random state is left as it
        was, so that the training step that follows draws the same dropout masks as it would on resume.
        """
        devices = [src_tokens.device] if src_tokens.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            valid = src_tokens.ne(self.encoder.padding_idx).t()
            with admin.profiling(self.encoder.layers, valid) as encoder_chain:
                encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
            valid = prev_output_tokens.ne(self.decoder.padding_idx).t()
            with admin.profiling(self.decoder.layers, valid) as decoder_chain:
                self.decoder(prev_output_tokens, encoder_out=encoder_out, features_only=True)
        admin.broadcast_omegas(encoder_chain.visited + decoder_chain.visited)
        self.omega_profiled.fill_(1)
        self._omega_ready = True
        admin.log_omegas("encoder", encoder_chain.visited)
        admin.log_omegas("decoder", decoder_chain.visited)


class StateDictError(RealFormerError, RuntimeError):
    """Parameters that belong to another model; a RuntimeError as well, which is what torch raises."""


def describe_mismatch(error):
    """One line of torch's many lines (str of ``error``) about parameters that do not fit."""
    parts = []
    for found, words in (("Missing", "lacks"), ("Unexpected", "has also")):
        for names in re.findall(rf"{found} key\(s\) in state_dict: (.*)", str(error)):
            names = re.findall(r'"([^"]+)"', names)
            rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
            parts.append(f"{words} {', '.join(names[:2])}{rest}")
    sizes = re.findall(r"size mismatch for (\S+): copying a param with shape (.+?) from checkpoint, .* is (.+?)\.$",
                       str(error), re.M)  # fmt: skip
    if sizes:
        name, theirs, ours = sizes[0]
        rest = f", and {len(sizes) - 1} more such" if len(sizes) > 1 else ""
        parts.append(f"has {name} of {theirs}, not {ours}{rest}")
    return (
        f"the checkpoint is of another model: it {'; it '.join(parts) or 'does not load'}; "
        "give the --arch, sizes and --admin-init that it was trained with"
    )


def check_evaluated_settings(cfg):
    """Refuse settings that are more than a literal where fairseq hands a string to ``eval``.

    Settings come from a checkpoint, too, and reading one must never run code that it carries.

    Args:
        cfg: fairseq's TransformerConfig

    Raises:
        RealFormerError: such a setting is not the text of a number, list, tuple or dictionary
    """
    for flag, value in (
        ("--adaptive-softmax-cutoff", cfg.adaptive_softmax_cutoff),
        ("--encoder-xformers-att-config", getattr(cfg.encoder, "xformers_att_config", None)),
        ("--decoder-xformers-att-config", getattr(cfg.decoder, "xformers_att_config", None)),
    ):
        if isinstance(value, str):
            try:
                ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                raise RealFormerError(
                    f"{flag} {value[:60]!r}: refused, fairseq would run it as Python code; "
                    "give plain numbers, lists or dictionaries"
                ) from None


def check_flags(args):
    """Raise :class:`RealFormerError`, one line, for flags that cannot work together."""
    sites = [site for site in args.residual_attention_sites.split(",") if site]
    unknown = [site for site in sites if site not in attention.SITES]
    if unknown or (not sites and args.residual_attention != "none"):
        raise RealFormerError(
            f"--residual-attention-sites {args.residual_attention_sites!r}: "
            f"give any of {','.join(attention.SITES)}, separated by commas"
        )
    args.residual_attention_sites = ",".join(sites)
    if args.residual_attention not in attention.MODES:
        raise RealFormerError(f"--residual-attention {args.residual_attention}: choose {', '.join(attention.MODES)}")
    if args.admin_init not in admin.INITS:
        raise RealFormerError(f"--admin-init {args.admin_init}: choose {', '.join(admin.INITS)}")
    if bool(args.encoder_layers_to_keep) != bool(args.decoder_layers_to_keep):
        raise RealFormerError(
            "--encoder-layers-to-keep and --decoder-layers-to-keep: give both (fairseq drops the whole of the side that "
            "is left out)"
        )
    if args.admin_init == "profile" and args.quant_noise_pq > 0:
        raise RealFormerError(
            "--admin-init profile with --quant-noise-pq: the noise would change the weights while they are profiled; "
            "use --admin-init analytic or none"
        )
    if args.admin_init != "none" and (args.encoder_normalize_before or args.decoder_normalize_before):
        raise RealFormerError(
            f"--admin-init {args.admin_init} scales Post-LN residuals: drop --encoder-normalize-before and "
            "--decoder-normalize-before, or use --admin-init none"
        )



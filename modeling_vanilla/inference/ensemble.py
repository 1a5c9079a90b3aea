"""Several models that translate together: at every step the mean of their probabilities decides."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from ..cache_vanilla import CACHE, named_arguments
from ..generation_vanilla import GnmtGenerationMixin
from ..modeling_vanilla import VanillaForConditionalGeneration
from ..pretrained_vanilla import VanillaPreTrainedModel


class Ensemble(VanillaPreTrainedModel, GnmtGenerationMixin):
    """P(y | ...) = the arithmetic mean over the members of P_m(y | ...), token by token; generate() as on one model.

    The members may differ in everything but the vocabulary. To the search they are one model: their encoder outputs are
    concatenated to (B, S, sum of the members' D), and one cache holds all their decoder layers. The search's values
    and the number of positions are the first member's.

    It is neither trained nor saved, and returns neither attentions nor hidden states.

    Raises:
        ValueError: if a member is no vanilla model, or vocabularies differ in size or special tokens.
    """

    def __init__(self, members: Sequence[VanillaForConditionalGeneration]):
        first = members[0].config
        same = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        needed = {"model_type": "vanilla"} | {field: getattr(first, field) for field in same}
        for number, member in enumerate(members, start=1):
            for field, value in needed.items():
                if (theirs := getattr(member.config, field)) != value:
                    needs = f"an ensemble needs vanilla models of one vocabulary: member {number} has {field}"
                    raise ValueError(f"{needs} {theirs!r}, not {value!r}")
        config = copy.deepcopy(first)
        config.decoder_layers = sum(member.config.decoder_layers for member in members)  # what the cache has to hold
        super().__init__(config)
        self.members = nn.ModuleList(members)
        self.encoder = EnsembleEncoder(members)
        self.generation_config = copy.deepcopy(members[0].generation_config)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        return self.members[0].prepare_decoder_input_ids_from_labels(labels)

    @torch.no_grad()
    @named_arguments
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """Score the next token. Arguments as VanillaForConditionalGeneration takes them, without labels or embeddings.

        Returns:
            logits (B, T, V): log of the members' mean probability; cache.
        """
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        widths = [member.config.d_model for member in self.members]
        encodings = encoder_outputs[0].split(widths, dim=-1)
        logits, first_layer = None, 0
        for member, encoding in zip(self.members, encodings, strict=True):
            layers = slice(first_layer, first_layer + member.config.decoder_layers)
            outputs = member(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                encoder_outputs=BaseModelOutput(encoding.to(member.dtype)),
                cache=None if cache is None else _part_of(cache, layers),
                use_cache=cache is not None,
            )
            log_probs = outputs.logits.float().log_softmax(dim=-1)
            logits = log_probs if logits is None else torch.logaddexp(logits, log_probs)
            first_layer = layers.stop
        return Seq2SeqLMOutput(logits=logits - math.log(len(self.members)), **{CACHE: cache})


class EnsembleEncoder(nn.Module):
    """The members' encoders as one, whose output is the concatenation of theirs."""

    main_input_name = "input_ids"

    def __init__(self, members: Sequence[VanillaForConditionalGeneration]):
        super().__init__()
        self.encoders = nn.ModuleList(member.get_encoder() for member in members)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs) -> BaseModelOutput:
        """(B, S) -> last_hidden_state (B, S, sum of D)"""
        outputs = [encoder(input_ids=input_ids, attention_mask=attention_mask) for encoder in self.encoders]
        return BaseModelOutput(torch.cat([output.last_hidden_state for output in outputs], dim=-1))


def _part_of(cache: EncoderDecoderCache, layers: slice) -> EncoderDecoderCache:
    """A cache of some layers of another; both share the layers."""
    parts = []
    for whole in (cache.self_attention_cache, cache.cross_attention_cache):
        part = DynamicCache()
        part.layers = whole.layers[layers]
        parts.append(part)
    return EncoderDecoderCache(*parts)

"""Sections 3.1, 3.4 and 3.5, from the whole to its parts: the model, its encoder and its decoder."""

import math

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vanilla import CrossAttention, SelfAttention
from .cache_vanilla import CACHE, named_arguments
from .configuration_vanilla import VanillaConfig, check_tokens
from .cpu_vanilla import Dropout
from .generation_vanilla import GnmtGenerationMixin, complete_search, default_generation_config, savable
from .layers_vanilla import DecoderLayer, EncoderLayer, LearnedPositions, SinusoidalPositions
from .loss_vanilla import IGNORED, FusedLossOutput, fused_smoothed_cross_entropy, is_plain, smoothed_cross_entropy
from .masks_vanilla import check_mask, cross_mask, decoder_mask, encoder_mask
from .pipeline_vanilla import TranslationPipeline  # noqa: F401  (save_pretrained copies what is imported here)
from .pretrained_vanilla import VanillaPreTrainedModel


class VanillaForConditionalGeneration(VanillaPreTrainedModel, GnmtGenerationMixin):
    """The Transformer: P(next token) = softmax(E DecoderOutput), with the embedding matrix E as projection (3.4)."""

    _tied_weights_keys = {
        "model.decoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
        "lm_head.weight": "model.encoder.embed_tokens.weight",
    }

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        self.model = VanillaModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.generation_config = default_generation_config(config)
        self.loss_type = None  # else transformers 5.10 infers from the class name that the loss shifts the labels
        self.post_init()

    @named_arguments
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput | FusedLossOutput | tuple:
        """Compute the logits of the target, and the loss if there are labels. All else is as in VanillaModel.forward.

        Args:
            labels: (B, T), the target, not shifted, with IGNORED (-100) for positions without a label. The decoder's
                input is made from them if it is not given.
            num_items_in_batch: divisor of the summed loss; by default the number of labels that are not IGNORED.

        Returns:
            loss: scalar, cross-entropy with label smoothing (5.4), if there are labels. logits: (B, T, V); in training
            mode with labels only if return_dict is False.
        """
        return_dict = self.config.return_dict if return_dict is None else return_dict
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        fields, epsilon = dict(outputs), self.config.label_smoothing
        if labels is not None and self.training and return_dict and is_plain(self.lm_head):
            x = outputs.last_hidden_state
            loss = fused_smoothed_cross_entropy(x, self.lm_head.weight, labels, epsilon, num_items_in_batch)
            return FusedLossOutput(loss=loss, **fields)
        logits = self.lm_head(fields.pop("last_hidden_state"))
        loss = None if labels is None else smoothed_cross_entropy(logits, labels, epsilon, num_items_in_batch)
        output = Seq2SeqLMOutput(loss=loss, logits=logits, **fields)
        return output if return_dict else output.to_tuple()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift the target right by one position, with the decoder start token first (3.1). (B, T) -> (B, T)"""
        if self.config.decoder_start_token_id is None:
            raise ValueError("the decoder's input is made from labels by decoder_start_token_id, which is None")
        shifted = labels.new_full(labels.shape, self.config.decoder_start_token_id)
        shifted[:, 1:] = labels[:, :-1]
        pad = max(self.config.pad_token_id or 0, 0)  # any token will do where there is no label
        return shifted.masked_fill(shifted == IGNORED, pad)

    def adjust_generation_fn(self, *args, **kwargs) -> None:
        """As GenerationMixin's; a folder without generation_config.json, or without an alpha, has that of 6.1."""
        super().adjust_generation_fn(*args, **kwargs)
        if (found := self.generation_config)._from_model_config:
            self.generation_config = default_generation_config(self.config)
            self.generation_config.update(**{**found.to_diff_dict(), "_from_model_config": None})
        complete_search(self.generation_config)
        check_tokens(self.generation_config, self.config.vocab_size)

    def save_pretrained(self, *args, **kwargs) -> None:
        """As PreTrainedModel's, also of a model whose num_beams is set to 1: alpha and early stopping are left out.

        It writes both embeddings where PEFT has merged an lm_head of its own.
        """
        source, target = self.model.encoder.embed_tokens, self.model.decoder.embed_tokens
        if not self.config.tie_word_embeddings and source.weight is target.weight:
            target.weight = nn.Parameter(source.weight.detach().clone())
        search, self.generation_config = self.generation_config, savable(self.generation_config)
        try:
            super().save_pretrained(*args, **kwargs)
        finally:
            self.generation_config = search


class VanillaModel(VanillaPreTrainedModel):
    """Encoder and decoder with a shared embedding matrix (3.1, 3.4), without the output projection."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        self.encoder = VanillaEncoder(config)
        self.decoder = VanillaDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings:
            self.decoder.embed_tokens = value

    @named_arguments
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> Seq2SeqModelOutput:
        """Encode the source, unless encoder_outputs are given, and decode the target, shifted right.

        The arguments are those of VanillaEncoder.forward and, as decoder_..., of VanillaDecoder.forward.
        """
        kwargs["return_dict"] = True  # against the configuration's
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        names = {"hidden_states": "decoder_hidden_states", "attentions": "decoder_attentions"}
        return Seq2SeqModelOutput(
            **{names.get(name, name): value for name, value in decoder_outputs.items()},
            **{f"encoder_{name}": value for name, value in encoder_outputs.items()},
        )


class VanillaStack(VanillaPreTrainedModel):
    """A stack of N identical layers (3.1) over embeddings (3.4) and positional encodings (3.5)."""

    def __init__(self, config: VanillaConfig, layers: list[nn.Module]):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        learned = config.position_embedding_type == "learned"
        self.embed_positions = LearnedPositions(config) if learned else SinusoidalPositions(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()

    def embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The input of the first layer, Dropout(E[token] * sqrt(d_model) + PE(position)) (3.4, 3.5, 5.4). (B, T, D)

        Also the positions (B or 1, T) themselves.

        Args:
            input_ids: (B, T) tokens; or inputs_embeds: (B, T, D), rows of E, not scaled.
            attention_mask: (B, past + T), 0 for padding, which does not count as a position.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of (decoder_)input_ids and (decoder_)inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        check_mask("(decoder_)attention_mask", attention_mask, x, cache)
        past_length = 0 if cache is None else cache.get_seq_length()
        position_ids = self.positions(x, attention_mask, past_length)
        x = x * math.sqrt(self.config.d_model) + self.embed_positions(position_ids).to(x.dtype)
        if torch.is_autocast_enabled(x.device.type):  # which on a CPU would leave the residual stream in 32 bits
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return self.dropout(x), position_ids

    def positions(self, x: Tensor, attention_mask: Tensor | None, past_length: int) -> Tensor:
        """The positions (B or 1, T) of tokens x (B, T, D), from 0, without padding; attention_mask as in `embed`."""
        length = x.shape[1]
        if attention_mask is not None:
            positions = ((attention_mask != 0).cumsum(dim=-1) - 1).clamp(min=0)[:, -length:]
        else:
            positions = torch.arange(length, device=x.device).unsqueeze(0) + past_length
        limit, learned = self.config.max_position_embeddings, self.config.position_embedding_type == "learned"
        checked = learned and not is_tracing(x)
        if checked and past_length + length > limit and (last := int(positions.max())) >= limit:
            raise ValueError(f"a sequence of {last + 1} tokens is beyond max_position_embeddings {limit}")
        return positions


class VanillaEncoder(VanillaStack):
    """The encoder (3.1): z = (z_1, ..., z_n) = Encoder(x_1, ..., x_n), N layers of self-attention and feed-forward."""

    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": OutputRecorder(SelfAttention, index=1)}

    def __init__(self, config: VanillaConfig):
        super().__init__(config, [EncoderLayer(config, index) for index in range(config.encoder_layers)])

    @named_arguments
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Encode the source: input_ids (B, S), or inputs_embeds (B, S, D), which are rows of the embedding matrix.

        attention_mask (B, S) is 0 for padding, on either side. The output has last_hidden_state (B, S, D).
        """
        x, position_ids = self.embed(input_ids, inputs_embeds, attention_mask)
        mask = encoder_mask(self.config, x, attention_mask)
        for layer in self.layers:
            x = layer(x, mask, position_ids=position_ids, **kwargs)
        return BaseModelOutput(last_hidden_state=x)


class VanillaDecoder(VanillaStack):
    """The decoder (3.1): it predicts each target token y_t from the encoder's output z and y_1, ..., y_{t-1}."""

    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(SelfAttention, index=1),
        "cross_attentions": OutputRecorder(CrossAttention, index=1),
    }

    def __init__(self, config: VanillaConfig):
        super().__init__(config, [DecoderLayer(config, index) for index in range(config.decoder_layers)])

    @named_arguments
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode the target, shifted right. The output has last_hidden_state (B * K, T, D), and cache if asked for.

        Args:
            input_ids: (B * K, T); or inputs_embeds: (B * K, T, D). Only the tokens that are not in the cache.
            attention_mask: (B * K, past + T), 0 for padding.
            encoder_hidden_states: (B, S, D), the encoder's output. encoder_attention_mask: as the encoder took it.
            cache: the keys and values of earlier positions.
        """
        if encoder_hidden_states is None:
            raise ValueError("the decoder needs encoder_hidden_states, the encoder's output")
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        if cache is None or not cache.is_updated.get(0):  # else, it was checked in an earlier step
            check_mask("attention_mask", encoder_attention_mask, encoder_hidden_states)
        self_cache = None if cache is None else cache.self_attention_cache
        x, position_ids = self.embed(input_ids, inputs_embeds, attention_mask, self_cache)
        self_mask = decoder_mask(self.config, x, attention_mask, self_cache)
        padding_mask = cross_mask(self.config, x, encoder_attention_mask, encoder_hidden_states)
        for layer in self.layers:
            # What has a gradient is given by position: gradient checkpointing tracks no keyword arguments.
            x = layer(x, encoder_hidden_states, self_mask, padding_mask, cache, position_ids=position_ids, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x, **{CACHE: cache})

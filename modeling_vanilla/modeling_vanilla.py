"""Section 3: the Transformer. Encoder and decoder, the model of both, and the model with its output projection."""

import math

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vanilla import CrossAttention, SelfAttention, cross_mask, decoder_mask, encoder_mask
from .configuration_vanilla import VanillaConfig
from .generation_vanilla import GnmtGenerationMixin, default_generation_config
from .layers_vanilla import (
    DecoderLayer,
    Dropout,
    EncoderLayer,
    LearnedPositions,
    SinusoidalPositions,
    count_positions,
)
from .loss_vanilla import IGNORED, fused_smoothed_cross_entropy, smoothed_cross_entropy


class VanillaPreTrainedModel(PreTrainedModel):
    """What every model here shares: its configuration, its initialisation, and what transformers may do with it."""

    config: VanillaConfig
    config_class = VanillaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("EncoderLayer", "DecoderLayer")
    _supports_sdpa = True
    # transformers' unpadding for flash attention takes the keys' padding for the queries', which is wrong in
    # cross-attention: refused rather than wrong.
    _supports_flash_attn = False
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaConfig):
        config.check()  # from_pretrained(..., dropout=1.5) sets attributes behind the constructor's back
        super().__init__(config)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path,
        *model_args,
        use_safetensors: bool | None = None,
        output_loading_info: bool = False,
        **kwargs,
    ):
        """As PreTrainedModel's, but a pickle is read only if use_safetensors=False says so.

        Raises:
            ValueError: for a configuration that is bad, or weights that cannot be read or are not of such a model.
            OSError: where there is no model.
        """
        bad = f"the weights of {pretrained_model_name_or_path} cannot be loaded"
        try:
            model, found = super().from_pretrained(
                pretrained_model_name_or_path,
                *model_args,
                use_safetensors=True if use_safetensors is None else use_safetensors,
                output_loading_info=True,
                **kwargs,
            )
        except SafetensorError as error:
            raise ValueError(f"{bad}: {error}") from error
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise ValueError(f"{bad}: their shapes, reported above, are not the configuration's") from error
        # One that is missing is drawn, as always in transformers; so would be all of a file of another architecture.
        missing, unknown = found["missing_keys"], found["unexpected_keys"]
        if 2 * min(len(missing), len(unknown)) > len(model.state_dict()):
            raise ValueError(f"{bad}: they are another architecture's, with {min(unknown)}")
        return (model, found) if output_loading_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The paper is silent: see VanillaConfig.init_std."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            if module.bias is not None:
                init.zeros_(module.bias)
            # The parts of a fused projection are W^Q, W^K and W^V: each is drawn as the matrix that it is. A part does
            # not carry from_pretrained's mark of a weight that came from a file.
            if not getattr(module.weight, "_is_hf_initialized", False):
                for part in module.weight.split(getattr(module, "parts", module.out_features)):
                    self._init_projection(part)

    def _init_projection(self, weight: torch.Tensor) -> None:
        if self.config.init_std is None:
            init.xavier_uniform_(weight)
        else:
            init.normal_(weight, std=self.config.init_std)


class VanillaStack(VanillaPreTrainedModel):
    """What encoder and decoder share: the input layer (3.4, 3.5, 5.4) and N layers of their kind (3.1)."""

    def __init__(self, config: VanillaConfig, layers: list[nn.Module]):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        learned = config.position_embedding_type == "learned"
        self.embed_positions = LearnedPositions(config) if learned else SinusoidalPositions(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()

    def look_up(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Rows of the embedding matrix, not yet scaled: (B, T) or, as given, (B, T, D) -> (B, T, D)"""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "give exactly one of input_ids and inputs_embeds (for the decoder: of their decoder_ twins)"
            )
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def positions(self, x: torch.Tensor, attention_mask: torch.Tensor | None, past_length: int = 0) -> torch.Tensor:
        """Of the tokens x (B, T, D) behind so many others; attention_mask (B, past + T). -> (B, T) or (1, T)"""
        length = x.shape[1]
        limit = self.config.max_position_embeddings
        if self.config.position_embedding_type == "learned" and past_length + length > limit:
            raise ValueError(f"a sequence of {past_length + length} tokens is beyond max_position_embeddings {limit}")
        if attention_mask is not None and attention_mask.dim() == 2:
            return count_positions(attention_mask)[:, -length:]
        return torch.arange(length, device=x.device).unsqueeze(0) + past_length

    def embed(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Dropout(x * sqrt(d_model) + PE): what enters the first layer (3.4, 3.5, 5.4). (B, T, D) -> (B, T, D)"""
        x = x * math.sqrt(self.config.d_model) + self.embed_positions(position_ids).to(x.dtype)
        if torch.is_autocast_enabled(x.device.type):
            # The residual stream, too. On a CPU, autocast would otherwise keep it in 32 bits from here on; on a GPU it
            # does so after the first LayerNorm.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return self.dropout(x)


class VanillaEncoder(VanillaStack):
    """Maps the source (x_1, ..., x_n) to continuous representations z = (z_1, ..., z_n) (3.1)."""

    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": OutputRecorder(SelfAttention, index=1)}

    def __init__(self, config: VanillaConfig):
        super().__init__(config, [EncoderLayer(config, index) for index in range(config.encoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Encode.

        Args:
            input_ids: (B, S) source tokens; or inputs_embeds: (B, S, D) rows of the embedding matrix, not scaled.
            attention_mask: (B, S), 1 for a token, 0 for padding, on either side. Or (B, 1, S, S), what each token sees.

        Returns:
            last_hidden_state (B, S, D); hidden_states and attentions if asked for.
        """
        x = self.look_up(input_ids, inputs_embeds)
        mask = encoder_mask(self.config, x, attention_mask)
        x = self.embed(x, self.positions(x, attention_mask))
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=x)


class VanillaDecoder(VanillaStack):
    """Given z, generates the target one symbol at a time, each from z and the symbols before it (3.1)."""

    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(SelfAttention, index=1),
        "cross_attentions": OutputRecorder(CrossAttention, index=1),
    }

    def __init__(self, config: VanillaConfig):
        super().__init__(config, [DecoderLayer(config, index) for index in range(config.decoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode.

        Args:
            input_ids: (B * beams, T) target tokens, shifted right; or inputs_embeds: (B * beams, T, D), not scaled.
                With a cache, those tokens that it does not hold yet.
            attention_mask: (B * beams, past + T), 0 where the target is padding. Or (B * beams, 1, T, past + T), what
                each token sees.
            encoder_hidden_states: (B, S, D), the encoder's output. encoder_attention_mask: the encoder's own, see
                `cross_mask`.
            past_key_values: the keys and values of earlier positions. use_cache: whether to keep them.

        Returns:
            last_hidden_state (B * beams, T, D), past_key_values; hidden_states and attentions if asked for.
        """
        x = self.look_up(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        self_cache = None if past_key_values is None else past_key_values.self_attention_cache
        self_mask = decoder_mask(self.config, x, attention_mask, self_cache)
        if encoder_hidden_states is None:
            raise ValueError("the decoder needs encoder_hidden_states, the encoder's output")
        memory_mask = cross_mask(self.config, x, encoder_attention_mask, encoder_hidden_states)
        x = self.embed(x, self.positions(x, attention_mask, past_length))
        for layer in self.layers:
            # Positional, so that gradient checkpointing sees what needs a gradient.
            x = layer(x, encoder_hidden_states, self_mask, memory_mask, past_key_values, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x, past_key_values=past_key_values)


class VanillaModel(VanillaPreTrainedModel):
    """Encoder and decoder over one embedding matrix (3.4), without the output projection."""

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

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """As PreTrainedModel's; an untied decoder's embedding follows."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        _resize_untied_decoder(self, self.decoder, embeddings, mean_resizing)
        return embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> Seq2SeqModelOutput:
        """Encode the source, decode the target.

        Args:
            input_ids, attention_mask, inputs_embeds: the source, as VanillaEncoder takes it.
            encoder_outputs: what the encoder has given, in place of the source.
            decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds: the target, shifted right, as
                VanillaDecoder takes it.
            past_key_values, use_cache: keys and values of earlier target positions, and whether to keep them.

        Returns:
            last_hidden_state (B, T, D) of the decoder, encoder_last_hidden_state (B, S, D), and what was asked for.
        """
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
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class VanillaForConditionalGeneration(VanillaPreTrainedModel, GnmtGenerationMixin):
    """The whole Transformer: the decoder's output, projected by the embedding matrix, gives the next token (3.4)."""

    _tied_weights_keys = {
        "model.decoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
        "lm_head.weight": "model.encoder.embed_tokens.weight",
    }

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        self.model = VanillaModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.generation_config = default_generation_config(config)
        # By this class's name, Trainer of transformers 5.10 takes its loss for one that shifts the labels, and would
        # leave the first of each row out of num_items_in_batch.
        self.loss_type = None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.set_input_embeddings(value)

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """As PreTrainedModel's; an untied decoder's embedding follows."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        _resize_untied_decoder(self, self.model.decoder, embeddings, mean_resizing)
        return embeddings

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """The target shifted right behind the decoder start token (3.1). (B, T) -> (B, T)"""
        for field in ("decoder_start_token_id", "pad_token_id"):
            if getattr(self.config, field) is None:
                raise ValueError(f"labels need a {field} in the configuration, which is None")
        shifted = labels.new_full(labels.shape, self.config.decoder_start_token_id)
        shifted[:, 1:] = labels[:, :-1]
        return shifted.masked_fill(shifted == IGNORED, self.config.pad_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """Score the target, or the next token.

        Args:
            labels: (B, T) the target, not shifted, IGNORED (-100) where there is none; the decoder's input is made
                from it if not given.
            num_items_in_batch: the loss is the sum over this batch divided by it (default: the labels that count).
            The rest as VanillaModel takes it.

        Returns:
            loss: scalar, label-smoothed (5.4), if there are labels.
            logits: (B, T, V). None in training mode with labels, unless there is an output_bias: the step then never
                holds that matrix.
            The rest as VanillaModel gives it.
        """
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
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        loss, logits = self.project(outputs.last_hidden_state, labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def project(self, x: torch.Tensor, labels: torch.Tensor | None, num_items: torch.Tensor | int | None):
        """The output projection (3.4) and the loss (5.4). x (B, T, D) -> loss or None, logits (B, T, V) or None"""
        epsilon = self.config.label_smoothing
        # The fused loss knows a matrix alone. An output layer that somebody has replaced (an adapter, a quantised one)
        # must be called, not bypassed.
        plain = type(self.lm_head) is nn.Linear and self.lm_head.bias is None
        if labels is not None and self.training and plain:
            return fused_smoothed_cross_entropy(x, self.lm_head.weight, labels, epsilon, num_items), None
        logits = self.lm_head(x)
        return None if labels is None else smoothed_cross_entropy(logits, labels, epsilon, num_items), logits


def _resize_untied_decoder(
    model: PreTrainedModel, decoder: VanillaDecoder, embeddings: nn.Embedding, mean_resizing: bool
) -> None:
    if not model.config.tie_word_embeddings:
        decoder.embed_tokens = model._get_resized_embeddings(
            decoder.embed_tokens, embeddings.num_embeddings, mean_resizing=mean_resizing
        )


__all__ = [
    "VanillaDecoder",
    "VanillaEncoder",
    "VanillaForConditionalGeneration",
    "VanillaModel",
    "VanillaPreTrainedModel",
]

"""What transformers asks of every model: how its weights are initialised, and the features that it may use."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .configuration_vanilla import VanillaConfig


class VanillaPreTrainedModel(PreTrainedModel):
    """The base class of every model here: initialisation, and the features that transformers may use."""

    config: VanillaConfig
    config_class = VanillaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("EncoderLayer", "DecoderLayer")
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    @classmethod
    def from_pretrained(cls, *args, use_safetensors: bool | None = None, **kwargs):
        """As PreTrainedModel's, but it reads a pickle only with use_safetensors=False."""
        return super().from_pretrained(*args, use_safetensors=use_safetensors is not False, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the parameters of one module. The paper is silent: see VanillaConfig.init_std."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            if module.bias is not None:
                init.zeros_(module.bias)
            # transformers marks the weights that it has loaded; a slice has no mark.
            if not getattr(module.weight, "_is_hf_initialized", False):
                for part in module.weight.split(getattr(module, "parts", module.out_features)):
                    if self.config.init_std is None:
                        init.xavier_uniform_(part)
                    else:
                        init.normal_(part, std=self.config.init_std)

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """Resize the vocabulary, as PreTrainedModel does, and with it the embedding of an untied decoder."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if not self.config.tie_word_embeddings:
            decoder, size = self.get_decoder(), embeddings.num_embeddings
            decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, size, mean_resizing=mean_resizing)
        return embeddings

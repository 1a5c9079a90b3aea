"""Pictures: what a model attends to, and how a training run went. Needs matplotlib."""

from .heat_maps import AttentionMaps, attention_maps, draw_heat_map, save_figure

__all__ = ["AttentionMaps", "attention_maps", "draw_heat_map", "save_figure"]

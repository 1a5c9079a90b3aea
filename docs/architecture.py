"""The architecture (Figure 1 of the paper) with the names of the classes.

python docs/architecture.py    # writes docs/images/architecture.svg
"""

from pathlib import Path

PICTURE = Path(__file__).parent / "images/architecture.svg"
WIDTH, HEIGHT, BOX, STEP = 820, 706, 220, 56  # of the picture, of a box, and from one box to that above it
ENCODER, DECODER = 80, 500  # left edges of the boxes
BOTTOM = 600  # upper edge of the lowest box of a stack
DASHES = 'stroke-dasharray="5 4"'
EMBED, ATTEND, FEED, NORM, OUTPUT = "#fde2e2", "#ffe3bd", "#c9e7f5", "#f2f4c0", "#dcdff2"
HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">
<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">\
<path d="M0,1 L8,4 L0,7 Z"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"""


def text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" {style}>{words}</text>'


def line(path: str) -> str:
    """A line with an arrow's tip."""
    return f'<path d="{path}" fill="none" stroke="black" stroke-linejoin="round" marker-end="url(#tip)"/>'


def box(x: float, y: float, name: str, what: str, colour: str) -> str:
    shape = f'<rect x="{x}" y="{y}" width="{BOX}" height="36" rx="5" fill="{colour}" stroke="black"/>'
    small = 'font-size="10.5" fill="#444"'
    return shape + text(x + BOX / 2, y + 15, name, 'font-weight="bold"') + text(x + BOX / 2, y + 29, what, small)


def frame(x: float, y: float, width: float, height: float, name: str, dashes: str = "") -> str:
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="none" stroke="#666" {dashes}/>'
    return shape + f'<text x="{x + 8}" y="{y + 16}" fill="#444">{name}</text>'


def stack(x: float, tokens: str, side: int, layers: list[tuple[str, str]]) -> list[str]:
    """The boxes of a stack, from its tokens up. Residual connections are drawn on a side, -1 (left) or 1."""
    middle, edge = x + BOX / 2, x + (BOX if side > 0 else 0)
    parts = [text(middle, HEIGHT - 12, tokens), line(f"M{middle},{HEIGHT - 26} V{BOTTOM + 38}")]
    parts += [box(x, BOTTOM, "Embedding", "tokens to vectors, times sqrt(d_model), 3.4", EMBED)]
    parts += [line(f"M{middle},{BOTTOM} V{BOTTOM - STEP + 38}")]
    parts += [box(x, BOTTOM - STEP, "SinusoidalPositions", "added, then Dropout, 3.5", EMBED)]
    top = BOTTOM - STEP  # the upper edge of the last box
    for number, (name, what) in enumerate(layers):
        sublayer = top - STEP - (0 if number else 16)  # the first layer begins inside the frame of the layers
        norm = sublayer - STEP
        parts += [line(f"M{middle},{top} V{sublayer + 38}"), line(f"M{middle},{sublayer} V{norm + 38}")]
        parts += [box(x, sublayer, name, what, FEED if name == "FeedForward" else ATTEND)]
        parts += [box(x, norm, "AddNorm", "LayerNorm(x + Dropout(Sublayer(x)))", NORM)]
        parts += [line(f"M{middle},{sublayer + 48} H{edge + side * 24} V{norm + 18} H{edge + side * 2}")]
        top = norm
    return parts


def svg() -> str:
    attention, fed = ("SelfAttention", "every position sees every other, 3.2.3"), ("FeedForward", "Eq. 2, 3.3")
    causal = ("SelfAttention", "no later position (decoder_mask), 3.2.3")
    cross = ("CrossAttention", "keys and values of the encoder, 3.2.3")
    from_encoder, from_decoder = ENCODER + BOX / 2, DECODER + BOX / 2
    parts = [HEAD, frame(6, 28, WIDTH - 12, HEIGHT - 62, "VanillaForConditionalGeneration")]
    parts += [frame(16, 104, WIDTH - 32, 558, "VanillaModel")]
    parts += [frame(ENCODER - 46, 238, BOX + 92, 412, "VanillaEncoder")]
    parts += [frame(DECODER - 46, 126, BOX + 92, 524, "VanillaDecoder")]
    parts += [frame(ENCODER - 36, 266, BOX + 72, 262, "EncoderLayer, N times", DASHES)]
    parts += [frame(DECODER - 36, 154, BOX + 72, 374, "DecoderLayer, N times", DASHES)]
    parts += stack(ENCODER, "source tokens", -1, [attention, fed])
    parts += stack(DECODER, "target tokens, shifted right", 1, [causal, cross, fed])
    parts += [line(f"M{from_encoder},304 V220 H400 V378 H{DECODER - 2}"), text(310, 214, "encoder_hidden_states")]
    parts += [
        line(f"M{from_decoder},192 V94"),
        box(DECODER, 56, "Linear", "lm_head: the matrix of the embeddings, 3.4", OUTPUT),
    ]
    parts += [line(f"M{from_decoder},56 V20"), text(from_decoder, 14, "logits")]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")

"""What holds for every text and length: hypothesis looks for one for which it does not."""

from helpers import make_tiny, make_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modeling_vanilla.inference import split_long

settings.register_profile(
    "robust", deadline=None, database=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck)
)
settings.load_profile("robust")

TOKENIZER = make_tokenizer(["a small house and a dog", "ein kleines Haus und ein Hund"], 280)
MODEL = make_tiny(len(TOKENIZER))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(st.text("ab cd.,;! \t\u2028\u3000。안🙂ü", max_size=300), st.integers(8, 40))
def test_pieces_are_short_enough_and_lose_no_letter(text, limit):
    (pieces,) = split_long(MODEL, TOKENIZER, [text], limit)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert (len(pieces) > 1) == (len(TOKENIZER(text).input_ids) > limit)
    assert all(len(TOKENIZER(piece).input_ids) <= limit for piece in pieces)

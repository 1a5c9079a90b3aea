"""Word alignments: hand-made attention, words from pieces, and the step that each target token is aligned by."""

from concurrent.futures import ThreadPoolExecutor
from unicodedata import normalize

import pytest
import torch

from modeling_vanilla import Translator
from modeling_vanilla.decoding_vanilla import Translation
from modeling_vanilla.inference import Ensemble, pharaoh
from modeling_vanilla.inference.alignment import align, join_links
from modeling_vanilla.splitting_vanilla import Piece, split_texts
from modeling_vanilla.visualization import attention_maps

SOURCES = ["a dog \u3000sees a  cat", "the old man", "a"]
TARGETS = ["ein Hund sieht eine Katze", "Donaudampfschiff", "der alte Mann ruft"]


def test_each_target_piece_is_linked_to_the_source_piece_it_attends_to_most():
    # Source: two words, the first of two pieces, then EOS. Target: a word of two pieces, one of one, one seeing EOS.
    attention = torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.2, 0.1, 0.6, 0.1], [0.9, 0.1, 0.0, 0.0], [0.1, 0.1, 0.1, 0.7]])
    links = align(attention, [0, 0, 1, None], [0, 0, 1, 2])
    assert (links, pharaoh(links)) == ([(0, 0), (0, 1), (1, 0)], "0-0 0-1 1-0")
    assert align(torch.zeros(0, 4), [0, 0, 1, None], []) == []


def test_links_of_pieces_are_counted_on(model, tokenizer):
    links = [[(0, 0), (1, 1)], [(0, 0)], [(1, 1)]]
    cut = lambda *texts: [Piece(text, [], None) for text in texts]  # noqa: E731
    joined = join_links("a b. c \u3000d e", cut("a b.", "c", "d e"), ["A B.", "C", "D E"], links)
    assert joined == [(0, 0), (1, 1), (2, 2), (4, 4)]
    # A cut inside a word, as in a text without blanks: both halves are word 1.
    halves = cut("a bc", "d e"), ["A BC", "D E"], [[(1, 1)], [(0, 0), (1, 1)]]
    assert join_links("a bcd e", *halves) == [(1, 1), (1, 2), (2, 3)]
    # The tag of a line is a word of the source, and may contain the piece.
    tagged = [Piece("de", [], "\n"), Piece("de", [], "")], ["A", "B"], [[(0, 0)], [(0, 0)]]
    assert join_links(">>de<< de \n>>de<< de", *tagged) == [(1, 0), (3, 1)]
    # The mark of a list is a word on both sides.
    listed = [Piece("", [], "  * "), Piece("* b", [], "")], ["", "A B"], [[], [(0, 0), (1, 1)]]
    assert join_links("  * * b", *listed) == [(0, 0), (1, 1), (2, 2)]
    translator = Translator(model, tokenizer)
    one, two, three = (" ".join(source.split()) for source in SOURCES)
    whole, first, second = translator.align([one, two, three], TARGETS)
    shifted = [(source + 5, target + 5) for source, target in first]
    sources = [f"{one}\n{two}", three]
    pieces = split_texts(tokenizer, sources, limits=None)
    translations = [Translation([], *both) for both in zip(pieces, [TARGETS[:2], TARGETS[2:]], strict=True)]
    assert translator.align_translations(sources, translations) == [sorted(whole + shifted), second]


def test_decomposed_text_is_aligned_as_composed(model, tokenizer):
    texts = ["Grüße , 안녕 läuft a", "der Hund läuft"], ["ein läuft Grüße", "안녕 Grüße"]
    decomposed = [[normalize("NFD", text) for text in side] for side in texts]
    translator = Translator(model, tokenizer)
    assert translator.align(*decomposed) == translator.align(*texts) != [[], []]


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("seeds", [(0,), (0, 1)], ids=["a model", "an ensemble, the mean of its members"])
def test_the_attention_of_the_step_that_reads_the_token_is_taken(make_model, tokenizer, layer, seeds):
    members = [make_model(vocab_size=len(tokenizer), seed=seed) for seed in seeds]

    # The reference takes one pair at a time, and each step by itself: after reading so many tokens, the last row.
    def words_before_end(ids: list[int]) -> int:
        # A letter put behind belongs to the same word, or behind a blank to the next.
        return len((tokenizer.decode(ids) + "x").split()) - 1

    expected = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        source_ids, target_ids = tokenizer(source).input_ids, tokenizer(target).input_ids[:-1]
        links = set()
        for count in range(1, len(target_ids) + 1):
            inputs = {"input_ids": torch.tensor([source_ids]), "output_attentions": True}
            inputs["decoder_input_ids"] = torch.tensor([[tokenizer.bos_token_id, *target_ids[:count]]])
            with torch.no_grad():
                seen = [member(**inputs).cross_attentions[layer][0, :, -1].mean(dim=0) for member in members]
            attended = int(sum(seen).argmax())
            if attended < len(source_ids) - 1:
                links.add((words_before_end(source_ids[: attended + 1]), words_before_end(target_ids[:count])))
        expected.append(sorted(links))
    assert any(expected)
    model = members[0] if len(members) == 1 else Ensemble(members)
    pairs = [*SOURCES, "", " "], [*TARGETS, "", "ein"]
    for size in (1, 4096):
        links = Translator(model, tokenizer).align(*pairs, layer=layer, tokens_per_batch=size)
        assert links == [*expected, [], []]


def test_80_threads_share_one_model(model, tokenizer):
    """Each gets what it gets alone, whatever the others ask of the model."""
    translator = Translator(model, tokenizer)
    tasks = [
        lambda: translator.align(SOURCES, TARGETS),
        lambda: translator.translate(SOURCES),
        lambda: attention_maps(translator, "a dog", "ein")["cross"].weights.tolist(),
        lambda: translator.score(SOURCES, TARGETS),
    ]
    alone = [task() for task in tasks]
    with ThreadPoolExecutor(80) as threads:
        assert list(threads.map(lambda task: task(), tasks * 20)) == alone * 20

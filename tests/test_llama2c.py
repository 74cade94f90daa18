"""llama2.c checkpoints and tokenizers: read, refused, and held against llama2.c's own arithmetic.

The reference forward below shares no code with the reader: offsets into the file, norm,
projections and rotation are written out once more, lane by lane, as run.c has them.
"""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BridgeError
from bridge.inspect import default_lengths, default_reference, inspect_head
from bridge.prediction import predict
from bridge.sources.llama2c import read_llama2c
from bridge.sources.llama2c_tokenizer import MergeTokenizer, read_tokenizer
from bridge.sources.model import read_layer
from bridge.sources.tokens import story, token_weights, uniform, unigram
from bridge.surface import PlacedHead
from theory.exact_law import exact_law, exact_profile
from theory.head import Head
from theory.kernel import carrier_profile
from theory.schedule import RotarySchedule

REAL = ["stories260K.bin", "model5000.bin"]
# Width, hidden, layers, heads, kv heads, vocabulary, length: heads differ from length, head width 4.
SMALL = (56, 5, 2, 14, 2, 11, 9)

STORY = """Once upon a time, there was a little girl named Lily. She loved to play outside in the park
with her mom. One day, Lily saw a big red ball under the tree. She wanted to play with it, but a boy named
Tim had it first. "Can I play with your ball?" Lily asked. Tim said, "Yes, we can play together!" They were
very happy. They ran and jumped and threw the ball up high in the sky. Then the ball went into the pond. Tim
was sad. Lily said, "Do not be sad, Tim. I will help you get it." She found a long stick and pushed the ball
back to the grass. Tim smiled and gave her a big hug. They were the best of friends.""".replace("\n", " ")


def tables(length: int, head_width: int, base: float) -> list[np.ndarray]:
    angles = np.outer(np.arange(length), base ** (-np.arange(0, head_width, 2) / head_width))
    return [np.cos(angles), np.sin(angles)]


def checkpoint_bytes(header: tuple[int, ...] = SMALL, base: float = 1e4, seed: int = 0) -> bytes:
    """A llama2.c file of random weights; a negative vocabulary has its output matrix at the end."""
    width, hidden, layers, heads, kv_heads, vocabulary, length = header
    head_width = width // heads
    sizes = (
        [abs(vocabulary) * width, layers * width]
        + [layers * width * n for n in (width, kv_heads * head_width, kv_heads * head_width, width)]
        + [layers * width, *[layers * width * hidden] * 3, width]
    )
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(size) for size in sizes] + tables(length, head_width, base)
    if vocabulary < 0:
        parts.append(rng.standard_normal(-vocabulary * width))
    floats = np.concatenate([part.ravel() for part in parts]).astype("<f4")
    return struct.pack("<7i", *header) + floats.tobytes()


def written(folder: Path, raw: bytes, name: str = "model.bin") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


def run_c_score(raw: bytes, head: int, query: tuple[int, int], key: tuple[int, int], half_split: bool = False) -> float:
    """Attention score of run.c in layer 0 between (token, position) of query and key, in float64.

    Angles come from the file's tables where they reach, else from float64.
    """
    width, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack("<7i", raw[:28])
    floats = np.frombuffer(raw, "<f4", offset=28).astype(np.float64)
    size = width // heads
    kv_width = kv_heads * size
    norm_at = abs(vocabulary) * width
    wq_at = norm_at + layers * width
    wk_at = wq_at + layers * width * width
    cosines_at = (
        wk_at + layers * (2 * kv_width * width + width * width) + layers * width + 3 * layers * width * hidden + width
    )
    sines_at = cosines_at + length * size // 2

    def rotated(token: int, position: int, at: int, row: int) -> np.ndarray:
        x = floats[token * width : (token + 1) * width]
        x = floats[norm_at : norm_at + width] * (x * (1 / np.sqrt((x * x).sum() / width + 1e-5)))
        vector = np.array([floats[at + r * width : at + (r + 1) * width] @ x for r in range(row, row + size)])
        out = vector.copy()
        for i in range(0, size, 2):
            first, second = (i // 2, i // 2 + size // 2) if half_split else (i, i + 1)
            if position < length:
                entry = position * size // 2 + i // 2
                cosine, sine = floats[cosines_at + entry], floats[sines_at + entry]
            else:
                angle = position * (1 / 10000 ** (i / size))
                cosine, sine = np.cos(angle), np.sin(angle)
            out[first] = vector[first] * cosine - vector[second] * sine
            out[second] = vector[first] * sine + vector[second] * cosine
        return out

    q = rotated(*query, wq_at, head * size)
    k = rotated(*key, wk_at, head // (heads // kv_heads) * size)
    return float(q @ k / np.sqrt(size))


def head_of(path: Path, head: int, weights: np.ndarray) -> Head:
    """A head of layer 0 over the tokens of weight above 0."""
    occur = np.flatnonzero(weights)
    return read_layer(read_llama2c(path), 0, occur).layer.head(head, weights[occur])


def logit(path: Path, head: int, query: tuple[int, int], key: tuple[int, int]) -> tuple[float, float]:
    """The reader's logit for (token, position) of query and key, and its bound scale |q||k|."""
    content = head_of(path, head, uniform(read_llama2c(path).shape.vocabulary).weights)
    offsets = np.array([key[1] - query[1]])
    value = content.logits(offsets)[query[0], 0, key[0]]
    bound = content.logit_scale * np.linalg.norm(content.queries[query[0]]) * np.linalg.norm(content.keys[key[0]])
    return float(value), float(bound)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(("n", "t"), [(200, 199), (200, 3), (250, 250), (5000, 4500), (100_000, 7)])
def test_logits_are_those_of_run_c(models: Path, name: str, n: int, t: int) -> None:
    path = models / name
    raw = path.read_bytes()
    for head, query_token, key_token in [(0, 40, 61), (3, 101, 5), (7, 77, 77)]:
        ours, bound = logit(path, head, (query_token, n), (key_token, t))
        # The file's float32 tables are off by 4e-6 at most, once for the query and once for the
        # key, of vectors whose product the bound holds: 1e-5 of it. Float64 angles leave 1e-10.
        tolerance = 1e-5 * bound if t < 512 else 1e-10 * bound
        assert ours == pytest.approx(run_c_score(raw, head, (query_token, n), (key_token, t)), abs=tolerance)


def test_logits_at_the_end_of_the_trained_length(models: Path) -> None:
    path = models / "stories260K.bin"
    ours, bound = logit(path, 4, (300, 500), (270, 200))
    assert ours == pytest.approx(run_c_score(path.read_bytes(), 4, (300, 500), (270, 200)), abs=1e-5 * bound)


@pytest.mark.parametrize("name", REAL)
def test_half_split_pairs_would_show(models: Path, name: str) -> None:
    """Positive control: the other pairing moves a logit at position 200 by a nat or more."""
    raw = (models / name).read_bytes()
    differences = [
        abs(logit(models / name, head, (40, 200), (61, 150))[0] - run_c_score(raw, head, (40, 200), (61, 150), True))
        for head in range(8)
    ]
    assert max(differences) > 1


@pytest.mark.parametrize("head", [0, 6, 7, 13])
def test_query_head_h_reads_key_head_h_over_seven(tmp_path: Path, head: int) -> None:
    raw = checkpoint_bytes()
    ours, bound = logit(written(tmp_path, raw), head, (3, 40), (8, 20))
    # Positions beyond the 9 of the table: float64 on both sides.
    assert ours == pytest.approx(run_c_score(raw, head, (3, 40), (8, 20)), abs=1e-12 * bound)
    keys = read_layer(read_llama2c(tmp_path / "model.bin"), 0, np.arange(11)).layer.maps.key.weight
    assert np.abs(keys[0] - keys[1]).max() > 1


def test_what_is_read_is_stated(tmp_path: Path) -> None:
    model = read_llama2c(written(tmp_path, checkpoint_bytes()))
    shape = model.shape
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_width) == (2, 14, 2, 4)
    assert (shape.vocabulary, shape.trained_length) == (11, 9)
    assert read_layer(model, 0, np.arange(3)).sha256 == hashlib.sha256(model.path.read_bytes()).hexdigest()
    assert any("rotary base 10000 is the default of the llama2.c format" in said for said in model.assumptions)
    sources = {value.name: value.source for value in model.provenance}
    assert (sources["width"], sources["rotary base"]) == ("file", "default of the llama2.c format")
    assert sources["rotary pairs"] == "declared by family llama"


def test_tables_of_real_files_agree_with_the_base(models: Path) -> None:
    for name in REAL:
        sentence = read_llama2c(models / name).assumptions[-1]
        assert "the rotary tables in the file agree with base 10000 to" in sentence
        assert float(sentence.split()[-1]) <= 4e-6


def test_an_output_matrix_of_its_own_changes_no_head(tmp_path: Path) -> None:
    untied = tuple(-n if i == 5 else n for i, n in enumerate(SMALL))
    tied_head, untied_head = (
        head_of(written(tmp_path, checkpoint_bytes(header)), 5, uniform(11).weights) for header in (SMALL, untied)
    )
    assert np.array_equal(tied_head.queries, untied_head.queries)


def test_only_the_tensors_of_layer_0_are_held(tmp_path: Path) -> None:
    path = written(tmp_path, checkpoint_bytes((56, 20_000, 2, 14, 2, 11, 9)))
    head_of(path, 0, uniform(11).weights)
    tracemalloc.start()
    head = head_of(path, 0, uniform(11).weights)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 27 MB on disk; embedding, W_Q and W_K of one layer are 31 kB in float64, the digest's buffer 256 kB.
    assert head.window == 1
    assert peak < 1e6


def with_float(raw: bytes, index: int, value: float) -> bytes:
    at = 28 + 4 * index
    return raw[:at] + struct.pack("<f", value) + raw[at + 4 :]


def with_header(*header: int) -> Callable[[bytes], bytes]:
    return lambda raw: struct.pack("<7i", *header) + raw[28:]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1056540\n"
WQ_AT = 11 * 56 + 2 * 56


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "truncated: .* bytes, its header asks for"),
        (lambda raw: raw + b"\0", "bytes after its end"),
        (lambda raw: raw[:20], "truncated or no llama2.c file: 20 bytes"),
        (lambda raw: POINTER.ljust(130, b"\n"), "a git-LFS pointer"),
        (lambda raw: b"GGUF" + raw, "no llama2.c file: its header gives width"),
        (lambda raw: b"The quick brown fox jumps over the lazy dog.", "no llama2.c file: its header gives"),
        (lambda raw: struct.pack("<I", 0x616B3432) + raw, "version 1 or later"),
        (lambda raw: with_float(raw, 7, float("nan")), "tok_embeddings.weight holds numbers that are not finite"),
        (
            lambda raw: with_float(raw, WQ_AT, float("inf")),
            "wq.weight holds numbers that are not finite",
        ),
        (lambda raw: with_float(raw, (len(raw) - 28) // 4 - 1, 0.5), "rotary tables .* position 8, pair 1"),
        (lambda raw: checkpoint_bytes(base=5e5), "another base"),
        (with_header(15, 5, 2, 5, 5, 11, 9), "head width 3 is odd"),
        (with_header(56, 5, 2, 13, 13, 11, 9), "width 56 is not a multiple of 13 heads"),
        (with_header(56, 5, 2, 14, 3, 11, 9), "14 heads are not a multiple of 3 kv heads"),
        (with_header(56, 5, 0, 14, 2, 11, 9), "layers 0, expected 1 to"),
        (with_header(-56, 5, 2, 14, 2, 11, 9), "width -56"),
    ],
)
def test_a_file_that_cannot_be_read_says_why_in_one_line(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = written(tmp_path, damage(checkpoint_bytes()))
    with pytest.raises(BridgeError, match=message) as caught:
        head_of(path, 0, uniform(11).weights)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for read in (read_llama2c, read_tokenizer):
        with pytest.raises(BridgeError, match=r"nowhere\.bin: no such file"):
            read(tmp_path / "nowhere.bin")


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (1, 0, "layer 1 needs activations"),
        (2, 0, "layer 2 does not exist: layers of this model are 0 to 1"),
        (0, 14, "head 14 does not exist: heads of this layer are 0 to 13"),
        (0, -1, "head -1 does not exist"),
    ],
)
def test_a_head_that_is_not_there(tmp_path: Path, layer: int, head: int, message: str) -> None:
    model = read_llama2c(written(tmp_path, checkpoint_bytes()))
    with pytest.raises(BridgeError, match=message):
        read_layer(model, layer, np.arange(11)).layer.head(head, uniform(11).weights)


def test_tokens_that_never_occur_are_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, checkpoint_bytes())
    weights = np.zeros(11)
    weights[[2, 7]] = 0.25, 0.75
    head, whole = head_of(path, 3, weights), head_of(path, 3, uniform(11).weights)
    assert np.allclose(head.queries, whole.queries[[2, 7]], rtol=1e-13)
    assert head.key_weights.tolist() == [0.25, 0.75]


def tokenizer_bytes() -> bytes:
    merges = [b"th", b"he", b" t", b" the", b"the", b"an", b" a", b"nd", b" an", b" and", b"  ", b"aa", "é".encode()]
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256)), *merges]
    pieces += [bytes([letter]) for letter in b" abcdehnt."]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) - 259)]
    # Equal scores: the leftmost merges first.
    scores[260] = scores[259]
    records = b"".join(struct.pack("<fi", s, len(p)) + p for s, p in zip(scores, pieces, strict=True))
    return struct.pack("<i", max(map(len, pieces))) + records


@pytest.fixture(scope="module")
def small_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> MergeTokenizer:
    return read_tokenizer(written(tmp_path_factory.mktemp("tokenizer"), tokenizer_bytes()))


def run_c_encode(tokenizer: MergeTokenizer, text: str) -> list[int]:
    """The encoding of run.c over the whole string, merge by merge."""
    vocabulary = list(tokenizer.pieces)
    tokens = []
    for character in " " + text if text else "":
        raw = character.encode()
        tokens += [vocabulary.index(raw)] if raw in vocabulary else [byte + 3 for byte in raw]
    while True:
        best_score, best, best_token = -1e10, -1, -1
        for i in range(len(tokens) - 1):
            joined = vocabulary[tokens[i]] + vocabulary[tokens[i + 1]]
            if joined in vocabulary and tokenizer.scores[vocabulary.index(joined)] > best_score:
                best, best_token = i, vocabulary.index(joined)
                best_score = tokenizer.scores[best_token]
        if best < 0:
            return tokens
        tokens[best : best + 2] = [best_token]


@given(st.text(alphabet="  aabcdehtn.\né✓", max_size=40))
def test_words_encode_to_what_the_whole_text_does(small_tokenizer: MergeTokenizer, text: str) -> None:
    assert small_tokenizer.encode(text) == run_c_encode(small_tokenizer, text)
    assert small_tokenizer.decode(small_tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["", " ", "Once upon a time", "  two   spaces ", "a\n\n  b", "naïve “€” ✓ 中"])
def test_the_real_tokenizer(models: Path, text: str) -> None:
    tokenizer = read_tokenizer(models / "tok512.bin")
    tokens = tokenizer.encode(text)
    assert tokens == run_c_encode(tokenizer, text)
    assert tokenizer.decode(tokens) == text


def test_counts_are_those_of_the_text_without_a_beginning_token(models: Path) -> None:
    tokenizer = read_tokenizer(models / "tok512.bin")
    text, _ = story()
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    given = token_weights(512, tokenizer, None, story)
    assert np.array_equal(np.rint(given.weights * len(tokens)), np.bincount(tokens, minlength=512))
    assert given.weights.sum() == pytest.approx(1, abs=1e-12)
    assert given.weights[:3].tolist() == [0, 0, 0]
    assert "unigram token weights of five short stories" in given.provenance


def test_an_empty_text_has_no_weights(small_tokenizer: MergeTokenizer) -> None:
    with pytest.raises(BridgeError, match="text to count tokens in is empty"):
        unigram(small_tokenizer, "", "nothing", small_tokenizer.vocabulary)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "truncated or no llama2.c tokenizer"),
        (lambda raw: raw + b"\0", "truncated or no llama2.c tokenizer"),
        (lambda raw: b"", "truncated or no llama2.c tokenizer"),
        (lambda raw: POINTER, "a git-LFS pointer"),
        (lambda raw: raw.replace(b"<0x41>", b"<0x42>"), "tokens 3 to 258 must be the bytes"),
        (lambda raw: struct.pack("<i", 2) + raw[4:], "a token is longer than the 2 bytes it declares"),
    ],
)
def test_a_damaged_tokenizer_says_why(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(BridgeError, match=message):
        read_tokenizer(written(tmp_path, damage(tokenizer_bytes())))


def test_a_rare_token_of_huge_logit_leaves_the_exact_law_a_distribution() -> None:
    """Real vocabularies hold tokens the model never saw, tens of nats above the rest."""
    keys = np.array([[0.0, 0.0], [60.0, 0.0]])
    head = Head.from_tokens(
        RotarySchedule(np.array([0.01])), np.array([[1.0, 0.0], [1.0, 0.0]]), keys, np.array([0.99, 0.01]), 1.0
    )
    expected = exact_profile(head, 40, 1e-6)
    assert expected.sum() == pytest.approx(1, abs=1e-6)
    # The same for all offsets but for the turn by 0.01 rad/position, so each has near 1/40.
    assert np.abs(expected - 1 / 40).max() < 5e-3
    assert exact_law(head, 2, [40], 1e-6)[0] == pytest.approx(expected[2], rel=2e-6)


# Offset with the most attention in layer 0 of stories260K over held-out stories, head by head.
OBSERVED = (-1, 0, -1, -1, -1, -1, -1, 0)


def test_a_story_selects_the_offsets_that_were_observed(models: Path) -> None:
    weights = unigram(read_tokenizer(models / "tok512.bin"), STORY, "a story", 512).weights
    profiles = [exact_profile(head_of(models / "stories260K.bin", head, weights), 64, 1e-4) for head in range(8)]
    assert tuple(-int(profile.argmax()) for profile in profiles) == OBSERVED


def test_uniform_weights_lose_the_head(models: Path) -> None:
    """Why they are flagged: a look-back of .32, as observed, is lost among tokens that never occur."""
    head = head_of(models / "stories260K.bin", 4, uniform(512).weights)
    assert exact_law(head, 1, [32], 1e-2)[0] < 0.05


def synthetic_head(tmp_path: Path) -> PlacedHead:
    path = written(tmp_path, checkpoint_bytes())
    return PlacedHead(head_of(path, 5, uniform(11).weights), read_llama2c(path).positions[0])


def test_a_report_holds_what_the_laws_say(tmp_path: Path) -> None:
    head = synthetic_head(tmp_path)
    report = inspect_head(0, 5, head, [2, 16, 48], 32)
    expected = exact_profile(head.content, 32, 1e-9)
    held = tuple(length for length in (2, 16, 48) if length > -report.offset)
    assert (report.layer, report.head, report.prediction.lengths, report.reference_length) == (0, 5, held, 32)
    assert report.offset == -int(expected.argmax())
    # The errors are those of 32 replicates: 5 of them is Student's 1 in 50 000.
    assert report.share == pytest.approx(expected.max(), abs=5 * report.share_error)
    assert 0 < report.share_error < 0.02
    profile = carrier_profile(head.content.carrier(), 32)
    assert report.profile_offset == -int(profile.argmax())
    assert report.margin.value >= 0
    assert report.margin.value == pytest.approx(np.diff(np.sort(profile))[-1], abs=1e-12)
    assert report.prediction.offset == -report.offset
    exact, error = exact_law(head.content, -report.offset, held, 1e-9), report.prediction.standard_error
    assert error is not None and (np.abs(report.prediction.exact - exact) <= 5 * error).all()
    expected_mean = predict(head.content, -report.offset, held)
    assert report.prediction.mean_profile == pytest.approx(expected_mean.mean_profile, rel=1e-12)
    assert [own.value for own in report.prediction.margins] == pytest.approx(
        [own.value for own in expected_mean.margins], rel=1e-9
    )
    assert "uniform token weights" in report.flags
    differs = "offset by profile differs from offset by exact law" in report.flags
    assert differs == (report.offset != report.profile_offset)
    assert ("share below 0.05: argmax unstable" in report.flags) == (report.share < 0.05)


def test_the_share_flag_is_raised_where_attention_is_spread(tmp_path: Path) -> None:
    head = synthetic_head(tmp_path)
    spread = replace(head, content=replace(head.content, queries=1e-6 * head.content.queries))
    reports = [inspect_head(0, 0, spread, [length], length) for length in (30, 15)]
    assert ["share below 0.05: argmax unstable" in report.flags for report in reports] == [True, False]
    tied = "another offset is as high within the sampling error"
    assert tied in reports[0].flags
    firm = replace(head, content=replace(head.content, queries=np.zeros_like(head.content.queries)))
    assert "no queries or no keys: attention is uniform" in inspect_head(0, 0, firm, [30], 30).flags


def test_lengths_of_a_report(tmp_path: Path) -> None:
    assert default_lengths(512) == (16, 128, 512)
    assert default_lengths(8192) == (16, 128, 1024, 8192)
    assert default_lengths(9) == (9,)
    assert (default_reference(512, [64, 4096]), default_reference(512, [16, 64])) == (512, 64)
    assert default_reference(131_072, [16, 131_072]) == 1024
    with pytest.raises(BridgeError, match="reference length must be 2 or more, got 1"):
        inspect_head(0, 0, synthetic_head(tmp_path), [16], 1)
    offset = inspect_head(0, 5, synthetic_head(tmp_path), [16], 16).offset
    assert offset < 0
    with pytest.raises(BridgeError, match=f"head 0.5 selects offset {offset}, which no length of .1. holds"):
        inspect_head(0, 5, synthetic_head(tmp_path), [1], 16)


def test_weights_are_uniform_where_asked_for_and_refused_where_they_do_not_fit(models: Path, tmp_path: Path) -> None:
    assert uniform(512).weights == pytest.approx(np.full(512, 1 / 512))
    assert "uniform token weights: a poor stand-in" in uniform(512).provenance
    (tmp_path / "text").write_text("Tim ran.")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    tokenizer = read_tokenizer(models / "tok512.bin")
    assert token_weights(512, tokenizer, tmp_path / "text", story).weights.max() > 0.1
    for vocabulary, reader, text, message in [
        (512, None, tmp_path / "text", "--counts needs --tokenizer"),
        (105, tokenizer, None, "tok512.bin finds token .* the embedding has rows 0 to 104"),
        (512, tokenizer, tmp_path / "absent", "cannot read the text .*absent: No such file"),
        (512, tokenizer, tmp_path / "binary", "cannot read the text .*binary: it is not UTF-8"),
    ]:
        with pytest.raises(BridgeError, match=message):
            token_weights(vocabulary, reader, text, story)

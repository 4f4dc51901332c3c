"""Sampling: the warped law against NumPy, samples against the law, rows and keys."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.stats import chisquare

import fastdec as fd
from fastdec.decoding.sampling import BLOCK, FEW, Sampling, best, score_windows, warp
from fastdec.models.api import causal
from tests.decoding.fakes import HashLM

MODEL = HashLM()
WARP, NO_MIN_P = jax.jit(warp), jnp.float32(0)
BEST = jax.jit(lambda x: {m: best(x, m) for m in (1, 2, 5)})
WINDOWS = jax.jit(score_windows, static_argnums=1)
PROMPTS = np.array([[3, 4, 5], [6, 7, 8], [2, 9, 9]], np.int32)


def law_by_hand(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
  """The law by its definition, one token after the other, in float64."""
  scaled = logits.astype(np.float64) / temperature
  order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
  if top_k:
    order = [i for i in order if scaled[i] >= scaled[order[min(top_k, len(order)) - 1]]]
  weights = np.exp(scaled[order] - scaled.max())
  weights /= weights.sum()
  kept, total = [], 0.0
  for i, weight in zip(order, weights, strict=True):
    if total >= top_p and top_p < 1:
      break
    kept.append(i)
    total += weight
  law = np.zeros(len(scaled))
  law[kept] = np.exp(scaled[kept] - scaled.max())
  return law / law.sum()


@pytest.mark.parametrize('v', [5, 2 * BLOCK * 5 - 1, 2 * BLOCK * 5, 1000])
@pytest.mark.parametrize('kind', ['plain', 'tied', 'ruled out'])
def test_the_best_few_are_those_of_the_definition(kind, v):
  """Equal entries are ordered by index, whether all are ranked or blocks of them. All entries may
  be minus infinity."""
  rng = np.random.default_rng(0)
  x = rng.normal(0, 3, (4, 3, v)).astype(np.float32)
  x = x.round() + 0 if kind == 'tied' else x  # without -0
  x = np.where(rng.random(x.shape) < 3 / v, x, -np.inf) if kind == 'ruled out' else x
  for m, (values, ids) in BEST(x).items():
    expected = np.argsort(-x, axis=-1, kind='stable')[..., :m]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))


@pytest.mark.parametrize('reach', [0, 1, 3, 20])
def test_a_window_adds_up_what_is_near(reach):
  """Compared with the definition, also at the ends. If windows are equal, the one with the more
  likely middle comes first."""
  logits = np.random.default_rng(0).normal(0, 2, (3, 12))
  law = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  near = np.array(
    [[row[max(0, i - reach) : i + reach + 1].sum() for i in range(12)] for row in law]
  )
  sums = np.asarray(WINDOWS(logits, reach))
  if reach:
    np.testing.assert_allclose(np.exp(sums), near + 1e-3 * law, rtol=1e-5)
  else:
    np.testing.assert_array_equal(sums, logits.astype(sums.dtype))
  sure = np.full((3, 12), -100.0)
  sure[:, 7] = 0
  assert (np.asarray(WINDOWS(sure, reach)).argmax(-1) == 7).all()


def test_what_is_likely_together_goes_before_what_is_likely_alone():
  law = np.array([0.4, 0.0, 0.0, 0.0, 0.2, 0.2, 0.2], np.float32)
  with np.errstate(divide='ignore'):
    assert [np.argmax(WINDOWS(np.log(law), reach)) for reach in (0, 1)] == [0, 5]


def test_what_is_never_emitted_is_no_middle_either():
  sums = np.asarray(WINDOWS(np.array([-np.inf, 2.0, 1.9, -50.0], np.float32), 1))
  assert sums.argmax() == 1 and np.isneginf(sums).tolist() == [True, False, False, False]


@hypothesis.given(
  seed=st.integers(0, 999),
  temperature=st.sampled_from([0.3, 1.0, 2.5]),
  top_k=st.integers(0, 9),
  top_p=st.sampled_from([0.05, 0.37, 0.8, 0.999, 1.0]),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_warp_is_temperature_then_top_k_then_top_p(seed, temperature, top_k, top_p):
  logits = np.random.default_rng(seed).integers(-3, 4, 8).astype(np.float32)  # whole numbers: ties
  logits[seed % 8] = -np.inf
  warped = WARP(logits, jnp.float32(temperature), jnp.int32(top_k), jnp.float32(top_p), NO_MIN_P)
  expected = law_by_hand(logits, temperature, top_k, top_p)
  np.testing.assert_array_equal(np.exp(warped) > 0, expected > 0)
  np.testing.assert_allclose(np.exp(warped), expected, atol=1e-6)


def kept_by_sorting(logits: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
  """Marks the tokens that a full sort leaves: the first k of the ranking, and those that are as
  likely as the last of them; of these, the ones within p."""
  ranking = np.argsort(-logits, kind='stable')  # of equal ones the lowest id first
  count = len(logits)
  if top_k:
    count = int((logits >= logits[ranking[min(top_k, count) - 1]]).sum())
  if top_p < 1:
    weights = np.exp(logits[ranking].astype(np.float64) - logits.max())[:count]
    before = np.cumsum(weights) - weights
    count = int((before < top_p * weights.sum()).sum())
  kept = np.zeros(len(logits), bool)
  kept[ranking[:count]] = True
  return kept & (logits > -np.inf)


# More words than are ranked at first, so that both ways of cutting are needed.
WORDS = 2 * FEW + 88
LAWS = {
  'peaked': lambda random: 5 * random.normal(size=WORDS),
  'random': lambda random: random.normal(size=WORDS),
  'flat': lambda random: np.full(WORDS, random.normal()),
  'tied': lambda random: random.integers(-2, 3, WORDS) / 2,
  'zeros of both signs': lambda random: random.choice([0.0, -0.0], WORDS),
  'few possible': lambda random: np.where(
    random.random(WORDS) < 0.01, random.normal(size=WORDS), -np.inf
  ),
  'half possible': lambda random: np.where(
    random.random(WORDS) < 0.5, random.integers(0, 3, WORDS), -np.inf
  ),
  'far apart': lambda random: random.normal(size=WORDS) * 10.0 ** random.integers(-30, 30, WORDS),
}


@hypothesis.given(
  seed=st.integers(0, 999),
  kinds=st.lists(st.sampled_from(sorted(LAWS)), min_size=2, max_size=2),
  top_k=st.sampled_from([0, 1, 2, 50, FEW, FEW + 1, WORDS - 1, WORDS, WORDS + 1]),
  top_p=st.sampled_from([1e-30, 1e-3, 0.3, 0.77, 0.9, 0.999, 1.0]),
)
@hypothesis.settings(max_examples=200, deadline=None)
def test_what_is_cut_is_what_a_full_sort_cuts(seed, kinds, top_k, top_p):
  """Two laws at once: one may need a search of the whole vocabulary while the other does not."""
  random = np.random.default_rng(seed)
  logits = np.array([LAWS[kind](random) for kind in kinds], np.float32)
  logits[:, 17] = np.maximum(logits[:, 17], -1)  # something is possible
  warped = np.asarray(WARP(logits, jnp.float32(1), jnp.int32(top_k), jnp.float32(top_p), NO_MIN_P))
  for law, row in zip(warped, logits, strict=True):
    # A sum of probabilities that differs from top_p by rounding may count as either.
    least, most = (kept_by_sorting(row, top_k, top_p * (1 + error)) for error in (-1e-5, 1e-5))
    kept = law > -np.inf
    assert not (least & ~kept).any()
    assert not (kept & ~most).any()
    ranking = np.argsort(-row, kind='stable')[: int(kept.sum())]
    assert kept[ranking].all(), 'of equal tokens one with a higher id was kept'
    np.testing.assert_allclose(
      law[kept], row[kept] - np.logaddexp.reduce(row[kept].astype(np.float64)), atol=1e-4
    )


def test_a_flat_law_is_cut_by_ids():
  """Rounding decides nothing: all probabilities are 1/1024, and top_p is a sum of them. top_k keeps
  all tokens that are as likely as the last."""
  for top_k, top_p, count in (
    (0, 0.75, 768),
    (512, 0.75, 768),
    (900, 1.0, 1024),
    (0, 1e-30, 1),
    (0, 1.0, 1024),
  ):
    law = WARP(
      jnp.zeros((1, 1024)), jnp.float32(1), jnp.int32(top_k), jnp.float32(top_p), NO_MIN_P
    )[0]
    np.testing.assert_array_equal(np.isfinite(law), np.arange(1024) < count)


@pytest.mark.parametrize('top_k', [1, 300])
def test_top_k_keeps_all_that_are_as_likely_as_the_last(top_k):
  law = np.zeros((1, 600), np.float32)
  law[0, 100:] = 1.0
  kept = np.isfinite(WARP(law, jnp.float32(0.5), jnp.int32(top_k), jnp.float32(1), NO_MIN_P))[0]
  np.testing.assert_array_equal(np.flatnonzero(kept), np.arange(100, 600))


def test_float64_laws_are_cut_alike():
  with jax.enable_x64(True):
    logits = np.random.default_rng(0).normal(size=(3, WORDS))
    law = jax.jit(warp)(logits, jnp.float32(1), jnp.int32(400), jnp.float32(0.75), NO_MIN_P)
    assert law.dtype == np.float64
    for kept, row in zip(np.isfinite(law), logits, strict=True):
      np.testing.assert_array_equal(kept, kept_by_sorting(row, 400, 0.75))


@pytest.mark.parametrize(
  'settings', [{'temperature': 1e-6}, {'temperature': 1e6}, {'top_p': 1e-30}]
)
def test_the_extremes_allowed_are_laws(settings):
  rule = Sampling(**settings)
  log_probs = jax.jit(lambda rule, logits: rule.log_probs(logits))
  law = np.exp(log_probs(rule, np.array([-np.inf, 1.0, 80.0, -80.0], np.float32)))
  np.testing.assert_allclose(law.sum(), 1, rtol=1e-6)
  assert law[0] == 0


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('temperature', [1e-6, 0.3, 1e6])
def test_a_temperature_that_is_a_constant_of_the_program_gives_a_law(temperature, dtype):
  # Optimised, because LLVM then fuses a product and a difference.
  most = float(jnp.finfo(dtype).max)
  logits = jnp.array([[-np.inf, 1, 3e4, -3e4], [0, 1e-3 * most, 0.9 * most, -0.9 * most]], dtype)
  options = {'xla_backend_optimization_level': 3, 'xla_cpu_use_fusion_emitters': True}

  @functools.partial(jax.jit, compiler_options=options)
  def laws(logits):
    typical = fd.Typical(temperature=temperature).scale(logits[None])[0]
    return Sampling(temperature).log_probs(logits), jax.nn.log_softmax(typical)

  for law in laws(logits):
    np.testing.assert_allclose(np.exp(law).sum(axis=-1), 1, rtol=1e-6)
    assert law[0, 0] == -np.inf and np.argmax(law[0]) == 2


def first_tokens(strategy: fd.Sample, rows: int) -> np.ndarray:
  """Draws of the first token after one prompt."""
  out = fd.decode(
    MODEL, {}, np.repeat(PROMPTS[:1], rows, axis=0), strategy, max_len=1, key=jax.random.key(5)
  )
  return np.asarray(out.tokens[:, 0])


def test_tokens_are_drawn_from_the_warped_law_and_not_from_another():
  rows, strategy = 4000, fd.Sample(temperature=1.5, top_k=6, top_p=0.9)
  logits = np.array(first_logits())
  logits[list(MODEL.suppressed_ids)] = -np.inf
  law = law_by_hand(logits, 1.5, 6, 0.9)
  counts = np.bincount(first_tokens(strategy, rows), minlength=MODEL.vocab_size)
  support = law > 0
  assert not counts[~support].any()
  assert chisquare(counts[support], rows * law[support]).pvalue > 1e-3
  wrong = law_by_hand(logits, 1.2, 6, 0.9)
  wrong = np.where(support, np.maximum(wrong, 1e-9), 0)
  assert chisquare(counts[support], rows * wrong[support] / wrong[support].sum()).pvalue < 1e-6


def first_logits() -> np.ndarray:
  """Returns the logits after the first prompt."""

  def logits():
    cache = MODEL.init_cache({}, None, 1, 8)
    hidden, _, _ = MODEL.apply({}, jnp.asarray(PROMPTS[:1]), causal(3), cache)
    return MODEL.unembed({}, hidden)[0, -1]

  return np.asarray(jax.jit(logits)())


def test_a_batch_draws_what_its_rows_draw_alone():
  key = jax.random.key(3)
  together = fd.decode(MODEL, {}, PROMPTS, fd.Sample(), max_len=9, key=key)
  for i in range(3):
    row_key = jnp.stack([jax.random.fold_in(key, i)] * 3)
    alone = fd.decode(MODEL, {}, PROMPTS[[i] * 3], fd.Sample(), max_len=9, key=row_key)
    np.testing.assert_array_equal(together.tokens[i], alone.tokens[0])
  again = fd.decode(MODEL, {}, PROMPTS, fd.Sample(), max_len=9, key=key)
  other = fd.decode(MODEL, {}, PROMPTS, fd.Sample(), max_len=9, key=jax.random.key(4))
  np.testing.assert_array_equal(together.tokens, again.tokens)
  assert (together.tokens != other.tokens).any()


def test_the_smallest_top_p_is_greedy():
  """Also where tokens are equally likely; top_k=1 would keep them all."""
  greedy = fd.decode(MODEL, {}, PROMPTS, fd.Greedy(), max_len=9)
  key = jax.random.key(0)
  out = fd.decode(MODEL, {}, PROMPTS, fd.Sample(top_p=1e-30), max_len=9, key=key)
  np.testing.assert_array_equal(out.tokens, greedy.tokens)

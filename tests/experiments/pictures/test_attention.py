"""Attention of a translation: the weights are those of its decoding, and the picture shows its
calls."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from experiments.pictures.attention import check_translates, cross_attention, figure, keeping
from fastdec.models import api
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig

SIZES = dict(
  vocab_size=19, d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=2, dtype='float64'
)
MODELS = {
  'transformer': Transformer(TransformerConfig(**SIZES)),
  't5': T5(T5Config(d_kv=3, **SIZES)),
  'fconv': FConv(FConvConfig(
    vocab_size=19, d_embed=8, d_out=6, encoder_layers=((8, 3),),
    decoder_layers=((8, 3), (10, 2)), dtype='float64',
  )),
}  # fmt: skip
SOURCE, WRITTEN = np.array([3, 4, 5, 1, 0, 0], np.int32), np.array([9, 8, 7, 9, 1], np.int32)
REAL = SOURCE != 0


@pytest.fixture(params=MODELS, scope='module')
def made(request):
  """A model with large random parameters, in float64: no head looks everywhere alike."""
  with jax.enable_x64(True):
    model, rng = MODELS[request.param], np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    yield model, jax.tree.map(lambda x: jnp.asarray(rng.normal(scale=0.7, size=x.shape)), shapes)


@pytest.mark.wide('transformer', 'fconv')
def test_weights_are_shares_of_the_real_source_tokens(made):
  weights = cross_attention(*made, jnp.asarray(SOURCE), jnp.asarray(WRITTEN))
  assert (
    weights.shape == (2, 1 if isinstance(made[0], FConv) else 2, 5, 6)
    and weights.dtype == np.float64
  )
  np.testing.assert_allclose(weights[..., REAL].sum(-1), 1, atol=1e-12)
  assert (weights[..., ~REAL] == 0).all() and weights.std(axis=(0, 1)).max() > 0.1


@pytest.mark.wide('transformer')
def test_one_call_gives_what_single_steps_give_and_keeping_changes_nothing(made):
  model, params = made

  @functools.partial(jax.jit, static_argnames='keeps')
  def step(token, cache, keeps):
    kept = []
    how = {'across': keeping(kept)} if keeps else {}
    hidden, _, cache = model.apply(params, token, api.causal(1), cache, **how)
    return hidden, kept, cache.commit(None, jnp.ones(1, jnp.int32))

  cache, steps = (
    model.init_cache(params, model.encode(params, jnp.asarray(SOURCE)[None]), 1, len(WRITTEN)),
    [],
  )
  for token in (model.start_id, *WRITTEN[:-1]):
    fed = jnp.full((1, 1), token, jnp.int32)
    plain, nothing, _ = step(fed, cache, keeps=False)
    hidden, kept, cache = step(fed, cache, keeps=True)
    np.testing.assert_array_equal(hidden, plain)
    assert nothing == [] and len(kept) == 2
    steps.append(jnp.concatenate(kept))
  weights = cross_attention(model, params, jnp.asarray(SOURCE), jnp.asarray(WRITTEN))
  np.testing.assert_allclose(jnp.concatenate(steps, axis=2), weights, atol=1e-12)


def test_a_model_without_a_text_to_look_at_is_refused():
  model = LM(LMConfig(vocab_size=9, d_model=8, heads=1, d_ff=8, layers=1))
  with pytest.raises(fd.UserError, match='decoder-only and looks at no source'):
    check_translates(model, 'it')


@pytest.mark.parametrize('count, shape', [(1, (1, 1)), (3, (1, 3)), (5, (2, 3)), (16, (4, 4))])
def test_the_picture_names_tokens_and_calls_and_cuts_between_calls(count, shape):
  """Once | upon a | time: the prompt's token, then blocks of 2 and 1."""
  source, written = ['Es', 'war', 'ein$', '</s>', '_mal^'], ['Once', 'upon', 'a', 'time']
  weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(count, 4))
  names = [f'panel {i}' for i in range(count)]
  made = figure(weights, names, source, written, [2, 0, 1, 0], 'a title')
  made.draw_without_rendering()
  panels = [axes for axes in made.axes if axes.images]
  assert [axes.get_title() for axes in panels] == names and made.get_suptitle() == 'a title'
  assert panels[0].get_gridspec().get_geometry() == shape
  for i, axes in enumerate(panels):
    np.testing.assert_array_equal(axes.images[0].get_array(), weights[i])
    assert [line.get_ydata()[0] for line in axes.lines] == [0.5, 2.5]
  texts = lambda labels: [label.get_text() for label in labels]
  assert (
    texts(panels[0].get_yticklabels()) == written and texts(panels[-1].get_xticklabels()) == source
  )
  (calls,) = panels[-1].child_axes
  assert texts(calls.get_yticklabels()) == ['prompt', 'call 1', 'call 2']
  np.testing.assert_array_equal(calls.get_yticks(), [0, 1.5, 3])


def test_names_of_thirty_tokens_do_not_overlap():
  tokens = [f'▁Bundesrat{i}' for i in range(30)]
  weights = np.full((2, 30, 30), 1 / 30)
  made = figure(weights, ['1', '2'], tokens, tokens, [1] * 29, 'a title')
  made.draw_without_rendering()
  first = made.axes[0]
  for labels in (
    first.get_xticklabels(),
    first.get_yticklabels(),
    made.axes[1].child_axes[0].get_yticklabels(),
  ):
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) == 30 and not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
    assert all(
      made.bbox.x0 <= box.x0 and box.x1 <= made.bbox.x1 and box.y0 >= made.bbox.y0 for box in boxes
    )

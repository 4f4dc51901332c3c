"""Taps: a drafter gets the states of the target's layers that it reads, the same that a
teacher-forced forward gives."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.protocol import Draft, Prompt
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.models.lm import LM
from fastdec.models.taps import RULE, apply_with, check_taps, number_taps
from fastdec.struct import Bound
from tests.decoding.fakes import HashLM
from tests.decoding.models_table import LENGTHS, MODELS, PICTURES, SOURCES, made

pytestmark = pytest.mark.usefixtures('in_float64')

MAX_LEN = 14
# Their rotations depend on the length that is read at once, so a text read call by call differs.
CHANGING = ('lm of dynamic rope', 'lm of longrope')
WITH_LAYERS = [name for name in MODELS if name not in ('ensemble', *CHANGING)]
TREES = {
  'chain': Topology.chain(4),
  'tree': Topology.from_choices([[0], [1], [0, 0], [1, 0], [1, 0, 0]]),
}
FIRST = 3  # the first token of a language model's prompts: `features` begins with it


@struct.pytree
class Notes:
  """The state of `Watching`."""

  length: Any  # tokens emitted
  committed: Any  # positions whose states are known
  states: Any  # float[b, t, d] of each tap: the states of the committed positions


@struct.pytree
class Watching:
  """Records the states of all committed positions. It knows the truth, but drafts it on the last
  branch only, to a depth that changes from call to call."""

  taps: Any = struct.static()
  topology: Any = struct.static()
  truth: Any  # int32[b, t]

  @property
  def nodes(self):
    return self.topology.n

  def init(self, target, prefill):
    room, places = (
      prefill.capacity.total,
      up_to(prefill.prompt.length, prefill.prompt.tokens.shape[1]),
    )
    states = tuple(
      _put(jnp.zeros((len(x), room, x.shape[2]), x.dtype), places, x) for x in prefill.taps
    )
    return Notes(jnp.ones_like(prefill.root), prefill.prompt.length, states)

  def propose(self, target, state, root, keys):
    depths = self.topology.depths[None]
    branch = self.topology.mask[-1:]  # the last node and its ancestors
    knows = branch & (depths <= 1 + state.length[:, None] % 3)
    places = (state.length[:, None] - 1 + depths).clip(0, self.truth.shape[1] - 1)
    right = jnp.take_along_axis(self.truth, places, axis=1)
    tokens = jnp.where(knows, right, 1 + right % 3)
    return Draft(tokens.at[:, 0].set(root), self.topology), state

  def observe(self, target, state, step):
    places = state.committed[:, None] + up_to(step.count, step.path.shape[1])
    on_path = [jnp.take_along_axis(x, step.path[..., None], axis=1) for x in step.taps]
    states = tuple(_put(kept, places, x) for kept, x in zip(state.states, on_path, strict=True))
    return Notes(state.length + step.count, state.committed + step.count, states)


def up_to(count, width):
  """0, 1, ..., count - 1 in each row, and then a number that is not a position."""
  each = np.arange(width, dtype=np.int32)[None]
  return jnp.where(each < count[:, None], each, 10_000)


@jax.vmap
def _put(kept, places, x):
  return kept.at[places].set(x, mode='drop')


def a_model(name):
  """A model of the table, and its parameters."""
  case = made(name)
  if isinstance(case.model, LM):
    return LM(dataclasses.replace(case.model.config, bos_id=FIRST)), case.params
  return case.model, case.params


def a_prompt(model):
  """A prompt with rows of different lengths, if the model allows them."""
  inputs, tokens, length = SOURCES, SOURCES.copy(), LENGTHS
  if model.fixed_length is not None:
    inputs, tokens, length = PICTURES, np.zeros((3, 1), np.int32), np.ones(3, np.int32)
  elif model.start_id is None:
    inputs, tokens[:, 0] = None, FIRST
  else:
    tokens[:, 0] = model.start_id
  source = None if inputs is None else jnp.asarray(inputs)
  return Prompt(source, jnp.asarray(tokens), jnp.asarray(length), jnp.zeros(3, bool))


@functools.partial(jax.jit, static_argnums=0)
def decoded(model, params, drafter, prompt):
  """The state when every row is done."""
  target, rule = Bound(model, params), fd.Exact()
  state = loop.init(target, drafter, rule, prompt, MAX_LEN, None)
  return jax.lax.while_loop(
    lambda s: ~s.done.all(), lambda s: loop.step(target, drafter, rule, s), state
  )


@functools.partial(jax.jit, static_argnums=(0, 3))
def forced(model, params, batch, taps):
  return model.features(params, batch, taps)


def a_batch(prompt, state):
  """All that the target has read, prompts and outputs, as a training batch. Its targets begin with
  the second token."""
  rows = []
  for i, length in enumerate(np.asarray(prompt.length)):
    rows.append(
      np.concatenate([prompt.tokens[i, :length], state.tokens[i], np.zeros(5 - length, int)])
    )
  target = np.array(rows, np.int32)[:, 1:]
  batch = {'target': target, 'target_segment': np.ones_like(target)}
  batch['target_position'] = np.broadcast_to(
    np.arange(target.shape[1], dtype=np.int32), target.shape
  )
  if prompt.inputs is not None:
    source = np.asarray(prompt.inputs)
    position = np.broadcast_to(np.arange(source.shape[1], dtype=np.int32), source.shape[:2])
    batch |= {
      'source': source,
      'source_segment': (source != 0).astype(np.int32),
      'source_position': position,
    }
  return {name: jnp.asarray(x) for name, x in batch.items()}


@pytest.mark.parametrize('name, tree', [
  *((name, 'tree') for name in WITH_LAYERS), ('transformer', 'chain'), ('fconv', 'chain'),
])  # fmt: skip
@pytest.mark.wide('lm of many options-tree', 'fconv-chain')
def test_a_drafter_gets_the_states_that_a_teacher_forced_forward_gives(name, tree):
  """At the prompt and at each call, in the order of `taps`."""
  model, params = a_model(name)
  prompt, taps = a_prompt(model), tuple(range(model.layers, -1, -1))
  knows_nothing = Watching(taps, TREES[tree], jnp.zeros((3, MAX_LEN), jnp.int32))
  greedy = decoded(model, params, knows_nothing, prompt)
  state = decoded(model, params, dataclasses.replace(knows_nothing, truth=greedy.tokens), prompt)
  np.testing.assert_array_equal(state.tokens, greedy.tokens)
  assert int(state.calls.max()) <= 6  # for 13 tokens: drafts are accepted

  read = prompt.length + MAX_LEN - 1
  np.testing.assert_array_equal(state.drafter.committed, read)
  expected = forced(model, params, a_batch(prompt, state), taps)
  assert len(state.drafter.states) == len(expected.taps) == model.layers + 1
  for kept, states in zip(state.drafter.states, expected.taps, strict=True):
    for row, count in enumerate(np.asarray(read)):
      np.testing.assert_allclose(kept[row, :count], states[row, :count], rtol=1e-9, atol=1e-12)
    # states of tokens, not constants
    assert len({round(float(x), 9) for x in np.asarray(kept)[0, : read[0], 0]}) > 3


def operations(function, *args):
  """The operations of a program as text, without its results."""
  whole = str(jax.make_jaxpr(function)(*args))
  return whole[: whole.rindex(' in (')]


@pytest.mark.parametrize('name', WITH_LAYERS)
@pytest.mark.wide('lm of many options', 't5')
def test_taps_cost_no_operation(name):
  model, params = a_model(name)
  prompt = a_prompt(model)

  def program(**taps):
    def run(params, prompt):
      cache = model.init_cache(params, model.encode(params, prompt.inputs), 3, 20)
      return model.apply(params, prompt.tokens, TREES['chain'].nodes, cache, **taps)

    return run

  prompt = dataclasses.replace(prompt, tokens=jnp.zeros((3, 4), jnp.int32))
  every = tuple(range(model.layers + 1))
  without_taps = operations(program(), params, prompt)
  assert without_taps == operations(program(taps=every), params, prompt)
  assert jax.eval_shape(program(), params, prompt)[1] == ()


@dataclasses.dataclass(frozen=True)
class Layered(HashLM):
  """A user's model: three layers, each of which doubles."""

  def apply(self, params, tokens, nodes, cache, **keywords):
    assert keywords != {'taps': ()}  # without taps the keyword is left out
    hidden, _, cache = super().apply(params, tokens, nodes, cache)
    return hidden, tuple(hidden * 2**k for k in keywords.get('taps', ())), cache


def test_a_model_gets_taps_only_from_drafters_that_read_its_layers():
  prompt = Prompt(
    None, jnp.array([[3, 4]], jnp.int32), jnp.array([2], jnp.int32), jnp.zeros(1, bool)
  )
  init = jax.jit(
    lambda model, drafter: loop.init(Bound(model, {}), drafter, fd.Exact(), prompt, 5, None),
    static_argnums=0,
  )
  watching = Watching((2, 0), TREES['chain'], jnp.zeros((1, 5), jnp.int32))
  init(Layered(), NoDraft())
  init(Layered(), dataclasses.replace(watching, taps=()))
  twice, once = init(Layered(), watching).drafter.states
  np.testing.assert_array_equal(twice, 4 * once)
  assert once.any()


def test_a_model_that_has_no_taps_says_so():
  prompt = Prompt(
    None, jnp.array([[3, 4]], jnp.int32), jnp.array([2], jnp.int32), jnp.zeros(1, bool)
  )
  watching = Watching((0,), TREES['chain'], jnp.zeros((1, 5), jnp.int32))
  with pytest.raises(
    UserError,
    match=r"HashLM does not return its layers' states, which taps=\(0,\) would read:"
    r' let',
  ):
    loop.init(Bound(HashLM(), {}), watching, fd.Exact(), prompt, 5, None)


def test_an_ensemble_has_no_layers():
  case = made('ensemble')
  prompt = dataclasses.replace(a_prompt(MODELS['transformer']), limit=None)
  watching = Watching((1,), TREES['chain'], jnp.zeros((3, 5), jnp.int32))
  target = Bound(case.model, case.params)
  with pytest.raises(
    UserError, match=r'an ensemble has no layers of its own whose states taps=\(1,\) could read'
  ):
    jax.eval_shape(lambda: loop.init(target, watching, fd.Exact(), prompt, 5, None).root)


MISTAKES = {
  'below': ((-1,),
    r'taps=\(-1,\) has layer -1, which does not exist: give numbers from 0 .* to 2 '),
  'above': ((0, 3), r'taps=\(0, 3\) has layer 3, which does not exist'),
  'a bool': ((True,), r'has layer True, which does not exist'),
  'no whole number': ((1.0,), r'has layer 1.0, which does not exist'),
  'a word': (('last',), r"has layer 'last', which does not exist"),
  'no tuple': (1, r'taps=1 is not possible: give a tuple of numbers from 0 '),
  'twice': ((1, 0, 1), r'taps=\(1, 0, 1\) has layer 1 more than once: .* too shallow'),
}  # fmt: skip


@pytest.mark.parametrize('mistake', MISTAKES)
def test_impossible_taps_have_a_sentence(mistake):
  taps, sentence = MISTAKES[mistake]
  with pytest.raises(UserError, match=sentence):
    check_taps(taps, layers=2)


@pytest.mark.parametrize('name', WITH_LAYERS)
def test_models_refuse_layers_that_are_not_there_before_any_work(name):
  model, prompt = MODELS[name], a_prompt(MODELS[name])
  with pytest.raises(UserError, match=r'taps=\(9,\) has layer 9, which does not exist'):
    model.features({}, {}, (9,))
  params = jax.eval_shape(model.init, jax.random.key(0))
  watching = Watching((9,), TREES['chain'], jnp.zeros((3, 5), jnp.int32))
  with pytest.raises(UserError, match=r'taps=\(9,\) has layer 9, which does not exist'):
    jax.eval_shape(
      lambda params: loop.init(Bound(model, params), watching, fd.Exact(), prompt, 5, None).root,
      params,
    )


class WithoutLayers:
  """A user's model that has states, but does not say how many layers."""

  def apply(self, params, tokens, nodes, cache, taps=()):
    raise NotImplementedError


def test_the_layers_of_a_rule_are_known_once_the_model_is():
  assert (
    number_taps(RULE, 8) == (2, 4, 5)
    and number_taps(RULE, 7) == (2, 3, 4)
    and number_taps((0, 6), 6) == (0, 6)
  )
  for layers in range(1, 7):
    with pytest.raises(UserError, match=f'coincide on a target of {layers}: set them explicitly'):
      number_taps(RULE, layers)
  with pytest.raises(UserError, match='the model has no value `layers`: set them explicitly'):
    apply_with(WithoutLayers(), RULE)

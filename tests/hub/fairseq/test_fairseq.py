"""fairseq's state dicts compute the same here as in fairseq. Parts that do not fit together are one
sentence."""

import argparse
import functools
import importlib.util
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import fastdec as fd
from fastdec import folders
from fastdec.cli import convert as command
from fastdec.hub.fairseq import convert as fairseq
from fastdec.models.api import causal
from tests.hub.fairseq import fairseq_by_hand as by_hand

SOURCE = np.array([[4, 12, 3, 9, 5, 2], [7, 6, 2, 1, 1, 1]])  # the second is padded
TARGET = np.array([[2, 4, 10, 9], [2, 7, 7, 3]])
STATES = {
  'fconv': by_hand.fconv(),
  'fconv, old norm': by_hand.fconv(old=True),
  'fconv, tied': by_hand.fconv(d_out=6, tied=True),
  'fconv, norm removed': {
    **{
      name: x for name, x in by_hand.fconv().items()
      if not name.endswith(('weight_g', 'weight_v'))
    },
    **{
      name.removesuffix('_v'): by_hand.weight(by_hand.fconv(), name.removesuffix('.weight_v'))
      for name in by_hand.fconv() if name.endswith('weight_v')
    },
  },
  'transformer': by_hand.transformer(),
  'transformer, pre-norm, learned positions': by_hand.transformer(last_norm=True, learned=True),
}  # fmt: skip


@pytest.fixture
def place(tmp_path):
  """A folder with dictionaries; and a function that writes a state dict there and converts it by
  the command line."""
  for name, count in (('en', 13), ('de', 11)):
    lines = [f'{name}{i} {100 - i}\n' for i in range(4, count)]
    (tmp_path / f'dict.{name}.txt').write_text(''.join(lines))

  def convert(state, *words, source='en', target='de'):
    if state is not None:
      save_file(
        {name: np.ascontiguousarray(x, np.float32) for name, x in state.items()},
        tmp_path / 'm.safetensors',
      )
    files = [
      '--source-dict',
      f'{tmp_path}/dict.{source}.txt',
      '--target-dict',
      f'{tmp_path}/dict.{target}.txt',
    ]
    has_heads = state is None or 'encoder.layers.0.fc1.bias' not in state or '--heads' in words
    heads = [] if has_heads else ['--heads', '2']
    checkpoint = [f'{tmp_path}/m.safetensors'] if state is not None else []
    out = [] if '--out' in words else ['--out', f'{tmp_path}/model']
    command.main([*checkpoint, *files, *heads, *out, *words])
    return tmp_path / 'model'

  return tmp_path, convert


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, source, target):
  cache = model.init_cache(params, model.encode(params, jnp.asarray(source)), *target.shape)
  return model.unembed(
    params, model.apply(params, jnp.asarray(target), causal(target.shape[1]), cache)[0]
  )


def assert_same_logits(folder, state):
  ours = logits(*fd.load(folder), SOURCE, TARGET)
  for row, source, target in zip(ours, SOURCE, TARGET, strict=True):
    inputs = (state, source[source != 1], target)
    theirs = (
      by_hand.fconv_logits(*inputs)
      if 'encoder.fc1.bias' in state
      else by_hand.transformer_logits(*inputs, 2)
    )
    np.testing.assert_allclose(row, theirs, atol=2e-5 * abs(theirs).max())


@pytest.mark.parametrize('kind', STATES)
@pytest.mark.wide('transformer', 'fconv')
def test_logits_are_those_of_the_definition(kind, place):
  assert_same_logits(place[1](STATES[kind]), STATES[kind])


def test_names_of_2018_are_those_of_today(place):
  _, convert = place
  new = by_hand.transformer()
  today = fd.load(convert(new))
  model, params = fd.load(convert(by_hand.older(new)))
  assert model == today[0]
  jax.tree.map(np.testing.assert_array_equal, params, today[1])


def test_joined_and_equal_embeddings_become_one(place):
  _, convert = place
  state = by_hand.transformer(words=(11, 11), joined=True)
  folder = convert(state, source='de')
  model, params = fd.load(folder)
  assert model.config.source_vocab_size is None and model.config.is_tied
  assert not {'source_embedding', 'output'} & set(params)
  source = np.minimum(SOURCE, 10)
  theirs = by_hand.transformer_logits(state, source[0], TARGET[0], 2)
  np.testing.assert_allclose(
    logits(model, params, source, TARGET)[0], theirs, atol=2e-5 * abs(theirs).max()
  )
  apart = {**state, 'encoder.embed_tokens.weight': -state['encoder.embed_tokens.weight']}
  # the same words, but not shared
  assert 'source_embedding' in fd.load(convert(apart, source='de'))[1]


@pytest.mark.parametrize('kind', ['fconv', 'transformer'])
@pytest.mark.wide('fconv')
def test_it_translates_and_never_writes_a_pad(kind, place):
  _, convert = place
  state = dict(STATES[kind])
  folder = convert(state)
  model, params = fd.load(folder)
  tokenizer = fd.load_tokenizer(folder)
  assert (model.start_id, model.pad_id, model.eos_ids, model.suppressed_ids) == (2, 1, (2,), (1,))
  ids = tokenizer.encode('en4 en12 what en9')
  assert ids == [4, 12, 3, 9, 2]
  out = fd.decode(model, params, [ids], fd.Greedy(), max_len=6)
  text, theirs = (
    [2],
    by_hand.fconv_logits
    if kind == 'fconv'
    else lambda *inputs: by_hand.transformer_logits(*inputs, 2),
  )
  for _ in range(int(out.lengths[0])):
    law = theirs(state, ids, np.array(text))[-1]
    text.append(int(np.where(np.arange(11) == 1, -np.inf, law).argmax()))
  np.testing.assert_array_equal(out.tokens[0, : out.lengths[0]], text[1:])
  assert tokenizer.decode(text) == ' '.join(f'de{i}' for i in text if i > 3)
  with pytest.raises(fd.UserError, match='knows 0 to 12'):
    fd.decode(model, params, [[13, 2]], fd.Greedy())
  with pytest.raises(fd.UserError, match='knows 0 to 10'):
    fd.decode(model, params, [[12, 2]], fd.Greedy(), prefix=np.array([[12]]))
  # it looks only in its own text
  looked = fd.decode(model, params, [ids], fd.PromptLookup(ngram=1, k=3), max_len=6)
  np.testing.assert_array_equal(looked.tokens, out.tokens)


def test_a_draft_must_read_the_same_source(place):
  _, convert = place
  target = fd.load(convert(STATES['transformer']))
  draft = fd.load(convert(STATES['fconv']))
  ids = [[4, 12, 9, 2]]
  plain = fd.decode(*target, ids, fd.Greedy(), max_len=5)
  out = fd.decode(*target, ids, fd.Speculative(draft, gamma=2), max_len=5)
  np.testing.assert_array_equal(out.tokens, plain.tokens)
  joined = fd.load(convert(by_hand.transformer(words=(11, 11), joined=True), source='de'))
  with pytest.raises(fd.UserError, match="source has 11 words and the target's 13"):
    fd.decode(*target, ids, fd.Speculative(joined, gamma=2), max_len=5)


def changed(kind, **tensors):
  """Returns a state dict with tensors replaced, or removed by None; '__' means a point."""
  state = dict(STATES[kind])
  for name, tensor in tensors.items():
    name = name.replace('__', '.')
    if tensor is None:
      del state[name]
    else:
      state[name] = tensor
  return state


MISTAKES = {
  'lacks': (changed('fconv', decoder__attention__1__in_projection__bias=None),
            r'm\.safetensors lacks decoder\.attention\.1\.in_projection\.bias: give the whole state'
            r' dict'),
  'lacks a layer': (
    {name.replace('decoder.layers.1', 'decoder.layers.2'): x
     for name, x in STATES['transformer'].items()},
    r'lacks decoder\.layers\.1\.self_attn\.q_proj\.weight.* and \d+ more'),
  'unknown': (changed('fconv', encoder__attproj__weight=np.ones((2, 2))),
    r'has unknown encoder\.attproj\.weight'),
  'shape': (changed('fconv', encoder__projections__1__weight_v=np.ones((8, 4))),
            r'projections\.1\.weight_v is of shape \[8, 4\], and the rest of the state dict means'
            r' \[8, 5\]'),
  'kernel of width 0': (changed('fconv', encoder__convolutions__0__weight_v=np.ones((0, 5, 10))),
                        r'convolutions\.0\.weight_v of .* is of shape \[0, 5, 10\], and no width'
                        r' can be 0'),
  'no model': ({'weight': np.ones(3)}, 'neither encoder.convolutions nor encoder.layers'),
  'adaptive softmax': (
    changed('transformer', decoder__adaptive_softmax__head__weight=np.ones((2, 2))),
    r'has an adaptive softmax \(decoder\.adaptive_softmax\.head\.weight\), which is not supported'),
}  # fmt: skip


@pytest.mark.parametrize('kind', MISTAKES)
def test_a_state_dict_that_is_not_whole_is_refused_and_nothing_written(kind, place):
  path, convert = place
  state, words = MISTAKES[kind]
  with pytest.raises(fd.UserError, match=words):
    convert(state)
  assert sorted(x.name for x in path.iterdir()) == ['dict.de.txt', 'dict.en.txt', 'm.safetensors']


def test_dictionaries_heads_and_files_must_fit(place):
  path, convert = place
  for state, options, words in (
    ('fconv', {'target': 'en'}, 'target dictionary has 13 words.* has 11: give the dictionaries'),
    ('fconv', {'source': 'fr'}, r'cannot read the dictionary .*fr\.txt \(No such file'),
    ('fconv', {'words': ('--heads', '2')}, 'of one attention head: leave out --heads=2'),
    ('transformer', {'words': ('--heads', '3')}, 'd_model=8 is not divisible by heads=3'),
    ('transformer', {'words': ('--heads', 'x')}, '--heads=x is not possible'),
    ('fconv', {'words': ('--out', f'{path}')}, 'exists and is not just a model'),
    ('fconv', {'words': ('--out', f'{path}/dict.en.txt')}, 'exists and is not just a model'),
    ('fconv', {'words': ('--out', f'{path}/dict.en.txt/model')}, 'cannot write'),
  ):
    options = dict(options)
    with pytest.raises(fd.UserError, match=words):
      convert(STATES[state], *options.pop('words', ()), **options)
  with pytest.raises(
    fd.UserError, match='does not have the number of attention heads: give --heads'
  ):
    fairseq.load(
      path / 'm.safetensors' if convert(STATES['transformer']) else path, (13, 11), False
    )
  for name, content, words in (
    ('none.pt', None, 'is not a file'),
    ('m.npz', b'', r'ends in \.npz: give a \.safetensors or \.pt file'),
    ('cut.safetensors', b'12', 'corrupt or cut short'),
  ):
    if content is not None:
      (path / name).write_bytes(content)
    with pytest.raises(fd.UserError, match=words):
      convert(None, str(path / name))


def test_converting_again_replaces_the_folder(place):
  _, convert = place
  first = folders.content(convert(STATES['fconv']))
  assert folders.content(convert(STATES['transformer'])) != first
  assert type(fd.load(convert(STATES['fconv']))[0]).__name__ == 'FConv'


needs_torch = pytest.mark.skipif(importlib.util.find_spec('torch') is None, reason='needs PyTorch')


@needs_torch
@pytest.mark.parametrize('where', ['args', 'cfg'])
def test_options_of_a_checkpoint_tell_what_no_shape_does(where, place):
  import torch

  path, convert = place
  state = by_hand.transformer()
  options = {
    'encoder_attention_heads': 2, 'decoder_attention_heads': 2, 'activation_fn': 'relu',
    'dropout': 0.3, 'max_source_positions': 9, 'max_target_positions': 7,
    'encoder_normalize_before': False,
  }  # fmt: skip
  nested = {**options, 'encoder': {'attention_heads': 2}, 'decoder': {'attention_heads': 2}}
  content = (
    {'args': argparse.Namespace(**options)}
    if where == 'args'
    else {'args': None, 'cfg': {'model': nested}}
  )
  content |= {
    'model': {name: torch.tensor(x).half() for name, x in state.items()},
    'optimizer_history': [{'lr': 0.1}],
  }
  torch.save(content, path / 'best.pt')
  folder = convert(None, str(path / 'best.pt'))
  model, _ = fd.load(folder)
  assert (model.config.heads, model.config.dropout, model.max_positions) == (2, 0.3, 7)
  halves = {name: x.astype(np.float16).astype(np.float32) for name, x in state.items()}
  assert_same_logits(folder, halves)
  with pytest.raises(fd.UserError, match='encoder_attention_heads=2: leave out --heads=4'):
    convert(None, str(path / 'best.pt'), '--heads', '4')
  for name, value, words in (
    (
      'cross_self_attention',
      True,
      'trained with cross_self_attention=True, which is not supported',
    ),
    ('activation_fn', 'tanh', "activation_fn='tanh'"),
    (
      'encoder_normalize_before',
      True,
      'encoder_normalize_before=True without encoder.layer_norm.weight',
    ),
  ):
    changed = {'model': argparse.Namespace(**options | {name: value})}
    torch.save({**content, 'args': None, 'cfg': changed}, path / 'other.pt')
    with pytest.raises(fd.UserError, match=words):
      convert(None, str(path / 'other.pt'))


class Trap:
  def __reduce__(self):
    return os.mkdir, ('sprung',)


@needs_torch
def test_code_in_a_checkpoint_is_not_run(place, monkeypatch):
  import torch

  path, convert = place
  monkeypatch.chdir(path)
  torch.save({'model': {'a': torch.ones(1)}, 'extra_state': Trap()}, path / 'trap.pt')
  with pytest.raises(
    fd.UserError,
    match=r'has posix\.mkdir in it, .* so it is not read: .*'
    r' s\.save_file',
  ):
    convert(None, str(path / 'trap.pt'))
  assert not (path / 'sprung').exists()
  torch.save({'model': {'a': 3}}, path / 'other.pt')
  (path / 'cut.pt').write_bytes((path / 'other.pt').read_bytes()[:100])
  for name, words in (
    ('other', 'is not a state dict'),
    ('cut', 'corrupt, or not a PyTorch checkpoint'),
  ):
    with pytest.raises(fd.UserError, match=words):
      convert(None, str(path / f'{name}.pt'))


def test_without_pytorch_the_sentence_says_how_to_save(place, monkeypatch):
  path, convert = place
  (path / 'm.pt').write_bytes(b'')
  monkeypatch.setitem(sys.modules, 'torch', None)
  with pytest.raises(
    fd.UserError,
    match=r'm\.pt needs PyTorch: .* python -c "import torch,'
    r' safetensors\.torch as s;',
  ):
    convert(None, str(path / 'm.pt'))

"""Hugging Face folders against what `transformers` itself computed on them (`../shared/reference`);
beam search on Marian is in `decoding/test_beam_reference.py`.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.api import causal
from fastdec.text.load import open_folder
from tests.decoding.methods_table import GROWN, METHODS, fresh_kit

REFERENCE = Path(__file__).parents[3] / 'shared' / 'reference' / 'hf'
pytestmark = pytest.mark.skipif(
  not REFERENCE.is_dir(), reason='needs ../shared/reference, which is not here'
)
MARGIN = 1e-4  # where the two best are nearer, rounding may flip the choice


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, inputs, target):
  memory = model.encode(params, None if model.start_id is None else jnp.asarray(inputs, jnp.int32))
  cache = model.init_cache(params, memory, *target.shape)
  return model.unembed(
    params, model.apply(params, jnp.asarray(target, jnp.int32), causal(target.shape[1]), cache)[0]
  )


@pytest.mark.parametrize('name', ['llama_tiny', 'llama_gqa_tiny', 'marian_tiny', 't5_tiny'])
def test_logits_are_theirs(name):
  expected = np.load(REFERENCE / name / 'expected.npz')
  model, params = fd.load(REFERENCE / name)
  is_lm = model.start_id is None
  inputs = expected['prompt' if is_lm else 'source']
  logits = logits_of(model, params, inputs, inputs if is_lm else expected['target'])
  np.testing.assert_allclose(
    logits, expected['logits'], rtol=2e-4, atol=2e-4 * np.abs(expected['logits']).max()
  )


@pytest.mark.parametrize('name', ['llama_tiny', 'llama_gqa_tiny', 'marian_tiny', 't5_tiny'])
@pytest.mark.wide('marian_tiny', 't5_tiny')
def test_greedy_tokens_are_theirs(name):
  expected = np.load(REFERENCE / name / 'expected.npz')
  model, params = fd.load(REFERENCE / name)
  is_lm = model.start_id is None
  inputs, theirs = expected['prompt' if is_lm else 'source'], expected['greedy'][:, not is_lm :]
  out = fd.decode(model, params, inputs, fd.Greedy(), max_len=24)
  for row, (ours, length) in enumerate(zip(np.asarray(out.tokens), out.lengths, strict=True)):
    differ = np.flatnonzero(ours[:length] != theirs[row, :length])
    assert not differ.size or expected['greedy_margin'][row, differ[0]] < MARGIN
    assert length == 24 or ours[length - 1] in model.eos_ids


FAMILIES = [
  'llama_yarn_tiny', 'llama_dynamic_tiny', 'llama_linear_tiny', 'mistral_window_tiny',
  'granite_tiny', 'smollm3_tiny', 'olmo2_tiny', 'phi3_longrope_tiny', 'gemma2_tiny',
  'gemma3_tiny', 'mixtral_tiny', 'qwen3_moe_tiny', 'gpt_oss_tiny',
]  # fmt: skip


@functools.cache
def family(name):
  """Model, parameters, and what was computed with them."""
  folder = REFERENCE / name
  return *fd.load(folder, dtype='float32'), np.load(folder / 'expected.npz')


@pytest.mark.wide('*-long_', 'llama_dynamic_tiny-*', 'phi3_longrope_tiny-*')  # lengths decide there
@pytest.mark.parametrize('of', ['', 'long_'], ids=['short', 'long_'])
@pytest.mark.parametrize('name', FAMILIES)
def test_logits_of_families_are_theirs(name, of):
  model, params, expected = family(name)
  logits = logits_of(model, params, None, expected[of + 'prompt'])
  np.testing.assert_allclose(logits, expected[of + 'logits'], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize('name', FAMILIES)
def test_older_words_of_config_say_the_same(name, tmp_path):
  older = json.loads((REFERENCE / name / 'config_older.json').read_text())
  (tmp_path / 'config.json').write_text(json.dumps(older))
  (tmp_path / 'generation_config.json').write_text(
    (REFERENCE / name / 'generation_config.json').read_text()
  )
  model = open_folder(tmp_path, dtype='float32').model
  assert model == open_folder(REFERENCE / name, dtype='float32').model


@pytest.mark.wide('gemma3_tiny-ragged_', 'gpt_oss_tiny-long_', 'phi3_longrope_tiny-long_')
@pytest.mark.parametrize('of', ['', 'long_', 'ragged_'], ids=['short', 'long_', 'ragged_'])
@pytest.mark.parametrize('name', FAMILIES)
def test_families_write_what_theirs_do(name, of):
  """Short, long and ragged texts, the last by drafts from the text."""
  model, params, expected = family(name)
  texts, strategy = list(expected[of + 'prompt']), fd.Greedy()
  if of == 'ragged_':
    texts = [row[:n] for row, n in zip(texts, expected['ragged_length'], strict=True)]
    strategy = fd.PromptLookup(ngram=1, k=3)
  out = fd.decode(model, params, [text.tolist() for text in texts], strategy, max_len=24)
  for ours, length, theirs in zip(out.tokens, out.lengths, expected[of + 'greedy'], strict=True):
    np.testing.assert_array_equal(ours[:length], theirs[:length])
    assert length == 24 or ours[length - 1] in model.eos_ids


EXPERTS = ['mixtral_tiny', 'qwen3_moe_tiny', 'gpt_oss_tiny']


@functools.cache
def mixture(name):
  """A mixture of experts in float64, its prompts, their greedy texts, and parts of drafts."""
  model, params = fd.load(REFERENCE / name, dtype='float64')
  return model, params, *ragged(name), fresh_kit(model, params)


def ragged(name):
  """Prompts, and their greedy texts."""
  expected = np.load(REFERENCE / name / 'expected.npz')
  rows = zip(expected['ragged_prompt'], expected['ragged_length'], strict=True)
  return [row[:length].tolist() for row, length in rows], expected['ragged_greedy']


@pytest.mark.wide('mixtral_tiny-jacobi')
@pytest.mark.parametrize('method', METHODS | GROWN)
@pytest.mark.parametrize('name', EXPERTS)
def test_every_method_writes_what_experts_do(name, method, in_float64):
  """Prompts have different lengths, and are decoded together and one by one, whole and streamed."""
  model, params, prompts, theirs, kit = mixture(name)
  strategy = (METHODS | GROWN)[method](kit)
  with jax.numpy_dtype_promotion('standard'):  # draft networks promote
    out = fd.decode(model, params, prompts, strategy, max_len=24)
    (alone,) = fd.decode(model, params, prompts[2:3], strategy, max_len=24).tokens
    streamed = [[] for _ in prompts]
    for blocks in fd.stream(model, params, prompts, strategy, max_len=24):
      for row, block in zip(streamed, blocks, strict=True):
        row += block
  for ours, length, row, steps in zip(out.tokens, out.lengths, theirs, streamed, strict=True):
    assert ours[:length].tolist() == row[:length].tolist() == steps
    assert length == 24 or ours[length - 1] in model.eos_ids
  np.testing.assert_array_equal(alone, out.tokens[2])


@pytest.mark.slow
@pytest.mark.parametrize('name', EXPERTS)
def test_experts_in_int8_write_the_same_by_wide_calls(name, tmp_path):
  """And from our own folder."""
  prompts, _ = ragged(name)
  fd.save(*fd.load(REFERENCE / name, dtype='float32'), tmp_path / 'own')
  model, params = fd.load(tmp_path / 'own', dtype='int8')
  greedy, wide = (
    fd.decode(model, params, prompts, strategy, max_len=24).tokens
    for strategy in (fd.Greedy(), fd.PromptLookup(ngram=1, k=4))
  )
  np.testing.assert_array_equal(greedy, wide)


@pytest.mark.parametrize('name', ['marian_tiny', 't5_tiny'])
@pytest.mark.wide('marian_tiny')
def test_a_pad_that_is_the_end_too_changes_no_text(name, tmp_path):
  """As many fine-tuned folders have it. Lists have their lengths, and an array's rows their end."""
  copied(name, tmp_path)
  (end,) = fd.load(REFERENCE / name)[0].eos_ids
  for file in ('config.json', 'generation_config.json'):
    settings = json.loads((REFERENCE / name / file).read_text())
    start = {'decoder_start_token_id': settings['decoder_start_token_id']}
    (tmp_path / file).write_text(json.dumps({**settings, **start, 'pad_token_id': end}))
  expected = np.load(REFERENCE / name / 'expected.npz')
  lengths = expected['source_mask'].sum(1)
  sources = [row[:n].tolist() for row, n in zip(expected['source'], lengths, strict=True)]
  array = np.where(expected['source_mask'] > 0, expected['source'], end)
  model, params = fd.load(tmp_path)
  for inputs in (sources, array):
    out = fd.decode(model, params, inputs, fd.Greedy(), max_len=24)
    assert min(out.lengths) < 24
    for ours, theirs, n in zip(out.tokens, expected['greedy'][:, 1:], out.lengths, strict=True):
      np.testing.assert_array_equal(ours[:n], theirs[:n])
      assert n == 24 or ours[n - 1] == end
  beams = fd.decode(model, params, sources, fd.Beam(4), max_len=24)
  assert 0 < min(beams.lengths) < 24


# Copies of a folder, changed.


def copied(name, folder, shards=1, rename=None, copies=(), **changes):
  """A copy with a changed config.json, its tensors renamed (None: left out) and copied, in one file
  or several."""
  from safetensors.numpy import load_file, save_file

  config = json.loads((REFERENCE / name / 'config.json').read_text()) | changes
  (folder / 'config.json').write_text(json.dumps(config))
  tensors = load_file(REFERENCE / name / 'model.safetensors')
  tensors = {
    new: x for old, x in tensors.items() if (new := (rename or {}).get(old, old)) is not None
  }
  tensors |= {copy: tensors[of].copy() for copy, of in dict(copies).items()}
  if shards == 1:
    save_file(tensors, folder / 'model.safetensors')
    return folder
  weight_map = {key: f'model-{i % shards}.safetensors' for i, key in enumerate(tensors)}
  for file in set(weight_map.values()):
    save_file({key: tensors[key] for key in tensors if weight_map[key] == file}, folder / file)
  (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': weight_map}))
  return folder


EMBEDDINGS = {
  'llama_tiny': 'model.embed_tokens.weight', 'marian_tiny': 'model.shared.weight',
  't5_tiny': 'shared.weight',
}  # fmt: skip


@pytest.mark.parametrize('kind', ['tied', 'tied as the file says', 'base', 'compiled', 'parallel'])
@pytest.mark.parametrize('name', EMBEDDINGS)
@pytest.mark.wide('llama_tiny-*', 'marian_tiny-base', 't5_tiny-tied*')
def test_tensors_are_read_by_the_names_that_tools_leave(name, kind, tmp_path):
  """One name of a tied matrix, a base model's names, and those of PyTorch's wrappers."""
  from safetensors.numpy import load_file, save_file

  tied, left_out = EMBEDDINGS[name], {'lm_head.weight', 'final_logits_bias'}
  changes = {'tie_word_embeddings': True} if name == 'llama_tiny' else {}
  whole = load_file(REFERENCE / name / 'model.safetensors')
  whole = {old: x for old, x in whole.items() if old not in left_out}
  folders = [tmp_path / 'whole', tmp_path / 'renamed']
  for folder in folders:
    folder.mkdir()
    copied(name, folder, **changes)
  renamed, metadata = dict(whole), {'format': 'pt'}
  if kind == 'tied':
    renamed['lm_head.weight'] = renamed.pop(tied)
  elif kind == 'tied as the file says':
    metadata[tied], renamed['decoder.embedding'] = 'decoder.embedding', renamed.pop(tied)
  elif kind == 'base':
    renamed = {old.removeprefix('model.'): x for old, x in whole.items()}
  else:
    prefix = {'compiled': '_orig_mod.', 'parallel': 'module._orig_mod.'}[kind]
    renamed = {prefix + old: x for old, x in whole.items()}
  save_file(whole, folders[0] / 'model.safetensors')
  save_file(renamed, folders[1] / 'model.safetensors', metadata)
  (_, expected), (_, params) = (fd.load(folder) for folder in folders)
  jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_a_base_model_without_its_projection_says_so(tmp_path):
  from safetensors.numpy import load_file, save_file

  copied('llama_tiny', tmp_path, tie_word_embeddings=False)
  whole = load_file(REFERENCE / 'llama_tiny' / 'model.safetensors')
  names = {old: old.removeprefix('model.') for old in whole if old != 'lm_head.weight'}
  save_file({new: whole[old] for old, new in names.items()}, tmp_path / 'model.safetensors')
  with pytest.raises(fd.UserError, match=r'lacks lm_head\.weight: it is a base model'):
    fd.load(tmp_path)


POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 493443\n'
KINDS = [  # files next to config.json, which may be missing, and words of the error
  ({'model.safetensors': POINTER}, r'model\.safetensors is a pointer of Git LFS.* git lfs pull'),
  ({'adapter_config.json': '{"base_model_name_or_path": "a/b"}', 'adapter_model.safetensors': ''},
   r"is an adapter \(LoRA\) of 'a/b', not a model: merge .*AutoPeftModelForCausalLM"),
  ({'m.Q4.gguf': ''}, r'has its weights as GGUF, m\.Q4\.gguf: give the file, .*/m\.Q4\.gguf$'),
  ({'model.fp16.safetensors': ''}, r'under another name, model\.fp16\.safetensors: rename it to'),
  ({'model-00001-of-00002.safetensors': ''}, r'lacks model\.safetensors\.index\.json, which says'),
  ({'consolidated.safetensors': ''}, r'but consolidated\.safetensors in another layout'),
]  # fmt: skip


@pytest.mark.parametrize(('files', 'words'), KINDS)
def test_an_error_names_the_kind_of_a_folder_that_is_not_a_model(files, words, tmp_path):
  for file, text in files.items():
    (tmp_path / file).write_text(text)
  config = REFERENCE / 'llama_tiny' / 'config.json'
  for has_config in (False, True):
    if has_config:
      (tmp_path / 'config.json').write_text(config.read_text())
    elif not files.keys() & {'adapter_config.json', 'm.Q4.gguf'}:
      continue
    with pytest.raises(fd.UserError, match=words):
      fd.load(tmp_path)
  (tmp_path / 'config.json').write_text(POINTER)
  with pytest.raises(fd.UserError, match=r'config\.json is a pointer of Git LFS'):
    fd.load(tmp_path)


LAYOUTS = [  # files of a folder without config.json, and words of the sentence
  (['params.json', 'consolidated.safetensors', 'tekken.json'],
   r"in its authors' own layout \(consolidated\.safetensors, params\.json\), which"),
  (['models--a--b/snapshots/1/config.json'], r"the cache of Hugging Face's hub, with a/b: give"),
  (['1/config.json', '2/config.json'], r'but \S*/1, \S*/2 have: give one of these folders'),
  (['model.safetensors'], r'has no config\.json for model\.safetensors: copy it there'),
  (['a.txt'], r'has no config\.json: give the workdir of a run, or a Hugging Face folder'),
]  # fmt: skip


@pytest.mark.parametrize(('files', 'words'), LAYOUTS)
def test_an_error_names_the_place_of_a_folder_without_a_model(files, words, tmp_path):
  for file in files:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text('{}')
  with pytest.raises(fd.UserError, match=words):
    fd.load(tmp_path)
  with pytest.raises(fd.UserError, match=f'{files[0]} is a file: give the folder of the model'):
    fd.load(tmp_path / files[0])


@pytest.mark.parametrize('name', ['mixtral_tiny', 'qwen3_moe_tiny'])
def test_experts_in_joined_tensors_are_those_in_their_own(name, tmp_path):
  """As transformers 5 writes them with save_original_format=False."""
  from safetensors.numpy import load_file, save_file

  files = {file.name: load_file(file) for file in (REFERENCE / name).glob('*.safetensors')}
  tensors = {key: x for file in files.values() for key, x in file.items()}
  config = json.loads((REFERENCE / name / 'config.json').read_text())
  count = config.get('num_local_experts') or config['num_experts']
  gate, up, down = ('gate_proj', 'up_proj', 'down_proj')
  if name == 'mixtral_tiny':
    gate, up, down = 'w1', 'w3', 'w2'
  for router in [key for key in tensors if key.endswith('.gate.weight')]:
    layer = router.rsplit('.', 3)[0]
    own = router.removesuffix('gate.weight') + 'experts'
    of = {part: [tensors.pop(f'{own}.{i}.{part}.weight') for i in range(count)]
          for part in (gate, up, down)}  # fmt: skip
    both = [np.concatenate(pair) for pair in zip(of[gate], of[up], strict=True)]
    tensors[f'{layer}.mlp.gate.weight'] = tensors.pop(router)
    tensors[f'{layer}.mlp.experts.gate_up_proj'] = np.stack(both)
    tensors[f'{layer}.mlp.experts.down_proj'] = np.stack(of[down])
  save_file(tensors, tmp_path / 'model.safetensors')
  (tmp_path / 'config.json').write_text(json.dumps(config))
  for dtype in ('float32', 'int8'):
    (_, expected), (_, params) = (fd.load(one, dtype) for one in (REFERENCE / name, tmp_path))
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_many_files_read_as_one(tmp_path):
  model, params = fd.load(copied('llama_tiny', tmp_path, shards=3), dtype='bfloat16')
  _, whole = fd.load(REFERENCE / 'llama_tiny')
  assert model.config.dtype == 'bfloat16'
  gate_up = params['layer_1']['gate_up']['kernel']
  assert gate_up.dtype == jnp.bfloat16
  np.testing.assert_array_equal(gate_up, whole['layer_1']['gate_up']['kernel'].astype(jnp.bfloat16))


def test_a_whole_file_goes_before_an_index_that_was_left_from_before(tmp_path):
  from safetensors.numpy import load_file, save_file

  llama = REFERENCE / 'llama_tiny'
  copied('llama_tiny', tmp_path, shards=2)
  new = {key: x + 1 for key, x in load_file(llama / 'model.safetensors').items()}
  save_file(new, tmp_path / 'model.safetensors')
  _, params = fd.load(tmp_path)
  _, old = fd.load(llama)
  np.testing.assert_array_equal(params['embedding'], old['embedding'] + 1)


@pytest.mark.parametrize(
  'outside', ['../other/model-0.safetensors', '/', 5, None, [], '', 'a\\b', 'a\0']
)
def test_an_index_names_only_files_of_its_own_folder(outside, tmp_path):
  """An absolute path and one through the parent, both to a file that is there and whole."""
  for name in ('other', 'folder'):
    (tmp_path / name).mkdir()
    copied('llama_tiny', tmp_path / name, shards=2)
  index = tmp_path / 'folder' / 'model.safetensors.index.json'
  weight_map = json.loads(index.read_text())['weight_map']
  named = f'{tmp_path}/other/model-0.safetensors' if outside == '/' else outside
  index.write_text(json.dumps({'weight_map': {**weight_map, 'model.norm.weight': named}}))
  with pytest.raises(
    fd.UserError,
    match=r'says that model\.norm\.weight is in .*: it must be the name of a file'
    r' in the same folder',
  ):
    fd.load(tmp_path / 'folder')


def test_links_to_files_elsewhere_are_followed(tmp_path):
  """Hugging Face's own cache is made of them."""
  (tmp_path / 'snapshot').mkdir()
  (tmp_path / 'blobs').mkdir()
  copied('llama_tiny', tmp_path / 'blobs', shards=2)
  for blob in (tmp_path / 'blobs').iterdir():
    (tmp_path / 'snapshot' / blob.name).symlink_to(blob)
  _, params = fd.load(tmp_path / 'snapshot')
  _, expected = fd.load(REFERENCE / 'llama_tiny')
  jax.tree.map(np.testing.assert_array_equal, params, expected)


@pytest.mark.parametrize(
  ('name', 'copies'),
  [
    ('llama_tiny', {'lm_head.weight': 'model.embed_tokens.weight'}),
    (
      't5_tiny',
      {'lm_head.weight': 'shared.weight', 'decoder.embed_tokens.weight': 'shared.weight'},
    ),
    (
      'marian_tiny',
      {
        f'model.{side}.embed_tokens.weight': 'model.shared.weight'
        for side in ('encoder', 'decoder')
      },
    ),
  ],
)
def test_a_tied_embedding_is_one_array_whatever_copies_there_are(name, copies, tmp_path):
  model, params = fd.load(copied(name, tmp_path, tie_word_embeddings=True, copies=copies))
  by_rows = [x for x in jax.tree.leaves(params) if x.ndim == 2 and len(x) == model.vocab_size]
  assert len(by_rows) == 1 and params['embedding'] is by_rows[0]


def test_an_output_matrix_that_differs_is_used_whatever_the_config_says(tmp_path):
  model, params = fd.load(copied('llama_tiny', tmp_path, tie_word_embeddings=True))
  untied, expected = fd.load(REFERENCE / 'llama_tiny')
  hidden = jnp.ones((1, model.config.d_model))
  np.testing.assert_array_equal(model.unembed(params, hidden), untied.unembed(expected, hidden))


def test_bfloat16_files_are_read(tmp_path):
  from safetensors.flax import load_file, save_file

  tensors = load_file(REFERENCE / 'llama_tiny' / 'model.safetensors')
  copied('llama_tiny', tmp_path, dtype='bfloat16')
  save_file(
    {name: x.astype(jnp.bfloat16) for name, x in tensors.items()}, tmp_path / 'model.safetensors'
  )
  model, params = fd.load(tmp_path)
  assert model.config.dtype == 'bfloat16' and params['embedding'].dtype == jnp.bfloat16


def test_what_options_mean(tmp_path):
  scaling = {'type': 'llama3', 'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4}
  older = {'rope_parameters': None, 'rope_theta': 5e5, 'eos_token_id': [2, 5], 'head_dim': None}
  scaling['original_max_position_embeddings'] = 64
  config = fd.load(copied('llama_tiny', tmp_path, rope_scaling=scaling, **older))[0].config
  assert (config.rope, config.rope_theta, config.rope_factor, config.rope_original) == (
    'llama3',
    5e5,
    8,
    64,
  )
  assert config.eos_ids == (2, 5) and config.pad_id == 2 and config.width == 8
  assert fd.load(copied('llama_tiny', tmp_path, model_type='mistral', sliding_window=4))[
    0
  ].config.windows == (4, 4)


LAYER = 'model.layers.{}.mlp.up_proj.weight'.format
REFUSED = {
  'model_type': ({'model_type': 'gpt9'}, None, 'known are .*llama, m2m_100, marian, mbart'),
  'rope': ({'rope_parameters': {'rope_type': 'spiral'}}, None, "'spiral' of config.json"),
  'quantized': ({'quantization_config': {'bits': 4}}, None, 'quantized'),
  'missing': ({}, {LAYER(0): None, 'model.norm.weight': None},
    r'lacks .*norm\.weight|lacks model\.norm\.weight'),
  'extra': ({'num_hidden_layers': 1}, None,
    r'has unknown model\.layers\.1\.input_layernorm\.weight, .* and 1 more'),
  'shapes': ({'intermediate_size': 63}, None,
    r'mlp\.gate_proj\.weight is of shape \[64, 32\], .* means \[63, 32\]'),
  'a word': ({'hidden_size': 'wide'}, None,
    r"config\.json: hidden_size='wide' is not possible:" r' give a whole number'),
  'layers without end': ({'num_hidden_layers': 10**9}, None, 'give a whole number from 1 to 9999'),
  'terabytes': ({'hidden_size': 2**30}, None, r'embed_tokens\.weight is of shape \[97, 32\]'),
  'no number': ({'rms_norm_eps': float('nan')}, None, 'rms_norm_eps=nan is not possible'),
  'an end beyond the words': ({'eos_token_id': [2, 97]}, None,
    'eos_token_id=97 is not among .* vocab_size=97'),
}  # fmt: skip


@pytest.mark.parametrize('case', REFUSED)
def test_what_does_not_fit_is_refused(case, tmp_path):
  changes, rename, message = REFUSED[case]
  generation = {name: value for name, value in changes.items() if name.startswith('eos')}
  folder = copied('llama_tiny', tmp_path, rename=rename, **changes)
  (folder / 'generation_config.json').write_text(json.dumps(generation))
  with pytest.raises(fd.UserError, match=message):
    fd.load(folder)


def test_pickles_are_refused_with_the_command_that_converts(tmp_path):
  copied('llama_tiny', tmp_path)
  (tmp_path / 'model.safetensors').rename(tmp_path / 'pytorch_model.bin')
  with pytest.raises(fd.UserError, match=r'pickle .*AutoModelForCausalLM\.from_pretrained'):
    fd.load(tmp_path)


def test_a_size_that_config_lacks_is_named(tmp_path):
  copied('llama_tiny', tmp_path)
  config = json.loads((tmp_path / 'config.json').read_text())
  (tmp_path / 'config.json').write_text(
    json.dumps({k: v for k, v in config.items() if k != 'hidden_size'})
  )
  with pytest.raises(fd.UserError, match="lacks the field 'hidden_size'"):
    fd.load(tmp_path)


@pytest.mark.parametrize(('name', 'changes', 'message'), [
  ('t5_tiny', {'d_kv': 7},
    r'SelfAttention\.q\.weight is of shape \[32, 32\], and config\.json means \[28, 32\]'),
  ('llama_gqa_tiny', {'num_key_value_heads': 1},
    r'k_proj\.weight is of shape \[16, 32\], .* means \[8, 32\]'),
  ('marian_tiny', {'tie_word_embeddings': False}, 'tie_word_embeddings=False'),
  ('marian_tiny', {'decoder_attention_heads': 5}, 'not divisible by heads=5'),
  ('marian_tiny', {'pad_token_id': 101}, 'pad_token_id=101 is not among the ids of vocab_size=101'),
])  # fmt: skip
def test_what_does_not_fit_is_named_in_each_family(name, changes, message, tmp_path):
  with pytest.raises(fd.UserError, match=message):
    fd.load(copied(name, tmp_path, **changes))


def test_damaged_files_are_named(tmp_path):
  copied('llama_tiny', tmp_path, shards=2)
  index, shard = tmp_path / 'model.safetensors.index.json', tmp_path / 'model-0.safetensors'
  weight_map = json.loads(index.read_text())['weight_map']
  index.write_text(
    json.dumps({'weight_map': {**weight_map, 'model.norm.weight': 'model-9.safetensors'}})
  )
  with pytest.raises(
    fd.UserError,
    match=r'lacks model-9\.safetensors, which'
    r' model\.safetensors\.index\.json names',
  ):
    fd.load(tmp_path)
  moved = {key: 'model-0.safetensors' for key in weight_map}
  index.write_text(json.dumps({'weight_map': moved}))
  with pytest.raises(
    fd.UserError, match=r'model-0\.safetensors has no .*, which .*index\.json says'
  ):
    fd.load(tmp_path)
  index.write_text(json.dumps({'weight_map': weight_map}))
  shard.write_bytes(shard.read_bytes()[:-8])
  with pytest.raises(fd.UserError, match=r'model-0\.safetensors is corrupt or cut short'):
    fd.load(tmp_path)
  index.write_text('{"weight_map": 3}')
  with pytest.raises(fd.UserError, match='has no weight_map'):
    fd.load(tmp_path)
  index.unlink()
  with pytest.raises(fd.UserError, match=r'has no model\.safetensors'):
    fd.load(tmp_path)
  (tmp_path / 'config.json').unlink()
  with pytest.raises(fd.UserError, match=r'has no config\.json'):
    fd.load(tmp_path)

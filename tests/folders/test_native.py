"""Model folders are read back as they were written. Incomplete folders, and parts that do not fit
together, are refused."""

import dataclasses
import json
import re

import huggingface_hub
import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

import fastdec as fd
from fastdec import folders
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.run import Coming, Limits, make_calls
from fastdec.folders import stored
from fastdec.folders.stored import Stored
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.transformed import Transformed
from fastdec.hub.tokenizers.dictionary import Dictionary, DictionaryPair
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound

CONFIG = TransformerConfig(
  vocab_size=30, d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=1
)
HEADS = BlockwiseHeads(k=3, d_model=8, d_ff=6)


@pytest.fixture(scope='module')
def parts(tmp_path_factory):
  """(model, params, head params, tokenizer file)."""
  model, key = Transformer(CONFIG), jax.random.key(0)
  path = tmp_path_factory.mktemp('tokenizer') / 'pieces.model'
  Tokenizer.train(
    ['a dog runs', 'ein Hund rennt', 'the cat sits', 'die Katze sitzt'], path, vocab_size=30
  )
  return model, jax.jit(model.init)(key), jax.jit(HEADS.init)(key), path


@pytest.fixture
def folder(parts, tmp_path):
  model, params, head_params, tokenizer = parts
  folders.save(model, params, tmp_path / 'run' / 'model', (HEADS, head_params), tokenizer=tokenizer)
  return tmp_path / 'run' / 'model'


def test_round_trip_by_folder_and_by_workdir(parts, folder):
  model, params, head_params, _ = parts
  for path in (folder, folder.parent):
    loaded, loaded_params = fd.load(path)
    heads, loaded_heads = fd.load_heads(path)
    assert loaded == model and heads == HEADS
    jax.tree.map(np.testing.assert_array_equal, loaded_params, params)
    jax.tree.map(np.testing.assert_array_equal, loaded_heads, head_params)
    assert (
      fd.load_tokenizer(path).decode(fd.load_tokenizer(path).encode('a dog sits')) == 'a dog sits'
    )


def test_settings_of_generate_are_saved_with_the_model(parts, tmp_path):
  """The settings of the original folder are in the copy, so that the copy writes the same text."""
  _, params, _, _ = parts
  settings = {'forced_bos_token_id': 7, 'bad_words_ids': [[3, 4]], 'sequence_bias': [[[5], 2.0]]}
  fd.save(Transformer(CONFIG, generation=settings), params, tmp_path / 'own')
  with pytest.warns(fd.UserNote, match='has processors of `generate`: forced_bos_token_id=7, '):
    model, params = fd.load(tmp_path / 'own', dtype='bfloat16')
  assert model.generation == settings
  fd.save(model, params, tmp_path / 'own')
  processors = fd.Processors.of(tmp_path / 'own')
  assert processors.forced_begin == 7
  assert processors.bad_words == ((3, 4),) and processors.bias == {(5,): 2.0}
  fd.save(Transformer(CONFIG), params, tmp_path / 'own')
  assert not fd.load(tmp_path / 'own')[0].generation


def test_no_program_casts_the_weights_of_a_model_in_half_precision(parts, tmp_path):
  """Trained weights are stored in float32; a copy of them in bfloat16 would be made, whole, by
  every decode."""
  _, params, head_params, tokenizer = parts
  model = Transformer(dataclasses.replace(CONFIG, dtype='bfloat16'))
  folders.save(model, params, tmp_path / 'model', (HEADS, head_params), tokenizer=tokenizer)

  def casts(as_stored):
    there = folders.open(tmp_path / 'model')
    strategy = fd.Blockwise((there.heads, there.head_params(as_stored=as_stored)))
    loaded = there.params(as_stored=as_stored)
    max_len, prompt, _ = check_inputs(there.model, [[3, 4, 1]], None, None, 4, None)
    coming = Coming(prompt, None)
    target = Bound(there.model, loaded)
    text = make_calls.lower(target, strategy, None, coming, Limits(), max_len).as_text()
    sizes = {
      'x'.join(map(str, leaf.shape))
      for leaf in jax.tree.leaves((params, head_params))
      if leaf.ndim > 1
    }
    return [
      size
      for size in re.findall(r'convert .*tensor<([\dx]+)xf32>\) -> tensor<.*bf16>', text)
      if size in sizes
    ]

  assert not casts(as_stored=False) and len(casts(as_stored=True)) > 10


@pytest.mark.parametrize('layout', ['separate', 'paper'])
def test_round_trip_of_many_heads_in_few_tensors(parts, tmp_path, layout):
  model, params, _, tokenizer = parts
  heads = BlockwiseHeads(k=10, d_model=8, d_ff=6, layout=layout)
  head_params = jax.jit(heads.init)(jax.random.key(0))
  folders.save(model, params, tmp_path / 'model', (heads, head_params), tokenizer=tokenizer)
  loaded, loaded_params = fd.load_heads(tmp_path)
  assert loaded == heads
  jax.tree.map(np.testing.assert_array_equal, loaded_params, head_params)


def test_round_trip_of_convolutions(tmp_path):
  layers = {'encoder_layers': ((4, 3),), 'decoder_layers': ((4, 3), (8, 2))}
  model = FConv(FConvConfig(vocab_size=9, d_embed=4, d_out=6, **layers))
  params = jax.jit(model.init)(jax.random.key(0))
  folders.save(model, params, tmp_path / 'model')
  loaded, loaded_params = fd.load(tmp_path)
  assert loaded == model and hash(loaded) == hash(model)
  jax.tree.map(np.testing.assert_array_equal, loaded_params, params)


@pytest.mark.parametrize(('name', 'value', 'message'), [
  ('start_id', 2**62, 'give a whole number below 2.31'),
  ('start_id', 10**9, 'give ids from 0 to 8'), ('start_id', -1, 'give ids from 0 to 8'),
  ('source_vocab_size', 0, 'give 1 or more'), ('max_positions', 2**40, 'below 2.31'),
])  # fmt: skip
def test_numbers_of_a_config_are_bounded(tmp_path, name, value, message):
  layers = {'encoder_layers': ((4, 3),), 'decoder_layers': ((4, 3),)}
  model = FConv(FConvConfig(vocab_size=9, d_embed=4, d_out=6, **layers))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  folders.save(model, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes), tmp_path)
  config = json.loads((tmp_path / 'config.json').read_text())
  config['model'][name] = value
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(fd.UserError, match=f'{name}={value} is not possible: .*{message}'):
    fd.load(tmp_path)


def test_a_dtype_is_that_of_parameters_and_computation(folder):
  model, params = fd.load(folder, dtype='bfloat16')
  assert model.config.dtype == 'bfloat16'
  assert {x.dtype.name for x in jax.tree.leaves(params)} == {'bfloat16'}


@pytest.mark.parametrize('load', [fd.load, fd.load_heads])
@pytest.mark.parametrize('dtype', ['bf16', 'int32', int, 'f4,f4'])
def test_a_type_that_no_model_computes_in_is_refused(load, dtype, folder):
  with pytest.raises(
    fd.UserError, match='is not possible: give one of float32, bfloat16, float16, float64'
  ):
    load(folder, dtype=dtype)


def test_int8_is_what_quantizing_makes_of_it(folder):
  """The model computes in its own type, and the heads are in int8 too."""
  (model, params), (heads, head_params) = fd.load(folder), fd.load_heads(folder)
  for name, kind in (('int8', 'int8'), (np.int8, 'int8'), ('int8w', 'int8w')):
    loaded, loaded_params = fd.load(folder, name)
    assert loaded == model
    jax.tree.map(np.testing.assert_array_equal, loaded_params, fd.quantize(model, params, kind))
    loaded_heads = fd.load_heads(folder, name)[1]
    jax.tree.map(np.testing.assert_array_equal, loaded_heads, fd.quantize(heads, head_params, kind))


def test_int8_of_a_learned_p1(parts, tmp_path):
  model, params, _, tokenizer = parts
  heads = BlockwiseHeads(k=3, d_model=8, d_ff=6, first='transformed')
  folders.save(
    model, params, tmp_path, (heads, jax.jit(heads.init)(jax.random.key(2))), tokenizer=tokenizer
  )
  loaded, whole = fd.load(tmp_path)
  made = fd.load(tmp_path, 'int8')[1]
  jax.tree.map(np.testing.assert_array_equal, made, fd.quantize(loaded, whole))
  assert fd.decode(
    loaded, made, np.array([[5, 6, 1]], np.int32), fd.Greedy(), max_len=3
  ).tokens.shape == (1, 3)


def test_no_more_than_one_tensor_is_there_in_float32(folder, monkeypatch):
  most, read = [], Stored.__getitem__

  def watched(stored, index):
    there = [
      x for x in jax.live_arrays() if id(x) not in before and x.dtype == np.float32 and x.ndim > 1
    ]
    most.append(sum(x.nbytes for x in there))
    return read(stored, index)

  before = [id(x) for x in jax.live_arrays()]
  monkeypatch.setattr(Stored, '__getitem__', watched)
  params = fd.load(folder, 'int8')[1]
  scales = sum(x.nbytes for x in jax.tree.leaves(params) if x.dtype == np.float32 and x.ndim > 1)
  assert max(most) <= scales


def test_what_is_in_int8_is_not_saved(parts, tmp_path):
  model, params, _, tokenizer = parts
  with pytest.raises(
    fd.UserError,
    match=r'parameters in int8 are not written .* save the ones that'
    r' they were made from',
  ):
    folders.save(model, fd.quantize(model, params), tmp_path / 'model', tokenizer=tokenizer)
  assert not (tmp_path / 'model').exists()


def test_saving_again_replaces_the_folder_whole(parts, folder):
  model, params, _, tokenizer = parts
  folders.save(model, params, folder, tokenizer=tokenizer)
  with pytest.raises(fd.UserError, match='without heads: give the workdir of a run with k >= 2'):
    fd.load_heads(folder)
  assert sorted(x.name for x in folder.parent.iterdir()) == ['model']


def test_a_folder_that_was_being_replaced_is_named(folder):
  folder.rename(f'{folder}.old')
  with pytest.raises(
    fd.UserError,
    match=r'model was being replaced .*model\.old is what was there,'
    r' rename it',
  ):
    fd.load(folder)


def test_tensors_are_written_one_by_one_as_safetensors_writes_them_all(tmp_path):
  from safetensors.numpy import save_file

  tensors = {
    'b/kernel': np.arange(6, dtype=np.float32).reshape(2, 3),
    'a': np.array(7, np.float32),
    'half': np.asarray(jax.numpy.ones(3, 'bfloat16')),
    'c': np.asfortranarray(np.arange(4, dtype=np.float64).reshape(2, 2)),
    'empty': np.zeros((0, 2), np.int8),
  }
  stored.write(tmp_path / 'ours', unflatten_dict(tensors, sep='/'))
  save_file({name: np.array(x, order='C') for name, x in tensors.items()}, tmp_path / 'theirs')
  assert (tmp_path / 'ours').read_bytes() == (tmp_path / 'theirs').read_bytes()


def damage(folder, file, change):
  path = folder / file
  path.write_bytes(change(path.read_bytes()))


def edited(**fields):
  def change(data):
    config = json.loads(data)
    config['model'].update(fields)
    return json.dumps(config).encode()

  return change


@pytest.mark.parametrize('spoil, message', [
  (lambda f: damage(f, 'model.safetensors', lambda data: data[: len(data) // 2]),
    'corrupt or cut short'),
  (lambda f: (f / 'model.safetensors').unlink(), 'is missing'),
  (lambda f: damage(f, 'config.json', lambda data: b'\xff'), 'not JSON'),
  (lambda f: damage(f, 'config.json', edited(vocab_size=31)),
    r'holds \(30, 8\) for embedding, .* means \(31, 8\)'),
  (lambda f: damage(f, 'config.json', edited(decoder_layers=2)), 'holds nothing for decoder_1/'),
  (lambda f: damage(f, 'config.json', edited(type='mamba')),
    "of type 'mamba': known are transformer"),
])  # fmt: skip
def test_a_folder_that_is_not_whole_is_refused(folder, spoil, message):
  spoil(folder)
  with pytest.raises(fd.UserError, match=message):
    fd.load(folder)


def test_no_folder_and_an_unfinished_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'out').mkdir()
  with pytest.raises(fd.UserError, match=r'is not a folder: .*finished training run$'):
    fd.load('out/nowhere')  # a mistyped workdir is not taken for a model to download
  with pytest.raises(fd.UserError, match=r'no config\.json: give the workdir'):
    fd.load(tmp_path)


def test_heads_of_a_different_size_are_refused_before_they_are_used(parts):
  model, params, _, _ = parts
  wide = BlockwiseHeads(k=3, d_model=16, d_ff=6)
  with pytest.raises(fd.UserError, match='heads are for hidden states of 16, and this model has 8'):
    fd.decode(
      model,
      params,
      np.array([[3, 1]]),
      fd.Blockwise((wide, wide.init(jax.random.key(0)))),
      max_len=4,
    )


@pytest.mark.parametrize(
  'ids, span', [([1, 30], 'ids from 1 to 30'), ([4, 4], '2 words'), ([-1, 3], 'from -1 to 3')]
)
def test_words_of_heads_that_the_model_lacks_or_that_are_named_twice_are_refused(
  parts, tmp_path, ids, span
):
  model, params, head_params, _ = parts
  heads, short = fd.shortlist((model, params), (HEADS, head_params), np.arange(30), words=2)
  folders.save(model, params, tmp_path, (heads, short | {'ids': np.array(ids, np.int32)}))
  with pytest.raises(
    fd.UserError, match=f'heads.safetensors has a list of .*{span}.*, which must be different ids'
  ):
    fd.load_heads(tmp_path)


def hugging_face(folder):
  """A Hugging Face tokenizer without a class, known by the model_type in config.json."""
  import tokenizers

  folder.mkdir()
  model = tokenizers.models.WordLevel({'<s>': 0, 'a': 1, '<unk>': 2}, unk_token='<unk>')
  tokenizers.Tokenizer(model).save(str(folder / 'tokenizer.json'))
  (folder / 'config.json').write_text('{"model_type": "llama"}')
  (folder / 'tokenizer_config.json').write_text('{"bos_token": "<s>", "chat_template": "a"}')
  return fd.load_tokenizer(folder)


@pytest.mark.parametrize('kind', ['ours', 'theirs', 'dictionaries', 'none'])
def test_what_save_writes_is_read_back(parts, tmp_path, kind):
  model, params, head_params, file = parts
  words = DictionaryPair(Dictionary(['a', 'dog']), Dictionary(['ein', 'Hund']))
  tokenizer = {'ours': Tokenizer.load(file), 'dictionaries': words, 'none': None}.get(kind)
  tokenizer = hugging_face(tmp_path / 'theirs') if kind == 'theirs' else tokenizer
  for _ in range(2):  # the second replaces the first
    fd.save(model, fd.pack(model, params), tmp_path / 'model', (HEADS, head_params), tokenizer)
  for loaded, saved in (
    (fd.load(tmp_path / 'model'), (model, params)),
    (fd.load_heads(tmp_path / 'model'), (HEADS, head_params)),
  ):
    assert loaded[0] == saved[0]
    jax.tree.map(np.testing.assert_array_equal, loaded[1], saved[1])
  if tokenizer is not None:
    assert fd.load_tokenizer(tmp_path / 'model').encode('a dog') == tokenizer.encode('a dog')
  if kind == 'theirs':
    asked = [{'role': 'user', 'content': 'a'}]
    assert fd.load_tokenizer(tmp_path / 'model').encode_chat(asked) == [1]
  assert fd.load(tmp_path / 'model', pack='auto')[0] == model


def test_a_model_with_its_first_head_is_saved_whole(parts, tmp_path):
  model, params, *_ = parts
  whole = Transformed(model, dataclasses.replace(HEADS, first='transformed'))
  both = {'model': params, 'heads': jax.jit(whole.heads.init)(jax.random.key(1))}
  fd.save(whole, both, tmp_path / 'model')
  loaded, same = fd.load(tmp_path / 'model')
  assert loaded == whole
  jax.tree.map(np.testing.assert_array_equal, same, both)


def test_a_name_of_the_hub_is_downloaded(parts, tmp_path, monkeypatch):
  model, params, head_params, file = parts
  fd.save(model, params, tmp_path / 'there', (HEADS, head_params), file)
  downloads = []

  def download(name, **_):
    downloads.append(name)
    return tmp_path / 'there'

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', download)
  monkeypatch.chdir(tmp_path)
  assert fd.load('people/model')[0] == model and fd.load_heads('people/model')[0] == HEADS
  assert downloads == ['people/model'] * 2 and fd.load('./there')[0] == model
  monkeypatch.undo()  # no network here
  with pytest.raises(fd.UserError, match='hf download people/model --local-dir=model'):
    fd.load_draft('people/model')


def test_save_replaces_nothing_but_what_it_wrote(parts, tmp_path):
  model, params, _, _ = parts
  (tmp_path / 'letter.txt').write_text('dear')
  with pytest.raises(fd.UserError, match='exists and holds more than a fastdec model: give a new'):
    fd.save(model, params, tmp_path)
  with pytest.raises(fd.UserError, match='Ensemble cannot be stored'):
    fd.save(fd.Ensemble((model, model)), (params, params), tmp_path / 'both')
  assert [file.name for file in tmp_path.iterdir()] == ['letter.txt']

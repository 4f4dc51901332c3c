"""Damaged and hostile GGUF files: a sentence, before anything large is made."""

import dataclasses
import struct
import tracemalloc

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

import fastdec as fd
from fastdec.hub.gguf.config import make_config
from fastdec.hub.gguf.folder import GgufFile
from fastdec.hub.gguf.header import LONGEST, read_header
from fastdec.text.load import load_tokenizer, open_folder
from tests.hub.gguf_writing import write_model

CONFIG = {
  'model_type': 'llama', 'vocab_size': 6, 'hidden_size': 8, 'intermediate_size': 12,
  'num_hidden_layers': 1, 'num_attention_heads': 2, 'num_key_value_heads': 1, 'rms_norm_eps': 1e-5,
  'max_position_embeddings': 16, 'rope_parameters': {'rope_theta': 1e4},
}  # fmt: skip
SHAPES = {
  'self_attn.q_proj': (8, 8), 'self_attn.k_proj': (4, 8), 'self_attn.v_proj': (4, 8),
  'self_attn.o_proj': (8, 8), 'mlp.gate_proj': (12, 8), 'mlp.up_proj': (12, 8),
  'mlp.down_proj': (8, 12), 'input_layernorm': (8,), 'post_attention_layernorm': (8,),
}  # fmt: skip
TOKENS = ['<s>', '</s>', 'a', 'b', 'ab', '<unk>']


def vocabulary(writer):
  writer.add_tokenizer_model('llama')
  writer.add_token_list(TOKENS)
  writer.add_token_scores([0.0, 0.0, -1.0, -2.0, -0.5, 0.0])
  writer.add_token_types([3, 3, 1, 1, 1, 2])
  writer.add_bos_token_id(0)
  writer.add_eos_token_id(1)
  writer.add_unk_token_id(5)


def tensors():
  all_shapes = {f'model.layers.0.{name}.weight': shape for name, shape in SHAPES.items()}
  all_shapes |= {'model.embed_tokens.weight': (6, 8), 'model.norm.weight': (8,)}
  return {name: np.ones(shape, np.float32) for name, shape in all_shapes.items()}


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  file = tmp_path_factory.mktemp('whole') / 'model.gguf'
  return write_model(file, CONFIG, tensors(), vocabulary=vocabulary).read_bytes()


def opened(file):
  """Opens all that a file holds but for its floats."""
  folder = open_folder(file)
  tokenizer = load_tokenizer(folder)
  tokenizer.encode('ab')
  assert folder.model.config.vocab_size
  for name in (found := folder.tensors()):
    assert found[name].shape
  return folder


def test_the_whole_file_is_read(whole, tmp_path):
  (tmp_path / 'model.gguf').write_bytes(whole)
  assert opened(tmp_path / 'model.gguf').config['eos_token_id'] == [1]


def test_a_file_cut_anywhere_is_refused(whole, tmp_path):
  file = tmp_path / 'model.gguf'
  for length in [*range(0, 100, 7), *range(100, len(whole), 61), len(whole) - 1]:
    file.write_bytes(whole[:length])
    with pytest.raises(fd.UserError, match=r'model\.gguf'):
      opened(file)


def test_changed_bytes_raise_nothing_but_a_sentence(whole, tmp_path):
  random, file, refused = np.random.default_rng(0), tmp_path / 'model.gguf', 0
  for _ in range(60):
    changed = bytearray(whole)
    for place in random.integers(0, len(whole) - 1200, random.integers(1, 4)):
      changed[place] = random.choice([0, 1, 127, 255, random.integers(256)])
    file.write_bytes(changed)
    try:
      opened(file)
    except fd.UserError as error:
      refused += 1
      assert 'model.gguf' in str(error)
  assert refused > 10


def text(value):
  value = value.encode()
  return struct.pack('<Q', len(value)) + value


def file_of(values=b'', tensor_list=b'', counts=(0, 0), version=3, magic=b'GGUF', tail=b'\0' * 64):
  """A file by hand: counts of tensors and of values."""
  return magic + struct.pack('<IQQ', version, *counts) + values + tensor_list + tail


def tensor(name='x.weight', shape=(4,), kind=0, offset=0, axes=None):
  header = text(name) + struct.pack('<I', len(shape) if axes is None else axes)
  return header + struct.pack(f'<{len(shape)}QIQ', *shape, kind, offset)


ALIGNMENT = text('general.alignment') + struct.pack('<II', 4, 3)
FILES = {  # hostile files, and words of the sentence
  'nothing': (b'', 'does not begin as a GGUF file'),
  'version 1': (file_of(version=1), 'is of version 1 of GGUF: known are 2 and 3'),
  'big endian': (file_of(version=3 << 24), 'in the other order of bytes'),
  'values': (file_of(counts=(0, 2**63)), 'it would have 9,223,372,036,854,775,808 values'),
  'tensors': (file_of(counts=(2**40, 0)), 'it would have 1,099,511,627,776 tensors'),
  'key': (file_of(struct.pack('<Q', 2**62), counts=(0, 1)), 'it ends in its header'),
  'array': (
    file_of(text('k') + struct.pack('<IIQ', 9, 4, 2**61), counts=(0, 1)),
    r"2,305,843,009,213,693,952 numbers in 'k'",
  ),
  'type of a value': (
    file_of(text('k') + struct.pack('<I', 77), counts=(0, 1)), "'k' is of the unknown type 77",
  ),
  'alignment': (file_of(ALIGNMENT, counts=(0, 1)), r'general\.alignment=3 must be a power of two'),
  'axes': (file_of(b'', tensor(axes=2**31), (1, 0)), r'would have 2,147,483,648 axes'),
  'shape': (file_of(b'', tensor(shape=(2**62, 4)), (1, 0)), r'would be of shape \['),
  'huge': (
    file_of(b'', tensor(shape=(2**30, 2**30)), (1, 0)), r"ends before 'x\.weight' does",
  ),
  'offset': (file_of(b'', tensor(offset=2**63), (1, 0)), r"ends before 'x\.weight' does"),
  'type without floats': (
    file_of(b'', tensor(shape=(256,), kind=GGMLQuantizationType.Q8_K), (1, 0)),
    'is of Q8_K, which .* turn into floats',
  ),
  'blocks': (file_of(b'', tensor(shape=(33,), kind=8), (1, 0)), 'rows of 33, in blocks of 32'),
  'tensor twice': (file_of(b'', tensor() * 2, (2, 0)), r"it has 'x\.weight' twice"),
  'one place for all': (
    file_of(b'', b''.join(tensor(str(i), (16,)) for i in range(9)), (9, 0)), 'ends before',
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', FILES)
def test_hostile_headers_are_refused_without_memory(name, tmp_path):
  data, words = FILES[name]
  file = tmp_path / 'model.gguf'
  file.write_bytes(data)
  tracemalloc.start()
  with pytest.raises(fd.UserError, match=words) as raised:
    read_header(file)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert 'model.gguf' in str(raised.value)
  assert peak < 2**23


def test_a_header_is_bounded(tmp_path):
  file = tmp_path / 'model.gguf'
  values = text('k') + struct.pack('<IQ', 8, LONGEST)
  with open(file, 'wb') as opened_file:
    opened_file.write(file_of(values, counts=(0, 1)))
    opened_file.truncate(2 * LONGEST)  # a hole, which takes no room on the disk
  with pytest.raises(fd.UserError, match='its header has over 134,217,728 bytes'):
    read_header(file)


CHANGES = {  # values of metadata, and words of the sentence
  'architecture': ({'general.architecture': 'mamba'}, "of architecture 'mamba': known are llama,"),
  'layers': ({'llama.block_count': 10**6}, r'block_count=1000000 is not possible'),
  'wide': ({'llama.attention.head_count': 100}, r'attention\.head_count=100 .* does not divide'),
  'word': ({'llama.context_length': 'long'}, "context_length='long' is not possible"),
  'missing': (
    {'llama.attention.layer_norm_rms_epsilon': None},
    r"lacks the field 'attention\.layer_norm_rms_epsilon'",
  ),
  'scaling': ({'llama.rope.scaling.type': 'ntk'}, r"rope\.scaling\.type='ntk' .* known are none"),
  'unknown': ({'llama.logit_scale': 3.0}, r'llama\.logit_scale=3\.0 .* is not known'),
  'end': ({'tokenizer.ggml.eos_token_id': 77}, 'eos_token_id=77 is not among the ids'),
  'sizes': ({'llama.feed_forward_length': 16}, r'the metadata of .* means \[16, 8\]'),
}  # fmt: skip


@pytest.mark.parametrize('name', CHANGES)
def test_metadata_of_other_models_are_refused_by_their_names(name, whole, tmp_path):
  changes, words = CHANGES[name]
  file = tmp_path / 'model.gguf'
  file.write_bytes(whole)
  header = read_header(file)
  metadata = {k: v for k, v in {**header.metadata, **changes}.items() if v is not None}
  with pytest.raises(fd.UserError, match=words) as raised:
    of_header(header, metadata).params()
  assert 'model.gguf' in str(raised.value)


def of_header(header, metadata):
  header = dataclasses.replace(header, metadata=metadata)
  return GgufFile(header.path, make_config(header), header=header)


def test_tensors_of_other_models_are_refused_by_their_names(tmp_path):
  biased = tensors() | {'blk.0.attn_q.bias': np.ones(6, np.float32)}  # no whole number of heads
  file = write_model(tmp_path / 'model.gguf', CONFIG, biased, vocabulary=vocabulary)
  with pytest.raises(fd.UserError, match=r'q_proj\.bias is of shape \[6\], and the metadata of'):
    fd.load(file)
  more = tensors() | {'blk.0.attn_sub_norm.weight': np.ones(8, np.float32)}
  file = write_model(tmp_path / 'model.gguf', CONFIG, more, vocabulary=vocabulary)
  with pytest.raises(fd.UserError, match=r'has unknown blk\.0\.attn_sub_norm\.weight'):
    fd.load(file)
  fewer = tensors()
  del fewer['model.embed_tokens.weight']
  file = write_model(tmp_path / 'model.gguf', CONFIG, fewer, vocabulary=vocabulary)
  with pytest.raises(fd.UserError, match=r'has no token_embd\.weight: give a file of a whole'):
    fd.load(file)


OVERLAPS = {  # places of two tensors of 64 bytes
  'the same': (0, 0), 'half': (0, 32), 'reversed': (32, 0), 'off the alignment': (0, 72),
  'first off the alignment': (8, 96),
}  # fmt: skip


@pytest.mark.parametrize('name', OVERLAPS)
def test_tensors_at_wrong_places_are_refused(name, tmp_path):
  file, (first, second) = tmp_path / 'model.gguf', OVERLAPS[name]
  tensors = tensor('a', (16,), offset=first) + tensor('b', (16,), offset=second)
  file.write_bytes(file_of(b'', tensors, (2, 0), tail=b'\0' * 400))
  with pytest.raises(fd.UserError, match=r"'[ab]' would begin at byte .*: inside another"):
    read_header(file)


@pytest.mark.parametrize('places', [(0, 64), (64, 0), (0, 96)])
def test_tensors_in_any_order_and_with_gaps_are_read(places, tmp_path):
  file = tmp_path / 'model.gguf'
  both = b''.join(
    tensor(name, (16,), offset=place) for name, place in zip('ab', places, strict=True)
  )
  file.write_bytes(file_of(b'', both, (2, 0), tail=b'\0' * 400))
  assert set(read_header(file).tensors) == {'a', 'b'}


@pytest.mark.parametrize('shape', [(1, 1, 10**5), (8, 12, 3)])
def test_experts_that_the_metadata_lack_stay_one_tensor(shape, tmp_path):
  extra = tensors() | {'blk.0.ffn_gate_exps.weight': np.zeros(shape[::-1], np.float32)}
  file = write_model(tmp_path / 'model.gguf', CONFIG, extra, vocabulary=vocabulary)
  assert len(open_folder(file).tensors()) == len(extra)
  with pytest.raises(fd.UserError, match=r'has unknown blk\.0\.ffn_gate_exps\.weight'):
    fd.load(file)

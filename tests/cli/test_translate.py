"""Translations of arguments, files and standard input, a line for each sentence; searches; and
mistakes."""

import gzip
import io
import json
import shutil
import sys

import pytest
import sentencepiece

import fastdec as fd
from fastdec.cli import translate
from tests.cli.conftest import PROMPTS

SENTENCES = ['a dog runs', '', 'the cat sits']


def test_a_line_for_each_sentence_with_its_blocks(translator, fastdec):
  words = ('translate', '--model', translator, '--max-len=12', *SENTENCES)
  ended, plain = fastdec(*words), fastdec(*words, '--plain')
  assert ended.code == 0 and '2 of 3 translations were cut at --max-len=12' in ended.err
  assert ended.out.count('\n') == 3 and ended.out.replace('|', '') == plain.out
  g = fd.Generator.load(translator, heads=translator)  # they draft by default
  texts = g(SENTENCES, 12)
  assert plain.out.split('\n')[:-1] == [one.text for one in texts]
  assert ended.out.split('\n')[2] == '|'.join(filter(None, texts[2].pieces))


def test_hypotheses_follow_their_scores(translator, fastdec):
  words = ('translate', '--model', translator, '--max-len=12', '--beam=3', '--nbest=2', 'a', 'dog')
  lines = fastdec(*words).out.splitlines()
  scores = [float(line.split()[0]) for line in lines]
  assert len(lines) == 4 and scores[0] >= scores[1] and scores[2] >= scores[3]
  assert fastdec(*words, '--plain').out.splitlines() == [line[10:] for line in lines]


def test_arguments_a_file_and_a_pipe_are_alike(translator, fastdec, tmp_path):
  command = ('translate', '--model', translator, '--max-len=12')
  lines = 'The first.\x0c Still the first.\n\nThe third.\r\n'
  (tmp_path / 'lines.txt').write_bytes(lines.encode())
  words = fastdec(*command, '--', *lines.split('\n')[:3])
  file = fastdec(*command, f'--input={tmp_path}/lines.txt')
  pipe = fastdec(*command, stdin=lines.encode())
  assert words.code == 0 and words.out.count('\n') == 3
  assert words == file == pipe


def test_carriage_returns_end_lines_and_packed_files_are_unpacked(tmp_path, monkeypatch):
  data = b'\xef\xbb\xbftwo dogs\r\n\r\na\rcat\r\n'
  monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(data)))
  (tmp_path / 'lines').write_bytes(gzip.compress(data))
  wanted = ['two dogs', '', 'a\rcat']
  assert translate._read_lines(None, []) == translate._read_lines(f'{tmp_path}/lines', []) == wanted
  assert translate._read_lines(None, ['two dogs\r', '', 'a\rcat']) == wanted


@pytest.mark.parametrize('words, message', [
  (['--strategy=best', 'a'], "'best' is not a strategy"),
  (['--max-len=33', 'a'], "exceeds the model's 32 positions"),
  (['--target=de', 'a'], "no tokens of languages, such as 'de': leave out source and target"),
  (['--nbest=3', 'a'], '--nbest=3 needs a search: give --beam=3'),
  (['--beam=2', '--strategy=tuned', 'a'], '--strategy=tuned cannot be used with --beam=2'),
  (['--input=nowhere.txt'], 'cannot read nowhere.txt (No such file'),
  (['--input=x', 'a'], 'sentences on the command line and --input'),
  (['a', 'dog ' * 40], 'sentence 2 of '),
  (['--strategy=tuned', 'a'], 'tuned.json does not exist: make it by fastdec tune'),
  ([], 'standard input is empty'),
])  # fmt: skip
def test_a_mistake_is_one_sentence(translator, fastdec, words, message):
  words = [word.format(translator) for word in words]
  assert message in fastdec('translate', '--model', translator, '--max-len=12', *words).mistake


def test_lines_that_are_not_text(translator, fastdec):
  ended = fastdec('translate', '--model', translator, stdin=b'a\n\xff\n')
  assert 'line 2 of standard input is not UTF-8' in ended.mistake


@pytest.mark.wide('marian')
@pytest.mark.parametrize('kind', ['marian', 't5'])
def test_a_hugging_face_folder_translates(kind, fastdec, shared, tmp_path):
  """Its tokenizer puts an end token after a source. A note says that max_len cut a translation."""
  reference = shared / 'reference' / 'hf' / f'{kind}_tiny'
  if not reference.is_dir():
    pytest.skip('no reference folders here')
  for file in ('config.json', 'generation_config.json', 'model.safetensors'):
    shutil.copy(reference / file, tmp_path)
  names = {'unk_id': 1, 'eos_id': 0, 'bos_id': -1}
  if kind == 't5':
    names = {'pad_id': 0, 'eos_id': 1, 'unk_id': 2, 'bos_id': -1}
  write_pieces(tmp_path, kind, names)
  tokenizer, (model, params) = fd.load_tokenizer(tmp_path), fd.load(tmp_path)
  sources = tokenizer.encode_lines(['a dog', 'the cat sits'])
  assert [source[-1] for source in sources] == [*model.eos_ids] * 2
  out = fd.decode(model, params, sources, fd.Greedy(), max_len=20)
  command = ('translate', '--model', tmp_path, '--max-len=20', '--plain')
  ended = fastdec(*command, 'a dog', 'the cat sits')
  assert ended.code == 0, ended.err
  assert ended.out.splitlines() == [tokenizer.decode(row) for row in out.tokens.tolist()]
  rows = zip(out.tokens.tolist(), out.lengths, strict=True)
  cut = sum(row[length - 1] not in model.eos_ids for row, length in rows)
  assert (f'{cut} of 2 translations were cut at --max-len=20' in ended.err) == bool(cut)


def write_pieces(folder, kind, names):
  """Writes the tokenizer of a Marian or T5 folder, with few pieces."""
  pieces = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(PROMPTS), model_writer=pieces, vocab_size=30, model_type='bpe',
    minloglevel=2, **names,
  )  # fmt: skip
  if kind == 't5':
    (folder / 'spiece.model').write_bytes(pieces.getvalue())
    return
  for side in ('source', 'target'):
    (folder / f'{side}.spm').write_bytes(pieces.getvalue())
  processor = sentencepiece.SentencePieceProcessor(model_proto=pieces.getvalue())
  words = {processor.id_to_piece(i): i for i in range(30)}
  (folder / 'vocab.json').write_text(json.dumps({**words, '<pad>': 100}))


def test_a_decoder_only_model_translates_nothing(translator, fastdec, shared, tmp_path):
  tiny = shared / 'reference' / 'hf' / 'llama_tiny'
  if not tiny.is_dir():
    pytest.skip('no reference folders here')
  for file in ('config.json', 'generation_config.json', 'model.safetensors'):
    shutil.copy(tiny / file, tmp_path)
  shutil.copy(translator / 'tokenizer.model', tmp_path)
  ended = fastdec('translate', '--model', tmp_path, 'a')
  assert 'is a language model, which continues a text: give it to fastdec gen' in ended.mistake

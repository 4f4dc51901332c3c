"""Text for people: what is streamed, what a file of prompts yields; nothing twice after a stop."""

import dataclasses
import io
import json
import pathlib
import shutil

import hypothesis
import numpy as np
import pytest
import rich.console
from hypothesis import strategies as st

import fastdec as fd
from experiments.tools import generation, prompt_file, self_check, streaming
from experiments.tools.accepted import accepted_shares, counted
from experiments.tools.generation_settings import Settings
from experiments.tools.strategies import strategy_of
from fastdec import folders
from fastdec.tokenizers.reader import Reader
from tests.decoding.fakes import HashLM

REFERENCE = pathlib.Path(__file__).parents[3] / 'shared' / 'reference' / 'drafts' / 'eagle3'
PROMPTS = [
  'a dog runs',
  'ein Hund rennt',
  'the cat sits',
  'die Katze sitzt',
  'a cat',
  'the dog sits',
]


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'prompts.txt'
  path.write_text('\n'.join(PROMPTS) + '\n')
  return path


def greedy_text(translator, prompt, max_len):
  model, params = fd.load(translator)
  tokenizer = fd.load_tokenizer(translator)
  out = fd.decode(model, params, [[*tokenizer.encode(prompt), 1]], fd.Greedy(), max_len=max_len)
  return tokenizer.decode(np.asarray(out.tokens[0]).tolist()), int(out.lengths[0])


TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0]]


@pytest.fixture
def tree(tmp_path):
  path = tmp_path / 'tree.json'
  path.write_text(json.dumps({'choices': TREE, 'nodes': 7}))
  return path


@pytest.mark.parametrize(
  'words',
  [
    ['--lookup'],
    ['--lookahead'],
    ['--heads={}', '--gamma=1'],
    ['--draft={}'],
    [],
    ['--medusa={}'],
    ['--medusa={}', '--choices={tree}'],
  ],
  ids=lambda words: ' '.join(word.split('=')[0] for word in words) or 'greedy',
)
def test_one_prompt_is_what_greedy_writes_and_is_counted(translator, launch, words, tree):
  words = [word.format(translator, tree=tree) for word in words]
  ended = launch(
    'generate',
    f'--model={translator}',
    '--prompt=a dog sits',
    '--max_len=12',
    '--repeats=1',
    *words,
  )
  assert ended.code == 0, ended.err
  text, length = greedy_text(translator, 'a dog sits', 12)
  lines = ended.out.splitlines()
  assert (
    lines[0] == text and lines[1].startswith(f'{length} tokens, ') and 'tokens per call' in lines[1]
  )
  assert 'tokens per second' in lines[-1]
  assert ('times greedy decoding' in lines[-1]) == ('accepted at 1: ' in ended.out) == bool(words)
  if f'--medusa={translator}' in words:  # places are depths: of two heads, whatever the tree
    assert ', 2: ' in lines[2] and ', 3: ' not in lines[2]
  if words == [f'--draft={translator}']:  # a model that drafts for itself is always right
    assert lines[1].startswith(f'{length} tokens, {-(-(length - 1) // 5)} calls: ')


@pytest.mark.parametrize(
  'kind, words, places', [('eagle', ['--gamma=2'], 2), ('block', ['--nodes=6'], 3)]
)
def test_a_draft_network_writes_what_greedy_does_and_is_looked_at_first(
  translator, launch, networks, kind, words, places
):
  given = (
    f'--model={translator}',
    f'--draft-head={networks[kind]}',
    '--prompt=a dog sits',
    '--max_len=12',
  )
  ended = launch('generate', *given, '--repeats=0', *words)
  assert ended.code == 0, ended.err
  text, length = greedy_text(translator, 'a dog sits', 12)
  first, *rest = ended.out.splitlines()
  assert 'this draft guesses' in ended.err and 'rope_theta' in ended.err
  assert (
    first.startswith(f'draft head {networks[kind]}: ')
    and ('of its first guesses are what the model wr') in first
  )
  assert text in rest and f', {places}: ' in rest[-1] and f', {places + 1}: ' not in rest[-1]
  assert f'{length} tokens, ' in ended.out


@pytest.mark.parametrize(
  'share, said', [(0.8, '80% of its first guesses'), (float('nan'), 'is too short to judge')]
)
def test_a_draft_is_checked_on_as_many_tokens_as_the_model_has_room_for(
  networks, monkeypatch, share, said
):
  asked = []
  monkeypatch.setattr(
    self_check, 'check_draft', lambda *given, tokens: asked.append(tokens) or share
  )
  console = rich.console.Console(file=io.StringIO(), soft_wrap=True)
  settings = Settings('model', draft_head='folder')
  strategy = strategy_of(settings, None, None, fd.load_draft(networks['eagle']))
  for positions, tokens in ((32, 32), (None, 64)):
    model = HashLM(vocab_size=30, max_positions=positions)
    self_check.say(console, Checked(strategy, settings, model), 'a dog')
    assert asked[-1] == tokens - (positions is not None)
    assert flat(console).startswith('draft head folder: ') and said in flat(console)
  greedy = Checked(fd.Greedy(), settings, HashLM(vocab_size=30))
  assert self_check.say(console, greedy, 'a dog') is None and len(asked) == 2


def flat(console):
  """What it has printed, in a line."""
  return ' '.join(console.file.getvalue().split())


@dataclasses.dataclass
class Checked:
  """What the self-check asks of a generator: two tokens of a language model's prompt."""

  strategy: object
  settings: Settings
  model: object
  params: object = None
  is_translator: bool = False

  def ids(self, prompt):
    return [3, 4]


def test_a_file_of_a_draft_network_is_refused_for_another_one(
  translator, launch, networks, prompts, tmp_path
):
  out = tmp_path / 'out.jsonl'
  words = (
    'generate',
    f'--model={translator}',
    f'--prompts={prompts}',
    f'--output={out}',
    '--max_len=9',
    '--nodes=6',
  )
  ended = launch(*words, f'--draft-head={networks["block"]}')
  assert ended.code == 0 and '6 outputs, 6 of them new' in ended.out, ended.err
  assert (lines_of(out)[1]['text'], lines_of(out)[1]['tokens']) == greedy_text(
    translator, PROMPTS[1], 9
  )
  assert launch(*words, f'--draft-head={networks["block"]}').code == 0
  ended = launch(*words, f'--draft-head={networks["eagle"]}')
  assert ended.code == 2 and 'made with other settings (draft_head)' in ended.err


def test_a_published_draft_writes_what_its_target_does():
  cases = REFERENCE / 'cases.npz'
  if not cases.exists():
    pytest.skip('no reference drafts here')
  settings = Settings('target', draft_head=str(REFERENCE / 'draft'), gamma=3, nodes=12)
  strategy = strategy_of(settings, None, None, fd.load_draft(REFERENCE / 'draft'))
  assert (strategy.depth, strategy.width, strategy.nodes) == (3, 8, 12)
  model, params = fd.load(REFERENCE / 'target')
  with np.load(cases) as known:
    out = fd.decode(
      model, params, known['p9_prompt'][None], strategy, max_len=len(known['p9_target_greedy'])
    )
    np.testing.assert_array_equal(out.tokens[0], known['p9_target_greedy'])


def test_each_config_is_read_once(translator, launch, tmp_path, monkeypatch):
  read, names = pathlib.Path.read_text, []

  def counted(path, *args, **kwargs):
    names.extend([str(path.parent)] if path.name == 'config.json' else [])
    return read(path, *args, **kwargs)

  monkeypatch.setattr(pathlib.Path, 'read_text', counted)
  lines = tmp_path / 'lines'
  lines.write_text('a dog\n')
  smaller = translator.parent / 'smaller'
  files = (f'--prompts={lines}', f'--output={tmp_path}/out.jsonl')
  for drafter, there in (
    (f'--heads={translator}', [translator]),
    (f'--draft={smaller}', [translator, smaller]),
  ):
    (tmp_path / 'out.jsonl').unlink(missing_ok=True)
    names.clear()
    assert launch('generate', f'--model={translator}', *files, '--max_len=2', drafter).code == 0
    assert names == list(map(str, there))


def test_without_choices_the_tree_is_the_published_one_as_deep_as_the_heads(translator):
  settings, heads = Settings('model', medusa='heads'), fd.load_heads(translator)
  strategy = strategy_of(settings, None, heads)
  assert (
    np.bincount(strategy.choices.depths).tolist() == [1, 10, 28] and strategy.rule == fd.Exact()
  )
  assert (settings.plain, settings.warnings) == (fd.Greedy(), [])
  warm = dataclasses.replace(settings, temperature=3.0)
  rule = strategy_of(warm, None, heads).rule
  assert isinstance(rule, fd.Typical) and rule.temperature == 3 and warm.plain == fd.Greedy()


def test_a_file_of_prompts_is_what_medusa_writes_in_batches(
  translator, launch, prompts, tree, tmp_path
):
  out, moved, other = tmp_path / 'out.jsonl', tmp_path / 'moved.json', tmp_path / 'other.json'
  moved.write_text(json.dumps(TREE[::-1]))
  other.write_text('[[0]]')
  words = (
    'generate',
    f'--model={translator}',
    f'--medusa={translator}',
    f'--prompts={prompts}',
    f'--output={out}',
  )
  words = (*words, '--max_len=9', '--rows=4')
  ended = launch(*words, f'--choices={tree}')
  assert ended.code == 0 and '6 outputs, 6 of them new' in ended.out and ', 2: ' in ended.out, (
    ended.err
  )
  line = lines_of(out)[1]
  assert (line['text'], line['tokens']) == greedy_text(translator, PROMPTS[1], 9)
  cut = [line['tokens'] == 9 for line in lines_of(out)]  # none of these ends with its ninth
  assert [line['finish_reason'] == 'length' for line in lines_of(out)] == cut and any(cut)
  assert f'{sum(cut)} of them were cut at --max_len=9: raise it' in ended.out
  assert '0 of them new' in launch(*words, f'--choices={moved}').out  # the same tree
  for changed in ([], [f'--choices={other}']):
    ended = launch(*words, *changed)
    assert ended.code == 2 and 'made with other settings (choices)' in ended.err


def test_medusa_at_a_temperature_says_that_it_is_not_lossless(
  translator, launch, prompts, tree, tmp_path
):
  words = (
    'generate',
    f'--model={translator}',
    f'--medusa={translator}',
    f'--choices={tree}',
    '--temperature=3',
  )
  for given in (
    ['--prompt=a dog', '--repeats=0'],
    [f'--prompts={prompts}', f'--output={tmp_path / "out.jsonl"}'],
  ):
    ended = launch(*words, '--max_len=9', *given)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == (
      'not lossless: drafts were accepted where typical at temperature 3 (Typical)'
    )


def test_sampling_follows_the_seed(translator, launch):
  words = (
    'generate',
    f'--model={translator}',
    '--prompt=a dog',
    '--temperature=1',
    '--repeats=0',
    '--lookup',
  )
  same, again, other = (launch(*words, f'--seed={seed}', '--max_len=20').out for seed in (0, 0, 1))
  assert same == again != other


def lines_of(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_of_prompts_yields_a_line_each_in_their_order(translator, launch, prompts, tmp_path):
  out = tmp_path / 'new' / 'out.jsonl'
  words = (
    f'--model={translator}',
    f'--prompts={prompts}',
    f'--output={out}',
    '--max_len=9',
    '--lookup',
  )
  ended = launch('generate', *words)
  assert ended.code == 0 and '6 outputs, 6 of them new' in ended.out, ended.err
  lines = lines_of(out)
  assert [line['index'] for line in lines] == list(range(6)) and [
    line['prompt'] for line in lines
  ] == PROMPTS
  assert (lines[1]['text'], lines[1]['tokens']) == greedy_text(translator, PROMPTS[1], 9)
  blocks = [
    sum(line['blocks'][size - 1] for line in lines if len(line['blocks']) >= size)
    for size in range(1, 10)
  ]
  assert sum(size * count for size, count in enumerate(blocks, start=1)) == sum(
    line['tokens'] - 1 for line in lines
  )
  assert counted(blocks, 9) in ended.out and 'accepted at 1: ' in ended.out
  again = launch('generate', *words)  # by the lines alone
  assert '0 of them new' in again.out and counted(blocks, 9) in again.out
  assert sorted(path.name for path in out.parent.iterdir()) == [
    'out.jsonl',
    'out.jsonl.settings.json',
  ]


def test_a_run_that_was_stopped_goes_on(translator, launch, prompts, tmp_path, monkeypatch):
  """Ctrl-C after two exchanges: what is done is kept; a torn line is made again, and all draw what
  they would have."""
  words = (
    'generate',
    f'--model={translator}',
    f'--prompts={prompts}',
    '--max_len=9',
    '--temperature=1',
    '--rows=4',
  )
  whole, stopped = tmp_path / 'whole.jsonl', tmp_path / 'stopped.jsonl'
  assert launch(*words, f'--output={whole}').code == 0
  with monkeypatch.context() as patch:
    append, calls = prompt_file._append, []

    def interrupted(*args):
      calls.append(args)
      if len(calls) > 2:
        raise KeyboardInterrupt
      append(*args)

    patch.setattr(prompt_file, '_append', interrupted)
    ended = launch(*words, f'--output={stopped}')
  assert ended.code == 130 and ended.err.strip() == 'Interrupted: the same command goes on'
  kept = stopped.read_bytes()
  assert kept.count(b'\n') == 2 and kept.endswith(b'\n')
  stopped.write_bytes(kept + b'{"index": 3, "prom')
  ended = launch(*words, f'--output={stopped}')
  assert ended.code == 0 and '4 of them new' in ended.out
  assert stopped.read_bytes() == whole.read_bytes()
  assert (
    '0 of them new' in launch(*words, f'--output={stopped}').out
    and stopped.read_bytes() == whole.read_bytes()
  )


def test_an_output_of_other_settings_is_refused_and_kept(translator, launch, prompts, tmp_path):
  out, words = (
    tmp_path / 'out.jsonl',
    ('generate', f'--model={translator}', f'--prompts={prompts}', '--max_len=3'),
  )
  assert launch(*words, f'--output={out}').code == 0
  before = out.read_bytes()
  for word, named in (
    ('--seed=1', 'seed'),
    ('--lookup', 'lookup'),
    (f'--model={translator}/../smaller', 'model'),
  ):
    ended = launch(*words, f'--output={out}', word)
    assert (ended.code, out.read_bytes()) == (
      2,
      before,
    ) and f'other settings ({named})' in ended.err
  prompts.write_text('a dog\n')
  assert 'other settings (prompts)' in launch(*words, f'--output={out}').err
  (tmp_path / 'out.jsonl.settings.json').unlink()
  assert (
    'without its settings' in launch(*words, f'--output={out}').err and out.read_bytes() == before
  )


def test_two_processes_do_not_write_one_file(tmp_path):
  output = prompt_file.Output(tmp_path / 'out.jsonl', {}, 1)
  with output.open(), pytest.raises(fd.UserError, match='another process'), output.open():
    pass


def test_a_damaged_line_is_named(tmp_path):
  output, first = prompt_file.Output(tmp_path / 'out.jsonl', {}, 3), b'{"index": 0, "blocks": [1]}'
  no_blocks = b'{"index": 1}', b'{"index": 1, "blocks": [""]}'
  for second in (b'nonsense', first, b'{"index": 3, "blocks": []}', *no_blocks, b'[1]'):
    output.path.write_bytes(first + b'\n' + second + b'\n')
    with pytest.raises(fd.UserError, match=r'line 2 of .* is damaged'):
      output.done()


class Bytes:
  """Ids are pieces of bytes, some of them parts of a character; a space at the very beginning is
  left out."""

  pieces = (b'', b'', b' a', b'b', b' ', 'é'.encode()[:1], 'é'.encode()[1:],
            *(bytes([x]) for x in '語'.encode()),
            b' cd', b'.', b' x', 'ß'.encode())  # fmt: skip
  vocab_size = len(pieces)

  def encode(self, text):
    return [self.pieces.index(piece.encode()) for piece in text.split('|')]

  def decode(self, ids):
    return b''.join(self.pieces[i] for i in ids).decode(errors='replace').removeprefix(' ')


@hypothesis.given(
  context=st.lists(st.sampled_from([2, 3, 10, 13]), max_size=3),
  blocks=st.lists(st.lists(st.integers(2, 13))),
)
def test_characters_that_blocks_split_come_out_whole(context, blocks):
  reader = Reader(Bytes(), context)
  said = [reader.add(block) for block in blocks]
  ids = [i for block in blocks for i in block]
  assert not said or not said[-1].endswith('\ufffd')
  assert Bytes().decode(context) + ''.join(said) + reader.finish() == Bytes().decode(context + ids)


def test_a_decoder_only_model_goes_on_from_its_prompt():
  """One prompt, streamed: the prompt, then all that follows it, spaces as they are within a
  sentence."""
  settings = Settings('model', lookup=True, max_len=20)
  strategy = strategy_of(settings, None, None)
  generator = generation.Generator(HashLM(vocab_size=14), Bytes(), settings, {}, strategy)
  file = io.StringIO()
  streaming.show(rich.console.Console(file=file, width=80), generator, ' a|b', 0)
  tokens = fd.decode(HashLM(), {}, [[2, 3]], fd.Greedy(), max_len=20).tokens[0]
  text = Bytes().decode([2, 3, *np.asarray(tokens).tolist()]).removeprefix('ab')
  assert file.getvalue().startswith(f' a|b{text}\n')
  assert 'cut at' not in file.getvalue()
  short = dataclasses.replace(generator, settings=Settings('model', lookup=True, max_len=3))
  streaming.show(rich.console.Console(file=file, width=80), short, ' a|b', 0)
  assert 'cut at --max_len=3: raise it' in file.getvalue()
  with pytest.raises(fd.UserError, match='2 tokens and --max_len=20 exceed the model'):
    generation.Language(HashLM(max_positions=20), Bytes(), settings).check([' a|b'])
  with pytest.raises(
    fd.UserError, match="the prompt's tokens have ids from 2 to 13, and the model knows 0 to 9"
  ):
    generation.Language(HashLM(vocab_size=10), Bytes(), settings).check([' a|ß'])


def test_blocks_are_coloured_in_turn():
  settings = Settings('model', lookup=True, max_len=30)
  strategy = strategy_of(settings, None, None)
  generator = generation.Generator(HashLM(vocab_size=14), Bytes(), settings, {}, strategy)
  file = io.StringIO()
  console = rich.console.Console(
    file=file, force_terminal=True, color_system='standard', _environ={}
  )
  _, sizes = streaming.stream(
    console, generator, ' a', {'inputs': np.array([[2]], np.int32), 'max_len': 30}
  )
  assert len(sizes) > 3 and '\x1b[36m' in file.getvalue() and '\x1b[33m' in file.getvalue()


def test_shares_of_calls_that_accept_each_place():
  assert accepted_shares([2, 1, 1], 3) == [0.5, 0.25, 0.0]  # blocks of 1, 1, 2 and 3 tokens
  assert accepted_shares([], 3) == []
  assert counted([2, 1, 1], 3) == '1.75 tokens per call\naccepted at 1: 50%, 2: 25%, 3: 0%'
  assert counted([4], 0) == '1.00 tokens per call' and counted([], 3) == ''


@pytest.mark.parametrize('kind', ['marian', 't5'])
def test_a_hugging_face_folder_translates(kind, launch, tmp_path):
  """Its tokenizer puts an end behind a source; a translation that max_len cuts is told."""
  reference = REFERENCE.parents[1] / 'hf' / f'{kind}_tiny'
  if not reference.is_dir():
    pytest.skip('no reference folders here')
  for file in ('config.json', 'generation_config.json', 'model.safetensors'):
    shutil.copy(reference / file, tmp_path)
  names = (
    {'unk_id': 1, 'eos_id': 0, 'bos_id': -1}
    if kind == 'marian'
    else {'pad_id': 0, 'eos_id': 1, 'unk_id': 2, 'bos_id': -1}
  )
  write_pieces(tmp_path, kind, names)
  tokenizer, (model, params) = fd.load_tokenizer(tmp_path), fd.load(tmp_path)
  sources = tokenizer.encode_lines(['a dog', 'the cat sits'])
  assert [source[-1] for source in sources] == [*model.eos_ids] * 2
  out = fd.decode(model, params, sources, fd.Greedy(), max_len=20)
  ended = launch(
    'translate', f'--workdir={tmp_path}', '--max_len=20', '--plain', *['a dog', 'the cat sits']
  )
  assert ended.code == 0, ended.err
  assert ended.out.splitlines() == [
    tokenizer.decode(row) for row in np.asarray(out.tokens).tolist()
  ]
  cut = sum(
    row[length - 1] not in model.eos_ids
    for row, length in zip(out.tokens.tolist(), out.lengths, strict=True)
  )
  assert (f'{cut} of 2 translations were cut at --max_len=20' in ended.err) == bool(cut)


def write_pieces(folder, kind, names):
  """The tokenizer of a Marian or T5 folder, of few pieces."""
  import sentencepiece

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


def test_a_model_s_own_copy_is_a_folder_of_the_same_settings(translator, tmp_path):
  """What counts is what a folder holds, not where it lies."""
  copy = shutil.copytree(translator, tmp_path / 'copy')
  outputs = []
  for path in map(str, (translator, copy)):
    opened = {path: folders.open(path)}
    outputs.append(prompt_file.Output.of(tmp_path / 'out.jsonl', Settings(path), ['a'], opened))
  assert outputs[0].record == outputs[1].record

"""Text for people: streams, files of prompts, and runs that continue after a stop."""

import dataclasses
import io
import json
import re
import shutil
import warnings

import numpy as np
import pytest
import rich.console

import fastdec as fd
from fastdec.cli import generate, opening, prompt_file
from fastdec.cli.show import accepted_shares, columns, describe_blocks
from fastdec.files import lock
from tests.cli.conftest import PROMPTS
from tests.decoding.fakes import HashLM

TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0]]


def greedy_text(translator, prompt, max_len):
  model, params = fd.load(translator)
  tokenizer = fd.load_tokenizer(translator)
  out = fd.decode(model, params, [[*tokenizer.encode(prompt), 1]], fd.Greedy(), max_len=max_len)
  return tokenizer.decode(np.asarray(out.tokens[0]).tolist()), int(out.lengths[0])


@pytest.fixture
def tree(tmp_path):
  path = tmp_path / 'tree.json'
  path.write_text(json.dumps({'choices': TREE, 'nodes': 7}))
  return path


@pytest.mark.wide('draft')
@pytest.mark.parametrize('words, places', [
  pytest.param([], 0, id='greedy'),
  pytest.param(['--strategy=prompt_lookup(k=10)'], 9, id='lookup'),
  pytest.param(['--strategy=lookahead'], 4, id='lookahead'),
  pytest.param(['--heads={}'], 2, id='heads'),
  pytest.param(['--heads={}', '--strategy=medusa(choices={tree})'], 2, id='medusa'),
  pytest.param(['--strategy=blockwise(k=2)'], 1, id='blockwise'),
  pytest.param(['--draft={}'], 4, id='draft'),
  pytest.param(['--draft={}/../eagle', '--strategy=eagle(depth=2, width=1)'], 2, id='eagle'),
  pytest.param(
    ['--draft={}/../eagle', '--strategy=union(prompt_lookup(k=3), eagle(depth=2))'], 2, id='union'
  ),
  pytest.param(['--draft={}/../block', '--strategy=block_draft(choices=6)'], 3, id='block'),
])  # fmt: skip
def test_one_prompt_is_what_greedy_writes_and_is_counted(
  translator, networks, fastdec, words, places, tree
):
  command = 'generate', '--model', translator, '--prompt=a dog sits', '--max-len=12', '--repeats=1'
  ended = fastdec(*command, *(word.format(translator, tree=tree) for word in words))
  assert ended.code == 0, ended.err
  text, length = greedy_text(translator, 'a dog sits', 12)
  lines = ended.out.splitlines()
  assert lines[0] == text and lines[1].startswith(f'{length} tokens, ')
  assert 'tokens per call' in lines[1] and 'tokens per second' in lines[-1]
  assert ('times greedy decoding' in lines[-1]) == bool(words)
  assert (f' {places}: ' in lines[2]) == bool(words) and f' {places + 1}: ' not in lines[2]
  if words == ['--draft={}']:  # a model that drafts for itself is always right
    assert lines[1].startswith(f'{length} tokens, {-(-(length - 1) // 5)} calls: ')
  plain = fastdec(*command, '--plain')
  assert (plain.code, plain.out) == (0, f'{text}\n')


def test_a_draft_that_is_hardly_ever_right_is_warned_of(networks):
  strategy = fd.Eagle(fd.load_draft(networks['eagle']))
  with pytest.warns(fd.UserNote, match='only 20% of 10 calls .*rope_theta'):
    generate.warn_of_wrong_draft(strategy, [1] * 8 + [2] * 2)
  with warnings.catch_warnings(action='error'):
    generate.warn_of_wrong_draft(strategy, [1] * 7 + [2] * 3)
    generate.warn_of_wrong_draft(strategy, [1] * 9)
    generate.warn_of_wrong_draft(fd.PromptLookup(), [1] * 10)


class Bytes:
  """A tokenizer whose ids are pieces of bytes; some are parts of a character."""

  pieces = (b'', b'', b' a', b'b', b' ', 'é'.encode()[:1], 'é'.encode()[1:],
            *(bytes([x]) for x in '語'.encode()),
            b' cd', b'.', b' x', 'ß'.encode())  # fmt: skip
  vocab_size = len(pieces)

  def encode(self, text):
    return [self.pieces.index(piece.encode()) for piece in text.split('|')]

  def decode(self, ids):
    return b''.join(self.pieces[i] for i in ids).decode(errors='replace').removeprefix(' ')


@dataclasses.dataclass
class Args:
  prompt: str
  max_len: int
  seed: int = 0
  plain: bool = False
  repeats: int = 0
  logprobs: int = 0


def test_a_decoder_only_model_continues_its_prompt_in_two_colours():
  """The prompt is printed, then everything after it, with spaces as within a sentence."""
  generator = fd.Generator(HashLM(vocab_size=14), {}, Bytes(), fd.PromptLookup())
  tokens = fd.decode(HashLM(), {}, [[2, 3]], fd.Greedy(), max_len=20).tokens[0]
  text = Bytes().decode([2, 3, *np.asarray(tokens).tolist()]).removeprefix('ab')
  file = io.StringIO()
  generate.show(rich.console.Console(file=file, width=80), generator, Args(' a|b', 20))
  assert file.getvalue().startswith(f' a|b{text}\n') and 'cut at' not in file.getvalue()
  generate.show(rich.console.Console(file=file, width=80), generator, Args(' a|b', 3))
  assert 'cut at --max-len=3: raise it' in file.getvalue()
  colours = {'force_terminal': True, 'color_system': 'standard', '_environ': {}}
  console = rich.console.Console(file=io.StringIO(), **colours)
  _, sizes, printed = generate.show_stream(console, generator, ' a|b', Args('', 20))
  assert len(sizes) > 1 and printed == text
  assert '\x1b[36m' in console.file.getvalue() and '\x1b[33m' in console.file.getvalue()


@pytest.mark.slow
def test_sampling_follows_the_seed(translator, fastdec):
  words = ('generate', '--model', translator, '--prompt=a dog', '--repeats=0', '--max-len=20')
  words += ('--temperature=1', '--strategy=prompt_lookup')
  same, again, other = (fastdec(*words, f'--seed={seed}').out for seed in (0, 0, 1))
  assert same == again != other


def test_a_strategy_that_is_not_lossless_says_so(translator, fastdec, prompts, tmp_path):
  words = ('generate', '--model', translator, '--strategy=blockwise(rule=TopN(n=2))')
  for more in (
    ['--prompt=a dog', '--repeats=0'],
    ['--prompts', prompts, f'--output={tmp_path}/out.jsonl'],
  ):
    ended = fastdec(*words, '--max-len=9', *more)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1].startswith('not lossless: this strategy may accept')


def test_a_talk_continues_from_all_its_messages(translator, fastdec, monkeypatch):
  from fastdec.data.text.sentencepiece import Tokenizer

  talks = []

  def encode_chat(self, messages):
    talks.append([(one['role'], one['content']) for one in messages])
    return self.encode(' '.join(one['content'] for one in messages))

  monkeypatch.setattr(Tokenizer, 'encode_chat', encode_chat, raising=False)
  words = ('chat', '--model', translator, '--max-len=4', '--system=the cat', '--draft', translator)
  ended = fastdec(*words, stdin=b'a dog\nruns\n')
  assert ended.code == 0 and ended.out.count('tokens per call') == 2, ended
  answer = greedy_text(translator, 'the cat a dog', 4)[0]
  messages = [('system', 'the cat'), ('user', 'a dog'), ('assistant', answer), ('user', 'runs')]
  assert talks[-1] == messages and ended.out.splitlines()[0] == answer


def lines_of(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_of_prompts_yields_a_line_each_in_their_order(
  translator, fastdec, prompts, tmp_path
):
  out = tmp_path / 'new' / 'out.jsonl'
  words = ('generate', '--model', translator, '--prompts', prompts, '--output', out)
  words += ('--max-len=9', '--rows=4', '--strategy=prompt_lookup(k=10)')
  ended = fastdec(*words)
  assert ended.code == 0 and '6 outputs, 6 of them new' in ended.out, ended.err
  lines = lines_of(out)
  assert [line['index'] for line in lines] == list(range(6))
  assert [line['prompt'] for line in lines] == PROMPTS
  assert (lines[1]['text'], lines[1]['tokens']) == greedy_text(translator, PROMPTS[1], 9)
  blocks = np.sum([line['blocks'] + [0] * (9 - len(line['blocks'])) for line in lines], axis=0)
  assert blocks @ range(1, 10) == sum(line['tokens'] - 1 for line in lines)
  assert describe_blocks(blocks.tolist(), 9) in ended.out and 'accepted at 1: ' in ended.out
  cut = [line['tokens'] == 9 for line in lines]  # none of these ends with its ninth
  assert [line['finish_reason'] == 'length' for line in lines] == cut and any(cut)
  assert f'{sum(cut)} of them were cut at --max-len=9: raise it' in ended.out
  again = fastdec(*words)  # it only reads the lines
  assert '0 of them new' in again.out and describe_blocks(blocks.tolist(), 9) in again.out
  names = sorted(path.name for path in out.parent.iterdir())
  assert names == ['out.jsonl', 'out.jsonl.settings.json']


def test_a_run_that_was_stopped_continues(translator, fastdec, prompts, tmp_path, monkeypatch):
  """Ctrl-C comes after two exchanges. Finished lines are kept, damaged ones are made again, and all
  samples are the same as without Ctrl-C."""
  words = ('generate', '--model', translator, '--prompts', prompts, '--max-len=9', '--rows=4')
  words += ('--temperature=1',)
  whole, stopped = tmp_path / 'whole.jsonl', tmp_path / 'stopped.jsonl'
  assert fastdec(*words, f'--output={whole}').code == 0
  with monkeypatch.context() as patch:
    add, calls = prompt_file.add, []

    def interrupted(*args):
      calls.append(args)
      if len(calls) > 2:
        raise KeyboardInterrupt
      add(*args)

    patch.setattr(prompt_file, 'add', interrupted)
    ended = fastdec(*words, f'--output={stopped}')
  assert ended.code == 130 and ended.err.strip() == 'Interrupted: the same command resumes'
  kept = stopped.read_bytes()
  assert kept.count(b'\n') == 2 and kept.endswith(b'\n')
  damaged = b'{"index": 9, "blocks": []}', b'{"index": 1}', b'{"index": 1, "blocks": [""]}', b'[1]'
  stopped.write_bytes(kept + b'\n'.join(damaged) + b'\n{"index": 3, "prom')
  ended = fastdec(*words, f'--output={stopped}')
  assert ended.code == 0 and '4 of them new' in ended.out
  assert stopped.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_an_output_of_other_settings_is_refused_and_kept(
  translator, networks, fastdec, prompts, tree, tmp_path
):
  out = tmp_path / 'out.jsonl'
  words = ('generate', '--model', translator, '--prompts', prompts, '--max-len=3')
  words += ('--output', out)
  heads = ('--heads', translator, f'--strategy=medusa(choices={tree})')
  assert fastdec(*words, *heads).code == 0
  before = out.read_bytes()
  for changed, named in (
    ((*heads, '--seed=1'), 'seed'),
    ((*heads, '--dtype=int8'), 'dtype'),
    (heads[:2], 'strategy'),
    (heads[2:], 'part'),
    ((f'--draft={networks["block"]}',), 'strategy, part'),
    ((*heads, f'--model={translator}/../smaller'), 'model'),
  ):
    ended = fastdec(*words, *changed)
    assert f'other settings ({named})' in ended.mistake and out.read_bytes() == before
  tree.write_text(json.dumps(TREE[::-1]))  # the same tree
  copy = shutil.copytree(translator, tmp_path / 'copy')  # and the same model
  assert '0 of them new' in fastdec(*words, *heads, f'--model={copy}').out
  prompts.write_text('a dog\n')
  assert 'other settings (prompts)' in fastdec(*words, *heads).mistake
  (tmp_path / 'out.jsonl.settings.json').unlink()
  assert 'settings.json is missing or damaged' in fastdec(*words, *heads).mistake
  assert out.read_bytes() == before


@pytest.fixture
def questions(tmp_path):
  """Writes a file with a question, a chat and a text. Returns it, and the prompts that a model with
  a template gets."""
  records = [
    {'turns': ['Who runs?', 'Why?']},
    {'messages': [{'role': 'user', 'content': 'Who sits?'}]},
    {'prompt': 'Who sees?'},
  ]
  path = tmp_path / 'questions'
  path.write_text('\n'.join(map(json.dumps, records)))
  chats = [[{'role': 'user', 'content': f'Who {verb}?'}] for verb in ('runs', 'sits', 'sees')]
  return path, chats


def test_questions_are_put_into_the_chat_template(talker, fastdec, questions, tmp_path):
  file, chats = questions
  system = {'role': 'system', 'content': 'Short!'}
  out = tmp_path / 'out.jsonl'
  words = ('generate', '--model', talker, '--prompts', file, '--output', out, '--max-len=8')
  words += ('--system=Short!', '--template=enable_thinking=false')
  ended = fastdec(*words)
  assert ended.code == 0 and not ended.err, ended.err
  g = fd.Generator.load(talker)
  wanted = g([[system, *chat] for chat in chats], max_new_tokens=8, enable_thinking=False)
  lines = lines_of(out)
  assert [line['text'] for line in lines] == [one.text for one in wanted]
  assert [line.get('prompt') for line in lines] == ['Who runs?', None, 'Who sees?']
  assert lines[1]['messages'] == chats[1]
  assert '0 of them new' in fastdec(*words).out
  for word, name in (('--system=Long!', 'system'), ('--chat', 'chat'), ('--stop=a', 'stop')):
    assert f'was made with other settings ({name})' in fastdec(*words, word).mistake
  one = ('generate', '--model', talker, '--prompt=Who sees?', '--max-len=8', '--plain')
  shown = fastdec(*one, *words[-2:])
  assert shown.out.rstrip('\n') == wanted[2].text.rstrip('\n') and not shown.err
  bare = fastdec(*one)
  assert bare.out != shown.out
  assert bare.err.startswith(f'{talker} has a chat template') and bare.err.count('\n') == 1


def test_a_stop_string_ends_lines_and_streams(translator, fastdec, prompts, tmp_path):
  whole = greedy_text(translator, PROMPTS[1], 9)[0]
  stop = whole[len(whole) // 2 :][:2]
  out = fd.Generator.load(translator)(PROMPTS[1], max_new_tokens=9, stop=stop)
  words = ('generate', '--model', translator, '--max-len=9', f'--stop={stop}', '--repeats=0')
  shown = fastdec(*words, f'--prompt={PROMPTS[1]}').out
  assert shown.startswith(f'{out.text}\n{len(out.tokens)} tokens, ') and 'cut at' not in shown
  assert fastdec(*words, '--prompts', prompts, f'--output={tmp_path}/out').code == 0
  line = lines_of(tmp_path / 'out')[1]
  assert (line['text'], line['tokens'], line['finish_reason']) == (
    out.text,
    len(out.tokens),
    'stop',
  )
  assert sum(i * n for i, n in enumerate(line['blocks'], 1)) == len(out.tokens) - 1
  assert '--stop= is not possible: give some text' in fastdec(*words, '--stop=').mistake


@pytest.mark.parametrize('command, words', [
  ('generate', ['--output={}/out']),
  ('tune', []),
  ('calibrate', ['--output={}/tree.json']),
  ('train-draft', ['--out={}/draft']),
])  # fmt: skip
def test_every_command_uses_the_template_alike(
  talker, fastdec, questions, tmp_path, monkeypatch, command, words
):
  file, chats = questions
  system, seen = {'role': 'system', 'content': 'Short!'}, []

  def opened(model, dtype, prompts, *_, template):
    seen.append((prompts, template))
    raise fd.UserError('that is enough')

  monkeypatch.setattr(opening, 'open_without_weights', opened)
  words = ['--model', talker, '--prompts', file, *(word.format(tmp_path) for word in words)]
  asking = ['--chat', '--system=Short!', '--template=enable_thinking=false']
  assert fastdec(command, *words, *asking).mistake == 'that is enough\n'
  bare = fastdec(command, *words)
  assert bare.code == 2 and bare.err.startswith(f'{talker} has a chat template')
  assert seen == [
    ([[system, *chat] for chat in chats], {'enable_thinking': False}),
    ([*chats[:2], 'Who sees?'], {}),
  ]


def test_two_processes_do_not_write_one_file(translator, fastdec, prompts, tmp_path):
  out = tmp_path / 'out.jsonl'
  with lock(out):
    words = ('generate', '--model', translator, '--prompts', prompts, '--output', out)
    assert 'another process writes' in fastdec(*words, '--max-len=9').mistake


def test_shares_of_calls_that_accept_each_place():
  assert accepted_shares([2, 1, 1], 3) == [0.5, 0.25, 0.0]  # blocks of 1, 1, 2 and 3 tokens
  assert accepted_shares([], 3) == []
  assert describe_blocks([2, 1, 1], 3) == '1.75 tokens per call\naccepted at 1: 50%, 2: 25%, 3: 0%'
  assert describe_blocks([4], 0) == '1.00 tokens per call' and describe_blocks([], 3) == ''
  assert columns([['a', 'bcd'], ['ef', 'g']]) == ' a  bcd\nef    g'


def test_log_probabilities_are_those_of_scoring(translator, fastdec, prompts, tmp_path):
  out, model, tokenizer = tmp_path / 'out.jsonl', fd.load(translator), fd.load_tokenizer(translator)
  words = ('generate', '--model', translator, '--max-len=9', '--logprobs=2')
  assert fastdec(*words, '--prompts', prompts, '--output', out).code == 0
  line = lines_of(out)[1]
  source = [[*tokenizer.encode(line['prompt']), 1]]
  scores = fd.score(*model, source, [line['ids']], logprobs=2)
  np.testing.assert_allclose(line['logprobs'], scores.tokens[0], atol=1e-5)
  assert len(line['ids']) == line['tokens']
  for likeliest, ids in zip(line['top_logprobs'], scores.top_ids[0].tolist(), strict=True):
    assert list(map(int, likeliest)) == ids
  assert 'without --logprobs: leave out one' in fastdec(*words, '--prompt=a', '--plain').mistake


@pytest.mark.slow
def test_log_probabilities_follow_the_text(translator, fastdec):
  words = ('generate', '--model', translator, '--max-len=9', '--logprobs=2', '--repeats=0')
  text, length = greedy_text(translator, 'a dog sits', 9)
  lines = fastdec(*words, '--prompt=a dog sits').out.splitlines()
  assert lines[0] == text and lines[length + 1].startswith(f'{length} tokens')
  for row in lines[1 : length + 1]:
    own, best, other = (float(number) for number in re.findall(r"' (-\d+\.\d\d)", row))
    assert own == best >= other


def test_the_form_of_the_text(translator, fastdec, prompts, tmp_path):
  pytest.importorskip('outlines_core')
  command = ('generate', '--model', translator, '--max-len=12')
  ended = fastdec(
    *command, '--prompt=a dog sits', '--regex=(die|der) Katze', '--plain',
    '--strategy=forced(k=4)',
  )  # fmt: skip
  assert ended.code == 0 and re.fullmatch('(die|der) Katze', ended.out.strip()), ended
  (tmp_path / 'form.json').write_text('{"enum": [17]}')
  lines = ('--prompts', prompts, '--output', tmp_path / 'out.jsonl')
  for words, message in (
    (['--regex=a', '--json-schema=x'], 'give one of them'),
    (['--json-schema', tmp_path / 'none.json'], 'none.json'),
    (['--json-schema', tmp_path / 'form.json'], 'no text of this tokenizer meets'),
    (['--regex=('], 'does not compile'),
  ):
    assert message in fastdec(*command, *lines, *words).mistake
  assert fastdec(*command, *lines, '--regex=(die )?Katze').code == 0
  texts = [json.loads(line)['text'] for line in (tmp_path / 'out.jsonl').read_text().splitlines()]
  assert len(texts) == len(PROMPTS) and all(re.fullmatch('(die )?Katze', text) for text in texts)


def test_a_trace_replays_as_other_strategies_decode(translator, fastdec, prompts, tmp_path):
  words = ('generate', f'--model={translator}', '--max-len=12', f'--trace={tmp_path}/trace')
  ended = fastdec(*words, f'--prompts={prompts}', f'--output={tmp_path}/out')
  assert ended.code == 0 and 'trace has every call' in ended.out
  written = fd.Trace.load(tmp_path / 'trace')
  lines = [json.loads(line) for line in (tmp_path / 'out').read_text().splitlines()]
  assert [len(text) for text in written.texts] == [line['tokens'] for line in lines]
  strategy = fd.PromptLookup(ngram=1, k=4)
  out = fd.decode(*fd.load(translator), written.prompts, strategy, max_len=12)
  model = fd.load(translator)
  np.testing.assert_array_equal(fd.replay(tmp_path / 'trace', strategy, *model).calls, out.calls)

  # Stop strings end the texts of both.
  ended = fastdec(*words[:3], f'--trace={tmp_path}/trace', '--prompt=a dog', '--plain')
  stop = ended.out.strip()[1:3]
  words = (*words[:3], f'--prompts={prompts}', f'--output={tmp_path}/stopped', f'--stop={stop}')
  assert fastdec(*words, f'--trace={tmp_path}/trace').code == 0
  lines = [json.loads(line) for line in (tmp_path / 'stopped').read_text().splitlines()]
  assert 'stop' in [line['finish_reason'] for line in lines]
  written = fd.Trace.load(tmp_path / 'trace')
  assert [len(text) for text in written.texts] == [line['tokens'] for line in lines]
  ended = fastdec(*words[:3], f'--trace={tmp_path}', '--prompt=a dog')
  assert 'is a folder: give the name of a file' in ended.mistake

"""Constraints: the automaton against Python's `re`, schemas against texts, and every method against
plain decoding under the same constraint."""

import dataclasses
import functools
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding.request import make_laws
from fastdec.laws.automaton import END, NOWHERE, make_automaton
from fastdec.laws.json_schema import write_expression
from fastdec.laws.syntax import remove_anchors
from tests.decoding.fakes import EOS, HashLM, logits_by_hand
from tests.decoding.methods_table import METHODS, NETWORKS, TREE, VARIANTS, hash_kit
from tests.decoding.rules.test_rejection import p_value

pytest.importorskip('outlines_core')

WORDS = [b'', b'a', b'b', b'ab', b'ba', b'aab', 'é'.encode(), b'\xc3', b'\xa9', b' a', b'"']
LETTERS = [bytes([byte]) for byte in range(128)]


class Spelt:
  """A tokenizer that only knows the bytes of its tokens."""

  def __init__(self, words):
    self.words = words

  def token_bytes(self):
    return self.words

  def decode(self, ids):
    return b''.join(self.words[i] for i in ids).decode(errors='replace')


def state_of(automaton, tokens):
  """Returns the state after some tokens, and whether their text is a match."""
  state = 0
  for token in tokens:
    state = state if state == NOWHERE else automaton.after[state, automaton.kind[token]]
  return state, state != NOWHERE and automaton.after[state, END] != NOWHERE


@pytest.mark.parametrize(
  'pattern', ['a|ab', '(a|b)*?b', '[^a]*', 'é{2,3}a?', '^(ab|ba)+$', '( a)?"|']
)
def test_an_automaton_accepts_what_the_expression_matches(pattern):
  automaton = make_automaton('it', pattern, WORDS)
  for tokens in itertools.chain.from_iterable(
    itertools.product(range(len(WORDS)), repeat=n) for n in range(4)
  ):
    text = b''.join(WORDS[i] for i in tokens).decode(errors='replace')
    allowed = 0 not in tokens and re.fullmatch(pattern, text) and '\ufffd' not in text
    assert state_of(automaton, tokens)[1] == bool(allowed), text


def test_every_state_leads_to_a_match():
  automaton = make_automaton(
    'it', 'a{3}b|abbb|éb"', [b'a', b'aa', 'é"'.encode(), b'b', b'bb', b'\xc3']
  )
  leads = automaton.after[:, END] != NOWHERE
  for _ in leads:
    leads = leads | ((automaton.after != NOWHERE) & leads[automaton.after]).any(1)
  assert leads.all() and state_of(automaton, [5])[0] == NOWHERE


def test_the_longest_token_of_the_only_text_is_forced():
  words = [b'{', b'{"na', b'{"nam', b'me"', b'm', b'e', b'"', b': ', b':', b' ', b'1', b'2', b'}']
  automaton, text, state = make_automaton('it', '[{]"name": [12]}', words), [], 0
  while automaton.forced[state] != NOWHERE:
    text.append(int(automaton.forced[state]))
    state = automaton.after[state, automaton.kind[text[-1]]]
  assert [words[i] for i in text] == [b'{"nam', b'e', b'"', b': ']
  state = state_of(automaton, [*text, 10])[0]
  assert words[automaton.forced[state]] == b'}'
  assert (
    automaton.forced[state_of(automaton, [*text, 10, 12])[0]] == NOWHERE
  )  # the end, which is the model's


def among(count, made):
  """A schema of definitions, each made of references to all."""
  refs = [{'$ref': f'#/$defs/d{i}'} for i in range(count)]
  return refs[0] | {'$defs': {f'd{i}': made(refs) for i in range(count)}}


def around_itself():
  schema = {}
  schema['items'] = schema
  return schema


SCHEMAS = {
  'an object': (
    {'properties': {'a': {'type': 'integer'}, 'b': {'type': 'null'}}, 'required': ['a']},
    ['{"a": 1}', '{"a": -20, "b": null}'],
    ['{}', '{"b": null}', '{"a":1}', '{"a": 01}', '{"a": 1, "b": null, "a": 1}', '{"a": 1, }'],
  ),
  'nothing required': (
    {'properties': {'a': {'const': 1}, 'b': {'const': 2}, 'c': {'const': 3}}},
    ['{}', '{"a": 1}', '{"b": 2}', '{"a": 1, "c": 3}', '{"a": 1, "b": 2, "c": 3}'],
    ['{"b": 2, "a": 1}', '{"a": 1"b": 2}', '{, "b": 2}'],
  ),
  'required in the middle': (
    {'properties': {'a': {'const': 1}, 'b': {'const': 2}, 'c': {'const': 3}}, 'required': ['b']},
    ['{"b": 2}', '{"a": 1, "b": 2}', '{"b": 2, "c": 3}'],
    ['{"a": 1, "c": 3}', '{"a": 1}'],
  ),
  'a map': (
    {'type': 'object', 'additionalProperties': {'type': 'boolean'}, 'minProperties': 1},
    ['{"x y": true}', '{"x": true, "": false}'],
    ['{}', '{"x": 1}', '{x: true}'],
  ),
  'a list': (
    {'type': 'array', 'items': {'enum': ['x', 2, None]}, 'minItems': 1, 'maxItems': 3},
    ['["x"]', '[2, null, "x"]'],
    ['[]', '["x", "x", "x", "x"]', '["y"]', '["x",2]'],
  ),
  'a pair': (
    {'type': 'array', 'prefixItems': [{'const': 1}, {'type': 'null'}], 'items': False},
    ['[1, null]'],
    ['[1]', '[1, null, 1]', '[]'],
  ),
  'an empty list': ({'type': 'array', 'items': False}, ['[]'], ['[1]', '']),
  'texts': (
    {'type': 'string', 'minLength': 1, 'maxLength': 3},
    ['"a b"', r'"\n\""', '"~.$"'],
    ['""', '"abcd"', '"\n"', '"a"b"', 'a'],
  ),
  'a pattern': ({'type': 'string', 'pattern': '^[a-c]+[.]$'}, ['"ab."'], ['"ab"', '"."', '"d."']),
  'numbers': (
    {'type': 'number'},
    ['0', '-1.50', '2e5', '10E-3'],
    ['01', '.5', '1.', '+1', 'NaN', '- 1'],
  ),
  'types': ({'type': ['string', 'null'], 'maxLength': 1}, ['null', '"a"'], ['1', '"ab"']),
  'any': (True, ['[1, {"a": null}]', '[[true]]', '{}'], ['[', 'x', "'x'"]),
  'one of': ({'oneOf': [{'type': 'null'}, {'type': 'integer', 'maximum': 3}]}, ['3'], ['4', '-']),
  'a reference': (
    {'$ref': '#/$defs/n', '$defs': {'n': {'properties': {'of': {'$ref': '#/$defs/n'}}}}},
    ['{}', '{"of": {}}', '{"of": {"of": {}}}'],
    ['{"of": null}', '{"of": {"of": {"of": {"of": {}}}}}'],
  ),
  'pointers': (
    {
      'prefixItems': [{'$ref': '#/$defs/a%20b~1c'}, {'$ref': '#/prefixItems/0'}],
      'items': False,
      '$defs': {'a b/c': {'type': 'null'}},
    },
    ['[null, null]'],
    ['[null]'],
  ),
  'names and addresses': (
    {
      '$id': 'https://example.org/s',
      'prefixItems': [
        {'$ref': '#one'},
        {'$ref': '#two'},
        {'$ref': 'https://example.org/s#/$defs/3%25~0'},
        {'$ref': 'dir/inner'},
      ],
      'items': False,
      '$defs': {
        'x': {'$anchor': 'one', 'const': 1},
        'y': {'$id': '#two', 'const': 2},
        '3%~': {'const': 3},
        'z': {
          '$id': 'dir/inner',
          '$ref': '#/$defs/x',
          '$defs': {'x': {'$ref': '../s#/$defs/w/properties/a/anyOf/1'}},
        },
        'w': {'properties': {'a': {'anyOf': [{'const': 0}, {'const': 4}]}}},
      },
    },
    ['[1, 2, 3, 4]'],
    ['[1, 2, 3, 1]', '[1, 2, 3, 0]'],
  ),
  'definitions that choose one another': (
    {
      '$ref': '#/$defs/0',
      '$defs': {
        str(i): {'anyOf': [*({'$ref': f'#/$defs/{j}'} for j in range(6)), {'const': i}]}
        for i in range(6)
      },
    },
    ['0', '5'],
    ['6', '00'],
  ),
  'a list that ends early': (
    {'prefixItems': [{'type': 'null'}, {'$ref': '#/$defs/none'}], '$defs': {'none': False}},
    ['[null]'],
    ['[null, null]'],
  ),
  'searches': (
    {'anyOf': [{'pattern': '^a|b$'}, {'pattern': '(?i)[0-9]k'}, {'pattern': '(^yes$)|(^no$)'}]},
    ['"a"', '"axe"', r'"\\b"', '"x1Ky"', '"yes"', '"no"'],
    ['"ba"', '"xax"', '"yesno"', r'"1K\B"', '""'],
  ),
  'a long text': ({'type': 'string', 'maxLength': 200}, ['"a"'], ['"' + 'a' * 201 + '"']),
  'a day': ({'format': 'date'}, ['"2024-12-31"'], ['"2024-13-01"', '"2024-04-31"']),
  'a literal dot': ({'enum': ['a.b', 'é"\\'], 'type': 'string'}, ['"a.b"'], ['"axb"', '"a.b" ']),
}


@pytest.mark.parametrize('name', SCHEMAS)
def test_a_schema_is_met_by_texts(name):
  schema, allowed, refused = SCHEMAS[name]
  automaton = make_automaton('it', write_expression(schema), LETTERS)
  assert write_expression(json.dumps(schema)) == write_expression(schema)
  for text in allowed:
    assert state_of(automaton, text.encode())[1], text
    json.loads(text)
  for text in refused:
    assert not state_of(automaton, text.encode())[1], text


@pytest.mark.parametrize(
  ('low', 'high'),
  [
    (None, 0), (0, None), (-3, 12), (7, 7), (95, 1203), (-120, -9), (1, 10), (5, None),
    (-3.0, 12.0), (-3.5, 12.5), (-0.5, 2.0), (0.5, 1.5),
  ],
)  # fmt: skip
@pytest.mark.parametrize('names', ['minimum maximum', 'exclusiveMinimum exclusiveMaximum'])
def test_whole_numbers_between_bounds(low, high, names):
  bounds, is_open = dict(zip(names.split(), (low, high), strict=True)), 'exclusive' in names
  schema = {'type': 'integer', **{k: v for k, v in bounds.items() if v is not None}}
  if (low, high, is_open) == (7, 7, True):
    schema['exclusiveMaximum'] = high = 9
  pattern = write_expression(schema)
  for number in range(-1500, 1501):
    inside = (low is None or low <= number) and (high is None or number <= high)
    inside &= not (is_open and number in (low, high))
    assert bool(re.fullmatch(pattern, str(number))) == inside, number
  assert not re.fullmatch(pattern, '-0') or low is None


def with_floats(value):
  """The same JSON with a point in each number."""
  if isinstance(value, dict):
    return {name: with_floats(part) for name, part in value.items()}
  if isinstance(value, list):
    return list(map(with_floats, value))
  return float(value) if type(value) is int else value


@pytest.mark.parametrize('schema', [
  {'type': 'integer', 'enum': [1, 2, -3]}, {'type': 'integer', 'const': 1},
  {'type': ['integer', 'null'], 'enum': [0, None, 10**20]}, {'type': 'integer', 'minimum': 2},
  {'type': 'integer', 'maximum': -2, 'minimum': -10**17}, {'type': 'number', 'minimum': 0},
  {'type': 'integer', 'exclusiveMinimum': 2, 'exclusiveMaximum': 9},
  {'type': 'string', 'minLength': 3, 'maxLength': 5}, {'type': 'array', 'minItems': 1},
  {'type': 'array', 'maxItems': 2, 'items': {'const': 'a'}},
  {'type': 'object', 'minProperties': 1, 'maxProperties': 2},
  {'properties': {'a': {'anyOf': [{'type': 'integer', 'enum': [4]}, {'type': 'null'}]}}},
], ids=str)  # fmt: skip
def test_a_number_with_a_point_is_the_same_number(schema):
  assert write_expression(with_floats(schema)) == write_expression(schema)


@pytest.mark.parametrize('value', [1.5, True, '1', None])
def test_other_values_are_no_integers(value):
  with pytest.raises(fd.UserError, match='no value meets'):
    write_expression({'type': 'integer', 'const': value})


@pytest.mark.parametrize(('schema', 'message'), [
  (False, 'no value meets'), ({'enum': []}, 'no value meets'),
  ({'type': 'integer', 'minimum': 3, 'maximum': 2}, 'no value meets'),
  ({'required': ['a'], 'additionalProperties': False}, 'no value meets'),
  ({'not': {}}, "'not' .* is not supported"),
  ({'type': 'string', 'pattern': '.*'}, 'may write a quote'),
  ({'type': 'string', 'pattern': '('}, 'does not compile'),
  ({'type': 'string', 'maxLength': 2.5}, 'must be a whole number from 0'),
  ({'anyOf': [{'type': 'null'}], 'type': 'string'}, "'type' together with anyOf"),
  ({'required': [['a']]}, 'a list of names'),
  (among(6, lambda refs: {'anyOf': refs}), 'no value meets'),
  (among(9, lambda refs: {'items': {'anyOf': refs}, 'minItems': 1}), 'no value meets'),
  (among(9, lambda refs: {'items': {'anyOf': refs}, 'maxItems': 1}), 'too large'),
  (among(900, lambda refs: refs[-1]), 'no value meets'),
  ({'$ref': '#/$defs/900', '$defs': {'0': True} | {
    str(i): {'$ref': f'#/$defs/{i - 1}'} for i in range(1, 901)}}, 'too large'),
  (functools.reduce(lambda inner, _: {'anyOf': [inner]}, range(2000), True), 'too large'),
  (functools.reduce(lambda inner, _: {'properties': {'a': inner, 'b': inner}}, range(50), True),
    'too large'),
  (around_itself(), 'is not JSON .Circular'), ({'maxLength': 4097}, 'up to 4,096'),
  ({'enum': [float('nan')]}, 'is not JSON .* nan'), ('{"const": 1e400}', 'is not JSON .* inf'),
  ({'const': '\ud83d'}, 'half a character'), ({(1,): 2}, 'is not JSON .keys'),
  # Parts have a wrong type.
  ({'$defs': {'a': {'$anchor': 'a'}, 'b': {'$anchor': 'a'}}}, 'two parts'),
  # Keywords that are not supported, next to some that are.
  ({'type': ['integer', 'number'], 'maximum': 3}, "'maximum' .* of number is not supported"),
  ({'$dynamicRef': '#a'}, "'.dynamicRef' .* is not supported"),
  ({'type': 'null', 'id': 'a'}, "'id' .* is not supported"),
  ({'pattern': 'a^b'}, r'as in \^\(a\|b\)\$'),
  ({'properties': {f'a{i}': {'type': 'string'} for i in range(2000)}}, 'too large'),
  (functools.reduce(lambda inner, _: {'items': inner}, range(99), True), 'too large'),
  ('[' * 10**5, 'is not JSON'),
  ({'allOf': [{'type': 'null'}, {'type': 'null'}]}, 'allOf of several'),
  ({'oneOf': [{'type': 'integer'}, {'type': 'number'}]}, 'oneOf is supported only for'),
  (3, 'must be an object or true'),
])  # fmt: skip
def test_a_schema_that_cannot_be_met_or_held_is_refused(schema, message):
  with pytest.raises(fd.UserError, match=message):
    fd.Constraint.json_schema(schema, Spelt(LETTERS))


@pytest.mark.parametrize(('pattern', 'message'), [
  ('[b-a]', 'bad character range b-a at character 2'), ('a(?=b)', 'does not compile'),
  (r'\p{Foo}', 'character 1'), ('[^\\s\\S]', 'no text matches'), ('é', 'no text of this tokenizer'),
  (3, 'must be a regular expression'), ('\ud83d', 'half a character'),
  ('(a|b)*a(a|b){12}', 'an automaton of more than'),
  pytest.param('(a|b)*a(a|b){60}', 'or much time', marks=pytest.mark.slow),
])  # fmt: skip
def test_an_expression_that_cannot_be_met_or_held_is_refused(pattern, message):
  with pytest.raises(fd.UserError, match=message) as error:
    fd.Constraint.regex(pattern, Spelt(LETTERS))
  assert 'NFA' not in str(error.value) and 'Index' not in str(error.value)


@pytest.mark.parametrize(('pattern', 'whole', 'search'), [
  ('^yes$|^no$', 'yes|no', 'yes|no'), ('(?i)^yes$', '(?i)yes', '(?i)yes'),
  ('(^a$)|(^b$)', '(a)|(b)', '(a)|(b)'), ('^(a|b)$', '(a|b)', '(a|b)'), ('^a|b$', 'a|b', 'a~|~b'),
  ('((^a|b)c|d)$', '((a|b)c|d)', '((a|~b)c|~d)'), ('a', 'a', '~a~'), ('', '', '~~'), ('^$', '', ''),
  (r'\$[$^]\\$', r'\$[$^]\\', r'~\$[$^]\\'), (r'\Aa\z', 'a', 'a'),
  ('[]^)][^])]$', '[]^)][^])]', '~[]^)][^])]'),
  ('[[:alpha:]&&[^a-c]]+', '[[:alpha:]&&[^a-c]]+', '~[[:alpha:]&&[^a-c]]+~'),
])  # fmt: skip
def test_anchors_say_where_others_may_stand(pattern, whole, search):
  assert (remove_anchors('it', pattern), remove_anchors('it', pattern, '~')) == (whole, search)


@pytest.mark.parametrize(('pattern', 'message'), [
  ('(a', 'character 1, . is not closed'), ('a)|(?:b', 'character 2, . closes nothing'),
  ('a[b', 'character 2, . is not closed'), ('a|*', 'character 3, . has nothing to repeat'),
  ('a(?=b)', 'character 2, ... looks around'), (r'(a)\1', 'character 4, .. refers to a group'),
  (r'a\b', 'character 2, .. looks for the border'), ('(?x)a', 'character 1, .... sets the flag x'),
  ('(' * 300, 'character 251, more than 250'), ('a{9999}', 'character 2, .* more than 4,096 times'),
  ('a' * (2**20 + 1), 'too large'), ('a^b', 'leave them out'), ('(^a)*', 'leave them out'),
  ('x(^a|b)', 'leave them out'), ('^*a', 'leave them out'), ('a$b', 'leave them out'),
])  # fmt: skip
def test_a_mistake_in_an_expression_is_named_by_its_place(pattern, message):
  with pytest.raises(fd.UserError, match=message):
    remove_anchors('it', pattern)


# On the device -------------------------------------------------------------------------------

MODEL, MAX_LEN = HashLM(), 16
OF_MODEL = b'/ /a/b/c/ab/bc/ca/aa/cab/-/-a/x/xy'.replace(b' ', b'').split(b'/')
PATTERN = '((ab|bc|ca){1,3}-a){1,2}(xyab(c|ca))?'
PROMPTS = np.array([[3, 4, 5, 3], [6, 7, 8, 0], [2, 9, 0, 0]], np.int32)
LENGTHS = np.array([4, 3, 2], np.int32)
ALL = METHODS | VARIANTS | NETWORKS


@functools.cache
def constraint():
  return fd.Constraint.regex(PATTERN, Spelt(OF_MODEL))


def decoded(strategy, law=None, model=MODEL, processors=None):
  """Decodes the prompts under a constraint, that of PATTERN unless another is passed."""
  lengths = {'prompt_lengths': LENGTHS, 'max_len': MAX_LEN}
  laws = {'processors': processors, 'constraint': law or constraint()}
  return fd.decode(model, {}, PROMPTS, strategy, **lengths, **laws)


def texts_of(out):
  """The text of each row, and whether it has ended."""
  rows = [row[:length].tolist() for row, length in zip(out.tokens, out.lengths, strict=True)]
  return [(Spelt(OF_MODEL).decode(row), row[-1] == EOS) for row in rows]


@struct.pytree
class OfTheRoot(fd.Constraint):
  """A wrong law: all nodes have the state of the root."""

  def _at_nodes(self, state, draft):
    return jnp.broadcast_to(state[:, None], draft.tokens.shape)


def of_the_root():
  return OfTheRoot(
    **{f.name: getattr(constraint(), f.name) for f in dataclasses.fields(constraint())}
  )


@pytest.mark.parametrize('name', ALL)
@pytest.mark.wide('tree')
def test_every_method_writes_what_plain_decoding_writes(name):
  plain, out = decoded(fd.Greedy()), decoded(ALL[name](hash_kit()))
  np.testing.assert_array_equal(out.tokens, plain.tokens)
  assert any(ends for _, ends in texts_of(out)) and out.finite.all()
  for text, ends in texts_of(out):
    assert not ends or re.fullmatch(PATTERN, text), text


def test_the_state_of_the_root_is_wrong_after_it():
  out = decoded(METHODS['speculative'](hash_kit()), of_the_root())
  assert (np.asarray(out.tokens) != np.asarray(decoded(fd.Greedy()).tokens)).any()


def test_forced_tokens_are_free():
  plain, out = decoded(fd.Greedy()), decoded(fd.Forced(k=4))
  np.testing.assert_array_equal(out.tokens, plain.tokens)
  assert out.mean_block_size > 1.2
  with pytest.raises(fd.UserError, match='give constraint='):
    fd.decode(MODEL, {}, PROMPTS, fd.Forced(), max_len=4)


def test_a_constraint_for_a_different_vocabulary_is_refused():
  other = fd.Constraint.regex('a|ab', Spelt([*OF_MODEL, *[b'?'] * 51]))
  with pytest.raises(fd.UserError, match='of 65 tokens, and the model has 14'):
    decoded(fd.Greedy(), other)
  with pytest.raises(fd.UserError, match='of 14 tokens, and the model has 80'):
    decoded(fd.Greedy(), model=HashLM(80))
  with pytest.raises(fd.UserError, match='needs an end token'):
    decoded(fd.Greedy(), model=dataclasses.replace(MODEL, eos_ids=()))
  with pytest.raises(fd.UserError, match="constraint='a' must be an"):
    make_laws(MODEL, fd.Greedy(), 3, None, 'a', 0)
  with pytest.raises(fd.UserError, match='needs the bytes of all tokens'):
    fd.Constraint.regex('a', object())


def test_tokens_that_the_model_does_not_have_are_ignored():
  more = Spelt([*OF_MODEL, b'ab-a', b'z'])
  np.testing.assert_array_equal(
    decoded(fd.Greedy(), fd.Constraint.regex(PATTERN + '|z', more)).tokens,
    decoded(fd.Greedy()).tokens,
  )
  (law,) = fd.Constraint.regex('az|b', more).laws(MODEL, 1)
  kinds = np.asarray(law.kind)[[OF_MODEL.index(b'a'), OF_MODEL.index(b'b')]]
  assert (law.after[0][kinds] != NOWHERE).tolist() == [False, True]  # nothing could follow 'a'
  with pytest.raises(fd.UserError, match='no text of this tokenizer meets'):
    fd.Constraint.regex('az', more).laws(MODEL, 1)


def test_a_last_space_counts_where_it_is_shown():
  words = [b'', b'', b'a', b' ', b'a ', b'b']
  automaton = make_automaton('it', 'a ?(b ?)?', words, (False, True))
  texts = [[2], [2, 3], [4], [4, 5], [2, 3, 5], [2, 5, 3], [2, 5]]
  ends = [state_of(automaton, text)[1] for text in texts]
  assert ends == [True, False, False, True, True, False, True]
  with pytest.raises(fd.UserError, match='no text of this tokenizer meets'):
    fd.Constraint.regex('a ', Stripping(words))


class Stripping(Spelt):
  """A tokenizer that shows no spaces around a text, as Marian's."""

  def decode(self, ids):
    return super().decode(ids).strip()


@pytest.mark.parametrize(
  ('pattern', 'behind_a_start', 'behind_a_prompt'),
  [('yes|x', True, True), ('yes', True, False), (' yes', False, True), (' ?yes', True, True)],
)
def test_a_first_space_counts_where_it_is_shown(pattern, behind_a_start, behind_a_prompt):
  words = [b'', b'', b' yes', b' no', b'x']
  made = fd.Constraint.regex(pattern, Stripping(words))
  how = {'max_len': 4, 'constraint': made}
  for start, is_met in ((0, behind_a_start), (None, behind_a_prompt)):
    model = HashLM(len(words), start_id=start)
    if not is_met:
      with pytest.raises(fd.UserError, match='no text of this tokenizer meets'):
        fd.decode(model, {}, [[2, 4]], fd.Greedy(), **how)
      continue
    out = fd.decode(model, {}, [[2, 4]], fd.Greedy(), **how)
    written = b''.join(words[token] for token in out.tokens[0, : out.lengths[0]].tolist()).decode()
    assert out.finite.all()
    assert re.fullmatch(pattern, written if start is None else written.removeprefix(' '))
  with pytest.raises(fd.UserError, match='no text of this tokenizer meets'):
    fd.Constraint.regex('yes', Spelt(words))  # which shows the space


def test_a_pool_a_stream_and_processors_go_with_it():
  plain = decoded(fd.Greedy())
  inputs = [row[:length] for row, length in zip(PROMPTS, LENGTHS, strict=True)]
  pool = fd.decode_all(MODEL, {}, inputs, fd.Greedy(), MAX_LEN, rows=2, constraint=constraint())
  np.testing.assert_array_equal(pool.tokens, plain.tokens)
  how = {'max_len': MAX_LEN, 'constraint': constraint()}
  blocks = list(fd.stream(MODEL, {}, inputs, fd.Forced(k=4), **how))
  for i, row in enumerate(plain.tokens):
    joined = [token for block in blocks for token in block[i]]
    assert joined == row[: len(joined)].tolist() and len(joined) == plain.lengths[i]
  both = fd.Processors(bad_words=[OF_MODEL.index(b'xy')], repetition_penalty=1.5)
  out = decoded(fd.Greedy(), processors=both)
  assert (np.asarray(out.tokens) != np.asarray(plain.tokens)).any()
  assert not any('xy' in text and ends for text, ends in texts_of(out)) and out.finite.all()


@pytest.mark.parametrize('name', ['speculative', 'forced', 'beam'])
@pytest.mark.wide('forced')
def test_tokens_that_processors_force_do_not_belong_to_the_text(name):
  """The tokens are a language after the start, and an end where the row is full."""
  drafted = {'speculative': METHODS['speculative'](hash_kit()), 'forced': fd.Forced(k=4)}
  strategies = {'plain': fd.Greedy(), 'beam': fd.Beam(2)} | drafted
  words, language = [*OF_MODEL[:-1], b''], len(OF_MODEL) - 1
  how = {'inputs': [[2], [3, 4], [5]], 'max_len': 6}
  how['processors'] = fd.Processors(forced_begin=language, forced_end=EOS)
  how['constraint'] = fd.Constraint.regex(PATTERN, Spelt(words))
  plain, out = (fd.decode(MODEL, {}, **how, strategy=strategies[one]) for one in ('plain', name))
  assert name == 'beam' or (np.asarray(out.tokens) == np.asarray(plain.tokens)).all()
  automaton = make_automaton('it', PATTERN, words)
  for row, (tokens, length) in enumerate(zip(np.asarray(out.tokens), out.lengths, strict=True)):
    is_begun = row != 1  # whose prompt has one token
    *text, end = tokens[is_begun:length].tolist()
    assert (tokens[0] == language) == is_begun and end == EOS and out.finite[row]
    assert text and state_of(automaton, text)[0] != NOWHERE


def test_hypotheses_of_a_beam_match():
  short = fd.Constraint.regex('(ab|c){1,2}', Spelt(OF_MODEL))
  out = decoded(fd.Beam(size=3, n_best=3), short)
  for rows, scores in zip(np.asarray(out.nbest_tokens), out.nbest_scores, strict=True):
    texts = [Spelt(OF_MODEL).decode(row) for row in rows]
    assert all(re.fullmatch('(ab|c){1,2}', text) for text in texts)
    assert np.isfinite(scores).all() and len({tuple(row) for row in rows.tolist()}) == 3


# The law of samples --------------------------------------------------------------------------

LAW, TOKENS, ROWS = {'temperature': 6.0}, 4, 20_000
SAMPLED = {
  'speculative': lambda kit: fd.Speculative(kit.draft, 3, sampling=fd.Sampling(**LAW)),
  'tree': lambda kit: fd.Medusa(kit.heads('medusa'), TREE, sampling=fd.Sampling(**LAW)),
  'sampling': lambda kit: fd.Sample(**LAW),
  'block': lambda kit: fd.Speculative(
    kit.draft, 3, sampling=fd.Sampling(**LAW), rule=fd.BlockVerification()
  ),
  'lookahead': lambda kit: fd.Lookahead(window=3, ngram=3, guesses=2, sampling=fd.Sampling(**LAW)),
  'forced': lambda kit: fd.Forced(k=4, sampling=fd.Sampling(**LAW)),
}


@functools.cache
def exact_law():
  """{text: probability} of all texts of TOKENS tokens, or fewer where they end."""
  automaton = make_automaton('it', PATTERN, OF_MODEL)

  def continued(known, text, state, probability):
    if len(text) == TOKENS or (text and text[-1] == EOS):
      return {text: probability}
    kinds = [END if v == EOS else kind for v, kind in enumerate(automaton.kind)]
    is_allowed = automaton.after[state, kinds] != NOWHERE
    weights = np.exp(logits_by_hand(known, len(kinds)) / LAW['temperature']) * is_allowed
    law = {}
    for v in np.flatnonzero(weights).tolist():
      share = probability * weights[v] / weights.sum()
      law |= continued([*known, v], (*text, v), automaton.after[state, kinds[v]], share)
    return law

  return continued(PROMPTS[0].tolist(), (), 0, 1.0)


def looks_right(strategy, allowed):
  law, prompts = exact_law(), np.repeat(PROMPTS[:1], ROWS, axis=0)
  places, seen = {text: i for i, text in enumerate(law)}, np.zeros(len(law))
  key = jax.random.key(0)
  out = fd.decode(MODEL, {}, prompts, strategy, max_len=TOKENS + 1, key=key, constraint=allowed)
  texts, times = np.unique(np.asarray(out.tokens[:, :TOKENS]), axis=0, return_counts=True)
  for text, n in zip(texts.tolist(), times, strict=True):
    text = tuple(token for token in text if token)
    if text not in places:
      return False
    seen[places[text]] += n
  return p_value(seen, law) > 1e-3


@pytest.mark.parametrize('name', SAMPLED)
@pytest.mark.wide('speculative')
def test_samples_of_every_kind_have_the_law_of_the_constraint(name):
  assert looks_right(SAMPLED[name](hash_kit()), constraint())
  assert len(exact_law()) > 20


@pytest.mark.slow
def test_samples_by_the_state_of_the_root_have_a_different_law():
  assert not looks_right(SAMPLED['speculative'](hash_kit()), of_the_root())

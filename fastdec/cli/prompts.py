"""Files of prompts: lines of text, or records of JSON by the names in `FORMATS`; packed or not.

A prompt is a text or the messages of a chat, as `fd.Generator` takes them.
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.files import MOST_JSON, PACKED, explained, parse_json, read_unpacked, text_of

Messages = list[dict[str, Any]]
Prompt = str | Messages
Formats = Mapping[str, tuple[Callable[[Any], Prompt | None], str]]

JSON_LINES = '.jsonl', '.ndjson', '.json'
TABLES = '.csv', '.tsv', '.yaml', '.yml', '.xml', '.xls', '.arrow', '.feather'
ROLES = {  # of messages, by the speakers of ShareGPT's conversations
  'system': 'system', 'human': 'user', 'user': 'user', 'gpt': 'assistant', 'assistant': 'assistant',
  'chatgpt': 'assistant', 'bing': 'assistant', 'bard': 'assistant',
}  # fmt: skip

# stands in SPEED-Bench for texts of other sets, which its script prepare.py fetches
UNFETCHED = 'FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE'


class Question(str):
  """A text that is a user's message to a model with a chat template."""


def _text(value: Any) -> str | None:
  return value if isinstance(value, str) and value.strip() else None


def _question(value: Any) -> Question | None:
  return Question(value) if _text(value) else None


def _first_turn(value: Any) -> Question | None:
  return _question(value[0]) if isinstance(value, list) and value else None


def _messages(value: Any) -> Messages | None:
  return value if isinstance(value, list) and value and all(map(_is_message, value)) else None


def _is_message(value: Any) -> bool:
  if not isinstance(value, dict) or not isinstance(value.get('role'), str):
    return False
  return isinstance(value.get('content'), str | list) or bool(value.get('tool_calls'))


def _text_or_messages(value: Any) -> Prompt | None:
  return _messages(value) if isinstance(value, list) else _text(value)


def _conversation(value: Any) -> Messages | None:
  messages = []
  for turn in value if isinstance(value, list) else []:
    role = ROLES.get(str(turn.get('from'))) if isinstance(turn, dict) else None
    if role is None:
      return None
    messages.append({'role': role, 'content': turn.get('value')})
  return _messages(messages)


# What reads the value of a name in a record, and what it takes. The first name there counts.
FORMATS: Formats = {
  'messages': (_messages, 'a list of {"role": "user", "content": "..."}'),
  'prompt': (_text_or_messages, 'a text, or a list of messages'),
  'turns': (_first_turn, "a list of a user's texts, of which the first is asked"),
  'question': (_question, 'a text'),
  'conversations': (_conversation, 'a list of {"from": "human", "value": "..."}'),
}
TEXTS: Formats = {'text': (_text, 'a text'), **FORMATS}


def read_prompts(path: pathlib.Path) -> list[Prompt]:
  """Reads a file's prompts: its lines, or one of each record of JSON.

  An answer at the end of a chat is left out, since the model is to write it.

  Raises:
    UserError: the file cannot be read, is empty or not UTF-8, or has an empty line before others; a
      record has no prompt.
  """
  return [prompt for _, prompt in read_by_category(path)]


def read_questions(paths: Sequence[str], most: int) -> list[tuple[str, Prompt]]:
  """Reads questions of several files with their categories: `most` of each, evenly spaced; 0: all.

  Categories are those of `read_by_category`. Of a user's turns without answers the first is asked.

  Raises:
    UserError: as `read_prompts`; a category of fewer; questions of SPEED-Bench without their text.
  """
  found: dict[str, list[Prompt]] = {}
  for path in map(pathlib.Path, paths):
    for category, prompt in read_by_category(path):
      if not isinstance(prompt, str) and all(turn['role'] == 'user' for turn in prompt):
        prompt = _question(prompt[0].get('content')) or prompt[:1]
      if UNFETCHED in str(prompt):
        raise UserError(
          f'{path} has questions of SPEED-Bench without their texts: give the lines that its script'
          ' prepare.py writes'
        )
      found.setdefault(category, []).append(prompt)
  questions = []
  for category, prompts in found.items():
    if len(prompts) < most:
      raise UserError(
        f'{category} has {len(prompts)} questions, and {most} are wanted: give'
        f' {min(map(len, found.values()))} or less, or 0 for all of each category'
      )
    step = len(prompts) / (most or len(prompts))
    questions += [(category, prompts[int(i * step)]) for i in range(most or len(prompts))]
  return questions


def read_by_category(path: pathlib.Path) -> list[tuple[str, Prompt]]:
  """Reads prompts as `read_prompts`, each with its category: "category" of a record, or else the
  file's name without its endings."""
  prompts = []
  for name, record, prompt in _values_of(path, 'a prompt', FORMATS):
    if not isinstance(prompt, str):
      while prompt and prompt[-1]['role'] == 'assistant':
        prompt = prompt[:-1]
      if not prompt:
        raise UserError(f'{name} has an answer alone: give the messages before it')
    category = record.get('category') if isinstance(record, dict) else None
    prompts.append((str(category or path.name.partition('.')[0]), prompt))
  return prompts


def read_texts(path: pathlib.Path) -> list[Prompt]:
  """Reads a file's texts: its lines, or "text" of each record of JSON, or else as `read_prompts`.

  Chats are whole.
  """
  return [text for _, _, text in _values_of(path, 'a text', TEXTS)]


def _values_of(
  path: pathlib.Path, content: str, formats: Formats
) -> Iterator[tuple[str, Any, Prompt]]:
  """Yields of each record or line its name, 'line 3 of a.jsonl', itself, and its text or chat."""
  if _kind(path) in TABLES:
    raise UserError(
      f'{path} is a table by its name: give a .txt file with {content} on each line, or JSON lines'
    )
  with explained('read', path, f'give a text file with {content} on each line'):
    data = read_unpacked(path)
  text = text_of(data, path)
  if not text.strip():
    raise UserError(f'{path} is empty: give {content} on each line')
  records = _records_of(text, path, formats)
  if records is None:
    for number, line in enumerate(_lines_of(text, path), 1):
      yield f'line {number} of {path}', line, line
    return
  for name, record in records:
    yield name, record, _value_of(record, name, formats)


def _records_of(text: str, path: pathlib.Path, formats: Formats) -> list[tuple[str, Any]] | None:
  """Returns the records of a JSON array, or of lines of JSON, with their names; None for others.

  A text is JSON if the file's name says so, or if it begins as such.
  """
  first, is_named = text.lstrip().partition('\n')[0], _kind(path) in JSON_LINES
  if not is_named and first[:1] not in ('[', '{'):
    return None
  if first[:1] == '[' and len(text) > MOST_JSON:
    raise UserError(f'{path} is an array of more than {MOST_JSON:,} characters: give JSON lines')
  try:
    whole = parse_json(text)
  except ValueError as error:
    if ''.join(first.split()) in ('[', '{', '[{'):
      raise UserError(f'{path} begins as JSON, and is none ({error}): mend it') from None
    if not is_named and not _is_json(first):
      return None  # such as "[1] A man"
  else:
    if not isinstance(whole, list):
      return [(f'line 1 of {path}', whole)]
    if not whole:
      raise UserError(f'{path} is an empty array: give a record for each prompt')
    return [(f'record {number} of {path}', record) for number, record in enumerate(whole, 1)]
  records = []
  for number, line in enumerate(_lines_of(text, path), 1):
    name = f'line {number} of {path}'
    try:
      records.append((name, parse_json(line)))
    except ValueError as error:
      raise _without_value(name, formats, f'no JSON: {error}') from None
  return records


def _is_json(text: str) -> bool:
  try:
    parse_json(text)
  except ValueError:
    return False
  return True


def _value_of(record: Any, name: str, formats: Formats) -> Prompt:
  """Returns the text or the chat of a record, by the first name of `formats` that it has."""
  if isinstance(record, str) and record.strip():
    return record
  for key, (read, wanted) in formats.items():
    if isinstance(record, dict) and record.get(key) is not None:
      value = read(record[key])
      if value is None:
        raise _without_value(name, formats, f'"{key}" is {wanted}')
      if record.get('tools') and not isinstance(value, str):
        raise UserError(f'{name} has "tools", which are not read there: give them as --template')
      return value
  raise _without_value(name, formats)


def _without_value(name: str, formats: Formats, reason: str = '') -> UserError:
  """Returns the error of a record that `formats` does not read."""
  first, lack = 'text', 'is no output of fastdec generate'
  if formats is FORMATS:
    first, lack = 'prompt', 'has no prompt'
  others = [key for key in formats if key != first]
  return UserError(
    f'{name} {lack}{reason and f" ({reason})"}: give {{"{first}": "..."}} on each line, or in its'
    f' place {", ".join(others)}; or a .txt file'
  )


def _lines_of(text: str, path: pathlib.Path) -> list[str]:
  """Returns the lines of a text without the empty ones at its end; others may not be empty."""
  lines = text.split('\n')  # only a newline ends a line, as for `wc -l`
  while not lines[-1].strip():
    lines.pop()
  for number, line in enumerate(lines, 1):
    if not line.strip():
      raise UserError(f'line {number} of {path} is empty: take it out')
  return [line.removesuffix('\r') for line in lines]


def _kind(path: pathlib.Path) -> str:
  """Returns the ending of a file's name, without that of a packer."""
  name = path.with_suffix('') if path.suffix in PACKED else path
  return name.suffix.lower()


def hash_of(prompts: Sequence[Prompt]) -> str:
  """Returns a hash of 16 hexadecimal digits."""
  content = [[isinstance(prompt, Question), prompt] for prompt in prompts]
  return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def asked(
  prompts: Sequence[Prompt], is_chat: bool, system: str | None, has_template: bool
) -> Iterator[Prompt]:
  """Yields prompts as a model is asked them.

  Args:
    prompts: as `read_prompts` returns them.
    is_chat: texts are a user's messages too. Questions are, if the model has a template.
    system: a message before all others, of chats that have none.
    has_template: of the model.
  """
  for prompt in prompts:
    if isinstance(prompt, str):
      if not is_chat and not (has_template and isinstance(prompt, Question)):
        yield str(prompt)
        continue
      prompt = [{'role': 'user', 'content': str(prompt)}]
    if system is not None and prompt[0]['role'] not in ('system', 'developer'):
      prompt = [{'role': 'system', 'content': system}, *prompt]
    yield prompt

"""Files of prompts: lines of text, or records of JSON by the names in `FORMATS`; packed or not.

A prompt is a text or the messages of a chat, as `fd.Generator` takes them.
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

# SPEED-Bench has this instead of texts of other sets, which its script prepare.py fetches.
UNFETCHED = 'FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE'


class Question(str):
  """A text that is a user's message to a model with a chat template."""


# --- how records are read: each function returns None for a value that it cannot read


def _read_text(value: Any) -> str | None:
  return value if isinstance(value, str) and value.strip() else None


def _read_question(value: Any) -> Question | None:
  if _read_text(value) is None:
    return None
  return Question(value)


def _read_first_turn(value: Any) -> Question | None:
  if not isinstance(value, list) or not value:
    return None
  return _read_question(value[0])


def _read_messages(value: Any) -> Messages | None:
  if not isinstance(value, list) or not value:
    return None
  for message in value:
    if not isinstance(message, dict) or not isinstance(message.get('role'), str):
      return None
    if not isinstance(message.get('content'), str | list) and not message.get('tool_calls'):
      return None
  return value


def _read_text_or_messages(value: Any) -> Prompt | None:
  if isinstance(value, list):
    return _read_messages(value)
  return _read_text(value)


def _read_conversation(value: Any) -> Messages | None:
  if not isinstance(value, list):
    return None
  messages = []
  for turn in value:
    if not isinstance(turn, dict) or str(turn.get('from')) not in ROLES:
      return None
    messages.append({'role': ROLES[str(turn['from'])], 'content': turn.get('value')})
  return _read_messages(messages)


# By the names in a record: what reads the value, and what it must be. The first name there counts.
FORMATS: Formats = {
  'messages': (_read_messages, 'a list of {"role": "user", "content": "..."}'),
  'prompt': (_read_text_or_messages, 'a text, or a list of messages'),
  'turns': (_read_first_turn, "a list of a user's texts, of which the model gets the first"),
  'question': (_read_question, 'a text'),
  'conversations': (_read_conversation, 'a list of {"from": "human", "value": "..."}'),
}
TEXTS: Formats = {'text': (_read_text, 'a text'), **FORMATS}


# --- files


def read_prompts(path: pathlib.Path) -> list[Prompt]:
  """Reads a file's prompts: its lines, or one of each record of JSON.

  An answer at the end of a chat is left out, since the model will write it.

  Raises:
    UserError: the file cannot be read, is empty or not UTF-8, or has an empty line before others; a
      record has no prompt.
  """
  return [prompt for _, prompt in read_by_category(path)]


def read_by_category(path: pathlib.Path) -> list[tuple[str, Prompt]]:
  """Reads prompts as `read_prompts`, each with its category: "category" of a record, or else the
  file's name without its endings."""
  prompts, file_name = [], path.name.partition('.')[0]
  for name, record, prompt in _read_records(path, 'a prompt', FORMATS):
    if not isinstance(prompt, str):
      while prompt and prompt[-1]['role'] == 'assistant':
        prompt = prompt[:-1]
      if not prompt:
        raise UserError(f'{name} has only an answer: give the messages before it too')
    category = None
    if isinstance(record, dict):
      category = record.get('category')
    prompts.append((str(category or file_name), prompt))
  return prompts


def read_questions(paths: Sequence[str], most: int) -> list[tuple[str, Prompt]]:
  """Reads questions of several files with their categories: `most` of each, evenly spaced; 0: all.

  Categories are those of `read_by_category`. If a user's turns have no answers between them, the
  first turn is the question.

  Raises:
    UserError: as `read_prompts`; a category has fewer; questions of SPEED-Bench lack their text.
  """
  by_category: dict[str, list[Prompt]] = {}
  for path in map(pathlib.Path, paths):
    for category, prompt in read_by_category(path):
      if not isinstance(prompt, str) and all(turn['role'] == 'user' for turn in prompt):
        prompt = _read_question(prompt[0].get('content')) or prompt[:1]
      if UNFETCHED in str(prompt):
        raise UserError(
          f'{path} has questions of SPEED-Bench without their texts: give the lines that its script'
          ' prepare.py writes'
        )
      by_category.setdefault(category, []).append(prompt)

  questions = []
  for category, prompts in by_category.items():
    if len(prompts) < most:
      raise UserError(
        f'{category} has {len(prompts)} questions, fewer than {most}: give'
        f' {min(map(len, by_category.values()))} or less, or 0 for all of each category'
      )
    count = most or len(prompts)
    step = len(prompts) / count
    for i in range(count):
      questions.append((category, prompts[int(i * step)]))
  return questions


def read_texts(path: pathlib.Path) -> list[Prompt]:
  """Reads a file's texts: its lines, or "text" of each record of JSON, or else as `read_prompts`.

  Chats keep their last answers.
  """
  return [text for _, _, text in _read_records(path, 'a text', TEXTS)]


def _read_records(
  path: pathlib.Path, content: str, formats: Formats
) -> Iterator[tuple[str, Any, Prompt]]:
  """Yields for each record or line its name, 'line 3 of a.jsonl', itself, and its text or chat."""
  if _read_ending(path) in TABLES:
    raise UserError(
      f'{path} is a table by its name: give a .txt file with {content} on each line, or JSON lines'
    )
  with explained('read', path, f'give a text file with {content} on each line'):
    data = read_unpacked(path)
  text = text_of(data, path)
  if not text.strip():
    raise UserError(f'{path} is empty: give {content} on each line')
  records = _parse_records(text, path, formats)
  if records is None:
    for number, line in enumerate(_split_full_lines(text, path), 1):
      yield f'line {number} of {path}', line, line
    return
  for name, record in records:
    yield name, record, _read_value(record, name, formats)


def _parse_records(
  text: str, path: pathlib.Path, formats: Formats
) -> Iterable[tuple[str, Any]] | None:
  """Returns the records of a JSON array, or of lines of JSON, with their names; None for others.

  A text is JSON if the file's name says so, or if it begins as such.
  """
  first, is_named = text.lstrip().partition('\n')[0], _read_ending(path) in JSON_LINES
  if not is_named and first[:1] not in ('[', '{'):
    return None
  if first[:1] == '[' and len(text) > MOST_JSON:
    raise UserError(f'{path} is an array of more than {MOST_JSON:,} characters: give JSON lines')

  # Take the whole text for one value: an array of records, or a single record.
  try:
    whole = parse_json(text)
  except ValueError as error:
    if ''.join(first.split()) in ('[', '{', '[{'):
      raise UserError(f'{path} begins as JSON, but cannot be parsed ({error}): fix it') from None
  else:
    if not isinstance(whole, list):
      return [(f'line 1 of {path}', whole)]
    if not whole:
      raise UserError(f'{path} is an empty array: give a record for each prompt')
    return [(f'record {number} of {path}', record) for number, record in enumerate(whole, 1)]

  # Or each line for one, unless the first only looks like JSON, such as "[1] A man".
  if not is_named:
    try:
      parse_json(first)
    except ValueError:
      return None
  return _parse_lines(text, path, formats)


def _parse_lines(text: str, path: pathlib.Path, formats: Formats) -> Iterator[tuple[str, Any]]:
  """Yields the records of lines of JSON with their names; only one at a time is in memory."""
  for number, line in enumerate(_split_full_lines(text, path), 1):
    name = f'line {number} of {path}'
    try:
      record = parse_json(line)
    except ValueError as error:
      raise _explain_record(name, formats, f'not JSON: {error}') from None
    yield name, record


def _read_value(record: Any, name: str, formats: Formats) -> Prompt:
  """Returns the text or the chat of a record, by the first name of `formats` that it has."""
  if isinstance(record, str) and record.strip():
    return record
  for key, (read, wanted) in formats.items():
    if isinstance(record, dict) and record.get(key) is not None:
      value = read(record[key])
      if value is None:
        raise _explain_record(name, formats, f'"{key}" must be {wanted}')
      if record.get('tools') and not isinstance(value, str):
        raise UserError(f'{name} has "tools", which are not read there: give them as --template')
      return value
  raise _explain_record(name, formats)


def _explain_record(name: str, formats: Formats, reason: str = '') -> UserError:
  """Returns the error of a record that `formats` does not read."""
  first, problem = 'text', 'has no text'
  if formats is FORMATS:
    first, problem = 'prompt', 'has no prompt'
  if reason:
    problem += f' ({reason})'
  others = ', '.join(key for key in formats if key != first)
  return UserError(
    f'{name} {problem}: give {{"{first}": "..."}} on each line, or {others} instead of it; or a'
    ' .txt file'
  )


def _split_full_lines(text: str, path: pathlib.Path) -> list[str]:
  """Returns the lines of a text without the empty ones at its end; others may not be empty."""
  lines = split_lines(text)
  while not lines[-1].strip():
    lines.pop()
  for number, line in enumerate(lines, 1):
    if not line.strip():
      raise UserError(f'line {number} of {path} is empty: take it out')
  return lines


def split_lines(text: str) -> list[str]:
  """Returns the lines of a text. Only a newline ends a line, as for `wc -l`."""
  return [line.removesuffix('\r') for line in text.split('\n')]


def _read_ending(path: pathlib.Path) -> str:
  """Returns the ending of a file's name, without that of a packer."""
  if path.suffix in PACKED:
    path = path.with_suffix('')
  return path.suffix.lower()


# --- prompts


def hash_prompts(prompts: Sequence[Prompt]) -> str:
  """Returns a hash of 16 hexadecimal digits."""
  content = [[isinstance(prompt, Question), prompt] for prompt in prompts]
  return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def wrap_in_chats(
  prompts: Sequence[Prompt], is_chat: bool, system: str | None, has_template: bool
) -> Iterator[Prompt]:
  """Yields prompts in the form that the model gets: texts to continue, or messages.

  Args:
    prompts: as `read_prompts` returns them.
    is_chat: makes texts a user's messages. Questions are messages if the model has a template.
    system: a message before all others, for chats that have none.
    has_template: the model has a chat template.
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

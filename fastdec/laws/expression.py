"""The process that compiles a regular expression for `automaton`: text in, one line of JSON out.

It runs as a script and imports only outlines-core. It limits its own time and memory, since some
expressions would need any amount.
"""

import importlib
import json
import re
import sys
from typing import Any

MEMORY = 2**31  # bytes
SECONDS = 10  # of processor time
MOST_STATES = 8192  # including the states of the last character
END = 256  # the number of the end, after the numbers of the bytes
FIRST, LAST = '\U0010fffe', '\U0010ffff'  # surround each text; no text has them
CLASS = r'\[(?!\^)\]?(?:\\.|[^\]\\])*\]'
WIDE_PARTS = {'.', '[^', r'\D', r'\W', r'\S', r'\P', r'\p'}  # may match any character
WIDE = re.compile(rf'{CLASS}|\[\^(?!{FIRST})|\\.|\.', re.DOTALL)


def answer(pattern: str) -> dict[str, object]:
  """Returns the automaton over bytes of the texts that match as a whole, or an error.

  outlines-core ends a text where its first matching alternative ends, so `a|ab` would never match
  `ab`. A last character after the text makes it try both. It also looks for matches that begin
  later in the text, which may need a state for each set of beginnings; a first character before the
  text prevents that. Expressions that may match the first character themselves do without it.
  """
  library: Any = importlib.import_module('outlines_core')  # of the extra 'constraint'
  before = FIRST
  if not WIDE_PARTS.isdisjoint(WIDE.findall(pattern)):
    before = ''  # the expression may match FIRST; a wrong answer only costs time
  try:
    words = {bytes([byte]): [byte] for byte in range(END)}
    index = library.Index(f'{before}(?:{pattern}){LAST}', library.Vocabulary(END, words))
  except (ValueError, MemoryError) as error:
    return {'refused': str(error)}
  first, after = index.get_initial_state(), index.get_transitions()
  for byte in before.encode():
    first = after[first][byte]
  if len(after) > MOST_STATES:
    return {'states': len(after)}
  ends, matches, steps = index.get_final_states(), [], []
  others = set()
  for state, row in after.items():
    for byte, next_state in row.items():
      if byte != END:
        steps.append([state, byte, next_state])
        others |= {state, next_state}
    last = state
    for byte in LAST.encode():
      last = after.get(last, {}).get(byte)
    if last in ends:
      matches.append(state)
  return {'states': [first, *sorted(others - {first})], 'matches': matches, 'steps': steps}


def main() -> None:
  try:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  except (ImportError, ValueError, OSError):  # a system without limits: the parent kills it late
    pass
  print(json.dumps(answer(sys.stdin.read())))


if __name__ == '__main__':
  main()

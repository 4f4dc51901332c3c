"""Prints questions made of templates, as JSON lines: prompts on which a draft can be trained.

Example:
  python -m examples.questions_by_template 2000 > questions.jsonl
  fastdec train-draft --model=folder --chat --prompts=questions.jsonl --out=draft

They ask for what chat models are mostly asked: explanations, texts, lists, advice, sums, code.
"""

import json
import random
import sys

SUBJECTS = """the water cycle; photosynthesis; black holes; inflation; supply and demand; the French Revolution;
the Roman Empire; the Renaissance; plate tectonics; vaccines; antibiotics; the immune system; DNA; evolution;
gravity; electricity; magnetism; sound waves; the speed of light; the periodic table; acids and bases; chemical bonds;
atoms; climate change; renewable energy; solar panels; wind power; nuclear power; electric cars; public transport;
recycling; biodiversity; rainforests; coral reefs; the ocean; volcanoes; earthquakes; hurricanes; deserts; glaciers;
democracy; the rule of law; human rights; the stock market; interest rates; taxes; insurance; banks; budgets;
machine learning; neural networks; the internet; databases; operating systems; encryption; cloud computing; robots;
programming languages; recursion; sorting algorithms; hash tables; version control; unit tests; user interfaces;
poetry; the novel; jazz; classical music; painting; photography; architecture; cinema; theatre; dance; fashion;
meditation; sleep; nutrition; running; swimming; yoga; stress; anxiety; friendship; parenting; teamwork; leadership;
time management; public speaking; job interviews; remote work; volunteering; travel; gardening; cooking; baking bread;
coffee; tea; chocolate; chess; football; tennis; cycling; hiking; sailing; camping; pets; horses; birds; bees; whales;
Shakespeare; Isaac Newton; Marie Curie; Albert Einstein; Leonardo da Vinci; Aristotle; Confucius; Cleopatra;
the pyramids; the Great Wall of China; the moon landing; the printing press; the steam engine; the Second World War;
ancient Greece; the Silk Road; the Vikings; the Inca; Japan; Brazil; Kenya; Norway; Canada; Italy; India; Egypt"""
WRITERS = """a travel blog; a school newspaper; a company's website; a science magazine; a cookery book; a small shop;
a museum guide; a children's book; a letter to a friend; a speech at a wedding; a podcast; a university lecture;
a sports club; a charity; a village festival; a job advertisement; a product page; a book club"""
PEOPLE = """a doctor; a teacher; a farmer; a pilot; a detective; a ship's captain; a gardener; a chef; a musician;
a lawyer; an engineer; a painter; a librarian; a nurse; a carpenter; a bus driver; a physicist; a king; a robot;
a tour guide; an athlete; a journalist; a baker; a shepherd; an astronaut; a wizard; a shopkeeper; a historian"""
PLACES = """a quiet village; a busy harbour; a snowy mountain; a big city at night; an old castle; a train; a desert;
a spaceship; a forest; a small island; a library; a market; a hospital; a school; a kitchen; a garden; a lighthouse;
a theatre; a museum; a river in spring; a beach in winter; an airport; a farm; a café"""
TASKS = """the largest number of a list; the sum of all even numbers of a list; the number of vowels of a string;
a string reversed; true if a word is a palindrome; the factorial of a number; the first n Fibonacci numbers;
the greatest common divisor of two numbers; true if a number is prime; all primes below n; a list without duplicates;
the most frequent word of a text; a list sorted by length; the average of a list; the median of a list;
the second largest number of a list; the words of a sentence in capitals; the number of words of a file;
the intersection of two lists; two dictionaries merged; a list of numbers squared; the binary form of a number;
a temperature in Fahrenheit; the day of the week of a date; the area of a circle; the roots of a quadratic equation;
the transpose of a matrix; the product of two matrices; the longest word of a sentence; true if two words are anagrams;
a list rotated by k places; the running maximum of a list; the digits of a number added up; a caesar cipher of a text;
true if brackets are balanced; the depth of nested brackets; the position of a number in a sorted list;
a list split into parts of n; the characters that two strings share; the number of days between two dates;
all subsets of a list; all permutations of a string; the longest common prefix of strings; a number in Roman numerals;
the sum of a list's positive numbers; the numbers of a list above a threshold; strings that begin with a letter;
the difference of two lists; a flattened list of lists; the closest two numbers of a list; the power of two numbers;
the number of times that a substring occurs; true if a list is sorted; a list of pairs of neighbours;
the mean absolute deviation of numbers; every second character of a string; the letters of a string counted"""
NAMES = """Anna; Ben; Clara; David; Emma; Felix; Grace; Henry; Ida; Jack; Kate; Liam; Mia; Noah; Olivia; Paul; Rosa;
Sam; Tina; Victor; Mr. Brown; Mrs. Green; Dr. Patel; Yusuf; Mei; Carlos; Priya; Ivan"""
THINGS = """apples; pencils; books; marbles; stickers; eggs; cookies; tickets; flowers; bottles; coins; cards; oranges;
balloons; shirts; chairs; cups; loaves of bread; toy cars; stamps; pies; candles; bags of rice; postcards"""
SENTENCES = """The train was late, and nobody knew why.; My sister has lived in Lisbon since 2015 and works as an architect.;
The company sold 1,200 bicycles in March and 900 in April.; He don't like to swims in the cold lake.;
The concert begin at eight and end on eleven o'clock.; Our hotel was clean, but the breakfast was poor and the staff rude.;
I bought the phone last week; the battery is great, the camera less so.; She have two brother and one dogs.;
The meeting with Ms. Lopez is on Tuesday, 4 May, at 10 a.m. in room 12.; The river rose two metres in three days.;
The film is slow at first, but its end is wonderful.; Water boils at 100 degrees Celsius at sea level.;
A man in a blue shirt is standing on a ladder cleaning a window.; Two dogs run through the snow after a red ball.;
The museum opens at nine, closes at five, and costs eight euros.; Yesterday we go to the market and buyed fresh fish."""

ASKED = {
  'knowledge': [
    'Explain {subject} in simple words.',
    'What is {subject}? Answer in a short paragraph.',
    'Why is {subject} important? Give three reasons.',
    'What are the main ideas behind {subject}?',
    'Give me five facts about {subject}.',
    'Compare {subject} and {subject2}. What do they have in common, and where do they differ?',
    'How has {subject} changed over the last hundred years?',
    'What are the advantages and disadvantages of {subject}?',
    'What are common misunderstandings about {subject}?',
    'Explain {subject} to a child of ten, with an example from everyday life.',
    'Describe the history of {subject} in about 150 words.',
    'What should I read first if I want to learn about {subject}?',
    'Who were the most important people in connection with {subject}, and what did they do?',
  ],
  'writing': [
    'Write a short article about {subject} for {writer}.',
    'Write a poem about {subject} with four lines in each verse.',
    'Write a story about {person} in {place}.',
    'Draft an email to {name} about a meeting on {subject}. Keep it short and polite.',
    'Write an outline for an essay on {subject}.',
    'Describe {place} in a vivid way, in one paragraph.',
    'Write a dialogue between {person} and {person2} about {subject}.',
    'Write a review of a book about {subject}.',
    'Write the opening paragraph of a novel set in {place}, whose hero is {person}.',
    'Write a persuasive paragraph on why everybody should know about {subject}.',
    'Write a letter of thanks from {name} to {name2} for help with {subject}.',
    'Write three headlines for {writer} about {subject}.',
    'Summarize the most important points about {subject} in a list.',
  ],
  'roleplay': [
    'You are {person}. Introduce yourself, and tell me about {subject}.',
    'Imagine that you are {person} in {place}. What do you see?',
    'Pretend to be {person}. Answer this question: what do you think of {subject}?',
    'Act as a guide through {place}. Begin your tour.',
    'You are {person}, and {name} asks you about {subject}. How do you answer?',
  ],
  'advice': [
    'How can I get better at {subject}?',
    'Give me ten tips on {subject}.',
    'Plan a weekend about {subject} for {name} and {name2}.',
    'What questions should I ask an expert on {subject}?',
    'How do I explain to {name} that {subject} matters to me?',
    'What would be a good present for somebody who loves {subject}?',
    'I have to give a talk about {subject}. How should I begin, and how should I end?',
  ],
  'math': [
    '{name} has {a} {thing} and buys {b} more. Then {name} gives {c} of them to {name2}. How many {thing} are left?',
    '{name} buys {a} {thing} at ${b} each and pays with a ${big} bill. How much change is there?',
    'A box holds {a} {thing}. {name} fills {b} boxes and has {c} left over. How many {thing} are there in all?',
    '{name} reads {a} pages a day for {b} days, and {c} pages on the last day. How many pages is that?',
    '{name} earns ${a} an hour and works {b} hours a week. How much does {name} earn in {c} weeks?',
    '{name} has twice as many {thing} as {name2}. Together they have {three}. How many has each of them?',
    'A train travels {a} miles an hour. How far does it go in {b} hours and a half?',
    'What is {a} times {b}, minus {c}? Explain each step.',
    'A rectangle is {a} cm long and {b} cm wide. What are its area and its perimeter?',
    'Solve for x: {b}x + {c} = {sum}.',
    'A shop sells {thing} at ${a}, and takes {ten}% off. {name} buys {c}. What does {name} pay?',
    '{name} cuts {a} {thing} into {b} equal parts each, and {c} friends share them. How much does each get?',
    '{name} saves ${a} each week. After how many weeks can {name} buy a bicycle of ${big}?',
    'Every day {name} sells {a} {thing} at ${b} and spends ${c}. How much money does {name} make in a week?',
  ],
  'code': [
    'Write a Python function that returns {task}.',
    'Write a Python function that returns {task}, with a docstring and an example.',
    'Write a JavaScript function that returns {task}.',
    'Write a Python program that asks for input and prints {task}. Explain how it works.',
    'Complete this function:\n\ndef solve(values):\n    """Return {task}."""\n',
    'from typing import List\n\n\ndef compute(values: List[int]) -> int:\n    """ Return {task}.\n    >>> compute([{a}, {b}, {c}])\n    """\n',
    '\ndef helper(text: str) -> str:\n    """ Given some input, return {task}.\n    """\n',
    'def run(x, y):\n    """\n    Write a function that returns {task}.\n    Handle empty input.\n    """\n',
    'Write unit tests for a Python function that returns {task}.',
    'How would you write {task} in one line of Python?',
  ],
  'editing': [
    'Rewrite this in the past tense: {sentence}',
    'Correct the mistakes, and explain them: {sentence}',
    'Translate into French: {sentence}',
    'Say the same in other words: {sentence}',
    'Extract all names, numbers and dates as JSON: {sentence}',
    'Is the mood of this sentence positive, negative or neutral? {sentence}',
    'Continue this text: {sentence}',
    'Make a question of this sentence, and answer it: {sentence} {sentence2}',
    'Write three sentences that could follow this one: {sentence}',
    'Turn this into a short formal notice: {sentence} {sentence2}',
  ],
  'reasoning': [
    'If all {thing} are red and some of {name}\'s things are {thing}, what do we know about them?',
    '{name} is older than {name2}, and {name2} is older than {name3}. Who is the youngest? Explain.',
    'Which does not belong: {thing}, {thing2}, {subject}? Say why.',
    'What would happen if there were no {subject}?',
    'Is it right to say that {subject} is more important than {subject2}? Argue for both sides.',
    '{name} puts {a} {thing} into a bag in {place}, and goes out. {name2} moves them. Where will {name} look?',
  ],
}  # fmt: skip
LISTS = {
  'subject': SUBJECTS, 'writer': WRITERS, 'person': PEOPLE, 'place': PLACES, 'task': TASKS, 'name': NAMES,
  'thing': THINGS, 'sentence': SENTENCES,
}  # fmt: skip


def questions(count: int, seed: int = 0) -> list[dict[str, str]]:
  """Returns this many different questions, each with its category."""
  draw = random.Random(seed)
  lists = {}
  for name, text in LISTS.items():
    lists[name] = [' '.join(entry.split()) for entry in text.split(';')]
  asked: dict[str, str] = {}
  while len(asked) < count:
    category = draw.choice(list(ASKED))
    values: dict[str, object] = {}
    for name, entries in lists.items():
      values[name], values[f'{name}2'], values[f'{name}3'] = draw.sample(entries, 3)
    a, b, c = draw.randint(5, 60), draw.randint(2, 12), draw.randint(2, 9)
    numbers = {'a': a, 'b': b, 'c': c, 'three': 3 * a, 'big': 100 * b, 'ten': 10 * c}
    numbers['sum'] = b * a + c
    asked.setdefault(draw.choice(ASKED[category]).format(**values, **numbers), category)
  return [{'category': category, 'prompt': text} for text, category in asked.items()]


if __name__ == '__main__':
  if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
    sys.exit(__doc__)
  for question in questions(int(sys.argv[1])):
    print(json.dumps(question, ensure_ascii=False))

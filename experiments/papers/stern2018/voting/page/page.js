// The page asks the server how far its rater is, and shows the next pair; the first vote on a pair is the one that counts.
'use strict';

const $ = (id) => document.getElementById(id);
const ALTS = {
  input: 'The photograph as it was given, 8 by 8 pixels',
  left: 'Enlargement on the left',
  right: 'Enlargement on the right',
};
const NOBODY = 'without-a-name-';
let rater = localStorage.getItem('rater');
let state = null;
let busy = true;   // between a choice and the next pair: neither keys nor clicks count

function newName() {   // crypto.randomUUID is not there where the page is opened over the network without TLS
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return NOBODY + Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function notice(text) {
  $('notice').textContent = text;
  $('notice').hidden = !text;
}

// Sends until the server has answered, and the next pictures are here.
async function ask(path, body) {
  const query = `?rater=${encodeURIComponent(rater)}`;
  for (let wait = 500; ; wait = Math.min(2 * wait, 4000)) {
    try {
      const answer = await fetch(path + (body ? '' : query), body && { method: 'POST', body: JSON.stringify(body) });
      const next = await answer.json();
      if (answer.ok) {
        const names = next.place === null ? [] : Object.keys(ALTS);
        const images = await Promise.all(names.map((name) => load(name, `/picture/${next.place}/${name}${query}`)));
        notice('');
        return { next, images };
      }
      if (answer.status < 500) {   // asking again will not help
        return { refused: next.error };
      }
    } catch (error) {
      console.warn(error.message);   // no connection, or it broke off
    }
    notice('The server does not answer. ' + (body ? 'Your last choice may not be saved yet; t' : 'T') +
      'rying again. Leave this page open.');
    await new Promise((done) => setTimeout(done, wait));
  }
}

async function load(name, address) {
  const image = new Image();
  image.alt = ALTS[name];
  image.draggable = false;
  image.src = address;
  await image.decode();
  return image;
}

function show(next, images) {
  state = next;
  images.forEach((image, index) => {
    const place = $(Object.keys(ALTS)[index]);
    (place.querySelector('.frame') || place).replaceChildren(image);
    place.classList.remove('chosen');
  });
  $('welcome').hidden = true;
  $('voting').hidden = state.place === null;
  $('finished').hidden = state.place !== null;
  $('foot').hidden = false;
  $('votes').textContent = state.done;
  $('bar').max = state.total;
  $('bar').value = state.done;
  $('progress').textContent = `${state.done} of ${state.total} done, ${state.total - state.done} left`;
  $('who').textContent = rater.startsWith(NOBODY) ? 'You vote without a name.' : `You are ${rater}.`;
}

// One request after another; what is pressed meanwhile is not taken for an answer to what nobody has seen.
async function step(path, body) {
  busy = true;
  const { next, images, refused } = await ask(path, body);
  if (refused) {
    notice(`That did not work: ${refused}.`);
  } else {
    show(next, images);
  }
  busy = false;
}

function choose(side) {
  if (!busy && state.place !== null) {
    $(side).classList.add('chosen');
    step('/vote', { rater, place: state.place, side });
  }
}

function welcome() {
  rater = state = null;
  localStorage.removeItem('rater');
  $('welcome').hidden = false;
  ['voting', 'finished', 'foot'].forEach((id) => { $(id).hidden = true; });
  $('name').focus();
}

$('left').addEventListener('click', () => choose('left'));
$('right').addEventListener('click', () => choose('right'));
$('leave').addEventListener('click', () => busy || welcome());
$('begin').addEventListener('submit', (event) => {
  event.preventDefault();
  rater = $('name').value.trim() || newName();
  localStorage.setItem('rater', rater);
  step('/state');
});
document.addEventListener('keydown', (event) => {
  const side = { ArrowLeft: 'left', ArrowRight: 'right' }[event.key];
  const elsewhere = event.ctrlKey || event.altKey || event.metaKey || event.target.matches('input');
  if (side && !elsewhere && state) {
    event.preventDefault();
    if (!event.repeat) {   // a key held down is one answer
      choose(side);
    }
  }
  if (event.repeat && event.key === 'Enter') {   // which presses the button that has the focus
    event.preventDefault();
  }
});
if (rater) {
  step('/state');
} else {
  welcome();
}

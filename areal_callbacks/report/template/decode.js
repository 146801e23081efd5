// The page's data, as the builder packed it, turned into numbers.

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function unpack(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const unpackText = async (base64) => new TextDecoder().decode(await unpack(base64));

const WORDS = { n: NaN, i: Infinity, "-i": -Infinity };
const parseNumber = (text) => (text in WORDS ? WORDS[text] : Number(text));
const parseList = (text) => (text === "" ? [] : text.split(",").map(parseNumber));

function runningSums(text) {
  let sum = 0;
  return parseList(text).map((difference) => (sum += difference));
}

/** {at: indices of steps, y: values} of one line, ``indices<TAB>values``. */
function decodeSeries(indices, values) {
  const y = parseList(values);
  return { at: indices === "" ? y.map((_, index) => index) : runningSums(indices), y };
}

// Colours, from the style sheet and two colour maps, in light and dark.

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const themeListeners = [];
const colourCache = new Map();

const isDark = () => darkScheme.matches && !printing;

/** The present value of a custom property of the style sheet. */
function colour(name) {
  if (!colourCache.has(name))
    colourCache.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colourCache.get(name);
}

function themeChanged() {
  colourCache.clear();
  paintScales();
  themeListeners.forEach((redraw) => redraw());
}

/** The colour maps as backgrounds for the style sheet. */
function paintScales() {
  for (const map of Object.keys(MAPS)) document.documentElement.style.setProperty(`--scale-${map}`, gradient(map));
}

darkScheme.addEventListener("change", themeChanged);

// Heat: what is balanced recedes into the page. Load: blue below the ideal, orange above.
const MAPS = {
  heat: {
    light: ["f4f1ec", "fbd9a0", "f7a35c", "e0624a", "a92e5e", "5e1a5c", "25093c"],
    dark: ["17141f", "3b1450", "7d1f6b", "c2364f", "ee6a2c", "fbb03b", "fcf5b0"],
  },
  load: {
    light: ["1f4e8c", "5b93c7", "b9d3e8", "f5f4f2", "f7c99b", "e58236", "a63f08"],
    dark: ["7fb8f5", "3f78b8", "274463", "24272d", "6a4526", "c8722b", "ffb056"],
  },
};

const hexBytes = (hex) => [0, 2, 4].map((index) => parseInt(hex.slice(index, index + 2), 16));

function interpolate(stops, position) {
  const scaledPosition = Math.max(0, Math.min(1, position)) * (stops.length - 1);
  const left = Math.min(stops.length - 2, Math.floor(scaledPosition));
  const [a, b] = [stops[left], stops[left + 1]].map(hexBytes);
  return a.map((value, channel) => Math.round(value + (b[channel] - value) * (scaledPosition - left)));
}

/** 256 packed pixels of a colour map. */
function pixels(map) {
  const stops = MAPS[map][isDark() ? "dark" : "light"];
  return Uint32Array.from({ length: 256 }, (_, k) => packed(interpolate(stops, k / 255)));
}

const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
const deadPixel = () => packed(isDark() ? [255, 255, 255] : [0, 0, 0]);
const gradient = (map) =>
  `linear-gradient(90deg,${MAPS[map][isDark() ? "dark" : "light"].map((stop) => `#${stop}`).join(",")})`;

/** Log scale from 1/limit to limit around the ideal; 0..1. */
const loadPosition = (ratio, limit = 4) => 0.5 + Math.log2(ratio) / (2 * Math.log2(limit));

paintScales();

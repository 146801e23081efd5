// Names of lines: short, and never the same for two of a chart.

/** What stands in the middle of each key when the segments that all share are cut off both ends. */
function differingParts(keys) {
  const parts = keys.map((key) => key.split("/"));
  const shortest = Math.min(...parts.map((own) => own.length));
  const same = (pick) => parts.every((own) => pick(own) === pick(parts[0]));
  let [head, foot] = [0, 0];
  while (head < shortest && same((own) => own[head])) head += 1;
  while (foot < shortest - head && same((own) => own.at(-1 - foot))) foot += 1;
  return parts.map((own) => own.slice(head, own.length - foot).join("/") || own.join("/"));
}

/** The entries, {key, label, …}, with what tells their keys apart added to labels that several have. */
function withUniqueLabels(entries) {
  const sharing = new Map();
  for (const entry of entries) sharing.set(entry.label, [...(sharing.get(entry.label) ?? []), entry.key]);
  return entries.map((entry) => {
    const keys = sharing.get(entry.label);
    return keys.length === 1 ? entry : { ...entry, label: `${entry.label} (${differingParts(keys)[keys.indexOf(entry.key)]})` };
  });
}

/** Of a line in a report of several runs. */
const ofRun = (run, label) => (label === "" ? run.name : `${run.name} · ${label}`);

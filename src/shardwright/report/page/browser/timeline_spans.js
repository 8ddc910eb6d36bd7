// Spans of the timeline as arrays, and their drawing: one rectangle each where they are wide, and the colour that
// fills most of each pixel where they are narrow. So a drawing costs about as much as there are pixels.

function wholeNumbers(text) {
  return text ? Float64Array.from(text.split(","), Number) : new Float64Array(0);
}

function spansOfTrack(track, colours) {
  const gaps = wholeNumbers(track.gaps), lengths = wholeNumbers(track.lengths);
  const works = wholeNumbers(track.works), count = gaps.length;
  const starts = new Float64Array(count), ends = new Float64Array(count);
  let end = 0;
  for (let place = 0; place < count; place += 1) {
    starts[place] = end + gaps[place];
    end = ends[place] = starts[place] + lengths[place];
  }
  return {
    name: track.name, count, starts, ends, works, microbatches: wholeNumbers(track.microbatches),
    colours: Uint8Array.from(works, (work) => colours[work]),
  };
}

function mergedSpans(name, one, other) {
  // Spans of two tracks that do not overlap, in order; `owner` is 0 for the first track and 1 for the second.
  const count = one.count + other.count;
  const found = {
    name, count, starts: new Float64Array(count), ends: new Float64Array(count), colours: new Uint8Array(count),
    owner: new Uint8Array(count), places: new Int32Array(count),
  };
  const next = [0, 0], tracks = [one, other];
  for (let place = 0; place < count; place += 1) {
    const [first, second] = tracks.map((track, number) => next[number] < track.count ? track.starts[next[number]] : Infinity);
    const owner = first <= second ? 0 : 1, source = next[owner];
    next[owner] += 1;
    found.owner[place] = owner;
    found.places[place] = source;
    for (const column of ["starts", "ends", "colours"]) found[column][place] = tracks[owner][column][source];
  }
  return found;
}

function firstEndAfter(ends, time) {
  let low = 0, high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

function spanAt(spans, time) {
  const place = firstEndAfter(spans.ends, time);
  return place < spans.count && spans.starts[place] <= time ? place : -1;
}

function visibleRange(spans, view) {
  const first = firstEndAfter(spans.ends, view.low);
  let last = first, high = spans.count;
  while (last < high) {
    const middle = (last + high) >> 1;
    if (spans.starts[middle] < view.high) last = middle + 1; else high = middle;
  }
  return [first, last];
}

function dominantColours(spans, view, first, last, pixels, colourCount) {
  // For each pixel the number of the colour that covers most of it, or -1 where less than half is covered.
  const scale = pixels / (view.high - view.low);
  const covered = new Float32Array(pixels * colourCount);
  for (let place = first; place < last; place += 1) {
    const low = Math.max((spans.starts[place] - view.low) * scale, 0);
    const high = Math.min((spans.ends[place] - view.low) * scale, pixels);
    const colour = spans.colours[place];
    for (let pixel = Math.floor(low); pixel < high; pixel += 1) {
      covered[pixel * colourCount + colour] += Math.min(high, pixel + 1) - Math.max(low, pixel);
    }
  }
  const found = new Int8Array(pixels).fill(-1);
  for (let pixel = 0; pixel < pixels; pixel += 1) {
    let most = 0, total = 0;
    for (let colour = 0; colour < colourCount; colour += 1) {
      const part = covered[pixel * colourCount + colour];
      total += part;
      if (part > most) [most, found[pixel]] = [part, colour];
    }
    if (total < 0.5) found[pixel] = -1;
  }
  return found;
}

function spanRectangles(spans, view, pixels, colourCount) {
  // [left, right, colour, number of the span or -1], in pixels.
  const [first, last] = visibleRange(spans, view);
  const rectangles = [];
  if (last - first <= pixels / 4) {
    const scale = pixels / (view.high - view.low);
    for (let place = first; place < last; place += 1) {
      const left = Math.max((spans.starts[place] - view.low) * scale, 0);
      const right = Math.min((spans.ends[place] - view.low) * scale, pixels);
      rectangles.push([left, Math.max(right - (right - left > 4 ? 1 : 0), left + 0.5), spans.colours[place], place]);
    }
    return rectangles;
  }
  const colours = dominantColours(spans, view, first, last, pixels, colourCount);
  let left = 0;
  for (let pixel = 1; pixel <= pixels; pixel += 1) {
    if (pixel === pixels || colours[pixel] !== colours[left]) {
      if (colours[left] >= 0) rectangles.push([left, pixel, colours[left], -1]);
      left = pixel;
    }
  }
  return rectangles;
}

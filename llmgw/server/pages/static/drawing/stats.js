// What drawing costs: the time that scripts took for each of the last frames, in milliseconds.

const KEPT_MAX = 600;

export class Stats {
  constructor() {
    this.frames = [];
  }

  /** Keeps one frame. `still`: the still part was drawn too. */
  add(ms, still) {
    this.frames.push({ ms, still });
    if (this.frames.length > KEPT_MAX) this.frames.shift();
  }

  /** Median, 95th percentile and number of the frames with (true) or without (false) the still part. */
  of(still) {
    const sorted = this.frames.filter((each) => each.still === still).map((each) => each.ms).sort((a, b) => a - b);
    const at = (part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? null;
    return { frames: sorted.length, median_ms: at(0.5), p95_ms: at(0.95) };
  }
}

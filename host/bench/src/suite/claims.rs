//! The published claims, and their verdicts.

use serde::Serialize;

use super::{
    CaseReport, ClaimRow, Transitions,
    cases::{CASES, HALF, Of, SMOOTH},
};
use crate::Row;

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It holds.
    Met,
    /// It does not hold.
    NotMet,
    /// The figures measure different things, or there is none.
    NotComparable,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Met => "met",
            Verdict::NotMet => "not met",
            Verdict::NotComparable => "not comparable",
        })
    }
}

/// The source of a claim's figure.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The baseline's median in a case, in milliseconds.
    Baseline(&'static str),
    /// A policy's median in a case, in milliseconds.
    Median(&'static str),
    /// A policy's median over the baseline's, as a change.
    Time(&'static str),
    /// The greatest reduction of time in any case.
    BestTime,
    /// A policy's peak over the baseline's, as a change.
    Peak(&'static str),
    /// Memory served from the pool, in all counted runs.
    PoolHits,
    /// Runs after the first that found their weights loaded.
    WeightHits,
    /// Converting a latent and a picture, over the policy's median in the half-type case.
    Conversion,
    /// Policies that failed, and attempts that did, over all runs.
    FailedRuns,
    /// The greatest mean difference from whole in f32, over the pictures' range.
    MeanDifference,
    /// A policy's median in a case, in seconds.
    Seconds(&'static str),
    /// The highest peak of a policy in any case of these names, in bytes.
    HighestPeak(&'static [&'static str]),
    /// The evenness of clips across carried chunks, as a share.
    Transitions,
    /// Nothing; the reason.
    Nothing(&'static str),
}

/// The condition on a figure.
#[derive(Clone, Copy, Debug)]
enum Bar {
    AtMost(f64),
    AtLeast(f64),
    /// Not comparable with the published one; the reason.
    Incomparable(&'static str),
}

struct Claim {
    claim: &'static str,
    published: &'static str,
    source: Source,
    bar: Bar,
    /// True if a quick run's smaller pictures are evidence, too.
    any_size: bool,
}

const OTHER: &str = "published of a stand-in network on another machine; here a decoder of the published size";
/// The cases of 320×320.
const WAN: &[&str] = &["video-320x1", "video-320x2-5", SMOOTH, "video-320x33"];
const NONE: Bar = Bar::Incomparable("nothing to compare");

const fn claim(claim: &'static str, published: &'static str, source: Source, bar: Bar) -> Claim {
    Claim { claim, published, source, bar, any_size: false }
}

const fn any(claim: &'static str, published: &'static str, source: Source, bar: Bar) -> Claim {
    Claim { claim, published, source, bar, any_size: true }
}

const CLAIMS: [Claim; 21] = [
    claim("baseline, 256×256", "1.792 ms", Source::Baseline("256"), Bar::Incomparable(OTHER)),
    claim("phase 1, 256×256", "1.271 ms", Source::Median("256"), Bar::Incomparable(OTHER)),
    claim("time after phase 1, 256×256", "−29.1 %", Source::Time("256"), Bar::AtMost(-0.291)),
    claim("time, 512×512", "case named, no figure", Source::Time("512"), Bar::Incomparable("no figure was published")),
    claim(
        "time, 1024×1024",
        "case named, no figure",
        Source::Time("1024"),
        Bar::Incomparable("no figure was published"),
    ),
    claim("time by precision (phase 2), 512×512", "−30 %, estimated", Source::Time(HALF), Bar::AtMost(-0.30)),
    claim("time by batch (phase 2), 256×256 × 4", "−30 %, estimated", Source::Time("256x4"), Bar::AtMost(-0.30)),
    claim("time of video (phase 3), 256×256", "−30 %, estimated", Source::Time("video-256x16"), Bar::AtMost(-0.30)),
    claim(
        "time after all phases",
        "−65.2 %, estimated",
        Source::BestTime,
        Bar::Incomparable("the published total was never measured; here the best case"),
    ),
    claim("peak memory, 1024×1024", "−25 %", Source::Peak("1024-memory"), Bar::AtMost(-0.25)),
    any("pool hits", "85–95 %", Source::PoolHits, Bar::AtLeast(0.85)),
    any("cache hits (here: runs that found their weights loaded)", "90–98 %", Source::WeightHits, Bar::AtLeast(0.90)),
    any(
        "fragmentation",
        "−40 %",
        Source::Nothing("what it was reduced from was not published; ours is pool.fragmentation in --json"),
        NONE,
    ),
    claim("conversion overhead, 512×512 in bf16", "under 2 %", Source::Conversion, Bar::AtMost(0.02)),
    any("errors, as runs that failed", "under 1 %", Source::FailedRuns, Bar::AtMost(0.01)),
    claim("errors, as mean difference over the range", "under 1 %", Source::MeanDifference, Bar::AtMost(0.01)),
    claim("video memory, 512×512", "−40 %", Source::Peak("video-memory"), Bar::AtMost(-0.40)),
    any("smooth frame transitions", "95–98 %", Source::Transitions, Bar::AtLeast(0.95)),
    claim("WAN 320×320, 2 s of video", "under 5 s", Source::Seconds("video-320x33"), Bar::AtMost(5.0)),
    claim("WAN 320×320, 17 frames", "under 10 s", Source::Seconds(SMOOTH), Bar::AtMost(10.0)),
    claim("WAN 320×320, memory", "under 50 GB", Source::HighestPeak(WAN), Bar::AtMost(50e9)),
];

/// Every claim with its result. `conversion_ms` is the time of converting a latent and a picture.
pub fn evaluate(cases: &[CaseReport], conversion_ms: Option<f64>, quick: bool) -> Vec<ClaimRow> {
    CLAIMS.iter().map(|claim| claim.evaluate(cases, conversion_ms, quick)).collect()
}

impl Claim {
    fn evaluate(&self, cases: &[CaseReport], conversion_ms: Option<f64>, quick: bool) -> ClaimRow {
        let figure = self.source.figure(cases, conversion_ms);
        let (verdict, why) = match (figure, self.source, self.bar) {
            (_, Source::Nothing(why), _) | (Some(_), _, Bar::Incomparable(why)) => {
                (Verdict::NotComparable, why.to_owned())
            }
            (None, ..) => {
                (Verdict::NotComparable, "not measured: the case failed, was not chosen or not reached".into())
            }
            (Some(_), ..) if quick && !self.any_size => {
                (Verdict::NotComparable, "--quick measures smaller pictures and shorter clips".into())
            }
            (Some(figure), source, Bar::AtMost(bar)) => (verdict(figure <= bar), source.basis(cases)),
            (Some(figure), source, Bar::AtLeast(bar)) => (verdict(figure >= bar), source.basis(cases)),
        };
        let measured = figure.map(|figure| self.source.in_words(figure));
        ClaimRow { claim: self.claim, published: self.published, measured, verdict, why }
    }
}

fn verdict(holds: bool) -> Verdict {
    if holds { Verdict::Met } else { Verdict::NotMet }
}

impl Source {
    fn figure(self, cases: &[CaseReport], conversion_ms: Option<f64>) -> Option<f64> {
        let of = |id: &str| cases.iter().find(|case| case.id == id)?.report.as_ref().map(|report| &report.runs[..]);
        let reports = || cases.iter().filter_map(|case| case.report.as_ref());
        let rows = || reports().flat_map(|report| report.runs.iter().skip(1));
        let least = |id: &str, of_row: fn(&Row) -> Option<f64>| {
            of(id)?.iter().skip(1).filter_map(of_row).min_by(f64::total_cmp)
        };
        match self {
            Source::Baseline(id) => of(id)?.first()?.median_ms,
            Source::Median(id) => least(id, |row| row.median_ms),
            Source::Time(id) => least(id, time_change),
            Source::BestTime => rows().filter_map(time_change).min_by(f64::total_cmp),
            Source::Peak(id) => {
                let whole = of(id)?.first()?.peak_bytes? as f64;
                least(id, |row| row.peak_bytes.map(|peak| peak as f64)).map(|peak| peak / whole - 1.0)
            }
            Source::PoolHits => mean(rows().filter_map(|row| row.pool_hit_share)),
            Source::WeightHits => {
                let (found, later) = reports()
                    .flat_map(|report| &report.runs)
                    .filter(|row| row.finished > 1)
                    .fold((0, 0), |(found, later), row| (found + row.found_loaded, later + row.finished - 1));
                (later > 0).then(|| found as f64 / later as f64)
            }
            Source::Conversion => Some(conversion_ms? / least(HALF, |row| row.median_ms)?),
            Source::FailedRuns => {
                let all = || reports().flat_map(|report| &report.runs);
                let failed: usize = all().map(|row| row.attempts + usize::from(row.error.is_some())).sum();
                let runs = failed + all().map(|row| row.finished).sum::<usize>();
                (runs > 0).then(|| failed as f64 / runs as f64)
            }
            Source::MeanDifference => {
                rows().filter_map(|row| row.difference.map(|difference| difference.mean / 2.0)).max_by(f64::total_cmp)
            }
            Source::Seconds(id) => least(id, |row| Some(row.median_ms? / 1e3)),
            Source::HighestPeak(ids) => {
                // One case's peak says nothing of the others.
                let cases = ids.iter().map(|id| of(id)).collect::<Option<Vec<_>>>()?;
                let rows = cases.into_iter().flat_map(|rows| rows.iter().skip(1));
                rows.filter_map(|row| row.peak_bytes).max().map(|bytes| bytes as f64)
            }
            Source::Transitions => transitions(cases)?.carried,
            Source::Nothing(_) => None,
        }
    }

    fn in_words(self, figure: f64) -> String {
        match self {
            Source::Baseline(_) | Source::Median(_) => format!("{figure:.1} ms"),
            Source::Time(_) | Source::BestTime | Source::Peak(_) => {
                let sign = if figure < 0.0 { "−" } else { "+" };
                format!("{sign}{:.1} %", figure.abs() * 100.0)
            }
            Source::MeanDifference | Source::Conversion => format!("{:.3} %", figure * 100.0),
            Source::Seconds(_) => format!("{figure:.2} s"),
            Source::HighestPeak(_) => format!("{:.2} GB", figure / 1e9),
            _ => format!("{:.1} %", figure * 100.0),
        }
    }

    /// The description of the figure, for a claim that it is compared with.
    fn basis(self, cases: &[CaseReport]) -> String {
        match self {
            Source::Time(id) => format!("best policy's median against {}, in case {id}", describe_baseline(id)),
            Source::Peak(id) => {
                format!("least peak of a policy against that of {}, in case {id}", describe_baseline(id))
            }
            Source::Seconds(id) => format!("best policy's median in case {id}, on this device"),
            Source::HighestPeak(_) => "the most a policy held in the cases of this size, weights aside".into(),
            Source::Transitions => {
                let alone = transitions(cases).and_then(|found| found.alone);
                let alone = alone.map_or("not measured".into(), |share| format!("{:.1} %", share * 100.0));
                format!(
                    "changes where carried chunks meet over those elsewhere, as in one go; chunks decoded alone: {alone}"
                )
            }
            Source::PoolHits => "mean over the policies' counted runs in all cases".into(),
            Source::WeightHits => {
                "all runs after each policy's first, in all cases; taking turns, plans of different orders load anew"
                    .into()
            }
            Source::Conversion => "latent to bf16, channels-last, and picture back, over the decode".into(),
            Source::FailedRuns => "failed runs and attempts over all runs".into(),
            Source::MeanDifference => "the largest of all cases' means, against whole in f32".into(),
            Source::Baseline(_) | Source::Median(_) | Source::BestTime | Source::Nothing(_) => String::new(),
        }
    }
}

fn transitions(cases: &[CaseReport]) -> Option<Transitions> {
    cases.iter().find_map(|case| case.transitions)
}

/// The baseline of a case, for people.
fn describe_baseline(id: &str) -> &'static str {
    match CASES.iter().find(|case| case.id == id).map(|case| case.of) {
        Some(Of::Clips(_)) => "latent frame by latent frame, channels-first, f32",
        _ => "whole, channels-first, f32",
    }
}

fn time_change(row: &Row) -> Option<f64> {
    row.ratio.map(|ratio| ratio.of_medians - 1.0)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_usize), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{Backend, Device, Objective};

    use super::*;
    use crate::{Ratio, Report, suite::cases};

    fn row(median_ms: f64, base: f64, peak_bytes: u64) -> Row {
        let ratio = Ratio { of_medians: median_ms / base, low: 0.0, high: 9.0 };
        let baseline = cases::baseline(cases::Of::Pictures { side: 256, batch: 1 });
        let row = Row::new(&baseline, Objective::Fastest, 1, &crate::race::Lane::default());
        Row {
            median_ms: Some(median_ms),
            peak_bytes: Some(peak_bytes),
            ratio: Some(ratio),
            pool_hit_share: Some(0.9),
            finished: 14,
            found_loaded: 13,
            ..row
        }
    }

    fn case(id: &'static str, median_ms: f64, peak_bytes: u64) -> CaseReport {
        let device = Device {
            backend: Backend::Cpu,
            name: String::new(),
            arch: String::new(),
            compute_units: 2,
            total_bytes: 1,
            free_bytes: 1,
            unified: true,
            fast_dtypes: Vec::new(),
            hints: Vec::new(),
        };
        let report = Report {
            tilewright: String::new(),
            runs: vec![row(100.0, 100.0, 1000), row(median_ms, 100.0, peak_bytes)],
            device,
            request: None,
            against: None,
            warmup: 3,
            iterations: 10,
            interrupted: false,
        };
        CaseReport { id, what: "", report: Some(report), transitions: None, note: None }
    }

    fn verdicts(cases: &[CaseReport], quick: bool) -> Vec<(&'static str, Option<String>, Verdict)> {
        let rows = evaluate(cases, Some(1.0), quick);
        rows.into_iter().map(|row| (row.claim, row.measured, row.verdict)).collect()
    }

    #[test]
    fn claims_are_held_against_what_was_measured() {
        let cases = [case("256", 60.0, 1000), case("1024-memory", 150.0, 900), case(HALF, 120.0, 500)];
        let found = verdicts(&cases, false);
        let of = |claim: &str| {
            found.iter().find(|(name, ..)| *name == claim).map(|(_, words, met)| (words.as_deref(), *met))
        };
        assert_eq!(of("time after phase 1, 256×256"), Some((Some("−40.0 %"), Verdict::Met)));
        assert_eq!(of("time by precision (phase 2), 512×512"), Some((Some("+20.0 %"), Verdict::NotMet)));
        assert_eq!(of("peak memory, 1024×1024"), Some((Some("−10.0 %"), Verdict::NotMet)));
        assert_eq!(of("pool hits"), Some((Some("90.0 %"), Verdict::Met)));
        assert_eq!(of("baseline, 256×256"), Some((Some("100.0 ms"), Verdict::NotComparable)));
        assert_eq!(of("time by batch (phase 2), 256×256 × 4"), Some((None, Verdict::NotComparable)));
        assert_eq!(of("conversion overhead, 512×512 in bf16"), Some((Some("0.833 %"), Verdict::Met)));
        assert_eq!(of("errors, as runs that failed"), Some((Some("0.0 %"), Verdict::Met)));
        assert_eq!(of("smooth frame transitions"), Some((None, Verdict::NotComparable)));
        let mut clips = [
            case(SMOOTH, 8000.0, 3_000_000_000),
            case("video-320x33", 12_000.0, 6_000_000_000),
            case("video-320x1", 100.0, 1_000_000_000),
            case("video-320x2-5", 200.0, 2_000_000_000),
        ];
        clips[0].transitions = Some(Transitions { carried: Some(1.0), alone: Some(0.4) });
        let found = evaluate(&clips, None, false);
        let of = |claim: &str| {
            let row = found.iter().find(|row| row.claim == claim).unwrap();
            (row.measured.as_deref(), row.verdict, row.why.as_str())
        };
        let smooth = of("smooth frame transitions");
        assert_eq!((smooth.0, smooth.1), (Some("100.0 %"), Verdict::Met));
        assert!(smooth.2.ends_with("alone: 40.0 %"), "{}", smooth.2);
        assert_eq!(of("WAN 320×320, 17 frames").1, Verdict::Met);
        assert_eq!(
            (of("WAN 320×320, 2 s of video").0, of("WAN 320×320, 2 s of video").1),
            (Some("12.00 s"), Verdict::NotMet)
        );
        assert_eq!((of("WAN 320×320, memory").0, of("WAN 320×320, memory").1), (Some("6.00 GB"), Verdict::Met));
        assert_eq!(
            evaluate(&clips[..3], None, false).iter().filter(|row| row.measured.as_deref() == Some("6.00 GB")).count(),
            0
        );
        let quick = verdicts(&cases, true);
        assert_eq!(quick[2].2, Verdict::NotComparable);
        assert!(
            evaluate(&[], None, false).iter().all(|row| row.verdict == Verdict::NotComparable && !row.why.is_empty())
        );
    }

    #[test]
    fn every_claim_names_a_case_that_there_is() {
        for claim in &CLAIMS {
            let ids = match claim.source {
                Source::Baseline(id)
                | Source::Median(id)
                | Source::Time(id)
                | Source::Peak(id)
                | Source::Seconds(id) => {
                    vec![id]
                }
                Source::HighestPeak(ids) => ids.to_vec(),
                _ => Vec::new(),
            };
            for id in ids {
                assert!(cases::CASES.iter().any(|case| case.id == id), "{id}");
            }
        }
        assert!(
            cases::CASES
                .iter()
                .enumerate()
                .all(|(index, case)| cases::CASES[..index].iter().all(|one| one.id != case.id))
        );
    }
}

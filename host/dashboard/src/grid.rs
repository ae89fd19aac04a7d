//! A job's parts as a picture that fills in: tiles and bands at their places, chunks as a strip.
//! Finished parts are filled and those under way are framed and dotted, so that colour is not
//! needed to tell them apart.

use maud::{Markup, html};
use tilewright_plan::AnyPlan;
use tilewright_service_api::{GridUnit, JobState};

use crate::phrases;
use crate::views::JobView;

/// The longer side of the picture, in the drawing's units.
const SIDE: f64 = 320.0;

/// The most cells along one side; finer grids are drawn coarser.
const FINEST: u32 = 40;

/// Chunks beside each other.
const STRIP: u32 = 24;

/// The parts of a job, and those of them that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    rows: u32,
    columns: u32,
    /// The number of times that the area is gone through: chunks of a clip, or samples of a batch.
    steps: u32,
    /// The kind of part that `done` and `total` count.
    pub(crate) unit: GridUnit,
    pub(crate) done: u32,
    pub(crate) total: u32,
    /// Parts that run together.
    together: u32,
}

impl Grid {
    fn of(JobView { job, plan, grid, .. }: &JobView) -> Option<Self> {
        let grid = (*grid)?;
        let share = if job.state == JobState::Done { 1.0 } else { job.progress.unwrap_or(0.0) };
        Some(Self {
            rows: grid.rows,
            columns: grid.columns,
            steps: if matches!(grid.unit, GridUnit::Chunk | GridUnit::Step) { grid.total } else { job.batch.max(1) },
            unit: grid.unit,
            done: grid.done(share),
            total: grid.total,
            together: match plan {
                Some(AnyPlan::Vae(plan)) => plan.batch.max(1),
                _ => 1,
            },
        })
    }
}

/// The state of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Done,
    Now,
    Todo,
}

impl Cell {
    const fn class(self) -> &'static str {
        match self {
            Cell::Done => "done",
            Cell::Now => "now",
            Cell::Todo => "todo",
        }
    }
}

/// Cells in rows, of which some are done and some under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cells {
    rows: u32,
    columns: u32,
    count: u32,
    done: u32,
    now: u32,
}

impl Cells {
    fn at(self, place: u32) -> Cell {
        match place {
            place if place < self.done => Cell::Done,
            place if place < self.done.saturating_add(self.now) => Cell::Now,
            _ => Cell::Todo,
        }
    }

    /// The same share with no more cells than can be distinguished.
    fn coarse(self) -> Self {
        let (rows, columns) = (self.rows.clamp(1, FINEST), self.columns.clamp(1, FINEST));
        if (rows, columns) == (self.rows, self.columns) {
            return self;
        }
        let count = rows * columns;
        let done = rescale(self.done.into(), self.count.into(), count.into()) as u32;
        Self { rows, columns, count, done, now: self.now.min(count - done) }
    }
}

/// `part` of `whole`, rounded down, of another whole.
fn rescale(part: u64, whole: u64, other: u64) -> u64 {
    if whole == 0 { 0 } else { (u128::from(part.min(whole)) * u128::from(other) / u128::from(whole)) as u64 }
}

/// The cells of the area, and of the strip if the work goes through the area more than once.
fn layout(grid: &Grid, is_running: bool) -> (Option<Cells>, Option<Cells>) {
    let (rows, columns, steps) = (grid.rows.max(1), grid.columns.max(1), grid.steps.max(1));
    let (area, total) = (u64::from(rows) * u64::from(columns), u64::from(grid.total));
    let strip = |count: u32, done: u32| {
        let now = u32::from(is_running && done < count);
        let coarse = count.min(FINEST * STRIP);
        let done = if coarse == count { done } else { rescale(done.into(), count.into(), coarse.into()) as u32 };
        Cells { rows: coarse.div_ceil(STRIP), columns: coarse.min(STRIP), count: coarse, done, now }
    };
    match grid.unit {
        GridUnit::Tile | GridUnit::Band => {
            let pieces = area.saturating_mul(steps.into());
            let done = rescale(grid.done.into(), total, pieces);
            let step = done / area;
            // At the very end the last step stays visible, whole.
            let within = if done == pieces { area } else { done % area } as u32;
            let now = if is_running { u64::from(grid.together.max(1)).min(area - u64::from(within)) as u32 } else { 0 };
            let cells = Cells { rows, columns, count: area.min(u32::MAX.into()) as u32, done: within, now };
            (Some(cells.coarse()), (steps > 1).then(|| strip(steps, step as u32)))
        }
        GridUnit::Chunk | GridUnit::Pass | GridUnit::Step => {
            let count = grid.total.max(1);
            let pieces = strip(count, grid.done.min(count));
            if count == 1 { (Some(pieces), None) } else { (None, Some(pieces)) }
        }
    }
}

/// The picture of a job's parts, with a caption.
pub(crate) fn grid(view: &JobView) -> Markup {
    match Grid::of(view) {
        Some(grid) => figure(view, &grid),
        None => html! { p.pieces.quiet { "Its pieces show here once it has a plan." } },
    }
}

fn figure(JobView { job, .. }: &JobView, grid: &Grid) -> Markup {
    let (area, strip) = layout(grid, job.state == JobState::Running);
    let words = phrases::pieces(grid);
    let (width, height) = (f64::from(job.width.max(1)), f64::from(job.height.max(1)));
    html! {
        figure.pieces {
            @if let Some(cells) = area { (draw(cells, width, height, "area", &format!("{words} done"))) }
            @if let Some(cells) = strip {
                // A chunk is drawn as high as a frame of the clip would be, within reason.
                @let wide = f64::from(cells.columns);
                @let high = f64::from(cells.rows) * (height / width).clamp(0.4, 1.2);
                (draw(cells, wide, high, "strip", &format!("{} of {} steps done", cells.done, cells.count)))
            }
            figcaption { (words) }
        }
    }
}

/// Cells that fill a rectangle with these proportions.
fn draw(cells: Cells, width: f64, height: f64, class: &str, words: &str) -> Markup {
    // Very long pictures keep a visible side.
    let ratio = (height / width).clamp(0.05, 4.0);
    let (width, height) = if ratio <= 1.0 { (SIDE, SIDE * ratio) } else { (SIDE / ratio, SIDE) };
    let (across, down) = (width / f64::from(cells.columns), height / f64::from(cells.rows));
    let gap = (across.min(down) * 0.12).min(3.0);
    let places = (0..cells.count).map(|place| {
        let (row, column) = (place / cells.columns, place % cells.columns);
        (cells.at(place), f64::from(column) * across + gap / 2.0, f64::from(row) * down + gap / 2.0)
    });
    let (wide, high) = (across - gap, down - gap);
    let round = (wide.min(high) * 0.12).min(3.0);
    html! {
        svg class={ "tiles " (class) } viewBox=(format!("0 0 {width:.1} {height:.1}")) role="img" aria-label=(words) {
            @for (cell, x, y) in places {
                rect class=(cell.class()) x=(short(x)) y=(short(y)) width=(short(wide)) height=(short(high)) rx=(short(round)) {}
                @if cell == Cell::Now {
                    circle class="dot" cx=(short(x + wide / 2.0)) cy=(short(y + high / 2.0)) r=(short((wide.min(high) * 0.14).min(5.0))) {}
                }
            }
        }
    }
}

fn short(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn pieces(rows: u32, columns: u32, steps: u32, unit: GridUnit, done: u32, total: u32) -> Grid {
        Grid { rows, columns, steps, unit, done, total, together: 1 }
    }

    fn counts(grid: Grid, state: JobState) -> [usize; 3] {
        let mut view = fixture::job("a");
        view.job.state = state;
        let html = figure(&view, &grid).into_string();
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        ["done", "now", "todo"].map(|class| html.matches(&format!("<rect class=\"{class}\"")).count())
    }

    #[test]
    fn tiles_fill_in_one_after_the_other() {
        for done in 0..=12 {
            let todo = 12 - done;
            let expected = [done as usize, usize::from(todo > 0), (todo as usize).saturating_sub(1)];
            assert_eq!(counts(pieces(3, 4, 1, GridUnit::Tile, done, 12), JobState::Running), expected, "{done}");
        }
        assert_eq!(counts(pieces(3, 4, 1, GridUnit::Tile, 5, 12), JobState::Failed), [5, 0, 7]);
        assert_eq!(counts(pieces(5, 1, 1, GridUnit::Band, 2, 5), JobState::Running), [2, 1, 2]);
        let together = Grid { together: 4, ..pieces(3, 4, 1, GridUnit::Tile, 10, 12) };
        assert_eq!(counts(together, JobState::Running), [10, 2, 0]);
    }

    #[test]
    fn clips_have_a_strip() {
        assert_eq!(counts(pieces(1, 1, 7, GridUnit::Chunk, 3, 7), JobState::Running), [3, 1, 3]);
        // Four tiles in each of three chunks, the second chunk half done.
        let (area, strip) = layout(&pieces(2, 2, 3, GridUnit::Tile, 6, 12), true);
        assert_eq!(area, Some(Cells { rows: 2, columns: 2, count: 4, done: 2, now: 1 }));
        assert_eq!(strip, Some(Cells { rows: 1, columns: 3, count: 3, done: 1, now: 1 }));
        let (area, strip) = layout(&pieces(2, 2, 3, GridUnit::Tile, 12, 12), true);
        assert_eq!((area.unwrap().done, area.unwrap().now, strip.unwrap().done), (4, 0, 3));
        assert_eq!(counts(pieces(1, 1, 1, GridUnit::Pass, 0, 1), JobState::Running), [0, 1, 0]);
    }

    #[test]
    fn counts_that_do_not_agree_are_drawn_in_proportion() {
        assert_eq!(counts(pieces(2, 2, 1, GridUnit::Tile, 50, 100), JobState::Failed), [2, 0, 2]);
        assert_eq!(counts(pieces(2, 2, 1, GridUnit::Tile, 9, 4), JobState::Failed), [4, 0, 0]);
        assert_eq!(counts(pieces(0, 0, 0, GridUnit::Tile, 0, 0), JobState::Failed), [0, 0, 1]);
        let [done, now, todo] =
            counts(pieces(u32::MAX, u32::MAX, u32::MAX, GridUnit::Tile, 1 << 31, u32::MAX), JobState::Running);
        assert_eq!(done + now + todo, (FINEST * (FINEST + STRIP)) as usize);
        let [done, now, todo] = counts(pieces(1, 1, 1, GridUnit::Chunk, 5000, 10_000), JobState::Running);
        assert_eq!([done, now, todo], [480, 1, 479]);
    }
}
